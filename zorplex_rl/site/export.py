"""Runs a notebook from its first cell to its last in a process of its own, and returns the page that marimo makes of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from zorplex_rl.errors import SiteError


def export(notebook: Path, timeout: float = 1200.0) -> str:
    """The HTML of ``notebook`` after a run. SiteError if marimo wrote no page, or not within ``timeout`` seconds.

    A page is no proof that all cells ran, and neither is marimo's exit code: ask ``Page.complaints``.
    """
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "page.html"
        command = [sys.executable, "-m", "marimo", "-q", "-y", "export", "html", notebook.name]
        command += ["--no-sandbox", "-f", "-o", str(target), "--", "--execute", "1"]
        process = subprocess.Popen(
            command,
            cwd=notebook.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise SiteError(
                f"{notebook.name} has not ended within {timeout:.0f} s; export it alone to see where it waits"
            ) from None
        finally:
            # marimo hangs on SIGINT, so the whole group gets SIGTERM; what a notebook has left behind goes with it.
            _end_group(process)
        if not target.exists():
            raise SiteError(f"{notebook.name} was not exported; marimo said: {said.strip()[-2000:]}")
        return target.read_text(encoding="utf-8")


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
