"""Write the lab log: every benchmark prints its tables and appends a dated entry with them to
``LOG.md``.

    Asked.              the question that the benchmark answers
    Expected.           the numbers that were set before the measurement
    Came out.           the tables
    Tried and dropped.  whoever measured fills this in by hand

An entry also names the settings and the kind of machine. It never names the host, a user or a path:
the log is public.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

LOG = Path(__file__).parent / "LOG.md"
HEADER = """# Lab log

What the benchmarks measured, newest last. The title of an entry names the command that appended it. Every entry says what was asked, what was
expected, what came out (the tables), and what was tried and dropped. An expectation is a number that was set before the measurement.
Entries stay, also when a later one says something else.
"""


@dataclass(frozen=True, slots=True)
class Report:
    """Hold one table: ``rows`` are lists of cells as text; ``notes`` are sentences below the
    table."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def describe_machine() -> str:
    """Return cores, processor model and versions, for example ``2 cores, AMD EPYC, Python 3.11.7,
    torch 2.13.0``."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores, {_processor()}, Python {platform.python_version()}, torch {torch.__version__}"


def print_report(report: Report) -> None:
    """Show ``report`` in the terminal."""
    table = Table(title=report.title, title_justify="left")
    for index, column in enumerate(report.columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in report.rows:
        table.add_row(*row)
    console = Console()
    console.print(table)
    for note in report.notes:
        console.print(note, style="dim", highlight=False)


def append_report(
    command: str, asked: str, expected: str, settings: Mapping[str, object], reports: Sequence[Report]
) -> None:
    """Append a dated entry to ``LOG.md``; creates the file if there is none.

    ``asked`` and ``expected`` are the benchmark's question and the numbers set for it beforehand,
    in whole sentences.
    """
    described = ", ".join(f"{name} {value}" for name, value in settings.items())
    parts = [f"\n## {date.today().isoformat()} · {command}\n\n{describe_machine()}. Settings: {described}.\n"]
    parts += [f"**Asked.** {asked}\n", f"**Expected.** {expected}\n", "**Came out.**\n"]
    parts += [_as_markdown(report) for report in reports]
    parts += ["**Tried and dropped.** Nothing noted.\n"]
    if not LOG.exists():
        LOG.write_text(HEADER, encoding="utf-8")
    with LOG.open("a", encoding="utf-8") as log:
        log.write("\n".join(parts))


def _as_markdown(report: Report) -> str:
    lines = ["| " + " | ".join(report.columns) + " |", "|" + "---|" * len(report.columns)]
    lines += ["| " + " | ".join(row) + " |" for row in report.rows]
    notes = "".join(f"\n{note}\n" for note in report.notes)
    return f"{report.title}\n\n" + "\n".join(lines) + "\n" + notes


def _processor() -> str:
    """Return the processor's model: on Linux from the kernel, because ``platform`` often knows none
    there."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
