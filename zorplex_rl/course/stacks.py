"""Say how sixteen open stacks train language models by RL, and how five of them are told one job.

    stacks.toml          ──► STACKS             ours first; a cell for each of AXES: its kind, a line, the sources
    stack_commands.toml  ──► LAUNCHES, KNOBS    the command of each stack, and what each calls the same setting

The job: GRPO on a policy that uses tools, two generators apart from the trainer, data at most four
versions old where the stack counts versions. Flags are those of each stack's documentation; the
values of the job are ours, and what names models, data and batch sizes is left out.

All sources were read on ``READ_ON``. A stack changes from month to month: check the source before
you build on a line of this map.
"""

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from zorplex_rl import __version__


@dataclass(frozen=True, slots=True)
class Source:
    """Where something was read, and which version of it; none in a table: this repository's."""

    address: str
    version: str


@dataclass(frozen=True, slots=True)
class Cell:
    """What a stack does on one axis; ``read_in`` numbers its sources, from 1."""

    kind: str
    said: str
    read_in: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stack:
    """One stack, with a cell for each of ``AXES``."""

    name: str
    cells: tuple[Cell, ...]
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """How one stack is told to do the job, and in what it counts the age of data."""

    stack: str
    command: str
    note: str
    counted_in: str
    sources: tuple[Source, ...]
    """The command's own first, then those of the names in ``KNOBS``."""


def _table(name: str) -> dict[str, Any]:
    return tomllib.loads((files("zorplex_rl.course") / name).read_text(encoding="utf-8"))


def _sources(row: dict[str, Any]) -> tuple[Source, ...]:
    return tuple(
        Source(source["address"], source["version"] or __version__) for source in row["sources"]
    )


_MAP, _JOB = _table("stacks.toml"), _table("stack_commands.toml")
READ_ON: str = _MAP["read_on"]
AXES: dict[str, str] = _MAP["axes"]
"""Each axis, and what it asks."""
KINDS: dict[str, str] = _MAP["kinds"]
"""What a kind of cell means where its name alone does not say it."""
STACKS = tuple(
    Stack(
        row["name"],
        tuple(Cell(**row[axis] | {"read_in": tuple(row[axis]["read_in"])}) for axis in AXES),
        _sources(row),
    )
    for row in _MAP["stack"]
)
LAUNCHES = tuple(Launch(**row | {"sources": _sources(row)}) for row in _JOB["launch"])
_UNITS = [launch.counted_in for launch in LAUNCHES]
KNOBS = {
    row["what"]: _UNITS if row["names"] == "counted_in" else row["names"] for row in _JOB["knob"]
}
"""Each setting, and its name in each stack of ``LAUNCHES``."""
