"""Say how sixteen open stacks train language models by reinforcement: seven axes, each cell with
the source that it was read in.

    STACKS[0]                     this project; the other fifteen follow in the order of the alphabet
    STACKS[0].cells[FAULTS]       what happens there when a process dies: its kind, a line, the sources
    NOT_FOUND                     what a line says where no source that we read answers it; it is no claim of absence

All sources were read on ``READ_ON``. A stack changes from month to month: check the source before
you build on a line of this map.

The map itself is ``stacks.toml``.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from zorplex_rl import __version__

NOT_FOUND = "not found in what we read"
ORCHESTRATION, STALENESS, PLACEMENT, GENERATOR, TRAINER, TRANSFER, FAULTS = range(7)
AXES = (
    "orchestration",
    "age of the data",
    "placement",
    "generator engine",
    "trainer",
    "weight transfer",
    "when a process dies",
)
QUESTIONS = (
    "What starts the processes and carries their messages?",
    "Does anything bound it, and how?",
    "Do generators and trainer share GPUs, or stand apart?",
    "What samples the episodes?",
    "What computes the update, and how is the model divided?",
    "How do new weights reach the generators?",
    "What goes on, and what starts again?",
)
"""What each of ``AXES`` asks."""
_TABLES = tomllib.loads((files("zorplex_rl.course") / "stacks.toml").read_text(encoding="utf-8"))
READ_ON: str = _TABLES["read_on"]
KINDS: dict[str, str] = _TABLES["kinds"]
"""What a kind of cell means where its name alone does not say it."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where something was read, and which version of it."""

    address: str
    version: str


@dataclass(frozen=True, slots=True)
class Cell:
    """What one stack does on one axis: ``kind`` groups it with others, ``read_in`` are numbers of
    the stack's sources, from 1."""

    kind: str
    said: str
    read_in: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stack:
    """One stack, with a cell for each of ``AXES``."""

    name: str
    cells: tuple[Cell, ...]
    sources: tuple[Source, ...]


def sources_of(row: dict[str, Any]) -> tuple[Source, ...]:
    """Return the sources of a table's ``row``; one without a version is this repository's own."""
    return tuple(Source(source["address"], source["version"] or __version__) for source in row["sources"])


def _stack(row: dict[str, Any]) -> Stack:
    cells = (Cell(row[axis]["kind"], row[axis]["said"], tuple(row[axis]["read_in"])) for axis in AXES)
    return Stack(row["name"], tuple(cells), sources_of(row))


STACKS = tuple(map(_stack, _TABLES["stack"]))
"""Ours first, then the others in the order of the alphabet."""
OURS = STACKS[0]


def groups(axis: int) -> dict[str, list[Stack]]:
    """Return the stacks by what they do on an axis, the largest group first."""
    found: dict[str, list[Stack]] = {}
    for stack in STACKS:
        found.setdefault(stack.cells[axis].kind, []).append(stack)
    return dict(sorted(found.items(), key=lambda group: -len(group[1])))
