"""What a reader does with the simulators on a page, and what the page has to show then: what Python
computes."""

from __future__ import annotations

import base64
import gzip
import json
import random
from typing import Any

from playwright.sync_api import Locator, expect

from zorplex_rl.course.sync_and_async import compare
from zorplex_rl.course.widgets.timeline_simulator import GRID
from zorplex_rl.course.widgets.weight_ring_race import AXES, race
from zorplex_rl.simulation.setting import Setting


def move(widget: Locator, label: str, values: list, value) -> None:
    """Put a slider to one of its values, as with a keyboard."""
    control = widget.get_by_role("slider", name=label, exact=True)
    control.focus()
    control.press("Home")
    for _ in range(values.index(value)):
        control.press("ArrowRight")


LABELS = {
    "generation_seconds": "Sample a group",
    "variation": "Its variation",
    "training_seconds": "Training step",
    "sync_seconds": "Weight sync",
    "generators": "Generators",
    "max_lag": "Max lag",
}


def expect_figures(widget: Locator, setting: Setting) -> None:
    """The page shows what Python computes for ``setting``: figures, bounds, staleness, and as many
    bars as there were spans."""
    both = compare(setting)
    figures = widget.locator("dd[data-value]")
    for index, number in enumerate((both.sync.seconds, both.asynchronous.seconds, both.speed_up)):
        expect(figures.nth(index)).to_have_attribute(
            "data-value", f"{number:.3f}".rstrip("0").rstrip(".")
        )
    spans = both.sync.timeline.spans + both.asynchronous.timeline.spans
    expect(widget.locator("svg rect:not(.zx-row)")).to_have_count(len(spans))
    groups = setting.steps * setting.groups_per_step
    for lag, count in both.asynchronous.staleness.items():
        expect(widget.locator(".zx-bars > div").nth(lag)).to_have_text(
            f"lag {lag}{count} of {groups}"
        )


def sliders_to(widget: Locator, params: dict) -> None:
    """Put the sliders there, each at once: nobody looks at the positions between."""
    for name, value in params.items():
        control = widget.get_by_role("slider", name=LABELS[name], exact=True)
        control.fill(str(GRID[name].index(value)))


def random_positions(count: int, axes=GRID) -> list[dict]:
    rng = random.Random(0)
    return [{name: rng.choice(values) for name, values in axes.items()} for _ in range(count)]


def look_up(table: dict[str, Any], params: dict[str, Any]) -> Any:
    """Return the answer in ``table`` at the position of ``params``."""
    index = 0
    for name, values in table["axes"]:
        index = index * len(values) + values.index(params[name])
    return table["results"][index]


def unpack(packed: str) -> Any:
    """Return what was packed."""
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def expect_race(widget: Locator, slots: int, pace: int, pause: int, seqlock: bool) -> None:
    """Put the controls of a weight ring there, and see that the page counts and draws what Python
    computes."""
    choice = "checks the header again (seqlock)" if seqlock else "uses what arrives"
    widget.get_by_role("radio", name=choice).check(force=True)
    for label, name, value in (
        ("Slots", "slots", slots),
        ("Reader, per chunk", "ticks_per_chunk", pace),
        ("Writer's pause", "pause", pause),
    ):
        move(widget, label, AXES[name], value)
    found = race(slots, pace, pause, seqlock)
    figures = [str(found[name]) for name in ("published", "whole", "torn_found", "torn_used")]
    expect(widget.locator("dd[data-value]")).to_have_text(figures)
    widget.get_by_role("slider", name="Tick").press("End")
    copy = " ".join("empty" if version < 0 else str(version) for version in found["frames"][-1][4])
    expect(widget.get_by_role("img", name=f"The reader's copy: {copy}.")).to_be_visible()
