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
        steps, rows = read_config(self.folder).steps, folder.metrics()
        for row in [row for row in rows if row["event"] in ("step", "eval")][-5:]:
            print(row_line(row, steps))
        for row in rows:
            if row["event"] in ("restart", "warning"):
                print(
                    f"{row['event']} at step {row['step']}: {row.get('reason') or row.get('text')}"
                )
        # A replacement has the number of the replica that it replaced.
        processes: dict[str, int] = {}
        for row in rows:
            processes |= row.get("processes", {})
            processes.pop(row.get("died", ""), None)
        alive = [
            f"{name} ({pid})"
            for name, pid in processes.items()
            if is_of_run(pid, self.folder / "metrics.jsonl")
        ]
        if alive:
            print(f"alive: {', '.join(alive)}")
            return 0
        found = "none of its processes is alive"
        try:
            with folder.locked():
                print(found)
        except ConfigError as error:
            print(f"{found} yet, or any more: {str(error).partition(';')[0]}")
        return 0


def is_of_run(pid: int, rows: Path) -> bool:
    """Return whether ``pid`` is a process of Monarch from before the last of the run's ``rows``: its
    number may be that of another process by now, or on this machine."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return (
            "monarch" in " ".join(process.cmdline())
            and process.create_time() <= rows.stat().st_mtime
        )
    return False
