"""Follow a run that somebody trains in a terminal: the page draws its curve while it grows.

    metrics = lesson.follow("runs/mine")                  `zorplex-rl train --out runs/mine` writes there
    curve = LiveCurve(total_steps=40)
    curve                                                 in one cell

    lesson.show_run(metrics, curve)                       in another one, which runs again whenever the run has written

``metrics`` must be a variable of the page: by its name marimo knows which cells to run. The folder need not be there yet.
"""

from os import PathLike
from pathlib import Path
from typing import Any

import marimo as mo

from zorplex_rl.course.lesson.markup import block, quote
from zorplex_rl.course.lesson.waiting import unattended


def follow(folder: str | PathLike[str]) -> Any:
    """Return the run's ``metrics.jsonl`` as something that marimo watches, about once a second."""
    file = Path(folder) / "metrics.jsonl"
    return file if unattended() else mo.watch.file(file)


def show_run(metrics: PathLike[str], curve: Any) -> mo.Html:
    """Draw the rows so far on ``curve``, a LiveCurve. Returns where the run is, in a line."""
    from zorplex_rl.run.folder import read_rows

    file = Path(metrics)
    rows = read_rows(file)
    curve.show_rows(rows)
    steps = [row["step"] for row in rows if row["event"] == "step"]
    where = f"Step {steps[-1]} of" if steps else "No step yet in"
    return mo.Html(block(f"{where} the run in {quote(file.parent)}."))
