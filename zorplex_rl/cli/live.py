"""Show a training run as it goes: a view that redraws itself in a terminal, else one line a row.

    step 12/100 ━━━━━━╸━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 0:00:14 0:01:43
    reward 0.53  accuracy 41%  lag 0.4  231 episodes/s
    held out, at step 10: greedy 62%  sampled 55%  4 s
    busy: generator_0 72%  trainer 41%
    sampling groups, 3 of 8: 5 s

Both take the rows of ``metrics.jsonl``, and what the run waits for. The first time has passed, the second
remains.
"""

import math
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

FORMATS = {
    "reward": "reward {:.2f}",
    "accuracy": "accuracy {:.0%}",
    "lag_mean": "lag {:.1f}",
    "episodes_per_second": "{:.0f} episodes/s",
    "greedy_accuracy": "greedy {:.0%}",
    "sampled_accuracy": "sampled {:.0%}",
    "evaluation_seconds": "{:.0f} s",
}


class LiveView:
    """Show the rows given to ``update``. Use it as a context manager."""

    def __init__(self, total_steps: int, console: Console | None = None) -> None:
        self.total_steps = total_steps
        self._console = console or Console(highlight=False)
        self._progress = Progress(
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(None),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            expand=True,
            speed_estimate_period=math.inf,
        )
        self._task = self._progress.add_task("", total=total_steps)
        self._rows: dict[str, dict[str, Any]] = {}
        self._live = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(
                get_renderable=self.render,
                console=self._console,
                # So that the clock shows life between steps that take minutes.
                refresh_per_second=2,
                redirect_stdout=False,
            )

    def __enter__(self) -> Self:
        if self._live:
            self._live.start(refresh=True)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self._live.stop()

    def update(self, row: dict[str, Any]) -> None:
        """Show a ``step``, ``eval`` or ``wait``; ignore rows of other events."""
        match row["event"]:
            case "wait":
                line = row["text"]
            case "step" | "eval":
                line = row_line(row, self.total_steps)
                self._rows.pop("wait", None)
            case _:
                return
        self._rows[row["event"]] = row
        if row["event"] == "step":
            self._progress.update(self._task, completed=row["step"])
        if not self._live:
            self.log(line)

    def log(self, text: str) -> None:
        """Print ``text`` above the view."""
        self._console.print(Text(text), soft_wrap=True)

    def render(self) -> RenderableType:
        """Return the current view."""
        lines = []
        step = self._rows.get("step", {})
        if step:
            lines.append(fields_of(step))
        if "eval" in self._rows:
            evaluation = self._rows["eval"]
            lines.append(f"held out, at step {evaluation['step']}: {fields_of(evaluation)}")
        if step.get("busy"):
            shares = [f"{actor} {share:.0%}" for actor, share in step["busy"].items()]
            lines.append(f"busy: {'  '.join(shares)}")
        if "wait" in self._rows:
            lines.append(self._rows["wait"]["text"])
        return Group(self._progress, Text("\n".join(lines)))


def fields_of(row: dict[str, Any]) -> str:
    """Return the numbers of ``row`` that are shown."""
    return "  ".join(form.format(row[name]) for name, form in FORMATS.items() if name in row)


def row_line(row: dict[str, Any], total_steps: int) -> str:
    """Return a row as one line; the step numbers of successive lines are aligned.

    >>> row_line({"event": "step", "step": 12, "reward": 0.53, "accuracy": 0.41, "lag_mean": 0.0}, total_steps=100)
    'step  12/100  reward 0.53  accuracy 41%  lag 0.0'
    """
    width = len(str(total_steps))
    return f"{row['event']} {row['step']:>{width}}/{total_steps}  {fields_of(row)}"
