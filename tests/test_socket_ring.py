"""A ring served from a plain socket: what arrives is what was published, whole, and only for who knows the secret."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
import torch

from zorplex_rl.weights.layout import named_weights
from zorplex_rl.weights.ring import WeightRing, read_ring
from zorplex_rl.weights.socket_ring import SECRET_BYTES, SocketRing, serve


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
