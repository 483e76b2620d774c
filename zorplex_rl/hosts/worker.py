"""Lend this machine to a run: the program ``zorplex-rl worker``.

this program ── starts ──► Monarch's worker loop ── starts for a controller ──► keeper (``lease.py``), replicas
     ▲                             │
     └── starts a fresh one ◄──────┘ ends with its run or its lease, and with it all that it has started
"""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

from zorplex_rl.errors import HostError
from zorplex_rl.services.runtime import SAFE_PATH, configure, monarch, quiet_stderr, socket_folder

CANNOT_LISTEN = 2


@contextlib.contextmanager
def worker_loop(address: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run Monarch's worker loop at ``address`` (``tls://HOST:PORT``, ``tcp://…`` or ``ipc://FILE``)
    in a process that ends with the block, and with this one."""
    program = [sys.executable, "-m", "zorplex_rl.hosts.worker", address]
    # The files of a killed run are removed with this folder.
    with socket_folder() as folder:
        environment = os.environ | SAFE_PATH | {"TMPDIR": folder}
        loop = subprocess.Popen(
            program, stdin=subprocess.PIPE, start_new_session=True, env=environment
        )
        try:
            yield loop
        finally:
            loop.kill()
            loop.wait()


def serve(address: str) -> None:
    """Serve one run after another at ``address``, until interrupted. Raises HostError if it cannot listen."""
    while True:
        with worker_loop(address) as loop:
            if loop.wait() == CANNOT_LISTEN:
                raise HostError(
                    f"this machine cannot listen at {address}; give one of its addresses with a free port"
                )


def _run_loop(address: str) -> None:
    """Run Monarch's worker loop in this process, until the parent ends."""
    parent = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def end_with_parent() -> None:
        os.read(parent, 1)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    configure(streams=1)
    with quiet_stderr():
        serving = monarch.actor.start_worker_loop_forever(
            address=address, ca="trust_all_connections"
        )
        try:
            # An address that cannot be used fails at once.
            with contextlib.suppress(TimeoutError):
                serving.get(timeout=1.0)
        except Exception:
            os._exit(CANNOT_LISTEN)
    print(f"zorplex-rl: waiting for a run at {address}; Ctrl-C ends this", flush=True)
    with contextlib.suppress(Exception):
        serving.get()
    # The usual exit would wait for Monarch's own threads.
    os._exit(0)


if __name__ == "__main__":
    _run_loop(sys.argv[1])
