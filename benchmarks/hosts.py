"""Measure how fast weights travel between two hosts, against a plain socket between the same two;
over TCP, and over TLS.

The hosts are namespaces of this machine (``zorplex_rl/course/namespaces.py``), with a network,
process ids, a host name and /dev/shm of their own, so nothing but the network connects them. Needs
Linux and root. Writer and reader are processes that a controller has started through ``zorplex-rl
worker``; the socket is a Python program of 20 lines on each side. Over TLS it has the same
certificates, and both sides show theirs, as in a run. A read of the weights and a transfer through
the socket follow each other, and their ratio is taken.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, Literal

import tyro
from log import Report, append_report, print_report

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))

from namespaced_hosts import Host, Network, namespaced_hosts, wait_for, why_not  # noqa: E402

from zorplex_rl.config import Config  # noqa: E402
from zorplex_rl.course.namespaces import Namespace  # noqa: E402
from zorplex_rl.services.certificates import make_certificates  # noqa: E402
from zorplex_rl.services.tls import TLS  # noqa: E402

ASKED = (
    "How many bytes per second of weights does each transport carry between two hosts, compared with a plain TCP socket "
    "between the same two, and over TLS with a plain TLS socket?"
)
EXPECTED = (
    "``rdma``, which ``auto`` chooses there, 20 to 50 % of the plain socket at 64 MB. No expectation for ``message``."
)
MB, PORT = 1_000_000, 4444
OUTSIDE = "10.77.0.254"
"""This process's own address on the hosts' network."""
GIVE_UP_SECONDS = 60.0
"""For all reads of one size through one transport."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    megabytes: tuple[int, ...] = (16, 64)
    """Sizes of the model."""
    repeats: int = 15
    """Reads of each size through each transport."""
    schemes: tuple[Literal["tcp", "tls"], ...] = ("tcp", "tls")
    """What the hosts are reached by."""
    transports: tuple[str, ...] = ("auto", "rdma", "message")
    """Ways of the weights."""
    log: bool = True
    """Append the result to LOG.md."""


SECURED = """if True:
    import socket, ssl, sys, time
    def secured(connection, **side):
        if not (folder := sys.argv[2]):
            return connection
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if "server_side" in side else ssl.PROTOCOL_TLS_CLIENT)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(f"{folder}/authority.pem")
        context.load_cert_chain(f"{folder}/certificate.pem", f"{folder}/key.pem")
        return context.wrap_socket(connection, **side)
"""
SENDER = f"""{SECURED}
    server, content = socket.create_server((sys.argv[1], 4999)), memoryview(bytes(4 << 20))
    print("up", flush=True)
    connection = secured(server.accept()[0], server_side=True)
    while size := int.from_bytes(connection.recv(8), "big"):
        while size:
            size -= connection.send(content[:size])
"""
RECEIVER = f"""{SECURED}
    connection = secured(socket.create_connection((sys.argv[1], 4999)), server_hostname=sys.argv[1])
    size = int(sys.argv[3])
    target = memoryview(bytearray(size))
    for _ in sys.stdin:
        began, got = time.perf_counter(), 0
        connection.sendall(size.to_bytes(8, "big"))
        while got < size:
            got += connection.recv_into(target[got:])
        print(time.perf_counter() - began, flush=True)
    connection.sendall(bytes(8))
"""


