"""The live curve: accuracy, or any other number, while training goes on.

    curve = LiveCurve(total_steps=config.steps)
    curve                                                    # shown in a cell of its own, above the one that trains
    run_training(config, folder, show=curve.add_row)         # or curve.add("held-out, greedy", step, accuracy)

The last state stays in an exported page.
"""

from __future__ import annotations

import math
from typing import Any

import traitlets

from zorplex_rl.viz.widgets.widget import Widget

SERIES = {
    ("step", "accuracy"): "training episodes",
    ("eval", "greedy_accuracy"): "held-out, greedy",
    ("eval", "sampled_accuracy"): "held-out, sampled",
}


class LiveCurve(Widget, script="live_curve.js"):
    """Lines over training steps. ``percent`` says that values are shares of 1; otherwise the axis fits what comes."""

    series = traitlets.List().tag(sync=True)
    """[name, [[step, value], …]] of every line. Reassigned with every point: that is what the page notices."""
    look = traitlets.Dict().tag(sync=True)

    def __init__(self, total_steps: int, title: str = "Accuracy", percent: bool = True) -> None:
        super().__init__(look={"total_steps": total_steps, "title": title, "percent": percent})

    def add(self, name: str, step: int, value: float) -> None:
        """Add a point to the line ``name``. A value that is no number is left out."""
        if math.isfinite(value):
            lines = dict(self.series)
            self.series = list((lines | {name: [*lines.get(name, []), [step, round(value, 5)]]}).items())

    def add_row(self, row: dict[str, Any]) -> None:
        """Add what a row of ``metrics.jsonl`` says about accuracy."""
        for (event, key), name in SERIES.items():
            if row.get("event") == event and key in row:
                self.add(name, row["step"], row[key])

    def clear(self) -> None:
        """Begin again."""
        self.series = []
