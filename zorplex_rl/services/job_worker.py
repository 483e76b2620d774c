"""Slurm runs ``job_worker UNTIL FOLDER``: it lends its node to one run, at ``tls://NODE:PORT``.

    no lease until UNTIL        the job ends: its controller has died, or has given up waiting for the nodes that it wanted
    started only after UNTIL    it ends at once: it has waited in the queue for longer than its controller
    the run is over             it ends, also when the lease has run out, because the controller is dead or cut off
    FOLDER/NODE is no good      it ends, and its comment, which ``squeue`` shows to the controller, says why

UNTIL is a time of day, in seconds since 1970, so the clocks of the machines must agree to some
seconds, as Slurm's must. FOLDER is what ``zorplex-rl certificates`` has made, on a file system that
the nodes share; empty, the worker listens on plain TCP. What Monarch's ``SlurmJob`` writes behind
them, a worker of its own on plain TCP, is not run.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

from zorplex_rl.errors import ConfigError, HostError
from zorplex_rl.services import orphans
from zorplex_rl.services.tls import check_files, use
from zorplex_rl.services.worker import Worker

PORT = 22222
TOLD = "zorplex-rl: "
"""What a comment that a job has written begins with."""


async def serve_one_run(until: float, folder: str) -> None:
    """Be a host for one run, which must come before ``until``. Raises ConfigError or HostError."""
    if (left := until - time.time()) <= 0:
        print(f"{TOLD}this job has waited in the queue for longer than its controller waits, so it ends", flush=True)
        return
    node = os.environ["SLURMD_NODENAME"].lower()
    address = f"{'tls' if folder else 'tcp'}://{node}:{PORT}"
    if folder:
        check_files(Path(folder, node), address)
        use(Path(folder, node))
    orphans.adopt()
    worker = Worker(address)
    async with worker.listening():
        await worker.serve_a_run(left)


def tell_the_controller(why: str) -> None:
    """Write ``why`` where the job's output goes, and into the job's comment."""
    print(why, flush=True)
    with contextlib.suppress(OSError):
        subprocess.run(("scontrol", "update", f"JobId={os.environ['SLURM_JOB_ID']}", f"Comment={why}"), check=False)


if __name__ == "__main__":
    try:
        asyncio.run(serve_one_run(float(sys.argv[1]), sys.argv[2]))
    except (ConfigError, HostError) as error:
        tell_the_controller(f"{TOLD}{error}")
        sys.exit(2)
