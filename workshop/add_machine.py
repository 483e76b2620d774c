"""Measure this machine for a minute and write its row into ``numbers.md``:
``.venv/bin/python workshop/add_machine.py``.

    a call to an actor, a copy of 256 MB, examples/my_rl.py  ──►  | 2 cores, AMD EPYC, … | 1.1 | 8.9 | 24 | 0.3 |

A machine that is there already gets new numbers. The row names the kind of machine, never its host.
The load at the beginning says whether it was idle.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
HEAD = "| machine | a bare call, ms | a copy of 256 MB, GB/s | `examples/my_rl.py`, s | load before |\n|---|---|---|---|---|\n"


def call_ms() -> float:
    """Return the milliseconds of a call to an actor in another process: the median of 300."""
    from zorplex_rl.services.runtime import Actor, endpoint, start_monarch, this_host

    class Echo(Actor):
        @endpoint
        async def ping(self) -> int:
            return os.getpid()

    async def measure() -> float:
        procs = this_host().spawn_procs(per_host={"procs": 1})
        echo, seconds = procs.spawn("echo", Echo), []
        for _ in range(350):
            began = time.perf_counter()
            await echo.ping.call_one()
            seconds.append(time.perf_counter() - began)
        await procs.stop()
        return 1e3 * median(seconds[50:])

    start_monarch()
    return asyncio.run(measure())


def copy_gb_per_second(size: int = 256_000_000) -> float:
    """Return how many GB a second memory is copied with: the median of seven copies."""
    import torch

    source, target, seconds = (
        torch.ones(size, dtype=torch.uint8),
        torch.empty(size, dtype=torch.uint8),
        [],
    )
    for _ in range(8):
        began = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - began)
    return size / median(seconds[1:]) / 1e9


def training_seconds() -> float:
    """Return the seconds that ``examples/my_rl.py`` takes, imports included."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "examples/my_rl.py"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - began


def with_row(text: str, machine: str, cells: list[str]) -> str:
    """Return ``numbers.md`` with the row of ``machine`` in its table of machines, new or replaced.
    Raises ValueError if that table is not there."""
    before, head, after = text.partition(HEAD)
    if not head:
        raise ValueError(
            "numbers.md has no table of machines; expected its head as add_machine.py writes it"
        )
    rows, blank, rest = after.partition("\n\n") if not after.startswith("\n") else ("", "", after)
    kept = [row for row in rows.splitlines() if not row.startswith(f"| {machine} |")]
    kept.append(f"| {machine} | {' | '.join(cells)} |")
    return before + head + "\n".join(kept) + (blank or "\n") + rest


def main() -> None:
    """Measure, and write the row."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from table import describe_machine

    load = os.getloadavg()[0]
    cells = [
        f"{call_ms():.2f}",
        f"{copy_gb_per_second():.1f}",
        f"{training_seconds():.0f}",
        f"{load:.1f}",
    ]
    file = ROOT / "workshop" / "numbers.md"
    file.write_text(
        with_row(file.read_text(encoding="utf-8"), describe_machine(), cells), encoding="utf-8"
    )
    print(f"{describe_machine()}: {', '.join(cells)}; in {file.name}")


if __name__ == "__main__":
    main()
