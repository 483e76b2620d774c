"""Widgets in a real browser: what a slider shows is what Python computes, with and without a
kernel, for every eye and every hand."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from axe_playwright_python.sync_playwright import Axe
from pages import bare_page, guarded_page, served, state_of
from playwright.sync_api import Page, expect
from simulators import (
    expect_figures,
    expect_race,
    look_up,
    move,
    random_positions,
    sliders_to,
    unpack,
)

from zorplex_rl.course.figures.figure import drawing
from zorplex_rl.course.site.build import build_site
from zorplex_rl.course.sync_and_async import compare
from zorplex_rl.course.widgets import (
    LiveCurve,
    LoopPlayer,
    ReshardMap,
    ServicePlayer,
    TimelineSimulator,
    WeightRingRace,
    WhatIf,
)
from zorplex_rl.course.widgets.loop_player import film
from zorplex_rl.course.widgets.service_player import Life, Recording, stretches
from zorplex_rl.course.widgets.timeline_simulator import COUNTS, GRID
from zorplex_rl.course.widgets.what_if import Answer, Bar, Knob, Panel
from zorplex_rl.course.widgets.widget import pack
from zorplex_rl.run.timeline import Span, Timeline
from zorplex_rl.simulation.setting import Setting

pytestmark = pytest.mark.slow

SETTING = Setting(
    generators=1,
    steps=120,
    generation_seconds=0.034,
    variation=0.3,
    training_seconds=0.22,
    sync_seconds=0.014,
)
NOTEBOOK = """
import marimo

app = marimo.App(app_title="Simulators")

with app.setup:
    import marimo as mo
    from zorplex_rl.course.lesson import lesson
    from zorplex_rl.course.widgets import TimelineSimulator, WeightRingRace


@app.cell
def _():
    lesson.header(__file__, minutes=1, hardware="none", goals=["move a slider"])
    return


@app.cell
def _():
    lesson.ran_on()
    return


@app.cell
def _():
    TimelineSimulator()
    return


@app.cell
def _():
    WeightRingRace()
    return
