"""Listen for other machines: as the controller of a run, or as a host on which it starts processes.

controller   listen_at(own address), attach(host's address)  ◄──►  host   serve_as_host(address)
"""

import contextlib
import hashlib
import os
from collections.abc import Callable
from typing import Any

from zorplex_rl.services.monarch_settings import ProcId, Uid, configure, monarch
from zorplex_rl.services.runtime import SECRET, quiet_stderr, start_runtime

LISTEN_SECONDS = 1.0


def listen_at(address: str) -> None:
    """Have Monarch listen for hosts at ``tls://HOST:PORT`` or ``tcp://…``, and nowhere else. Raises
    RuntimeError once the runtime has started: a process has one transport."""
    if start_runtime.cache_info().currsize:
        raise RuntimeError("this process has started Monarch already, so it cannot begin to listen for other hosts")
    monarch.actor.enable_transport(address)


def serve_as_host(address: str, ready: Callable[[], None]) -> None:
    """Be a host for controllers until it is shut down. Calls ``ready`` once it listens. Monarch
    listens at ``address`` (``tls://HOST:PORT`` or ``tcp://…``), and runs what it is sent."""
    configure(streams=1)
    with quiet_stderr():
        serving = monarch.actor.start_worker_loop_forever(address=addressed(address), ca="trust_all_connections")
        with contextlib.suppress(TimeoutError):
            # An address that cannot be had is refused at once.
            serving.get(timeout=LISTEN_SECONDS)
    ready()
    serving.get()


def attach(address: str) -> Any:
    """Return Monarch's mesh of the one host at ``address``, which may not be there."""
    return monarch.actor.attach_to_workers(ca="trust_all_connections", workers=[addressed(address)])


def addressed(address: str) -> str:
    """Return ``address`` with the name that a host answers to, if ``ZORPLEX_SECRET`` is set.

    Without TLS nobody is known. But a host agent drops what is addressed to another name than its
    own, and this name, 64 bits, is made of the secret. So without the secret nobody starts
    processes there. It crosses the network in the clear: who can listen there knows it.
    """
    if not (secret := os.environ.get(SECRET)):
        return address
    number = int.from_bytes(hashlib.sha256(secret.encode()).digest()[:8], "big")
    return f"{ProcId(Uid.instance_from_value(number, 'service'))}@{address}"
