"""Layout and ring, in one process: what is packed is unpacked bit for bit, and a torn read never
counts as a version."""

import asyncio
import os
import random
import threading
from dataclasses import replace

import pytest
import torch
from torch import nn

from zorplex_rl.errors import WeightPullError
from zorplex_rl.policy.load import load_policy
from zorplex_rl.weights import ring as ring_module
from zorplex_rl.weights.layout import Layout, LayoutMismatch, check_shapes, named_weights
from zorplex_rl.weights.ring import WeightRing, newest_common, read_rings
from zorplex_rl.weights.shared_memory import allocate, open_shared


def small_model(width=3, dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width)).to(dtype)


@pytest.mark.parametrize(
    ("published", "target"),
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.bfloat16),
    ],
)
def test_what_is_packed_is_unpacked_bit_for_bit_without_gaps_and_rounded_where_the_type_is_smaller(
    published, target
):
    """The batch norm has a counter of 64 bits."""
    source, model = small_model(dtype=published), small_model(dtype=target)
    with torch.no_grad():
        for tensor in named_weights(source).values():
            tensor.copy_(100 * torch.rand(tensor.shape))
    layout = Layout.of(source)
    buffer = torch.zeros(layout.size, dtype=torch.uint8)
    layout.pack(source, buffer)
    layout.unpack(buffer, model)
    for name, tensor in named_weights(source).items():
        floating = tensor.is_floating_point()
        expected = tensor.to(target) if floating else tensor
        assert torch.equal(named_weights(model)[name], expected), name
    assert layout.size == sum(entry.size for entry in layout.entries)
    assert all(entry.offset % entry.dtype.itemsize == 0 for entry in layout.entries)


def test_tied_embeddings_travel_once():
    model = load_policy("embedded").model
    layout = Layout.of(model)
    assert layout.size < 1.01 * sum(p.numel() * 4 for p in model.parameters())
    assert not any("lm_head" in entry.name for entry in layout.entries)


def test_weights_of_another_model_are_refused_by_name():
    shapes = Layout.of(small_model()).shapes
    for other, named in (
        (small_model(width=5), "'0.bias'"),
        (nn.Sequential(nn.Linear(4, 3)), r"'1\."),
    ):
        with pytest.raises(LayoutMismatch, match=named):
            check_shapes(shapes, Layout.of(other).shapes)
    check_shapes(shapes, Layout.of(small_model(dtype=torch.bfloat16)).shapes)


class ChunkedReader:
    """Copies a slot in ``chunks`` pieces in a random order, as a network may deliver them.
    ``after_read`` is called after each slot, with the number of slots read."""

    def __init__(self, ring, chunks=1, after_read=lambda reads: None):
        self.ring, self.chunks, self.after_read = ring, chunks, after_read
        self.order, self.looks, self.reads = random.Random(0), 0, 0

    async def read_headers(self):
        self.looks += 1
        return self.ring.headers.clone()

    async def read_slot(self, slot, staging):
        pieces = list(
            zip(self.ring.slots[slot].chunk(self.chunks), staging.chunk(self.chunks), strict=True)
        )
        self.order.shuffle(pieces)
        for source, target in pieces:
            target.copy_(source)
            await asyncio.sleep(0)
        self.reads += 1
        self.after_read(self.reads)


def read_whole(ring, reader=None, **options):
    """(version, the values that came with it)."""
    staging = torch.zeros(ring.layout.size, dtype=torch.uint8)
    version = asyncio.run(read_rings([reader or ChunkedReader(ring)], [staging], **options))
    return version, set(staging.view(torch.float32).unique().tolist())


def test_a_writer_that_laps_its_readers_is_never_read_torn():
    ring = WeightRing({"w": torch.zeros(512, 512)}, slots=2)
    stop, read = threading.Event(), threading.Event()

    def write():
        version = 0
        while not stop.is_set():
            ring.publish({"w": torch.full((512, 512), float(version))}, version)
            version += 1
            if version % 20 == 0:
                # With a core to itself it would lap every read.
                read.wait()
                read.clear()

    writer = threading.Thread(target=write)
    writer.start()
    reader, versions = ChunkedReader(ring, 16), []
    try:
        while len(versions) < 100:
            version, values = read_whole(ring, reader)
            assert values == {float(version)}
            versions.append(version)
            read.set()
    finally:
        stop.set()
        read.set()
        writer.join()
    assert versions == sorted(versions) and versions[-1] > 20


def numbered(version):
    """Two tensors full of ``version``."""
    return {name: torch.full((16,), float(version)) for name in ("first", "second")}


def half(version):
    """The same without the second: packing it raises when the first has been written."""
    return {"first": torch.full((16,), float(version))}


def lapping(ring, *publications):
    """A reader of ``ring`` that is overtaken by ``publications`` after its first read."""

    def write(reads):
        for version in publications if reads == 1 else ():
            ring.publish(numbered(version), version)

    return ChunkedReader(ring, after_read=write)


