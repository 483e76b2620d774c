"""Layout and ring, in one process: what is packed is unpacked bit for bit, and a torn read never counts as a version."""

import asyncio
import random
import threading

import pytest
import torch
from torch import nn

from zorplex_rl.policy.load import load_policy
from zorplex_rl.weights.layout import Layout, LayoutMismatch, named_weights
from zorplex_rl.weights.ring import WeightPullError, WeightRing, newest_slot, read_ring


def small_model(width=3, dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_unpacking_restores_every_parameter_and_buffer_bit_for_bit(dtype):
    source, target = small_model(dtype=dtype), small_model(dtype=dtype)
    with torch.no_grad():
        for tensor in named_weights(source).values():
            tensor.copy_(torch.randint(0, 100, tensor.shape))
    layout = Layout.of(source)
    buffer = torch.zeros(layout.size, dtype=torch.uint8)
    layout.pack(source, buffer)
    layout.unpack(buffer, target)
    for name, tensor in named_weights(source).items():
        assert torch.equal(tensor, named_weights(target)[name]), name


def test_tied_embeddings_travel_once():
    model = load_policy("embedded").model
    layout = Layout.of(model)
    assert layout.size < 1.01 * sum(p.numel() * 4 for p in model.parameters())
    assert not any("lm_head" in entry.name for entry in layout.entries)


def test_weights_of_another_model_are_refused_by_name():
    layout = Layout.of(small_model())
    with pytest.raises(LayoutMismatch, match="'0.weight'"):
        layout.check(Layout.of(small_model(width=5)))
    with pytest.raises(LayoutMismatch, match=r"'1\."):
        layout.check(Layout.of(nn.Sequential(nn.Linear(4, 3))))
    layout.check(Layout.of(small_model()))
    assert layout.fingerprint != Layout.of(small_model(dtype=torch.bfloat16)).fingerprint


def test_a_ring_of_one_slot_is_refused():
    with pytest.raises(ValueError, match="2 or more"):
        WeightRing(small_model(), slots=1)


def test_a_slot_that_is_being_written_is_not_offered():
    ring = WeightRing(small_model())
    assert newest_slot(ring.headers) is None
    ring.publish(small_model(), 1)
    ring.headers[1, 0] += 1
    assert newest_slot(ring.headers).version == 1


def reader_of(ring, staging, chunks, order):
    """A reader that copies a slot in ``chunks`` pieces in a random order, as a network may deliver them."""

    async def read_headers():
        return ring.headers.clone()

    async def read_slot(slot):
        pieces = list(zip(ring.slots[slot].chunk(chunks), staging.chunk(chunks), strict=True))
        order.shuffle(pieces)
        for source, target in pieces:
            target.copy_(source)
            await asyncio.sleep(0)

    return read_headers, read_slot


def test_a_writer_that_laps_its_readers_is_never_read_torn():
    model = nn.Linear(512, 512, bias=False)
    nn.init.zeros_(model.weight)
    ring = WeightRing(model, slots=2)
    stop = threading.Event()

    def write():
        version = 0
        while not stop.is_set():
            with torch.no_grad():
                model.weight.fill_(float(version))
            ring.publish(model, version)
            version += 1

    staging = torch.zeros(ring.layout.size, dtype=torch.uint8)
    reader = reader_of(ring, staging, 16, random.Random(0))
    torch.nn.init.zeros_(model.weight)
    ring.publish(model, 0)
    writer = threading.Thread(target=write)
    writer.start()
    whole, last = 0, -1
    try:
        for _ in range(300):
            try:
                version = asyncio.run(read_ring(*reader, attempts=3))
            except WeightPullError:
                continue
            values = staging.view(torch.float32)
            assert (values == float(version)).all(), f"version {version} holds {values.unique()[:4].tolist()}"
            assert version >= last
            whole, last = whole + 1, version
    finally:
        stop.set()
        writer.join()
    assert whole > 10
    assert last > 0


def test_a_write_in_the_middle_of_a_read_makes_the_reader_start_over_with_the_newest_version():
    model = nn.Linear(8, 8, bias=False)
    ring = WeightRing(model, slots=2)
    ring.publish(model, 1)
    staging = torch.zeros(ring.layout.size, dtype=torch.uint8)
    read_headers, copy = reader_of(ring, staging, 1, random.Random(0))
    reads = []

    async def read_slot(slot):
        await copy(slot)
        reads.append(slot)
        if len(reads) == 1:
            for version in (2, 3):
                ring.publish(model, version)

    assert asyncio.run(read_ring(read_headers, read_slot)) == 3
    assert len(reads) == 2


def test_nothing_is_read_when_nothing_is_newer():
    ring = WeightRing(small_model())
    ring.publish(small_model(), 4)

    async def read_headers():
        return ring.headers

    async def read_slot(slot):
        raise AssertionError("a bulk read without need")

    assert asyncio.run(read_ring(read_headers, read_slot, newer_than=4)) == 4
