"""Say whether this machine is ready for the course, and how fast it is: ``zorplex-rl check``.

    ok     cores          2
    note   browser        none found here; open the address that marimo prints in a browser of another machine
    no     processes      Monarch started none: …; what to do

A *note* changes how you begin or what you see. A *no*, exit code 1, means failing notebooks.
"""

import contextlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from zorplex_rl.cli.course_files import FILES
from zorplex_rl.cli.flags import Command
from zorplex_rl.errors import ConfigError

PYTHONS = ((3, 11), (3, 13))
"""The lowest and the highest Python that pyproject.toml allows."""
MEMORY_NEEDED, MEMORY_COMFORTABLE = 4.0, 8.0
"""GB. A process with torch and the embedded policy holds about 0.3 GB; 08 starts eight of them."""
DISK_NEEDED = 1.0
"""GB: a run's checkpoints are below 0.1, the pages of the site and what marimo keeps below 0.2."""
PROBE_SECONDS = 90.0
CALIBRATION_SECONDS = 10.0
RECORDED = FILES / "workshop" / "notebook_seconds.json"


@dataclass(frozen=True)
class Check(Command):
    """Say in half a minute whether this machine is ready for the course, and how fast it is."""


class Finding(NamedTuple):
    """Hold one line of the report."""

    state: Literal["ok", "note", "no"]
    about: str
    said: str


def check(command: Check) -> int:
    """Print the findings and each notebook's seconds. Returns 1 if notebooks will fail, else 0."""
    findings = []
    for look in (python, memory, cores, disk, shared_memory, processes, browser, gpu):
        finding = look()
        findings.append(finding)
        print(f"{finding.state:<5}  {finding.about:<14}  {finding.said}", flush=True)
    for line in notebook_times(RECORDED):
        print(line, flush=True)
    missing = [finding.about for finding in findings if finding.state == "no"]
    print(f"\nNot ready: {', '.join(missing)}." if missing else "\nReady.")
    return 1 if missing else 0


def python() -> Finding:
    """Check the version of Python and the platform."""
    (low, high), here = PYTHONS, sys.version_info[:2]
    said = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if not low <= here <= high:
        return Finding("no", "Python", f"{said}; the course needs {low[0]}.{low[1]} to {high[0]}.{high[1]}")
    if platform.system() not in ("Linux", "Darwin"):
        return Finding("no", "Python", f"{said}; Monarch runs on Linux and macOS only, so use a virtual Linux (WSL)")
    return Finding("ok", "Python", said)


def memory() -> Finding:
    """Check how much memory this process and its children may use."""
    from zorplex_rl.sizing.measured import available_memory

    free = (available_memory() or 0) / 1e9
    said = f"{free:.1f} GB free" if free else "this system does not say how much is free"
    if not free:
        return Finding("note", "memory", f"{said}; the course needs {MEMORY_NEEDED:.0f} GB")
    if free < MEMORY_NEEDED:
        return Finding("no", "memory", f"{said}; close other programs until {MEMORY_NEEDED:.0f} GB are free")
    if free < MEMORY_COMFORTABLE:
        return Finding("note", "memory", f"{said}; close one notebook before you open the next")
    return Finding("ok", "memory", said)


def cores() -> Finding:
    """Check the number of cores that this process may use."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if count < 2:
        turns = "nothing fails, but what should run side by side takes turns: use a machine with two"
        return Finding("note", "cores", f"{count}; {turns}")
    return Finding("ok", "cores", f"{count}")


def disk() -> Finding:
    """Check the free space of this folder and of the one for temporary files."""
    import tempfile

    free = {folder: shutil.disk_usage(folder).free / 1e9 for folder in (Path.cwd(), Path(tempfile.gettempdir()))}
    said = ", ".join(f"{gb:.0f} GB free in {folder}" for folder, gb in free.items())
    if min(free.values()) < DISK_NEEDED:
        return Finding("no", "disk", f"{said}; the course needs {DISK_NEEDED:.0f} GB")
    return Finding("ok", "disk", said)


def shared_memory() -> Finding:
    """Check that weights can be handed over through memory."""
    from zorplex_rl.weights.shared_memory import allocate, open_shared

    try:
        written, handle = allocate(1 << 20)
        if written is not None and handle is not None:
            written.fill_(7)
            if int(open_shared(handle).min()) == 7:
                return Finding("ok", "shared memory", "what one process writes another one reads, without a copy")
        reason = "this system has no memfd"
    except OSError as error:
        reason = str(error)
    return Finding("note", "shared memory", f"none ({reason}); 07 measures one transport fewer, all else uses `rdma`")


def processes() -> Finding:
    """Check that Monarch starts a process and that it answers."""
    code, said = run_alone([sys.executable, "-m", "zorplex_rl.services.first_process"], PROBE_SECONDS)
    if code is None:
        reason = f"no answer within {PROBE_SECONDS:.0f} s"
    elif code:
        reason = said.splitlines()[-1] if said else f"exit code {code}"
    else:
        return Finding("ok", "processes", f"Monarch started one, and it answered after {said.splitlines()[-1]} s")
    look = "look whether a sandbox or security software forbids new processes or Unix sockets"
    return Finding("no", "processes", f"Monarch started none ({reason}); {look}")


def run_alone(command: list[str], timeout: float) -> tuple[int | None, str]:
    """Run ``command`` and end all it started. Returns its exit code (None: too late) and output."""
    files: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, text=True, start_new_session=True, **files)
    try:
        said, _ = process.communicate(timeout=timeout)
        return process.returncode, said.strip()
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def browser() -> Finding:
    """Check that this machine can open a page."""
    try:
        return Finding("ok", "browser", webbrowser.get().name)
    except webbrowser.Error:
        elsewhere = "open the address that marimo prints in your own browser (through `ssh -L` if this is a server)"
        return Finding("note", "browser", f"none found; {elsewhere}")


def gpu() -> Finding:
    """Say which GPU is there."""
    import torch

    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
        return Finding("ok", "GPU", f"{names}; not needed")
    return Finding("ok", "GPU", "none, and none is needed")


def notebook_times(recorded: Path, calibrate: Callable[[float], float] | None = None) -> Iterator[str]:
    """Yield lines with each notebook's time here: its seconds times a ratio of calibrations."""
    from zorplex_rl.cli.notebook_seconds import NotebookSeconds

    if not recorded.is_file():
        yield f"\nHow long the notebooks take here is not known: {recorded} is missing; ./build_site.sh site --record FILE writes it."
        return
    try:
        known = NotebookSeconds.read(recorded)
    except ConfigError as error:
        yield f"\nHow long the notebooks take here is not known: {error}"
        return
    here = (calibrate or _calibrate)(CALIBRATION_SECONDS)
    yield (
        f"\nA training step took {here:.2f} s here, and {known.calibration:.2f} s where the notebooks were recorded "
        f"({known.measured}, {known.machine.rstrip('.')})."
    )
    yield "All cells of a notebook, without your reading and your exercises, will take about"
    for name, seconds in known.expected_here(here).items():
        yield f"    {name:<22} {seconds:4.0f} s"


def _calibrate(limit: float) -> float:
    """Time this machine. Imports torch and transformers."""
    from zorplex_rl.learning.calibration import seconds_per_step

    return seconds_per_step(limit)
