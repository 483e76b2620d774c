"""Say how far a run is, and which of its processes live: ``zorplex-rl status RUN``."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import psutil
import tyro

from zorplex_rl.errors import ConfigError


@dataclass(frozen=True)
class Status:
    """Say how far a run is, and which of its processes on this machine live."""

    folder: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""

    def run(self) -> int:
        from zorplex_rl.cli.live import row_line
        from zorplex_rl.run.folder import RunFolder, read_config

        folder = RunFolder(self.folder)
        steps = read_config(self.folder).steps
        rows = folder.metrics()
        progress = [row for row in rows if row["event"] in ("step", "eval")]
        for row in progress[-5:]:
            print(row_line(row, steps))
        processes: dict[str, int] = {}
        for row in rows:
            if row["event"] in ("restart", "warning"):
                reason = row.get("reason") or row.get("text")
                print(f"{row['event']} at step {row['step']}: {reason}")
            # A replacement has the number of the replica that it replaced.
            processes |= row.get("processes", {})
            processes.pop(row.get("died", ""), None)
        metrics = self.folder / "metrics.jsonl"
        alive = [f"{name} ({pid})" for name, pid in processes.items() if is_of_run(pid, metrics)]
        if alive:
            print(f"alive: {', '.join(alive)}")
            return 0
        message = "none of its processes is alive"
        try:
            with folder.locked():
                print(message)
        except ConfigError as error:
            print(f"{message} yet, or any more: {str(error).partition(';')[0]}")
        return 0


def is_of_run(pid: int, rows: Path) -> bool:
    """Return whether ``pid`` is a process of Monarch that is older than the run's last row. A process
    that began later, or on this machine for another run, only has the same number."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        is_of_monarch = "monarch" in " ".join(process.cmdline())
        return is_of_monarch and process.create_time() <= rows.stat().st_mtime
    return False