"""


SHARDS = {
    ("rows", "columns"): [[1_000_000, 250_000], [250_000, 1_000_000]],
    ("rows", "whole"): [[2_000_000, 2_000_000], [500, 0]],
}


def live_curve() -> LiveCurve:
    curve = LiveCurve(total_steps=20)
    for step in range(8):
        curve.add_row({"event": "step", "step": step, "accuracy": 0.3 + 0.05 * step})
    curve.add_row({"event": "eval", "step": 7, "greedy_accuracy": 0.75, "sampled_accuracy": 0.625})
    return curve


def loop_player(**options) -> LoopPlayer:
    both = compare(replace(SETTING, steps=4, generators=2, max_lag=2))
    return LoopPlayer(
        {"In turns": both.sync.timeline, "Side by side": both.asynchronous.timeline}, **options
    )


def paid(form: float, extra_call: float) -> Answer:
    """What two outcomes earn, as a stand-in for what a notebook computes."""
    wrong = form - 2 * extra_call
    bars = [
        Bar("success", 1 + form, f"{1 + form:+.2f}", "green"),
        Bar("wrong_answer", wrong, f"{wrong:+.2f}", "vermilion"),
    ]
    return Answer(
        [Panel("Reward of each outcome", bars, most=3.0, least=-2.0)],
        f"A wrong answer earns {wrong:.2f}.",
    )


KNOBS = (
    Knob("form", "The form", [0.0, 0.2, 1.0]),
    Knob("extra_call", "An extra call", [0.0, 0.5], "−{:g}"),
)


def what_if(**options) -> WhatIf:
    return WhatIf("Reward weights", KNOBS, paid, {"form": 0.2, "extra_call": 0.0}, **options)


def square(side: int) -> Answer:
    shape = f'<rect width="{side}" height="{side}"/>'
    return Answer(
        figure=drawing(shape, 60, "Square", f"side {side}", 200),
        numbers=[("Area", str(side**2), "px²")],
    )


def what_figure() -> WhatIf:
    return WhatIf("A square", [Knob("side", "Side", [1, 2, 40])], square, {"side": 2})


def killed() -> Recording:
    """A pool of two at 9 to 13 s: at 10 s the process of place 0 is killed, which is noticed at 11
    s; its successor is there at 12 s."""
    lives = [
        Life(0, "tools_0", 5.0, 6.0, 11.0, 7),
        Life(1, "tools_1", 5.0, 6.0, None, 8),
        Life(0, "tools_2", 11.5, 12.0, None, 9),
    ]
    legs = [
        ["execute", 9.2, 0, 9.6, False],
        ["charge", 9.8, 0, 11.0, True],
        ["execute", 9.9, 1, 10.3, False],
        ["execute", 10.2, 1, 10.6, False],
        ["charge", 11.1, 1, 11.5, False],
        ["execute", 12.8, 0, None, False],
        ["execute", 2.0, 0, 3.0, False],
    ]
    return Recording("kill -9", 7, 10.0, (9.0, 13.0), lives, legs)


def service_player(**options) -> ServicePlayer:
    return ServicePlayer([killed()], **options)


def eight_generators() -> TimelineSimulator:
    simulator = TimelineSimulator()
    simulator.params = simulator.params | {"generators": 8}
    return simulator


MAKERS = {
    "what if": what_if,
    "a figure of knobs": what_figure,
    "timeline simulator": TimelineSimulator,
    "eight generators": eight_generators,
    "weight ring": WeightRingRace,
    "resharding map": lambda: ReshardMap(SHARDS, axes=("trainer holds", "generators want")),
    "dense resharding map": lambda: ReshardMap(
        {("all",): [[10**7 + row + column for column in range(8)] for row in range(8)]}
    ),
    "live curve": live_curve,
    "empty live curve": lambda: LiveCurve(10),
    "loop player": loop_player,
    "service player": service_player,
}


expect.set_options(timeout=60_000)


@pytest.fixture(scope="module")
def window(chromium):
    """The page of all tests that need no other window: a window of its own for each test would cost
    half of its time."""
    with guarded_page(chromium) as page:
        yield page


@pytest.fixture
def page(window):
    """An empty page."""
    window.goto("about:blank")
    window.set_viewport_size({"width": 1280, "height": 900})
    yield window
    assert window.wrong == []


@pytest.fixture(scope="module")
def site(once):
    """A site of one page with both simulators."""

    def build(folder):
        (folder / "notebooks").mkdir(parents=True)
        (folder / "notebooks" / "01_simulators.py").write_text(NOTEBOOK)
        build_site(folder / "notebooks", folder / "site")

    return once("simulators", build) / "site"


@pytest.fixture(scope="module")
def exported(chromium, site):
    """Its page in a browser: no kernel, no network."""
    with (
        served(site) as address,
        guarded_page(chromium, viewport={"width": 1280, "height": 900}) as page,
    ):
        page.goto(f"{address}01_simulators.html")
        yield page


def open_bare(page: Page, *widgets, **options) -> None:
    """Show ``widgets`` on a bare page in which this process answers as their kernel."""

    def kernel(index: int, changed: dict) -> dict:
        for name, value in changed.items():
            setattr(widgets[index], name, value)
        return {name: value for name, value in state_of(widgets[index]).items() if name == "result"}

    if not hasattr(page, "kernel"):
        page.expose_function("kernel", lambda index, changed: page.kernel(index, changed))
    page.kernel = kernel
    page.evaluate("window.ready = false")  # else that of the content before
    page.set_content(bare_page(*widgets, **options))
    page.wait_for_function("window.ready")


def test_the_tables_of_a_page_hold_what_python_answers_and_stay_small(site):
    embedded = re.search(
        r'id="models">(.*?)</script>', (site / "01_simulators.html").read_text(), re.DOTALL
    )
    tables = [model["state"]["table"] for model in json.loads(embedded[1]).values()]
    timelines, ring = sorted(tables, key=len, reverse=True)
    assert len(timelines) < 2_000_000
    simulator, table = TimelineSimulator(), unpack(timelines)
    for params in random_positions(60):
        expected = simulator.answer(params | {"fixed": None})
        assert {
            mode: look_up(table["grid"][mode], params) for mode in ("sync", "async")
        } == expected
    for params in random_positions(20, COUNTS):
        expected = simulator.answer(params | {"fixed": "one straggler"})
        assert {
            mode: look_up(table["one straggler"][mode], params) for mode in ("sync", "async")
        } == expected
    assert len(ring) < 200_000
    start = WeightRingRace()
    assert look_up(unpack(ring), start.params)["whole"] == start.result["whole"]


def test_in_an_exported_page_every_slider_shows_what_python_computes(exported):
    widget = exported.get_by_role("region", name="Timeline simulator")
    python = TimelineSimulator()
    drawings = set()
    for params in random_positions(8):
        sliders_to(widget, params)
        expect_figures(widget, python.setting_of(params | {"fixed": None}))
        drawings.add(widget.locator("svg").first.inner_html())
    assert len(drawings) == 8


@pytest.mark.parametrize(
    "scenario",
    ["balanced", "no variance", "trainer-bound", "slow network", "one straggler"],
)
def test_in_an_exported_page_every_scenario_shows_what_python_computes(exported, scenario):
    widget = exported.get_by_role("region", name="Timeline simulator")
    widget.get_by_role("radio", name=scenario).check(force=True)
    python = TimelineSimulator()
    setting = python.setting_of(dict(python.controls["scenarios"])[scenario])
    expect_figures(widget, setting)
    fixed = scenario == "one straggler"
    # What a scenario fixes has no slider: a thumb could only stand at another value.
    assert widget.get_by_role("slider", name="Training step", exact=True).is_visible() != fixed
    assert widget.get_by_text("fixed by the scenario").count() == (4 if fixed else 0)
    assert widget.get_by_text("the first four numbers are fixed").is_visible() == fixed
    move(widget, "Max lag", COUNTS["max_lag"], 4)
    move(widget, "Generators", COUNTS["generators"], 8)
    expect_figures(widget, replace(setting, max_lag=4, generators=8))
    assert widget.get_by_role("radio", name=scenario).is_checked() == fixed


def test_in_an_exported_page_the_ring_shows_what_python_computes(exported):
    widget = exported.get_by_role("region", name="Weight ring")
    for seqlock in (True, False):
        for slots, pace in ((2, 3), (4, 2), (3, 4)):
            expect_race(widget, slots, pace, 0, seqlock)


@pytest.mark.parametrize("kind", ["weight ring", "loop player", "service player"])
def test_what_plays_rests_while_nobody_sees_it_and_then_goes_on(page, kind):
    open_bare(page, MAKERS[kind]())
    page.evaluate("document.body.style.paddingTop = '5000px'")
    play = page.locator("button.zx-button")
    page.get_by_role("slider", name="Tick" if kind == "weight ring" else "Time").press("Home")
    play.click()
    expect(play).to_have_text("Pause")
    page.evaluate("scrollTo(0, 0)")
    expect(play).to_have_text("Play")
    play.scroll_into_view_if_needed()
    expect(play).to_have_text("Pause")
    play.click()
    page.evaluate("scrollTo(0, 0)")
    play.scroll_into_view_if_needed()
    expect(play).to_have_text("Play")


def test_play_moves_the_ring_on_and_stops_when_asked(page):
    open_bare(page, WeightRingRace())
    tick = page.get_by_role("slider", name="Tick")
    tick.press("Home")
    page.get_by_role("button", name="Play").click()
    page.wait_for_function(
        "document.querySelector('main div').shadowRoot.querySelectorAll('input[type=range]')[3].value > 2"
    )
    page.get_by_role("button", name="Pause").click()
    stopped = tick.input_value()
    page.wait_for_timeout(400)
    assert tick.input_value() == stopped


def test_with_a_kernel_python_answers(page):
    simulator = TimelineSimulator()
    open_bare(page, simulator)
    widget = page.get_by_role("region", name="Timeline simulator")
    for params in random_positions(3):
        sliders_to(widget, params)
        expect_figures(widget, simulator.setting_of(params | {"fixed": None}))
        assert {name: simulator.params[name] for name in GRID} == params


@pytest.mark.parametrize("static", [False, True])
def test_a_knob_moves_the_bars_to_what_python_computes(page, static):
    widget = what_if()
    if static:
        widget.table = pack(widget.make_table())
    open_bare(page, widget, static=static)
    widget = page.get_by_role("region", name="Reward weights")
    for form, extra_call in ((1.0, 0.5), (0.0, 0.5), (0.0, 0.0)):
        move(widget, "The form", list(KNOBS[0].values), form)
        move(widget, "An extra call", list(KNOBS[1].values), extra_call)
        expected = paid(form, extra_call)
        expect(widget.get_by_text(expected.said).first).to_be_visible()
        bars = widget.locator("svg rect")
        for index, bar in enumerate(expected.panels[0].bars):
            assert float(bars.nth(index).get_attribute("data-value")) == pytest.approx(bar.value)
    assert widget.get_by_role(
        "img", name="Reward of each outcome: success +1.00, wrong_answer +0.00."
    ).is_visible()


def test_a_change_is_said_to_who_cannot_see_it(page):
    simulator = TimelineSimulator()
    open_bare(page, simulator)
    move(
        page.get_by_role("region", name="Timeline simulator"), "Generators", COUNTS["generators"], 1
    )
    both = compare(replace(simulator.setting_of(simulator.params), generators=1))
    expect(page.get_by_role("status")).to_contain_text(f"speed-up {both.speed_up:.2f}")
    expect(page.get_by_role("img", name="Two timelines on one axis. Synchronous:")).to_be_visible()


@pytest.mark.parametrize("name", MAKERS)
def test_nothing_overlaps_or_sticks_out_and_axe_finds_nothing(page, name):
    """Wide and light, narrow and dark: for axe, which takes seconds, the widgets take turns."""
    for width, dark in ((1280, False), (390, True)):
        page.set_viewport_size({"width": width, "height": 900})
        open_bare(page, MAKERS[name](), dark=dark)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert overlapping(page) == []
        if dark == list(MAKERS).index(name) % 2:
            # Rules about whole pages, which a widget cannot keep alone.
            found = Axe().run(page, options={"rules": {"page-has-heading-one": {"enabled": False}}})
            assert found.violations_count == 0, found.generate_report()


def overlapping(page: Page) -> list[str]:
    """Texts of the widget that overlap or stick out of it."""
    return page.evaluate(
        """() => {
          const root = document.querySelector("main div").shadowRoot, texts = [];
          const unseen = (element) => element && (getComputedStyle(element).clipPath === "inset(50%)" || unseen(element.parentElement));
          for (const element of root.querySelectorAll("section *")) {
            const own = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
            if (!own.length || unseen(element)) continue;
            const range = document.createRange();
            range.setStartBefore(own[0]);
            range.setEndAfter(own.at(-1));
            texts.push([element, range.getBoundingClientRect()]);
          }
          const found = [];
          for (const [i, [one, a]] of texts.entries()) for (const [other, b] of texts.slice(i + 1)) {
            if (one.contains(other) || other.contains(one)) continue;
            const across = Math.min(a.right, b.right) - Math.max(a.left, b.left), down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
            if (across > 1 && down > 3) found.push(`${one.textContent} / ${other.textContent}`);
          }
          const section = root.querySelector("section").getBoundingClientRect();
          for (const [element, { left, right }] of texts) {
            if (left < section.left - 1 || right > section.right + 1) found.push(`${element.textContent} sticks out`);
          }
          return found;
        }"""
    )


def test_a_resharding_map_shows_the_bytes_of_the_chosen_option(page):
    open_bare(page, ReshardMap(SHARDS, axes=("trainer holds", "generators want")))
    expect(page.locator("dd[data-value]").first).to_have_text("2.5 MB")
    page.get_by_role("radio", name="whole").check(force=True)
    expect(page.locator("dd[data-value]").first).to_have_text("4 MB")
    expect(page.get_by_role("cell")).to_have_text(["2 MB", "2 MB", "500 B", "0"])


def test_a_live_curve_grows_with_every_row_and_leaves_out_what_is_no_number(page):
    curve = live_curve()
    open_bare(page, curve)
    line = page.locator("polyline").first
    expect(page.get_by_text("step 7 of 20")).to_be_visible()
    before = line.get_attribute("points")
    assert page.locator("circle").count() == 8 + 2, "every point of a short line is marked"
    curve.add_row({"event": "step", "step": 8, "accuracy": 0.9})
    curve.add_row({"event": "step", "step": 9, "accuracy": float("nan")})
    page.evaluate("state => window.models[0].receive(state)", {"series": curve.series})
    expect(page.get_by_text("step 8 of 20")).to_be_visible()
    assert line.get_attribute("points").startswith(before)
    expect(page.get_by_role("img", name="90% at step 8")).to_be_visible()
    assert page.locator("circle").count() == 3, "of a long line only the last point is marked"


def test_the_film_of_a_run_has_a_dot_for_every_group_and_no_group_moves_backwards():
    setting = replace(SETTING, steps=5, generators=2, max_lag=2)
    both = compare(setting)
    for run, oldest in ((both.sync, 0), (both.asynchronous, max(both.asynchronous.staleness))):
        found = film(run.timeline)
        assert len(found["dots"]) == setting.steps * setting.groups_per_step
        assert all(
            begun < written <= taken < trained
            for _, _, begun, written, taken, trained, _ in found["dots"]
        )
        assert max(step - version for version, *_, step in found["dots"]) == oldest
        assert found["seconds"] == pytest.approx(run.seconds, abs=1e-3)
        assert found["most"] >= setting.groups_per_step
    assert oldest > 0


def test_a_group_that_nobody_trained_on_stays_and_a_timeline_that_names_no_groups_is_refused():
    spans = [
        Span("generator_0", "generate", 0.0, 1.0, {"group": group, "version": 0})
        for group in (0, 1)
    ]
    train = Span("trainer", "train", 1.0, 2.0, {"step": 0, "groups": [0]})
    dots = film(Timeline([*spans, train]))["dots"]
    assert dots == [[0, 0, 0.0, 1.0, 1.0, 2.0, 0], [0, 0, 0.0, 1.0, None, None, None]]
    with pytest.raises(KeyError, match="groups"):
        film(Timeline([*spans, replace(train, args={"step": 0})]))


def test_the_loop_player_shows_every_group_at_its_place_wherever_the_time_is_put(page):
    player = loop_player()
    open_bare(page, player)
    widget, time = (
        page.get_by_role("region", name="Loop player"),
        page.get_by_role("slider", name="Time"),
    )
    end = max(run["seconds"] for run in player.runs)
    time.press("Home")
    time.press("ArrowRight")
    assert time.input_value() == "1"
    for position in (0, 60, 140):
        time.fill(str(position))
        now = end * position / 240
        for index, run in enumerate(player.runs):
            alive = [dot for dot in run["dots"] if dot[2] <= now < dot[5]]
            picture = widget.get_by_role("img").nth(index)
            expect(picture.locator("circle")).to_have_count(len(alive))
            done = sum(dot[5] <= now for dot in run["dots"])
            expect(
                widget.get_by_text(f"{done} of {len(run['dots'])} groups trained on").nth(0)
            ).to_be_visible()
    time.press("End")
    expect(widget.get_by_text("done after")).to_have_count(2)


def test_a_service_player_shows_every_request_at_its_place_wherever_the_time_is_put(page):
    player = service_player(start=0.0)
    open_bare(page, player)
    widget, time = (
        page.get_by_role("region", name="Service player"),
        page.get_by_role("slider", name="Time"),
    )
    (run,) = player.runs
    time.press("ArrowRight")
    assert time.input_value() == "1"
    for position in (12, 80, 140, 239):
        time.fill(str(position))
        now = -1.0 + 4.0 * position / 240
        seen = [leg for leg in run["legs"] if leg[1] <= now and (leg[3] is None or now < leg[3])]
        expect(widget.get_by_role("img").locator("circle")).to_have_count(len(seen))
        answered = sum(leg[3] is not None and leg[3] <= now and not leg[4] for leg in run["legs"])
        expect(widget.get_by_text(f"{answered} answered").first).to_be_visible()
    expect(
        widget.get_by_text(
            "2 of 2 replicas in rotation; 1 requests not answered yet, 4 answered, 1 cut off"
        ).first
    ).to_be_visible()
    time.press("Home")
    assert time.get_attribute("aria-valuetext") == "1.00 s before the fault"


def test_a_film_of_a_pool_cuts_what_is_outside_its_time_and_gives_each_request_a_lane():
    player = service_player()
    (run,) = player.runs
    assert (player.look["from"], player.look["to"]) == (-1.0, 3.0)
    assert (run["places"], run["methods"], run["slots"]) == (2, ["charge", "execute"], 2)
    assert run["usual"] == pytest.approx(0.4) and len(run["legs"]) == 6
    assert {leg[5] for leg in run["legs"] if leg[2] == 1} == {0, 1}


def test_a_place_is_in_rotation_then_gone_then_replaced_then_in_rotation_again():
    found = [tuple(stretch) for place, *stretch in stretches(killed()) if place == 0]
    assert found == [
        ("in rotation", "tools_0", -1.0, 0.0),
        ("gone, and nobody knows", "tools_0", 0.0, 1.0),
        ("being replaced", "tools_2", 1.0, 2.0),
        ("in rotation", "tools_2", 2.0, 3.0),
    ]
    assert (killed().noticed, killed().whole) == (1.0, 2.0)
    assert [stretch[1:] for stretch in stretches(killed()) if stretch[0] == 1] == [
        ["in rotation", "tools_1", -1.0, 3.0]
    ]


def test_a_slider_shows_the_figure_of_its_position_and_its_table_has_them_all(page):
    figure = what_figure()
    figure.table = pack(figure.make_table())
    table = unpack(figure.table)
    areas = [look_up(table, {"side": side})["numbers"] for side in (1, 2, 40)]
    assert areas == [[["Area", area, "px²"]] for area in ("1", "4", "1600")]
    open_bare(page, figure)
    assert page.locator("dd[data-value='4']").count() == 1
    assert "side 2" in page.locator("svg").get_attribute("aria-label")