class PlainSocket:
    """A socket between two hosts, over TLS if there are ``keys``, through which ``size`` bytes go
    whenever it is asked."""

    def __init__(self, sender: Host, receiver: Host, size: int, keys: Path | None) -> None:
        own = [str(keys / host.name) if keys else "" for host in (sender, receiver)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.serving = sender.popen(sys.executable, "-c", SENDER, sender.address, own[0], **pipes)
        assert self.serving.stdout.readline() == "up\n"
        self.receiving = receiver.popen(sys.executable, "-c", RECEIVER, sender.address, own[1], str(size), **pipes)

    async def read(self) -> float:
        """Return the seconds of one transfer."""
        # In a thread: meanwhile the leases of the hosts go on.
        return await asyncio.to_thread(self._read)

    def _read(self) -> float:
        print(file=self.receiving.stdin, flush=True)
        return float(self.receiving.stdout.readline())

    def close(self) -> None:
        self.receiving.communicate()
        self.serving.communicate()


async def time_reads(
    hosts, megabytes: int, transport: str, repeats: int, plain: PlainSocket
) -> list[tuple[float, float]]:
    """Return the seconds of verified reads from the first host to the second, each with those of
    the plain socket just before it."""
    from weight_sync import ReaderActor, Writer

    there, here = hosts.names
    async with AsyncExitStack() as running:
        writer = await hosts.spawn(there, "writer", Writer, megabytes)
        running.push_async_callback(writer.stop)
        reader = await hosts.spawn(here, "reader", ReaderActor, megabytes)
        running.push_async_callback(reader.stop)
        source = replace(await writer.actor.source.call_one(), owner=writer.actor)
        await reader.actor.subscribe.call_one(source, transport)
        pairs = []
        for _ in range(repeats + 1):
            await writer.actor.publish.call_one()
            pairs.append((await plain.read(), await reader.actor.fetch.call_one()))
        return pairs[1:]


async def measure(network: Network, options: Options, keys: Path | None, asked: str) -> Report:
    from zorplex_rl.services.runtime import ActorError, ReplicaDied
    from zorplex_rl.training.hosts.openers import open_hosts

    a, b = network["a"], network["b"]
    scheme = "tls" if keys else "tcp"
    socket_name = f"plain {scheme.upper()} socket"
    rows, notes = [], []
    async with open_hosts(Config().changed(hosts=asked)) as hosts:
        for megabytes in options.megabytes:
            plain = PlainSocket(a, b, megabytes * MB, keys)
            for transport in options.transports:
                try:
                    async with asyncio.timeout(GIVE_UP_SECONDS):
                        pairs = await time_reads(hosts, megabytes, transport, options.repeats, plain)
                except (TimeoutError, ActorError, ReplicaDied) as error:
                    notes.append(f"{megabytes} MB, {transport}: no figure, {type(error).__name__}.")
                    continue
                ratios = [socket / read for socket, read in pairs]
                socket, took = (median(side) for side in zip(*pairs, strict=True))
                rate, spread = f"{megabytes / 1000 / took:.2f}", f"{min(ratios):.2f} – {max(ratios):.2f}"
                times = f"{1e3 * took:.1f}", f"{1e3 * socket:.1f}"
                rows.append([f"{megabytes} MB, {transport}", *times, rate, f"{median(ratios):.2f}", spread])
            plain.close()
    columns = ["one reader", "median ms", f"{socket_name}, ms", "GB/s", "× that, in turns", "range"]
    return Report(f"Between two hosts on one machine, over {scheme.upper()}", columns, rows, notes)


def join(switch: Namespace) -> None:
    """Give this process an address on the hosts' network. It ends with that network."""
    switch.ip(f"link add outside type veth peer name zxbench netns {os.getpid()}")
    switch.ip("link set outside master switch up")
    for words in (f"addr add {OUTSIDE}/24 dev zxbench", "link set zxbench up"):
        subprocess.run(["ip", *words.split()], check=True)


@contextmanager
def two_workers(scheme: str) -> Iterator[tuple[Network, Path | None, str]]:
    """Start a worker on each of two new hosts. Yields the hosts, the folder of keys if ``scheme``
    is tls, and what ``--hosts`` says for them. A process can do it once: it has one transport of
    Monarch's."""
    # Not below /tmp, of which each host has its own.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, namespaced_hosts("a", "b") as network:
        join(network["a"].switch)
        keys = Path(folder, "keys") if scheme == "tls" else None
        if keys:
            make_certificates(keys, [f"{name},{host.address}" for name, host in network.items()], OUTSIDE, days=1)
            os.environ[TLS] = str(keys / "controller")
        addresses = {name: f"{scheme}://{host.address}:{PORT}" for name, host in network.items()}
        for name, host in network.items():
            permission = ("--tls", str(keys / name)) if keys else ("--insecure",)
            host.popen(sys.executable, "-m", "zorplex_rl", "worker", "--listen", addresses[name], *permission, cwd="/")
            wait_for(lambda host=host: host.address in host.listening(), 120, "the worker listens")
        yield network, keys, "attach:" + ",".join(addresses.values())


def measure_over(scheme: str, options: Options) -> Report:
    """Return a report of weights between two new hosts over ``scheme``."""
    with two_workers(scheme) as (network, keys, asked):
        return asyncio.run(measure(network, options, keys, asked))


def main(options: Options) -> None:
    if reason := why_not():
        print(f"nothing was measured: {reason}")
        return
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as apart:
        reports = [apart.submit(measure_over, scheme, options).result() for scheme in options.schemes]
    for report in reports:
        print_report(report)
    if options.log:
        settings = {name: value for name, value in asdict(options).items() if name != "log"}
        append_report("benchmarks/hosts.py", ASKED, EXPECTED, settings, reports)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
