"""The lab log: every benchmark prints one table and appends the same table, dated, to ``LOG.md``.

An entry says what was measured, with which settings, and on what kind of machine. It never names the host, a user or
a path: the log is public.
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
HEADER = "# Lab log\n\nWhat the benchmarks measured, newest last. Each entry names the command that appended it.\n"


@dataclass(frozen=True, slots=True)
class Report:
    """One table: ``rows`` are cells as text, one list per row; ``notes`` are sentences that stand below it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def describe_machine() -> str:
    """Cores, processor model and versions, for example ``2 cores, AMD EPYC, Python 3.11.7, torch 2.13.0``."""
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


def append_report(command: str, settings: Mapping[str, object], reports: Sequence[Report]) -> None:
    """Append a dated entry with ``reports`` to ``LOG.md``, which is begun if there is none."""
    described = ", ".join(f"{name} {value}" for name, value in settings.items())
    parts = [f"\n## {date.today().isoformat()} · {command}\n\n{describe_machine()}. Settings: {described}.\n"]
    parts += [_as_markdown(report) for report in reports]
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
    """The processor's model: what ``platform`` says, or on Linux, where that is often nothing, what the kernel does."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
