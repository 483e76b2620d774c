"""A ring served from a plain socket: what arrives is what was published, whole, and only for who
knows the secret."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from runs import eventually

from zorplex_rl.weights import socket_ring
from zorplex_rl.weights.layout import named_weights
from zorplex_rl.weights.ring import WeightRing, read_ring
from zorplex_rl.weights.socket_ring import SECRET_BYTES, SocketHandle, SocketRing, serve


def make_ring(slots: int = 3) -> tuple[torch.nn.Module, WeightRing]:
    model = torch.nn.Linear(64, 64)
    return model, WeightRing(model, slots)


async def pull(reader: SocketRing, ring: WeightRing) -> tuple[int, torch.Tensor]:
    staging = torch.zeros(ring.layout.size, dtype=torch.uint8)

    async def read_headers() -> torch.Tensor:
        return await asyncio.to_thread(reader.read_headers, len(ring.slots))

    async def read_slot(slot: int) -> None:
        await asyncio.to_thread(reader.read_slot, slot, staging)

    return await read_ring(read_headers, read_slot), staging


def test_pulled_weights_are_bit_equal_to_the_published_ones():
    model, ring = make_ring()
    reader, copy = SocketRing(serve(ring, "127.0.0.1")), torch.nn.Linear(64, 64)
    for version in (1, 2, 3, 4):
        torch.nn.init.normal_(model.weight)
        ring.publish(model, version)
        found, staging = asyncio.run(pull(reader, ring))
        ring.layout.unpack(staging, copy)
        assert found == version
        assert all(map(torch.equal, named_weights(copy).values(), named_weights(model).values()))
    reader.close()


def test_no_pull_is_torn_while_the_publisher_never_rests():
    model, ring = make_ring(slots=16)
    reader, stop = SocketRing(serve(ring, "127.0.0.1")), threading.Event()

    @torch.no_grad()
    def publish() -> None:
        version = 0
        while not stop.is_set():
            version += 1
            for parameter in model.parameters():
                parameter.fill_(version)
            ring.publish(model, version)

    writer = threading.Thread(target=publish)
    writer.start()
    copy = torch.nn.Linear(64, 64)
    try:
        for _ in range(50):
            version, staging = asyncio.run(pull(reader, ring))
            ring.layout.unpack(staging, copy)
            assert all(bool((parameter == version).all()) for parameter in copy.parameters())
    finally:
        stop.set()
        writer.join()


def test_who_does_not_know_the_secret_is_hung_up_on():
    model, ring = make_ring()
    ring.publish(model, 1)
    handle = serve(ring, "127.0.0.1")
    stranger = SocketRing(replace(handle, secret=bytes(SECRET_BYTES)))
    with pytest.raises(OSError, match="hung up|reset|pipe"):
        stranger.read_headers(3)
    assert SocketRing(handle).read_headers(3).shape == (3, 2)


@pytest.mark.parametrize("slot", [3, -2, 2**62])
def test_a_slot_that_is_not_there_ends_the_connection_and_harms_no_other(slot):
    model, ring = make_ring()
    ring.publish(model, 1)
    handle = serve(ring, "127.0.0.1")
    with pytest.raises(OSError, match="hung up|reset|pipe"):
        SocketRing(handle).read_slot(slot, torch.zeros(ring.layout.size, dtype=torch.uint8))
    assert asyncio.run(pull(SocketRing(handle), ring))[0] == 1


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n" * 20, bytes(SECRET_BYTES // 2), b""])
def test_who_says_garbage_or_half_a_secret_or_nothing_is_hung_up_on_in_time(said, monkeypatch):
    monkeypatch.setattr(socket_ring, "STALL_SECONDS", 0.2)
    _, ring = make_ring()
    handle = serve(ring, "127.0.0.1")
    with socket.create_connection((handle.host, handle.port), timeout=30) as stranger:
        stranger.sendall(said)
        # What it had sent and nobody has read may turn the hang-up into a reset.
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    assert SocketRing(handle).read_headers(3).shape == (3, 2)


def test_a_reader_that_asks_and_does_not_read_holds_up_no_other_and_is_given_up(monkeypatch):
    monkeypatch.setattr(socket_ring, "STALL_SECONDS", 2.0)
    model = torch.nn.Linear(4096, 4096)
    ring = WeightRing(model, 3)
    ring.publish(model, 1)
    handle = serve(ring, "127.0.0.1")
    slow, quick = SocketRing(handle), SocketRing(handle)
    slow._socket.sendall(socket_ring.REQUEST.pack(0, ring.layout.size))
    for _ in range(3):
        assert asyncio.run(pull(quick, ring))[0] == 1
    assert eventually(lambda: connections_at(handle.port) == 1)
    assert asyncio.run(pull(quick, ring))[0] == 1


def connections_at(port: int) -> int:
    """Return how many connections a server at ``port`` of this machine has open, by the kernel's
    table."""
    with open("/proc/net/tcp") as table:
        return sum(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "01" for line in table)


PUBLISHER = """if True:
    import resource, sys, threading
    import torch
    from zorplex_rl.weights.ring import WeightRing
    from zorplex_rl.weights.socket_ring import serve
    if most := int(sys.argv[1]):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    model = torch.nn.Linear(64, 64)
    ring = WeightRing(model, 3)
    ring.publish(model, 1)
    handle = serve(ring, "127.0.0.1")
    print(handle.port, handle.secret.hex(), flush=True)
    for _ in sys.stdin:
        with open("/proc/self/status") as status:
            print(next(line.split()[1] for line in status if line.startswith("Threads")), flush=True)
"""


@contextlib.contextmanager
def publisher_of_its_own(most_descriptors: int):
    """A publisher in another process: its handle, and what tells how many threads and how many open
    descriptors it has."""
    command = [sys.executable, "-c", PUBLISHER, str(most_descriptors)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        port, secret = process.stdout.readline().split()

        def threads() -> int:
            print(file=process.stdin, flush=True)
            return int(process.stdout.readline())

        try:
            handle = SocketHandle("127.0.0.1", int(port), bytes.fromhex(secret))
            yield handle, threads, lambda: len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
        finally:
            process.kill()


@contextlib.contextmanager
def idle_connections(handle: SocketHandle, count: int):
    """So many connections that say nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 2 * count + 100), hard), hard))
    with contextlib.ExitStack() as open_ones:
        for _ in range(count):
            open_ones.enter_context(socket.create_connection((handle.host, handle.port), timeout=10))
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_port_opens_again_after_all_descriptors_of_the_publisher_were_taken():
    with publisher_of_its_own(most_descriptors=60) as (handle, _, descriptors):
        known = SocketRing(handle)
        known.read_headers(3)
        with idle_connections(handle, 100):
            assert eventually(lambda: descriptors() == 60)
            for _ in range(10):
                known.read_headers(3)
        assert SocketRing(handle).read_headers(3)[:, 1].max() == 1


def test_seven_hundred_idle_connections_cost_no_thread_and_keep_nobody_out():
    with publisher_of_its_own(most_descriptors=0) as (handle, threads, _):
        before = threads()
        with idle_connections(handle, 700):
            assert SocketRing(handle).read_headers(3)[:, 1].max() == 1
            assert threads() == before
