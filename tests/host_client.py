"""Be the controller of a run on some hosts, without a run: ``python host_client.py SECONDS
ADDRESS…``. It waits that long for an answer.

Says ``open``, or why the hosts could not be had; after a line on the standard input, ``all alive``
or what is lost, and ends.
"""

from __future__ import annotations

import asyncio
import sys

from zorplex_rl.config import Config
from zorplex_rl.errors import HostError
from zorplex_rl.services import host
from zorplex_rl.training.hosts.openers import open_hosts


async def main(seconds: str, *addresses: str) -> None:
    host.GREETING_SECONDS = float(seconds)
    try:
        async with open_hosts(Config().changed(hosts=f"attach:{','.join(addresses)}")) as hosts:
            print("open", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            lost = [f"{one.name} {one.reason}" for one in hosts.hosts if not one.is_alive]
            print(*lost or ["all alive"], sep="; ", flush=True)
    except HostError as error:
        print(error, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
