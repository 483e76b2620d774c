"""``zorplex-rl speedrun ENTRY.py``: run an entry on secret seeds, and say whether it counts.

    seed 1   14.2 s   11.9 calibrated   371 of 400 held-out answers right
    …
    reached: 93.1% right (92.3% or more, with 95 % confidence), median 14.0 s, 11.8 calibrated

``learning/referee.py`` holds clock and scorer, ``learning/entry.py`` runs the entry, and the rules
are in speedrun/RULES.md.
"""

import contextlib
import fcntl
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from zorplex_rl.cli.flags import Command
from zorplex_rl.config import check_range
from zorplex_rl.errors import ConfigError
from zorplex_rl.run.folder import write_whole

if TYPE_CHECKING:
    from zorplex_rl.learning.referee import Attempt


HEADER = """\
# Records

| date | entry | calibrated | seconds | held-out accuracy | seeds | commit |
|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Speedrun(Command):
    """Run a speedrun's entry on secret seeds, and judge it. Exit code 1: refused."""

    entry: Annotated[Path, tyro.conf.Positional]
    """The entry's file (speedrun/RULES.md)."""
    seeds: int = 8
    """Runs, each on a fresh secret seed. Eight decide; fewer can only refuse."""
    to: Path | None = None
    """Folder for the entry's card and a line in RECORDS.md; None writes nothing. If its card is
    there, the entry goes on after its last run."""


def speedrun(command: Speedrun) -> int:
    """Check what was given, and run the entry. Returns the exit code."""
    check_range("seeds", command.seeds, 1)
    if not command.entry.is_file():
        raise ConfigError(f"there is no file {str(command.entry)!r}; give the entry's file")
    if not re.fullmatch(r"[\w.-]+", command.entry.stem):
        raise ConfigError(
            f"the name of {str(command.entry)!r} would be in RECORDS.md; give it letters, digits, - and _"
        )
    with _alone_in(command.to) if command.to else contextlib.nullcontext():
        return _run(command)


@contextlib.contextmanager
def _alone_in(to: Path) -> Iterator[None]:
    """Make the folder ``to``, and refuse other speedruns in it: of two with one card, one would write
    over the other's runs."""
    try:
        (to / "cards").mkdir(parents=True, exist_ok=True)
        records = (to / "RECORDS.md").open("a")
    except OSError as error:
        raise ConfigError(f"--to {str(to)!r} cannot be written ({error.strerror}); choose another") from error
    with records:
        try:
            fcntl.flock(records, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"--to {str(to)!r} is in use by another speedrun; wait for it") from error
        if not records.tell():
            records.write(HEADER)
            records.flush()
        yield


def _run(command: Speedrun) -> int:
    """Run the entry and print a line for each run, and the verdict. Returns the exit code."""
    import tempfile

    from zorplex_rl.learning.referee import RULES, SEEDS, attempt, verdict

    try:
        source = command.entry.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the entry {str(command.entry)!r} cannot be read ({error}); give a Python file") from error
    card = command.to / "cards" / f"{command.entry.stem}.json" if command.to else None
    attempts, begun = _earlier(card, source) if card and card.exists() else ([], 0)

    def keep() -> None:
        if card:
            judged = asdict(verdict(attempts)) if attempts else None
            found = {"rules": RULES, "verdict": judged, "begun": begun, "attempts": [asdict(a) for a in attempts]}
            write_whole(card, json.dumps(_about(command.entry) | found | {"source": source}, indent=1) + "\n")

    judged_before = len(attempts)
    while not attempts or (len(attempts) < command.seeds and not attempts[-1].refused):
        begun += 1
        keep()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            found = attempt(source, Path(folder))
        attempts.append(found)
        said = f"{found.seconds:6.1f} s   {found.calibrated:6.1f} calibrated   {found.right} of {found.tasks} held-out answers right"
        print(f"seed {len(attempts)}   {found.refused or said}", flush=True)
        keep()
    judged = verdict(attempts)
    share = f"{judged.accuracy:.1%} right ({judged.bound:.1%} or more, with 95 % confidence)"
    reached = f"{share}, median {judged.seconds:.1f} s, {judged.calibrated:.1f} calibrated"
    open_yet = f"not refused on {len(attempts)} of {SEEDS} seeds, all of which decide: {reached}"
    print(f"refused: {judged.refused}" if judged.refused else f"reached: {reached}" if judged.is_final else open_yet)
    if command.to and judged_before < len(attempts) and judged.is_final and not judged.refused:
        cells = [f"{judged.calibrated:.1f}", f"{judged.seconds:.1f}", f"{judged.accuracy:.1%}", str(len(attempts))]
        with (command.to / "RECORDS.md").open("a") as records:
            records.write(
                f"| {date.today()} | `{command.entry.stem}` | {' | '.join(cells)} | {_commit(command.entry)} |\n"
            )
    return 1 if judged.refused else 0


def _earlier(card: Path, source: str) -> "tuple[list[Attempt], int]":
    """Return the attempts on ``card`` and how many were begun, none if they are of another text or
    by other rules. Raises ConfigError for a card that this program has not written."""
    from zorplex_rl.learning.referee import RULES, Attempt, is_figure, verdict

    try:
        earlier = json.loads(card.read_text())
        if (earlier["source"], earlier.get("rules")) != (source, RULES):
            return [], 0
        attempts, begun = [Attempt(**row) for row in earlier["attempts"]], earlier["begun"]
        figures = [figure for a in attempts for figure in (a.seconds, a.calibrated, a.right, a.tasks)]
        if not all(map(is_figure, [begun, *figures])) or begun < len(attempts):
            raise ValueError("it has no numbers of runs")
        if attempts:
            verdict(attempts)
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError, AttributeError, RecursionError) as error:
        raise ConfigError(f"the card {str(card)!r} cannot be read; move it away to begin a new one") from error
    return attempts, begun


def _about(entry: Path) -> dict[str, Any]:
    """Return of a card: the entry's name and commit, the day and the machine."""
    import torch

    from zorplex_rl.learning.journal import machine

    processor = f"{os.cpu_count()} cores of {machine()['processor']}"
    versions = f"{processor}, Python {platform.python_version()}, torch {torch.__version__}"
    return {"entry": entry.stem, "date": date.today().isoformat(), "commit": _commit(entry), "machine": versions}


def _commit(entry: Path) -> str:
    """Return the commit that last changed ``entry``, or that there is none."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(entry.resolve().parent), *words, "--", entry.name]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    return (not git("status", "--porcelain") and git("log", "-1", "--format=%h")) or "not committed"
