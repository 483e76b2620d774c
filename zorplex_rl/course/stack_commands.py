"""Keep one job in five stacks: the command that starts it, and what each stack calls the same
setting.

The job: GRPO on a policy that uses tools, two generators apart from the trainer, data at most four
versions old where the stack counts versions. Flags are those of each stack's documentation; the
values of the job are ours, and what names models, data and batch sizes is left out.

The job itself is ``stack_commands.toml``.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files

from zorplex_rl.course.stacks import Source, sources_of


@dataclass(frozen=True, slots=True)
class Launch:
    """How one stack is told to do the job."""

    stack: str
    command: str
    note: str
    sources: tuple[Source, ...]
    """The command's own first, then those of the names in ``KNOBS``."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting, and its name in each stack of ``LAUNCHES``."""

    what: str
    names: tuple[str, ...]


_TABLES = tomllib.loads((files("zorplex_rl.course") / "stack_commands.toml").read_text(encoding="utf-8"))
LAUNCHES = tuple(Launch(row["stack"], row["command"], row["note"], sources_of(row)) for row in _TABLES["launch"])
COUNTED_IN = tuple(row["counted_in"] for row in _TABLES["launch"])
"""In what each stack of ``LAUNCHES`` counts the age of data; a weight update makes a version."""
KNOBS = tuple(
    Knob(row["what"], COUNTED_IN if row["names"] == "counted_in" else tuple(row["names"])) for row in _TABLES["knob"]
)
