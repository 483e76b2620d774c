"""Attach to our workers (``services/worker.py``): those of ``attach:…``, and of Slurm's jobs."""

import asyncio
import os
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from zorplex_rl.errors import HostError
from zorplex_rl.services.listening import attach, listen_at
from zorplex_rl.services.runtime import start_runtime
from zorplex_rl.services.tls import TLS, address_towards, ask


class Reached(NamedTuple):
    """A lent host: Monarch's mesh, its address, if known, and what to check if it is silent."""

    mesh: Any
    address: str = ""
    needed: str = "it is up and can reach this machine"


async def attach_to(addresses: Sequence[str], listen: str | None, needed: str) -> list[Reached]:
    """Start this process's Monarch, at ``listen`` or its own address, and attach ``addresses``.
    Each is a mesh of its own, so a silent one keeps no other waiting. Raises HostError."""
    if addresses[0].startswith("tls://"):
        await asyncio.gather(*(asyncio.to_thread(ask, address) for address in addresses))
    else:
        os.environ.pop(TLS, None)
    listen_at(listen or own_address(addresses[0]))
    start_runtime()
    return [Reached(attach(address), urlsplit(address).hostname or "", needed) for address in addresses]


def own_address(peer: str) -> str:
    """Return this machine's address on ``peer``'s network, with a free port. Raises HostError."""
    there = urlsplit(peer)
    try:
        family, host = address_towards(there.hostname or "", there.port or 0)
        with socket.create_server((host, 0), family=family) as free:
            port = free.getsockname()[1]
    except OSError as error:
        raise HostError(
            f"there is no way to {peer} ({error.strerror or error}); look at its name and at the network"
        ) from error
    return f"{there.scheme}://[{host}]:{port}" if ":" in host else f"{there.scheme}://{host}:{port}"
