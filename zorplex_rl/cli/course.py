"""Take the course out of the package: ``zorplex-rl course --to FOLDER`` and ``zorplex-rl open 05``."""

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from zorplex_rl.cli.course_files import FILES, IN_CLONE, copy_course, is_temporary
from zorplex_rl.cli.flags import Command
from zorplex_rl.errors import ConfigError

HOME = Path("~/zorplex-course")
"""Where ``open`` keeps the learner's copy, unless the package runs from a clone."""


@dataclass(frozen=True)
class Course(Command):
    """Write the course to a folder: notebooks, examples, workshop kit. What is there stays."""

    to: Path = HOME
    """The folder."""


@dataclass(frozen=True)
class Open(Command):
    """Open a notebook in marimo: the clone's own, or that of your copy of the course."""

    notebook: Annotated[str, tyro.conf.Positional] = "05"
    """Its number."""
    to: Path | None = None
    """The folder of your copy, which is made if it is not there."""
    port: int | None = None
    """Where marimo listens; a free port if left out."""
    browser: bool = True
    """Open a browser; else marimo prints the address."""


def copy(command: Course) -> int:
    """Write the course, and say where and what was left. Returns the exit code."""
    folder, differing = _copied(command.to)
    if differing:
        print(f"Left as they are, and unlike this version's: {', '.join(differing)}.")
    print(f"The course is in {folder}; its notebook 05 opens with: zorplex-rl open 05 --to {shlex.quote(str(folder))}")
    return 0


def open_notebook(command: Open) -> int:
    """Become marimo, on one notebook. Raises ConfigError if there is none of that number."""
    there = sorted(path.name for path in (FILES / "notebooks").glob("[0-9]*.py"))
    name = next((name for name in there if command.notebook in (name, name[:-3], name.partition("_")[0])), None)
    if name is None:
        numbers = ", ".join(name.partition("_")[0] for name in there)
        raise ConfigError(f"no notebook {command.notebook!r}; expected one of {numbers}")
    folder = FILES if IN_CLONE and command.to is None else _copied(command.to or HOME)[0]
    flags = [] if command.port is None else ["--port", str(command.port)]
    flags += [] if command.browser else ["--headless"]
    saves = "a temporary folder: save with Ctrl-S" if is_temporary(folder) else "marimo saves there what you write"
    print(f"{folder / 'notebooks' / name}; {saves}.", flush=True)
    os.chdir(folder)
    os.execv(sys.executable, [sys.executable, "-m", "marimo", "edit", f"notebooks/{name}", *flags])


def _copied(folder: Path) -> tuple[Path, list[str]]:
    """Copy the course to ``folder``. Returns its whole path, and what was there and differs."""
    written, differing = copy_course(folder)
    folder = folder.expanduser().resolve()
    if written:
        print(f"Wrote {len(written)} files of the course to {folder}.")
    return folder, [str(path.relative_to(folder)) for path in differing]
