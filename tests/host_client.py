"""Be the controller of a run on some hosts, without a run: ``python host_client.py [--leaves]
SECONDS ADDRESS…``. It waits that long for an answer.

Says ``open``, or why the hosts could not be had; after a line on the standard input, ``all alive``
or what is lost, and ends. With ``--leaves`` it also starts on the first host a process that hides
from the one that has started it, and says its number.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys

from zorplex_rl.training.hosts.openers import open_hosts

from zorplex_rl.config import Config
from zorplex_rl.errors import HostError
from zorplex_rl.services import host, replica
from zorplex_rl.services.runtime import Actor, concurrent_endpoint

HIDES = """
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        os.closerange(0, 3)
        os.execve("/bin/sleep", ["sleep", "1000"], {})
"""


class Leaves(Actor):
    """Starts a process that has no parent, no session and no environment of this host."""

    @concurrent_endpoint
    async def hide(self) -> str:
        return subprocess.check_output([sys.executable, "-c", HIDES], text=True).strip()


async def main(seconds: str, *addresses: str, leaves: bool) -> None:
    host.GREETING_SECONDS = float(seconds)
    try:
        async with open_hosts(Config().changed(hosts=f"attach:{','.join(addresses)}")) as hosts:
            print("open", flush=True)
            if leaves:
                leaver = await replica.spawn("leaver", Leaves, host=hosts.hosts[0])
                print(await leaver.actor.hide.call_one(), flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            lost = [f"{one.name} {one.reason}" for one in hosts.hosts if not one.is_alive]
            print(*lost or ["all alive"], sep="; ", flush=True)
    except HostError as error:
        print(error, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*(word for word in sys.argv[1:] if word != "--leaves"), leaves="--leaves" in sys.argv))
