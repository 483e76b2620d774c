"""Show a training run as it goes: a view that redraws itself in a terminal, else one line a row.

    step 12/100  ━━━━━━╸━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━  0:00:14, 0:01:43 left
    training   reward 0.53   accuracy 41%   entropy 0.62   loss 0.013
    held-out   greedy 62%   sampled 55%   at step 10
    pipeline   231 episodes/s   lag 0.4 (max 1)
    generator 0  ━━━━━━━━━━━━━━━━━╸━━━━━━  72%
    trainer      ━━━━━━━━━╸━━━━━━━━━━━━━━  41%

Both take the rows of ``metrics.jsonl``. A row may lack any key; the view leaves that out.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from statistics import fmean
from typing import IO, Self

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from zorplex_rl.run_folder import MetricsRow

MAX_ACTORS = 8
"""Most actors with their own bar; the others share a line, for a small terminal."""
LEAST_BAR = 10
"""Least width of a bar, in characters."""


class LiveView:
    """Show the rows given to ``update`` on ``stream`` (default: standard output). Use it as a
    context manager. ``clock`` returns seconds, which pass between rows, too."""

    def __init__(
        self, total_steps: int, stream: IO[str] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total_steps = total_steps
        self._console = Console(file=stream, highlight=False)
        self._clock = clock
        self._step: MetricsRow = {}
        self._first: MetricsRow = {}
        self._eval: MetricsRow = {}
        self._received = 0.0
        redraws = self._console.is_terminal and not self._console.is_dumb_terminal
        # Twice a second, so that the clock shows life between steps that take minutes.
        self._live = Live(get_renderable=self.render, console=self._console, refresh_per_second=2) if redraws else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start(refresh=True)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self._live.stop()

    def update(self, row: MetricsRow) -> None:
        """Show a ``step`` or ``eval`` row; ignore rows of other events."""
        event = row.get("event")
        if event == "step":
            self._step, self._first, self._received = row, self._first or row, self._clock()
        elif event == "eval":
            self._eval = row
        else:
            return
        if self._live:
            self._live.refresh()
        else:
            self.log(row_line(row, self.total_steps))

    def log(self, text: str) -> None:
        """Print ``text`` above the view."""
        self._console.print(Text(text), soft_wrap=True)

    def render(self) -> RenderableType:
        """Return the current view; it adapts to any width."""
        lines = {
            "training": _learning_fields(self._step),
            "held-out": _held_out_fields(self._eval),
            "pipeline": _pipeline_fields(self._step),
        }
        shown = Table.grid(padding=(0, 2))
        shown.add_column(no_wrap=True)
        for name, fields in lines.items():
            if fields:
                # Columns breaks lines only between fields, never within one.
                shown.add_row(Text(name, "cyan"), Columns(fields, padding=(0, 3)))
        return Group(self._progress(), shown, *_busy_bars(self._step.get("busy") or {}))

    def _progress(self) -> RenderableType:
        step = self._step.get("step", 0)
        bar = ProgressBar(total=max(self.total_steps, 1), completed=step, complete_style="cyan", finished_style="green")
        return _Progress(Text(f"step {step}/{self.total_steps}", style="bold"), bar, Text(self._times()))

    def _times(self) -> str:
        """Return the time since training began, and that for the rest at the pace seen here."""
        if "seconds" not in self._step:
            return "starting"
        waited = self._clock() - self._received
        done = self._step.get("step", 0)
        remaining = max(self.total_steps - done, 0)
        if not remaining:
            return _clock_text(self._step["seconds"])
        text = _clock_text(self._step["seconds"] + waited)
        steps = done - self._first.get("step", done)
        if steps <= 0 or "seconds" not in self._first:
            return text
        pace = (self._step["seconds"] - self._first["seconds"]) / steps
        return f"{text}, {_clock_text(max(pace * remaining - waited, 0.0))} left"


@dataclass(frozen=True, slots=True)
class _Progress:
    """Lay out step, bar and times in one line, or the bar below if shorter than ``LEAST_BAR``."""

    step: Text
    bar: ProgressBar
    times: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        gap = 2
        beside = options.max_width - self.step.cell_len - self.times.cell_len - 2 * gap >= LEAST_BAR
        table = Table.grid(padding=(0, gap), expand=beside)
        table.add_column(no_wrap=beside)
        if beside:
            table.add_column(ratio=1)
        table.add_column(no_wrap=beside)
        table.add_row(*(self.step, self.bar, self.times) if beside else (self.step, self.times))
        yield table
        if not beside:
            line = Table.grid(expand=True)
            line.add_row(self.bar)
            yield line


def row_line(row: MetricsRow, total_steps: int) -> str:
    """Format a step or eval row as one log line; the step numbers of successive lines are aligned.

    >>> row_line({"event": "step", "step": 12, "reward": 0.53, "accuracy": 0.41, "lag_mean": 0.0}, total_steps=100)
    'step  12/100  reward 0.53  accuracy 0.41  lag 0.0'
    """
    at = f"{row.get('step', '?'):>{len(str(total_steps))}}/{total_steps}"
    formats = {
        "reward": "reward {:.2f}",
        "accuracy": "accuracy {:.2f}",
        "lag_mean": "lag {:.1f}",
        "episodes_per_second": "{:.0f} episodes/s",
        "greedy_accuracy": "greedy {:.2f}",
        "sampled_accuracy": "sampled {:.2f}",
    }
    return "  ".join([f"{row['event']} {at}", *(f.format(row[key]) for key, f in formats.items() if _has(row, key))])


def _learning_fields(row: MetricsRow) -> list[Text]:
    fields = {
        "reward": ("reward ", "{:.2f}"),
        "accuracy": ("accuracy ", "{:.0%}"),
        "entropy": ("entropy ", "{:.2f}"),
        "loss": ("loss ", "{:.3f}"),
    }
    return [_field(name, form.format(row[key])) for key, (name, form) in fields.items() if _has(row, key)]


def _held_out_fields(row: MetricsRow) -> list[Text]:
    keys = {"greedy ": "greedy_accuracy", "sampled ": "sampled_accuracy"}
    fields = [_field(name, f"{row[key]:.0%}") for name, key in keys.items() if _has(row, key)]
    return [*fields, _field("at step ", str(row.get("step", "?")))] if fields else []


def _pipeline_fields(row: MetricsRow) -> list[Text]:
    fields = []
    if _has(row, "episodes_per_second"):
        fields.append(_field("", f"{row['episodes_per_second']:.0f}", " episodes/s"))
    if _has(row, "lag_mean"):
        highest = f" (max {row['lag_max']:.0f})" if _has(row, "lag_max") else ""
        fields.append(_field("lag ", f"{row['lag_mean']:.1f}", highest))
    return fields


def _field(name: str, value: str, unit: str = "") -> Text:
    return Text.assemble((name, "dim"), (value, "bold"), (unit, "dim"), no_wrap=True)


def _busy_bars(busy: dict[str, float]) -> list[RenderableType]:
    """Return a small bar for each actor, and one line for those beyond ``MAX_ACTORS``."""
    busy = {actor: share for actor, share in busy.items() if math.isfinite(share)}
    if not busy:
        return []
    # A bar has 24 characters, or fewer in a narrow terminal: names and numbers are never cut.
    table = Table.grid(padding=(0, 2))
    table.add_column(overflow="fold", max_width=20)
    table.add_column(min_width=6, max_width=24)
    table.add_column(no_wrap=True, justify="right")
    for actor, share in list(busy.items())[:MAX_ACTORS]:
        bar = ProgressBar(total=1.0, completed=share, complete_style="cyan", finished_style="cyan")
        table.add_row(Text(actor, style="dim"), bar, f"{share:.0%}")
    others = list(busy.values())[MAX_ACTORS:]
    if not others:
        return [table]
    return [table, Text(f"{len(others)} more, {fmean(others):.0%} on average", style="dim")]


def _has(row: MetricsRow, key: str) -> bool:
    return isinstance(row.get(key), (int, float))


def _clock_text(seconds: float) -> str:
    return str(timedelta(seconds=int(seconds)))