def test_a_write_in_the_middle_of_a_read_makes_the_reader_start_over_with_the_newest_version():
    ring = WeightRing(numbered(0), slots=2)
    ring.publish(numbered(1), 1)
    reader = lapping(ring, 2, 3)
    assert read_whole(ring, reader) == (3, {3.0})
    assert reader.reads == 2
    assert read_whole(ring, reader, newer_than=3) == (3, {0.0})
    assert reader.reads == 2, "nothing is newer, so nothing is read"
    # Of a version that is published again the last publication counts.
    ring.publish(numbered(5), 3)
    assert read_whole(ring) == (3, {5.0})
    always = ChunkedReader(
        ring, after_read=lambda _: [ring.publish(numbered(v), v) for v in (6, 7, 8)]
    )
    with pytest.raises(WeightPullError, match="4 reads .* torn"):
        read_whole(ring, always, attempts=4)


@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.parametrize("failures", [1, 2, 5])
def test_after_a_publication_that_raised_readers_have_the_old_version_and_then_the_next_one(
    slots, failures
):
    ring = WeightRing(numbered(0), slots)
    with pytest.raises(KeyError):
        ring.publish(half(1), 1)
    assert newest_common([ring.headers]) is None
    with pytest.raises(WeightPullError, match=r"complete for 0\.01 s"):
        read_whole(ring, timeout=0.01)
    for good in range(1, 8):
        ring.publish(numbered(good), good)
        assert read_whole(ring) == (good, {float(good)})
        for _ in range(failures):
            with pytest.raises(KeyError):
                ring.publish(half(100), 100)
            assert read_whole(ring) == (good, {float(good)})


def test_a_reader_that_was_overtaken_by_a_failure_and_a_repeat_of_the_same_version_starts_over():
    ring = WeightRing(numbered(0), slots=2)
    ring.publish(numbered(1), 1)

    def write(reads):
        if reads == 1:
            ring.publish(numbered(2), 2)
            with pytest.raises(KeyError):
                ring.publish(half(1), 1)
            ring.publish(numbered(1), 1)

    reader = ChunkedReader(ring, after_read=write)
    assert read_whole(ring, reader) == (2, {2.0})
    assert reader.reads == 2


def test_a_pull_that_came_too_early_looks_less_and_less_often_and_gets_the_first_version_when_it_is_there():
    ring = WeightRing(numbered(0))
    staging = torch.zeros(ring.layout.size, dtype=torch.uint8)

    async def run():
        reader = ChunkedReader(ring)
        pull = asyncio.create_task(read_rings([reader], [staging]))
        await asyncio.sleep(0.3)
        assert not pull.done() and 2 < reader.looks < 15
        ring.publish(numbered(1), 1)
        assert await pull == 1

    asyncio.run(run())


def test_shared_memory_is_opened_by_the_handle_of_its_publisher_and_by_no_other():
    memory, handle = allocate(100)
    if memory is None:
        pytest.skip("no memfd on this system")
    other, of_other = allocate(100)
    memory.fill_(7)
    other.fill_(9)
    assert set(open_shared(handle).tolist()) == {7}
    changes = [
        {"proof": bytes(32)},
        {"descriptor": of_other.descriptor},
        {"descriptor": 0},
        {"pid": 2**22 + 1},
    ]
    for change in changes:
        with pytest.raises(OSError, match="not the one|No such file"):
            open_shared(replace(handle, **change))


class OnGpu:
    """Stands for a tensor on a GPU."""

    is_cuda, device, dtype, shape = True, torch.device("cuda", 0), torch.float32, (16,)
    itemsize, nbytes = 4, 64


def test_weights_on_the_cpu_are_shared_and_on_a_gpu_pinned_and_the_cpus_never_ask_cuda(monkeypatch):
    """Where there is no driver, asking for pinned memory raises; so does every other call into CUDA
    here."""

    def refuse(*_, **__):
        raise AssertionError("CUDA was asked on a path of the CPU")

    asked, zeros, model = [], torch.zeros, small_model()

    def unpinned(*shape, pin_memory=False, **options):
        asked.append(pin_memory)
        return zeros(*shape, **options)

    monkeypatch.setattr(torch, "zeros", unpinned)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in ("_lazy_init", "device_count"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    ring = WeightRing(model)
    ring.publish(model, 1)
    assert (ring.shared is not None) == hasattr(os, "memfd_create")
    assert WeightRing({"cpu": torch.ones(1), "gpu": OnGpu()}).shared is None
    assert asked == [True]
    monkeypatch.setattr(ring_module, "allocate", lambda size: (None, None))
    ring = WeightRing(model)
    ring.publish(model, 1)
    assert ring.shared is None and asked == [True, False]
