"""Show a recorded study of staleness as a phase diagram: learning rate × lag for each loss.

    diagram = PhaseDiagram(read_study(file), names={"reinforce": "plain", "grpo": "clipped"}, before=0.35)
    diagram                    # one square of cells for each loss; a cell has the mean accuracy of its seeds
    diagram.chosen             # {"loss": "grpo", "lag": 8, "learning_rate": 4e-4}: the cell that the reader has chosen

The page computes nothing. It states the command, the dates and the machine of the recording.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import traitlets

from zorplex_rl.course.recorded_study import Study, StudyCell
from zorplex_rl.course.widgets.widget import Widget


class PhaseDiagram(Widget, script="phase_diagram.js"):
    """Show the cells of ``study`` with at least ``seeds`` trials. Raises ValueError if none.

    ``names`` maps each loss to its label, in the order of the squares. ``before`` is the accuracy
    before training: cells below it are vermilion. ``chosen`` is shown first; the study's first cell
    if it has no such cell.
    """

    data = traitlets.Dict().tag(sync=True)
    chosen = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        study: Study,
        names: Mapping[str, str],
        before: float,
        seeds: int = 1,
        chosen: dict[str, Any] | None = None,
    ) -> None:
        cells = [cell for cell in study.cells(seeds) if cell.loss in names]
        if not cells:
            raise ValueError(
                f"no cell of the study has {seeds} trials; record it with benchmarks/staleness.py"
            )
        shown = [_shown(cell) for cell in cells]
        keys = [{name: cell[name] for name in ("loss", "lag", "learning_rate")} for cell in shown]
        super().__init__(
            data={
                "losses": [
                    [loss, name]
                    for loss, name in names.items()
                    if any(cell.loss == loss for cell in cells)
                ],
                "rates": sorted({cell.learning_rate for cell in cells}, reverse=True),
                "lags": sorted({cell.lag for cell in cells}),
                "cells": shown,
                "before": before,
                "steps": study.conditions["steps"],
                "label": f"Recorded {study.dates} with python {study.command}, on {study.machine}.",
            },
            chosen=chosen if chosen in keys else keys[0],
        )

    @staticmethod
    def drawn(state: Mapping[str, Any]) -> str:
        from zorplex_rl.course.lesson.lesson import md, table

        data = state["data"]
        accuracies = {
            (c["loss"], c["learning_rate"], c["lag"]): c["accuracy"] for c in data["cells"]
        }
        rows = []
        for loss, name in data["losses"]:
            for rate in data["rates"]:
                found = {f"lag {lag}": accuracies.get((loss, rate, lag)) for lag in data["lags"]}
                shares = {
                    lag: "" if share is None else f"{share:.0%}" for lag, share in found.items()
                }
                rows.append({"loss": name, "learning rate": f"{rate:g}"} | shares)
        caption = f"Held-out accuracy after the last step; before training {data['before']:.0%}"
        return table(caption, rows).text + md(data["label"]).text


def _shown(cell: StudyCell) -> dict[str, Any]:
    """Return what the page draws of ``cell``; the series of all its seeds have the same steps."""
    steps = cell.rows[0].eval_steps
    return {
        "loss": cell.loss,
        "lag": cell.lag,
        "learning_rate": cell.learning_rate,
        "accuracy": round(cell.accuracy, 4),
        "accuracies": cell.accuracies,
        "steps": steps,
        "curves": [row.accuracies for row in cell.rows],
        "shares": [
            [row.episode_sample_sizes[step - 1] for step in row.eval_steps] for row in cell.rows
        ],
        "diverged": sum(row.diverged_at is not None for row in cell.rows),
    }
