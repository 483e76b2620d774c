"""Say how far a run is, and which of its processes live: ``zorplex-rl status RUN``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import psutil
import tyro


@dataclass(frozen=True)
class Status:
    """Say how far a run is, and which of its processes on this machine live."""

    folder: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""

    def run(self) -> int:
        from zorplex_rl.cli.live import row_line
        from zorplex_rl.run.folder import RunFolder, read_config

        steps, rows = read_config(self.folder).steps, RunFolder(self.folder).metrics()
        for row in [row for row in rows if row["event"] in ("step", "eval")][-5:]:
            print(row_line(row, steps))
        for row in rows:
            if row["event"] in ("restart", "warning"):
                print(f"{row['event']} at step {row['step']}: {row.get('reason') or row.get('text')}")
        # A replacement has the number of the replica that it replaced.
        processes: dict[str, int] = {}
        for row in rows:
            processes |= row.get("processes", {})
            processes.pop(row.get("died", ""), None)
        alive = [f"{name} ({pid})" for name, pid in processes.items() if psutil.pid_exists(pid)]
        print(f"alive: {', '.join(alive)}" if alive else "none of its processes is alive")
        return 0
