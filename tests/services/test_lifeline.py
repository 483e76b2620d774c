"""A lifeline ends when a host is killed or cut off, and for nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from namespaced_hosts import Host, namespaced_hosts, needs_hosts
from zorplex_rl.services.lifeline import MOST_STRANGERS, OPEN_SECONDS, hold, serve

SERVER = """if True:
    import asyncio, json, os, sys
    from zorplex_rl.services.lifeline import serve
    async def main():
        there = await serve(sys.argv[1])
        print(json.dumps([os.getpid(), there.port, there.secret.hex()]), flush=True)
        await asyncio.Event().wait()
    asyncio.run(main())
"""
HOLDER = """if True:
    import asyncio, sys
    from zorplex_rl.services.lifeline import Lifeline, hold
    print("holds", flush=True)
    asyncio.run(hold(Lifeline(sys.argv[1], int(sys.argv[2]), bytes.fromhex(sys.argv[3]))))
    print("lost", flush=True)
"""


class Pair:
    """A process that serves a lifeline on ``far``, and one on ``near`` that holds it."""

    def __init__(self, near: Host, far: Host) -> None:
        self.far = far
        self.server = far.popen(sys.executable, "-c", SERVER, far.address, stdout=subprocess.PIPE, text=True)
        self.pid, port, secret = json.loads(self.server.stdout.readline())
        words = (far.address, str(port), secret)
        self.holder = near.popen(sys.executable, "-c", HOLDER, *words, stdout=subprocess.PIPE, text=True)
        assert self.holder.stdout.readline() == "holds\n"

    def signal(self, number: int) -> None:
        self.far.run("kill", f"-{number}", str(self.pid), cwd="/")

    def holds(self, seconds: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.holder.wait(seconds)
        return self.holder.poll() is None

    def lost_after(self, since: float) -> float:
        assert self.holder.communicate(timeout=30)[0] == "lost\n"
        return time.monotonic() - since


@pytest.fixture
def pair() -> Iterator[Pair]:
    with namespaced_hosts("near", "far") as network:
        running = Pair(network["near"], network["far"])
        # Until it is connected, and some bytes have gone.
        assert running.holds(1.0)
        try:
            yield running
        finally:
            # ``nsenter`` stops itself with the process that it has started. The kernel ends a host
            # only when all its processes have been waited for, which nobody does while ``nsenter``
            # stands still.
            for process in (running.server, running.holder):
                process.kill()


@needs_hosts
@pytest.mark.parametrize("loss", ["its process is killed", "the host is killed", "the host is cut off"])
def test_a_lost_host_is_noticed_within_5_seconds(pair, loss):
    began = time.monotonic()
    match loss:
        case "its process is killed":
            pair.signal(signal.SIGKILL)
        case "the host is killed":
            pair.far.kill()
        case "the host is cut off":
            pair.far.cut()
    took = pair.lost_after(began)
    print(f"{loss}: noticed after {took:.1f} s")
    # 4.3 by its settings; this machine may be busy.
    assert took < 8


@needs_hosts
def test_a_process_that_stands_still_for_8_seconds_is_not_lost_nor_is_a_link_that_is_down_for_one(pair):
    pair.signal(signal.SIGSTOP)
    assert pair.holds(8.0)
    pair.signal(signal.SIGCONT)
    pair.far.cut()
    assert pair.holds(1.0)
    pair.far.restore()
    assert pair.holds(5.0)


def test_a_connection_that_ends_is_made_again_and_strangers_are_hung_up_on():
    async def main() -> None:
        there = await serve("127.0.0.1")
        held = asyncio.create_task(hold(there))
        strangers = []
        for _ in range(2 * MOST_STRANGERS):
            strangers.append(await asyncio.open_connection(there.host, there.port))
        # Who gives the wrong secret is hung up on at once, and who gives none, soon.
        strangers[0][1].write(b"x" * 32)
        async with asyncio.timeout(2 * OPEN_SECONDS):
            for reader, writer in strangers:
                with contextlib.suppress(OSError):
                    assert await reader.read() == b""
                writer.close()
        assert not held.done()
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)

    asyncio.run(main())


def test_a_lifeline_to_nobody_is_an_error_and_no_loss():
    async def main() -> None:
        there = await serve("127.0.0.1")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            await hold(type(there)(there.host, port, there.secret))

    asyncio.run(main())
