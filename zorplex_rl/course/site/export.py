"""Run a notebook from its first cell to its last in its own process, and return the page that
marimo writes."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from zorplex_rl import TORCH_SETTINGS
from zorplex_rl.errors import SiteError


def export(notebook: Path, timeout: float = 1200.0, jobs: int = 1) -> str:
    """Run ``notebook``, as one of ``jobs`` at a time, which it says. Returns the HTML of the page, which is
    no proof that all cells ran: check ``Page.complaints``. Raises SiteError if there is none in time.
    """
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "page.html"
        command = [sys.executable, "-m", "marimo", "-q", "-y", "export", "html", notebook.name]
        command += ["--no-sandbox", "-f", "-o", str(target), "--", "--execute", "1"]
        settings = TORCH_SETTINGS | {"GOMP_SPINCOUNT": "0", "ZORPLEX_JOBS": str(jobs)}
        if jobs > 1:
            settings["OMP_NUM_THREADS"] = "1"  # pages share cores
        process = subprocess.Popen(
            command,
            cwd=notebook.parent,
            env=settings | os.environ | {"TMPDIR": folder},  # what it leaves there goes, too
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        _RUNNING.add(process)
        try:
            said, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise SiteError(
                f"{notebook.name} has not ended within {timeout:.0f} s; export it alone to see where it waits"
            ) from None
        finally:
            # marimo hangs on SIGINT, so send SIGTERM to the whole group; this also ends processes
            # that the notebook left behind.
            _end_group(process)
            _RUNNING.discard(process)
        if not target.exists():
            raise SiteError(
                f"{notebook.name} was not exported; marimo said: {said.strip()[-2000:]}"
            )
        return target.read_text(encoding="utf-8")


_RUNNING: set[subprocess.Popen[str]] = set()


def end_exports() -> None:
    """End the notebooks that other threads export. Their ``export`` raises SiteError then."""
    for process in list(_RUNNING):
        _end_group(process)


def _end_group(process: subprocess.Popen[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            continue
