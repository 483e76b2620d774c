"""Measure how fast weights travel between two hosts, against a plain socket between the same two.

The hosts are namespaces of this machine (``zorplex_rl/training/namespaces.py``), with a network, process ids, a host name and /dev/shm of their
own, so nothing but the network connects them. Needs Linux and root. Writer and reader are processes that a controller has started through
``zorplex-rl worker``; the socket is a Python program of 20 lines on each side.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import tyro
from log import Report, append_report, print_report

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))

from namespaced_hosts import Host, Network, namespaced_hosts, wait_for, why_not  # noqa: E402

from zorplex_rl.config import Config  # noqa: E402
from zorplex_rl.training.namespaces import Namespace  # noqa: E402

ASKED = "How many bytes per second of weights does each transport carry between two hosts, compared with a plain TCP socket between the same two?"
EXPECTED = "``tcp``, which ``auto`` chooses there, at least 50 % of the plain socket at 64 MB. No expectation for ``rdma`` and ``message``."
MB, PORT = 1_000_000, 4444
GIVE_UP_SECONDS = 60.0
"""For all reads of one size through one transport."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    megabytes: tuple[int, ...] = (16, 64)
    """Sizes of the model."""
    repeats: int = 7
    """Reads of each size through each transport."""
    log: bool = True
    """Append the result to LOG.md."""


SENDER = """if True:
    import socket, sys
    server, content = socket.create_server((sys.argv[1], 4999)), memoryview(bytes(4 << 20))
    print("up", flush=True)
    connection, _ = server.accept()
    while size := int.from_bytes(connection.recv(8), "big"):
        while size:
            size -= connection.send(content[:size])
"""
RECEIVER = """if True:
    import socket, sys, time
    connection, size = socket.create_connection((sys.argv[1], 4999)), int(sys.argv[2])
    target = memoryview(bytearray(size))
    for _ in range(int(sys.argv[3]) + 1):
        began, got = time.perf_counter(), 0
        connection.sendall(size.to_bytes(8, "big"))
        while got < size:
            got += connection.recv_into(target[got:])
        print(time.perf_counter() - began)
    connection.sendall(bytes(8))
"""


def time_socket(sender: Host, receiver: Host, size: int, repeats: int) -> list[float]:
    """Return the seconds in which ``size`` bytes go through a plain socket."""
    serving = sender.popen(sys.executable, "-c", SENDER, sender.address, stdout=subprocess.PIPE)
    assert serving.stdout is not None and serving.stdout.readline() == b"up\n"
    printed = receiver.run(sys.executable, "-c", RECEIVER, sender.address, str(size), str(repeats))
    serving.wait()
    return [float(line) for line in printed.split()][1:]


async def time_reads(hosts, megabytes: int, transport: str, repeats: int) -> list[float]:
    """Return the seconds of verified reads, from the first host to the second."""
    from weight_sync import ReaderActor, Writer

    there, here = hosts.names
    async with AsyncExitStack() as running:
        writer = await hosts.spawn(there, "writer", Writer, megabytes)
        running.push_async_callback(writer.stop)
        reader = await hosts.spawn(here, "reader", ReaderActor, megabytes)
        running.push_async_callback(reader.stop)
        source = replace(await writer.actor.source.call_one(), owner=writer.actor)
        await reader.actor.subscribe.call_one(source, transport)
        seconds = []
        for _ in range(repeats + 1):
            await writer.actor.publish.call_one()
            seconds.append(await reader.actor.fetch.call_one())
        return seconds[1:]


async def measure(network: Network, options: Options) -> Report:
    from zorplex_rl.services.runtime import ActorError, ReplicaDied
    from zorplex_rl.training.hosts import open_hosts

    a, b = network["a"], network["b"]
    asked = "attach:" + ",".join(f"tcp://{host.address}:{PORT}" for host in (a, b))
    rows, notes = [], []
    async with open_hosts(Config().changed(hosts=asked)) as hosts:
        for megabytes in options.megabytes:
            measured = {"plain socket": time_socket(a, b, megabytes * MB, options.repeats)}
            for transport in ("auto", "tcp", "rdma", "message"):
                try:
                    async with asyncio.timeout(GIVE_UP_SECONDS):
                        measured[transport] = await time_reads(hosts, megabytes, transport, options.repeats)
                except (TimeoutError, ActorError, ReplicaDied) as error:
                    notes.append(f"{megabytes} MB, {transport}: no figure, {type(error).__name__}.")
            # The machine may have become faster or slower meanwhile.
            measured["plain socket, again"] = time_socket(a, b, megabytes * MB, options.repeats)
            fastest = min(median(measured["plain socket"]), median(measured["plain socket, again"]))
            for name, seconds in measured.items():
                took = median(seconds)
                rate = f"{megabytes / 1000 / took:.2f}"
                spread = f"{1e3 * min(seconds):.1f} – {1e3 * max(seconds):.1f}"
                rows.append([f"{megabytes} MB, {name}", f"{1e3 * took:.1f}", spread, rate, f"{fastest / took:.2f}"])
    columns = ["one reader", "median ms", "range", "GB/s", "× plain socket"]
    return Report("Between two hosts on one machine", columns, rows, notes)


def join(switch: Namespace) -> None:
    """Give this process an address on the hosts' network. It ends with that network."""
    switch.ip(f"link add outside type veth peer name zxbench netns {os.getpid()}")
    switch.ip("link set outside master switch up")
    for words in ("addr add 10.77.0.254/24 dev zxbench", "link set zxbench up"):
        subprocess.run(["ip", *words.split()], check=True)


def main(options: Options) -> None:
    if reason := why_not():
        print(f"nothing was measured: {reason}")
        return
    with namespaced_hosts("a", "b") as network:
        join(network["a"].switch)
        for host in network.values():
            command = (sys.executable, "-m", "zorplex_rl", "worker", "--listen", f"tcp://{host.address}:{PORT}")
            host.popen(*command, cwd="/")
            wait_for(lambda host=host: host.address in host.listening(), 120, "the worker listens")
        report = asyncio.run(measure(network, options))
    print_report(report)
    if options.log:
        settings = {name: value for name, value in asdict(options).items() if name != "log"}
        append_report("benchmarks/hosts.py", ASKED, EXPECTED, settings, [report])


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
