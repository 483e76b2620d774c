"""Print what a benchmark has found as a table in Markdown, as ``LOG.md`` has them.

Whoever wants it there pastes it, with the question, what was expected, and what was tried in vain.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

import torch

from zorplex_rl.devices import cores


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *notes: str
) -> None:
    """Print ``rows``, lists of cells, below ``title``; ``notes`` are sentences below them."""
    print(f"\n{title}\n")
    print(f"| {' | '.join(columns)} |")
    print("|" + "---|" * len(columns))
    for cells in rows:
        print(f"| {' | '.join(cells)} |")
    for note in notes:
        print(f"\n{note}")


def describe_machine() -> str:
    """Return cores, processor and versions, such as ``2 cores, AMD EPYC, Python 3.11.7, torch 2.13.0``.

    Never the host, a user or a path: the log is public.
    """
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = models[0] if models else platform.machine()
    return f"{cores()} cores, {processor}, Python {platform.python_version()}, torch {torch.__version__}"
