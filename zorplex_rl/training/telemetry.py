"""What ``zorplex-rl status RUN`` looks at: Monarch's tables, trace, and the controller's report.

    every process ──► a socket in a folder of this user only ──► a process with tables in memory ◄── SQL, HTTP on 127.0.0.1 ──┐
    controller ──► RUN/telemetry.json: where that is, which replicas there are, and what they have answered ──► zorplex-rl status RUN

Nothing listens without ``--telemetry``. With it one port on the loopback interface does, which
every user of this machine can reach: names of actors and endpoints, counts and times can be read
there, no weights and no episodes. Monarch's dashboard and mesh admin, which can do more, stay off.
"""

import asyncio
import contextlib
import json
import logging
import os
import shutil
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from zorplex_rl.manifest import write_whole
from zorplex_rl.run_folder import RunFolder
from zorplex_rl.services.runtime import quiet_stderr, start_runtime

SECONDS_BETWEEN_REPORTS = 1.0
RETENTION_SECONDS = 600
"""How long single messages and spans are kept; sums are kept for the whole run."""

log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def telemetry(folder: RunFolder, report: Callable[[], dict[str, Any]]) -> AsyncIterator[None]:
    """Collect the telemetry of processes started here, and write ``report()`` once a second. Of
    other hosts' processes it has what the controller sees: replicas and calls."""
    start_runtime()
    # Only now: importing it before the runtime's settings are made would undo them.
    from monarch._src.job.job_sidecar import job_sidecar_lock_path, spawn_module
    from monarch._src.job.once_daemon import daemon_log_path
    from monarch._src.job.telemetry_actor import telemetry_socket_dir
    from monarch.job import TelemetryConfig

    job = _job()
    job.enable_telemetry(TelemetryConfig(retention_secs=RETENTION_SECONDS, snapshot_interval_secs=0))
    # ``enable_telemetry`` would also start the mesh admin, listening on all interfaces.
    job._components.admin = job._components.snapshot = None
    logging.getLogger("monarch._src.job.job").setLevel(logging.WARNING)
    job.apply()
    lock = job_sidecar_lock_path(job.apply_id)
    rubbish = [telemetry_socket_dir(job.apply_id), lock, daemon_log_path(lock)]
    watcher = None
    try:
        # Made beforehand, because Monarch's would listen at this process's address, which is taken.
        collector = await asyncio.to_thread(
            spawn_module, lock, job.apply_id, "monarch._src.job._job_sidecar_worker", runtime_transport="unix"
        )
        rubbish.append(collector._socket_path)
        watcher = _watcher(collector._pid, rubbish)
        # In a thread: the hosts of the run count on being heard meanwhile.
        state = await asyncio.to_thread(job.state, cached_path=None)
        if (url := state.telemetry_url) is None:
            raise RuntimeError(f"Monarch's telemetry did not start; its log is {daemon_log_path(lock)}")
        # The first question takes seconds to a minute, so that nobody waits for it later.
        threading.Thread(target=_ask_once, args=(state.query_engine_client,), daemon=True).start()
        reporting = asyncio.create_task(_keep_reporting(folder, url, report))
        try:
            yield
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)
            folder.telemetry.unlink(missing_ok=True)
    finally:
        await asyncio.to_thread(job.kill)
        if watcher:
            watcher.kill()
            watcher.communicate()
        for path in rubbish:
            _remove(path)


def _ask_once(tables: Any) -> None:
    # It may be that the run is over before there is an answer.
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        tables.query("select count(*) as messages from messages", timeout=300.0)


def record_trace(url: str, file: Path, seconds: float) -> None:
    """Record for ``seconds`` the processes behind ``url``, and write ``file`` for Perfetto."""
    from monarch.distributed_telemetry import profiler

    with profiler.profile(url) as recording:
        time.sleep(seconds)
    with quiet_stderr():
        recording.export_perfetto_trace(file)


async def _keep_reporting(folder: RunFolder, url: str, report: Callable[[], dict[str, Any]]) -> None:
    while True:
        text = json.dumps({"url": url, "at": time.time(), **report()})
        try:
            await asyncio.to_thread(write_whole, folder.telemetry, text)
        except OSError as error:
            # The run's own writing will end it, with a way to go on. A report is not worth that.
            log.warning("the report for `zorplex-rl status` could not be written: %s", error)
        await asyncio.sleep(SECONDS_BETWEEN_REPORTS)


def _job() -> Any:
    """Return a Monarch job that owns nothing but its telemetry."""
    from monarch.job import JobState, JobTrait

    class Nothing(JobTrait):  # type: ignore[misc, unused-ignore]
        def _state(self) -> Any:
            return JobState({})

        def _create(self, client_script: str | None = None) -> None:
            pass

        def can_run(self, spec: Any) -> bool:
            return False

        def _kill(self) -> None:
            pass

    return Nothing()


def _watcher(pid: int, rubbish: list[str]) -> subprocess.Popen[bytes]:
    """Start a process that ends ``pid`` and removes ``rubbish`` after this one's end. Monarch's
    collecting process is made to outlive the program that has started it."""
    program = 'cat >/dev/null; kill -9 "$0"; rm -rf "$@"'
    quiet = subprocess.DEVNULL
    # Its input ends when this process does. In its own session it gets no Ctrl-C.
    return subprocess.Popen(
        ["/bin/sh", "-c", program, str(pid), *rubbish],
        stdin=subprocess.PIPE,
        stdout=quiet,
        stderr=quiet,
        start_new_session=True,
    )


def _remove(path: str) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.unlink(path)
