"""Say whether this machine is ready for the course, and how fast it is: ``zorplex-rl check``."""

import asyncio
import json
import platform
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from shutil import disk_usage

import psutil

from zorplex_rl.course.notebook_seconds import RECORDED, seconds_per_step

MEMORY_GB = 4.0
DISK_GB = 1.0
PROCESS_SECONDS = 90.0


@dataclass(frozen=True)
class Check:
    """Say in half a minute whether this machine is ready for the course, and how fast it is."""

    def run(self) -> int:
        missing = []
        for state, subject, finding in findings():
            print(f"{state:<5}  {subject:<14}  {finding}", flush=True)
            if state == "no":
                missing.append(subject)
        for line in notebook_times():
            print(line, flush=True)
        print(f"\nNot ready: {', '.join(missing)}." if missing else "\nReady.")
        return 1 if missing else 0


def findings() -> Iterator[tuple[str, str, str]]:
    """Yield (state, subject, finding). With a *note* the course begins differently; with a *no*
    notebooks will fail."""
    from zorplex_rl.devices import cores

    yield "ok", "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    memory = psutil.virtual_memory().available / 1e9
    state = "ok" if memory >= MEMORY_GB else "no"
    yield state, "memory", f"{memory:.1f} GB free; the course needs {MEMORY_GB:.0f}"
    state = "ok" if cores() > 1 else "note"
    yield state, "cores", f"{cores()}; with one, what should run side by side takes turns"
    disk = min(disk_usage(folder).free for folder in (".", tempfile.gettempdir())) / 1e9
    state = "ok" if disk >= DISK_GB else "no"
    yield state, "disk", f"{disk:.0f} GB free; the course needs {DISK_GB:.0f}"
    try:
        seconds = asyncio.run(asyncio.wait_for(start_one_process(), PROCESS_SECONDS))
        yield "ok", "processes", f"Monarch started one, and it answered after {seconds:.1f} s"
    except Exception as error:
        problem = f"Monarch started none ({type(error).__name__}: {error})"
        advice = "look whether a sandbox or security software forbids new processes or Unix sockets"
        yield "no", "processes", f"{problem}; {advice}"


async def start_one_process() -> float:
    """Start a process through Monarch, and stop it. Returns the seconds until it answered."""
    from zorplex_rl.services.spawn import spawn
    from zorplex_rl.training.actors import TimedActor

    began = time.monotonic()
    replica = await spawn("hello", TimedActor, "hello")
    try:
        await replica.actor.ping.call_one()
        return time.monotonic() - began
    finally:
        await replica.stop()


def notebook_times() -> Iterator[str]:
    """Yield each notebook's time here: its recorded seconds times the ratio of two calibrations."""
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    there = recorded["calibration"]
    here = seconds_per_step()
    where = f"where the notebooks were recorded ({recorded['measured']}, {recorded['machine']})"
    yield f"\nA training step took {here:.2f} s here, and {there:.2f} s {where}"
    yield "All cells of a notebook, without your reading and your exercises, will take about"
    for name, seconds in recorded["seconds"].items():
        yield f"    {name:<22} {seconds * here / there:4.0f} s"
