"""Layout and ring, in one process: what is packed is unpacked bit for bit, and a torn read never
counts as a version."""

import asyncio
import random
import threading
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from zorplex_rl.errors import WeightPullError
from zorplex_rl.policy.load import load_policy
from zorplex_rl.weights import layout as layout_module
from zorplex_rl.weights.layout import Layout, LayoutMismatch, named_weights, on_cuda
from zorplex_rl.weights.ring import NothingPublished, WeightRing, newest_slot, read_ring
from zorplex_rl.weights.shared_memory import BOOT_ID, allocate_for


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


class DeferredStream:
    """Stands for a CUDA stream: what is put on it happens when somebody waits for it, and its order
    with other streams is noted."""

    def __init__(self, log):
        self.log, self.work = log, []

    def wait_stream(self, other):
        self.log.append(f"after {other}")

    def synchronize(self):
        self.log.append("wait")
        for copy in self.work:
            copy()


@pytest.fixture
def deferred_gpu(monkeypatch):
    """A GPU whose copies are done as late as CUDA allows. Returns what was asked of its streams, in
    order."""
    log, streams = [], []

    def stream(device):
        streams.append(DeferredStream(log))
        return streams[-1]

    monkeypatch.setattr(layout_module, "gpu_of", lambda weights: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "Stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "compute")
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    begin = layout_module._begin_copy
    monkeypatch.setattr(
        layout_module,
        "_begin_copy",
        lambda target, source: streams[-1].work.append(lambda: begin(target, source)),
    )
    return log


def test_on_a_gpu_all_copies_are_done_before_packing_and_unpacking_return(deferred_gpu):
    source, target = small_model(), small_model()
    with torch.no_grad():
        for tensor in named_weights(source).values():
            tensor.copy_(torch.randint(0, 100, tensor.shape))
    layout = Layout.of(source, torch.bfloat16)
    buffer = torch.zeros(layout.size, dtype=torch.uint8)
    layout.pack(source, buffer)
    assert buffer.any()
    layout.unpack(buffer, target)
    assert all(torch.equal(tensor, named_weights(target)[name]) for name, tensor in named_weights(source).items())
    # Copies begin after the optimizer's step, which is on the stream that computes, and are waited
    # for once.
    assert deferred_gpu == ["after compute", "wait"] * 2


def test_a_copy_that_fails_on_a_gpu_leaves_none_under_way(deferred_gpu):
    layout = Layout.of(small_model())
    with pytest.raises(KeyError):
        layout.pack({"0.weight": torch.zeros(3, 4)}, torch.zeros(layout.size, dtype=torch.uint8))
    assert deferred_gpu == ["after compute", "wait"]


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
    with pytest.raises(LayoutMismatch, match="bfloat16"):
        layout.check(Layout.of(small_model(dtype=torch.bfloat16)))
    layout.check(Layout.of(small_model()))


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
    """A reader that copies a slot in ``chunks`` pieces in a random order, as a network may deliver
    them."""

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
    stop, read = threading.Event(), threading.Event()

    def write():
        version = 0
        while not stop.is_set():
            with torch.no_grad():
                model.weight.fill_(float(version))
            ring.publish(model, version)
            version += 1
            if version % 20 == 0:
                # With a core to itself it would lap every read.
                read.wait()
                read.clear()

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
            read.set()
    finally:
        stop.set()
        read.set()
        writer.join()
    assert whole > 10
    assert last > 20


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


def numbered(version):
    """Two tensors full of ``version``."""
    return {name: torch.full((16,), float(version)) for name in ("first", "second")}


def half(version):
    """The same without the second: packing it raises when the first has been written."""
    return {"first": torch.full((16,), float(version))}


def read_whole(ring, **options):
    """(version, the values that came with it)."""
    staging = torch.zeros(ring.layout.size, dtype=torch.uint8)
    version = asyncio.run(read_ring(*reader_of(ring, staging, 1, random.Random(0)), **options))
    return version, set(staging.view(torch.float32).tolist())


@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.parametrize("failures", [1, 2, 5])
def test_after_a_publication_that_raised_readers_have_the_old_version_and_then_the_next_one(slots, failures):
    ring = WeightRing(numbered(0), slots)
    for good in range(1, 8):
        ring.publish(numbered(good), good)
        assert read_whole(ring) == (good, {float(good)})
        for _ in range(failures):
            with pytest.raises(KeyError):
                ring.publish(half(100), 100)
            assert read_whole(ring) == (good, {float(good)})


def test_a_first_publication_that_raised_offers_nothing_and_the_second_is_read():
    ring = WeightRing(numbered(0))
    with pytest.raises(KeyError):
        ring.publish(half(1), 1)
    assert newest_slot(ring.headers) is None
    with pytest.raises(NothingPublished, match="under way or has failed"):
        read_whole(ring, timeout=0.01)
    ring.publish(numbered(2), 2)
    assert read_whole(ring) == (2, {2.0})


def test_a_reader_that_was_overtaken_by_a_failure_and_a_repeat_of_the_same_version_starts_over():
    ring = WeightRing(numbered(0), slots=2)
    ring.publish(numbered(1), 1)
    staging = torch.zeros(ring.layout.size, dtype=torch.uint8)
    read_headers, copy = reader_of(ring, staging, 1, random.Random(0))
    reads = []

    async def read_slot(slot):
        await copy(slot)
        reads.append(slot)
        if len(reads) == 1:
            ring.publish(numbered(2), 2)
            with pytest.raises(KeyError):
                ring.publish(half(1), 1)
            ring.publish(numbered(1), 1)

    assert asyncio.run(read_ring(read_headers, read_slot)) == 2
    assert len(reads) == 2


def test_of_one_version_that_was_published_again_the_last_publication_is_read():
    ring = WeightRing(numbered(0), slots=3)
    for value in range(1, 6):
        ring.publish(numbered(value), 7)
        assert read_whole(ring) == (7, {float(value)})


def test_a_pull_from_an_empty_ring_waits_looks_less_and_less_often_and_says_that_nothing_was_published():
    ring = WeightRing(small_model())
    looks = []

    async def read_headers():
        looks.append(asyncio.get_running_loop().time())
        return ring.headers

    with pytest.raises(NothingPublished, match=r"no weights have been published yet, after a wait of 0\.3 s"):
        asyncio.run(read_ring(read_headers, None, timeout=0.3))
    assert looks[-1] - looks[0] >= 0.3
    assert len(looks) < 15


def test_a_pull_that_came_too_early_gets_the_first_version_when_it_is_there():
    ring = WeightRing(numbered(0))
    staging = torch.zeros(ring.layout.size, dtype=torch.uint8)

    async def run():
        pull = asyncio.create_task(read_ring(*reader_of(ring, staging, 1, random.Random(0))))
        await asyncio.sleep(0.1)
        assert not pull.done()
        ring.publish(numbered(1), 1)
        assert await pull == 1

    asyncio.run(run())


def test_a_reader_that_is_lapped_is_not_told_that_nothing_was_published():
    ring = WeightRing(numbered(0), slots=2)
    ring.publish(numbered(0), 0)

    async def read_headers():
        return ring.headers.clone()

    async def read_slot(slot):
        for version in (1, 2, 3):
            ring.publish(numbered(version), version)

    with pytest.raises(WeightPullError, match="laps the reader") as failure:
        asyncio.run(read_ring(read_headers, read_slot, attempts=4))
    assert not isinstance(failure.value, NothingPublished)


def test_weights_on_the_cpu_are_shared_and_never_pinned_also_on_a_machine_with_cuda(monkeypatch):
    """Where there is no driver, asking for pinned memory raises; so does every other call into CUDA
    here."""

    def refuse(*_, **__):
        raise AssertionError("CUDA was asked on a path of the CPU")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "_lazy_init", refuse)
    monkeypatch.setattr(torch.cuda, "device_count", refuse)
    zeros = torch.zeros

    def unpinned(*shape, pin_memory=False, **options):
        assert not pin_memory
        return zeros(*shape, **options)

    monkeypatch.setattr(torch, "zeros", unpinned)
    WeightRing(small_model()).publish(small_model(), 1)
    if BOOT_ID.exists():
        assert None not in allocate_for(small_model(), 64)


def test_weights_on_a_gpu_are_pinned_and_not_shared():
    class OnGpu:
        is_cuda, device = True, torch.device("cuda", 0)

    assert on_cuda({"cpu": torch.zeros(1), "gpu": OnGpu()})
    assert not on_cuda(small_model())
    assert allocate_for({"gpu": OnGpu()}, 64) == (None, None)
