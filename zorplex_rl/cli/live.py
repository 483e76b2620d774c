"""Show a training run as it goes: a view that redraws itself in a terminal, else one line a row.

    step 12/100  ━━━━━━╸━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━  0:00:14, 0:01:43 left
    reward 0.53  accuracy 41%  lag 0.4  231 episodes/s
    held out, at step 10: greedy 62%  sampled 55%
    busy: generator_0 72%  trainer 41%

Both take the rows of ``metrics.jsonl``.
"""

import time
from datetime import timedelta
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

FORMATS = {
    "reward": "reward {:.2f}",
    "accuracy": "accuracy {:.0%}",
    "lag_mean": "lag {:.1f}",
    "episodes_per_second": "{:.0f} episodes/s",
    "greedy_accuracy": "greedy {:.0%}",
    "sampled_accuracy": "sampled {:.0%}",
}


class LiveView:
    """Show the rows given to ``update``. Use it as a context manager."""

    def __init__(self, total_steps: int, console: Console | None = None) -> None:
        self.total_steps = total_steps
        self._console = console or Console(highlight=False)
        self._step: dict[str, Any] = {}
        self._first: dict[str, Any] = {}
        self._evaluation: dict[str, Any] = {}
        self._received = time.monotonic()
        # Twice a second, so that the clock shows life between steps that take minutes.
        redraws = self._console.is_terminal and not self._console.is_dumb_terminal
        live = Live(get_renderable=self.render, console=self._console, refresh_per_second=2, redirect_stdout=False)
        self._live = live if redraws else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start(refresh=True)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self._live.stop()

    def update(self, row: dict[str, Any]) -> None:
        """Show a ``step`` or ``eval`` row; ignore rows of other events."""
        if row["event"] == "step":
            self._step, self._first, self._received = row, self._first or row, time.monotonic()
        elif row["event"] == "eval":
            self._evaluation = row
        else:
            return
        if not self._live:
            self.log(row_line(row, self.total_steps))

    def log(self, text: str) -> None:
        """Print ``text`` above the view."""
        self._console.print(Text(text), soft_wrap=True)

    def render(self) -> RenderableType:
        """Return the current view."""
        step = self._step.get("step", 0)
        progress = Table.grid(padding=(0, 2), expand=True)
        for ratio in (None, 1, None):
            progress.add_column(no_wrap=True, ratio=ratio)
        bar = ProgressBar(total=max(self.total_steps, 1), completed=step)
        progress.add_row(f"step {step}/{self.total_steps}", bar, self._times())
        lines = [fields_of(self._step)]
        if self._evaluation:
            lines.append(f"held out, at step {self._evaluation['step']}: {fields_of(self._evaluation)}")
        if busy := self._step.get("busy"):
            lines.append("busy: " + "  ".join(f"{actor} {share:.0%}" for actor, share in busy.items()))
        return Group(progress, Text("\n".join(lines)))

    def _times(self) -> str:
        """Return the time since training began, and that for the rest at the pace seen here."""
        if not self._step:
            return "starting"
        waited = time.monotonic() - self._received
        seconds, done = self._step["seconds"], self._step["step"]
        steps = done - self._first["step"]
        shown = str(timedelta(seconds=int(seconds + waited)))
        if not steps or done >= self.total_steps:
            return shown
        left = (seconds - self._first["seconds"]) / steps * (self.total_steps - done) - waited
        return f"{shown}, {timedelta(seconds=int(max(left, 0.0)))} left"


def fields_of(row: dict[str, Any]) -> str:
    """Return what is shown of a row's numbers."""
    return "  ".join(form.format(row[name]) for name, form in FORMATS.items() if name in row)


def row_line(row: dict[str, Any], total_steps: int) -> str:
    """Return a row as one line; the step numbers of successive lines are aligned.

    >>> row_line({"event": "step", "step": 12, "reward": 0.53, "accuracy": 0.41, "lag_mean": 0.0}, total_steps=100)
    'step  12/100  reward 0.53  accuracy 41%  lag 0.0'
    """
    return f"{row['event']} {row['step']:>{len(str(total_steps))}}/{total_steps}  {fields_of(row)}"
