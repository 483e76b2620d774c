"""Borrow hosts from Slurm: ``--hosts slurm:N``, through Monarch's job API.

N jobs of one node each: a node that fails takes no other job along, as the first of a job of N
nodes would. Monarch's ``SlurmJob`` submits and cancels; the nodes run our own worker
(``services/job_worker.py``), because Monarch's listens on plain TCP. It runs from the Python that
is installed on the nodes; nobody has to start ``zorplex-rl worker``.

The jobs are cancelled at the end, however the run ends. If the controller is killed, the workers
end with their lease (``services/host.py``), and the jobs with them. A job that gets no lease,
because its controller was killed while it waited for nodes, ends by itself, too.
"""

import asyncio
import contextlib
import logging
import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from zorplex_rl.config import HostsConfig
from zorplex_rl.errors import ConfigError, HostError
from zorplex_rl.services.job_worker import PORT, TOLD
from zorplex_rl.services.runtime import SECRET
from zorplex_rl.services.tls import TLS, check_files
from zorplex_rl.training.hosts.attached import Reached, attach_to, own_address
from zorplex_rl.training.hosts.spec import HostsSpec

MESH = "zorplex"


FIRST_LEASE_SECONDS = 60.0
"""A job without a lease this long after ``--start-seconds``, from its submission, ends itself."""


GOING = ("", "PENDING", "CONFIGURING", "RUNNING", "SUSPENDED")
"""States of a job that is not over."""


POLL_SECONDS = 2.0


LISTEN_SECONDS = 60.0
"""A worker on a node needs less until it listens, once its job runs."""


NODE_LOGS = "/tmp"
"""Where the nodes write what the workers print: no folder of this machine need exist there."""


@contextlib.asynccontextmanager
async def open_slurm(spec: HostsSpec, settings: HostsConfig) -> AsyncIterator[list[Reached]]:
    """Submit a job a host, attach to all, cancel at the end. Raises HostError, ConfigError."""
    # Slurm passes the environment on to the nodes.
    os.environ[SECRET] = os.environ.get(SECRET) or secrets.token_hex(16)
    jobs = [slurm_job(settings, number) for number in range(spec.count)]
    try:
        for job in jobs:
            # Not in a thread: a cancelled one goes on, and submits a job that nobody cancels.
            _submit(job)
        try:
            async with asyncio.TaskGroup() as group:
                waiting = [group.create_task(_until_it_listens(job, settings)) for job in jobs]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        addresses = [task.result() for task in waiting]
        if files := _own_files(settings):
            check_files(files, own_address(addresses[0]))
        needed = f"it can reach this machine; what its job says is there, in {NODE_LOGS}/slurm_*_zorplex-*"
        yield await attach_to(addresses, None, needed)
    finally:
        await asyncio.shield(asyncio.gather(*(asyncio.to_thread(job.kill) for job in jobs), return_exceptions=True))


def slurm_job(settings: HostsConfig, number: int) -> Any:
    """Return the job of host ``number``, not yet submitted."""
    from monarch.job import SlurmJob

    # Only now: importing it makes them talkative.
    logging.getLogger("monarch._src.job.slurm").setLevel(logging.ERROR)
    logging.getLogger("monarch._src.job.job").setLevel(logging.WARNING)
    # A job that Slurm starts again on another node would run a worker that nobody knows.
    options = ["--no-requeue", *_words(settings)]
    until = time.time() + settings.start_seconds + FIRST_LEASE_SECONDS
    files = _own_files(settings)
    program = (sys.executable, "-m", "zorplex_rl.services.job_worker")
    return SlurmJob(
        {MESH: 1},
        python_exe=shlex.join((*program, f"{until:.0f}", str(files.parent) if files else "")),
        slurm_args=options,
        job_name=f"zorplex-{number}",
        log_dir=NODE_LOGS,
    )


def _own_files(settings: HostsConfig) -> Path | None:
    """Return this machine's folder of TLS files, beside those of the nodes; None without TLS."""
    folder = settings.tls or os.environ.get(TLS)
    return Path(folder).absolute() if folder and not settings.insecure else None


