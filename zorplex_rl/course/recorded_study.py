"""Read a recorded study of staleness: one row for each trial of learning rate × lag × loss × seed.

    benchmarks/staleness.py ──► staleness.jsonl ──► read_study ──► Study ──► notebooks 09 and 11

The first line of a file says what its trials share; each line below is one finished trial, so a
recording that was stopped can go on.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One trial: its setting and its result."""

    loss: str
    lag: int
    learning_rate: float
    seed: int
    accuracy: float
    """Sampled accuracy on held-out tasks after the last step; 0.0 if the training diverged."""
    diverged_at: int | None
    """The step at which a number was not finite; the training ended there."""
    date: str
    eval_steps: list[int]
    accuracies: list[float]
    """Sampled accuracy on a few held-out tasks, after each of ``eval_steps``."""
    episode_sample_sizes: list[float] = field(default_factory=list)
    """The effective sample size of the batch's episodes in each step's first update; nothing where no page reads it."""

    @property
    def key(self) -> tuple[str, int, float, int]:
        """Identify the trial: loss, lag, learning rate, seed."""
        return self.loss, self.lag, self.learning_rate, self.seed


@dataclass(frozen=True, slots=True)
class StudyCell:
    """The trials of one loss, lag and learning rate; they differ in their seeds."""

    loss: str
    lag: int
    learning_rate: float
    rows: tuple[Row, ...]

    @property
    def accuracies(self) -> list[float]:
        """The accuracy of each seed after the last step."""
        return [row.accuracy for row in self.rows]

    @property
    def accuracy(self) -> float:
        """The mean accuracy over the seeds."""
        return fmean(self.accuracies)


@dataclass(frozen=True, slots=True)
class Study:
    """A recorded study: its command, the machine, what all trials share, the trials."""

    command: str
    machine: str
    conditions: dict[str, Any]
    rows: tuple[Row, ...]

    @property
    def dates(self) -> str:
        """The days of the recording."""
        days = sorted({row.date for row in self.rows})
        return " to ".join(dict.fromkeys((days[0], days[-1])))

    @property
    def whole_seeds(self) -> int:
        """The number of seeds that all cells have."""
        return min((len(cell.rows) for cell in self.cells()), default=0)

    def cells(self, seeds: int = 1) -> list[StudyCell]:
        """Return the cells with at least ``seeds`` trials, these in order of their seeds."""
        found: dict[tuple[str, int, float], list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.key[:3], []).append(row)
        by_seed = {
            key: tuple(sorted(rows, key=lambda row: row.seed)) for key, rows in found.items()
        }
        return [StudyCell(*key, rows) for key, rows in by_seed.items() if len(rows) >= seeds]


def read_study(file: Path) -> Study:
    """Read the study in ``file``; leaves out a last line that is cut off."""
    header, *lines = whole_lines(file)
    return Study(**json.loads(header), rows=tuple(Row(**json.loads(line)) for line in lines))


def whole_lines(file: Path) -> list[str]:
    """Return the lines of ``file`` without a last one that is cut off."""
    return file.read_text(encoding="utf-8").split("\n")[:-1]
