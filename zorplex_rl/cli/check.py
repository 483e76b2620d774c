"""Say whether this machine is ready for the course, and how fast it is: ``zorplex-rl check``."""

import asyncio
import json
import platform
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage

import psutil

from zorplex_rl.course.notebook_seconds import RECORDED, seconds_per_step

MEMORY_GB, DISK_GB = 4.0, 1.0
PROCESS_SECONDS = 90.0


@dataclass(frozen=True)
class Check:
    """Say in half a minute whether this machine is ready for the course, and how fast it is."""

    def run(self) -> int:
        missing = []
        for state, about, said in findings():
            print(f"{state:<5}  {about:<14}  {said}", flush=True)
            missing += [about] * (state == "no")
        for line in notebook_times():
            print(line, flush=True)
        print(f"\nNot ready: {', '.join(missing)}." if missing else "\nReady.")
        return 1 if missing else 0


def findings() -> Iterator[tuple[str, str, str]]:
    """Yield (state, about, found). A *note* changes how you begin, a *no* means failing notebooks."""
    from zorplex_rl.devices import cores

    yield "ok", "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    free = psutil.virtual_memory().available / 1e9
    yield (
        "ok" if free >= MEMORY_GB else "no",
        "memory",
        f"{free:.1f} GB free; the course needs {MEMORY_GB:.0f}",
    )
    yield (
        "ok" if cores() > 1 else "note",
        "cores",
        f"{cores()}; with one, what should run side by side takes turns",
    )
    room = min(
        disk_usage(folder).free / 1e9 for folder in (Path.cwd(), Path(tempfile.gettempdir()))
    )
    yield (
        "ok" if room >= DISK_GB else "no",
        "disk",
        f"{room:.0f} GB free; the course needs {DISK_GB:.0f}",
    )
    try:
        seconds = asyncio.run(asyncio.wait_for(start_one_process(), PROCESS_SECONDS))
        yield "ok", "processes", f"Monarch started one, and it answered after {seconds:.1f} s"
    except Exception as error:
        look = "look whether a sandbox or security software forbids new processes or Unix sockets"
        yield "no", "processes", f"Monarch started none ({type(error).__name__}: {error}); {look}"


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
    known = json.loads(RECORDED.read_text(encoding="utf-8"))
    here = seconds_per_step()
    there = f"{known['calibration']:.2f} s where the notebooks were recorded ({known['measured']}, {known['machine']})"
    yield f"\nA training step took {here:.2f} s here, and {there}"
    yield "All cells of a notebook, without your reading and your exercises, will take about"
    for name, seconds in known["seconds"].items():
        yield f"    {name:<22} {seconds * here / known['calibration']:4.0f} s"