def _submit(job: Any) -> None:
    try:
        job.apply()
    except RuntimeError as error:
        raise HostError(f"Slurm takes no job ({str(error).strip()}); look at --slurm-options") from error


async def _until_it_listens(job: Any, settings: HostsConfig) -> str:
    """Wait for the worker of ``job`` to listen. Returns its address. Raises HostError."""
    number, address, state, reason = job._slurm_job_id, "", "", ""
    output = f"{NODE_LOGS}/slurm_{number}_*"
    try:
        async with asyncio.timeout(settings.start_seconds) as limit:
            while True:
                state, node, reason, said = await asyncio.to_thread(_ask_slurm, number)
                if state not in GOING:
                    told = said.removeprefix(TOLD) if said.startswith(TOLD) else ""
                    why = told or f"{state}, {reason}; look there at {output}"
                    raise HostError(f"Slurm job {number} (node {node}) ended before it could be used: {why}")
                if state == "RUNNING":
                    if not address:
                        address = f"{'tls' if _own_files(settings) else 'tcp'}://{node}:{PORT}"
                        limit.reschedule(asyncio.get_running_loop().time() + LISTEN_SECONDS)
                    if await asyncio.to_thread(_listens, node):
                        return address
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        if address:
            raise HostError(
                f"Slurm job {number} runs, but nothing could be reached at {address} within {LISTEN_SECONDS:g} s; "
                f"look at the network, and there at {output}"
            ) from None
        raise HostError(
            f"Slurm job {number} has not begun within {settings.start_seconds:g} s ({state or 'no answer'}, {reason}); "
            "ask for fewer nodes, or wait longer with --start-seconds"
        ) from None


def _ask_slurm(job: str) -> list[str]:
    """Return a job's state, node, reason and comment: empty if Slurm does not answer now."""
    command = ("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T|%B|%r|%k")
    words = subprocess.run(command, capture_output=True, text=True).stdout.strip().split("|", 3)
    return words if len(words) == 4 else [""] * 4


def _listens(node: str) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((node, PORT), timeout=POLL_SECONDS):
        return True
    return False


def check_slurm(settings: HostsConfig) -> None:
    """Raise ConfigError if no job can be submitted here, or nothing says whether to encrypt."""
    given = settings.tls or os.environ.get(TLS)
    if not (given or settings.insecure):
        raise ConfigError(
            f"--hosts is {settings.hosts!r}, but not how to encrypt what goes there; give --tls FOLDER/controller, which "
            '`zorplex-rl certificates` makes (README, "Slurm"), or --insecure if you trust that network'
        )
    if given and settings.insecure:
        raise ConfigError(
            f"--insecure is for nodes without TLS, and --tls or {TLS} is {given!r}; leave one of them out"
        )
    if missing := [program for program in ("sbatch", "squeue", "scancel") if shutil.which(program) is None]:
        raise ConfigError(
            f"--hosts slurm needs {', '.join(missing)}, which is not installed here; run it where you submit jobs"
        )
    _words(settings)
    if folder := _own_files(settings):
        check_files(folder)


def slurm_script(settings: HostsConfig) -> str:
    """Return the first host's script without submitting: Monarch is given another ``sbatch``."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = Path(folder, "sbatch")
        recorder.write_text('#!/bin/sh\ncat > "$0.script"\necho Submitted batch job 0\n')
        recorder.chmod(0o755)
        usual = os.environ["PATH"]
        os.environ["PATH"] = f"{folder}{os.pathsep}{usual}"
        try:
            slurm_job(settings, 0).apply()
        finally:
            os.environ["PATH"] = usual
        return Path(f"{recorder}.script").read_text()


def _words(settings: HostsConfig) -> list[str]:
    """Return the options for sbatch. Raises ConfigError."""
    try:
        words = shlex.split(settings.slurm_options or "")
    except ValueError as error:
        raise ConfigError(f"--slurm-options is {settings.slurm_options!r}; it cannot be read: {error}") from error
    for word in words:
        if not re.fullmatch(r"[a-z][a-z0-9-]*(=.+)?", word):
            raise ConfigError(
                f"--slurm-options has {word!r}; write each as name=value, as in 'partition=gpu time=01:00:00'"
            )
    return [f"--{word}" for word in words]
