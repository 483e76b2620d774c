"""The order of memory accesses that the weight ring relies on, on a model of a processor that keeps
no order but that of fences."""

from __future__ import annotations

import asyncio
import platform
from functools import partial
from itertools import permutations, product

import pytest
import torch

from zorplex_rl.errors import WeightPullError
from zorplex_rl.weights import fence, ring
from zorplex_rl.weights.fence import choose
from zorplex_rl.weights.ring import WeightRing, read_rings

OLD, NEW = 1, 2
WORDS = 2
"""Words of weights in a slot: two are enough to be torn."""


class Watched:
    """Headers and a slot of a ring that note the order in which ``publish`` stores into them."""

    def __init__(self, trace):
        self.trace, self.values = trace, torch.tensor([[2, OLD], [0, -1]])

    def __getitem__(self, where):
        return self.values[where]

    def __setitem__(self, where, value):
        self.values[where] = value
        self.trace.append((where, value))

    def pack(self, model, buffer):
        self.trace.extend((word, NEW) for word in range(WORDS))


def stores_of_a_publication(monkeypatch):
    """What ``publish`` stores over the old version, in the order of its program; "fence"
    between."""
    trace = []
    monkeypatch.setattr(ring, "fence", lambda: trace.append("fence"))
    writer = WeightRing({"w": torch.zeros(WORDS)})
    writer._begun = 1
    writer.headers = writer.layout = Watched(trace)
    monkeypatch.setattr(writer, "_next_slot", lambda: 0)
    writer.publish({}, NEW)
    return trace


def loads_of_a_pull(monkeypatch):
    """The same for what ``read_rings`` loads."""
    trace = []
    monkeypatch.setattr(ring, "fence", lambda: trace.append("fence"))

    class Traced:
        async def read_headers(self):
            trace.append("headers")
            return torch.tensor([[2, OLD]])

        async def read_slot(self, slot, staging):
            trace.append("slot")

    asyncio.run(read_rings([Traced()], [[]]))
    return trace


def without_fence(trace, number):
    """``trace`` without its fence ``number``; with all if that is None."""
    fences = [at for at, what in enumerate(trace) if what == "fence"]
    return [what for at, what in enumerate(trace) if number is None or at != fences[number]]


def visible_orders(stores):
    """Every order in which others may see ``stores``: any, but none crosses a fence."""
    between = [[]]
    for store in stores:
        if store == "fence":
            between.append([])
        else:
            between[-1].append(store)
    for parts in product(*(permutations(part) for part in between)):
        yield [store for part in parts for store in part]


def moments(loads, stores):
    """Every way to place the loads of headers, words, headers between ``stores``, in any order that
    their fences allow."""
    first = loads.index("fence") < loads.index("slot") if "fence" in loads else False
    last = "fence" in loads[loads.index("slot") :]
    for before, *words, after in product(range(stores + 1), repeat=WORDS + 2):
        if (not first or all(before <= word for word in words)) and (
            not last or all(word <= after for word in words)
        ):
            yield before, words, after


class MovedReader:
    """Reads headers and words at given moments of the writer."""

    def __init__(self, memories, looks, words):
        self.memories, self.looks, self.words = memories, iter(looks), words

    async def read_headers(self):
        memory = self.memories[next(self.looks)]
        return torch.tensor([[memory[0, 0], memory[0, 1]]])

    async def read_slot(self, slot, staging):
        staging.extend(self.memories[moment][word] for word, moment in enumerate(self.words))


def torn_reads(stores, loads):
    """Whether there is an order in which ``read_rings`` takes a slot for whole that is not."""

    async def search():
        for order in visible_orders(stores):
            memories = [{(0, 0): 2, (0, 1): OLD} | dict.fromkeys(range(WORDS), OLD)]
            for where, value in order:
                memories.append(memories[-1] | {where: value})
            for before, words, after in moments(loads, len(order)):
                reader, staging = MovedReader(memories, (before, after), words), []
                try:
                    version = await read_rings([reader], [staging], attempts=1, timeout=0)
                except WeightPullError:
                    continue
                if staging != [version] * WORDS:
                    return True
        return False

    return asyncio.run(search())


@pytest.mark.parametrize("missing", [(None, None), (0, None), (1, None), (None, 0), (None, 1)])
def test_no_order_of_stores_and_loads_gives_a_torn_read_unless_any_one_of_the_fences_is_missing(
    monkeypatch, missing
):
    stores, loads = stores_of_a_publication(monkeypatch), loads_of_a_pull(monkeypatch)
    monkeypatch.undo()
    of_writer, of_reader = missing
    is_torn = torn_reads(without_fence(stores, of_writer), without_fence(loads, of_reader))
    assert is_torn == (missing != (None, None))


@pytest.mark.parametrize("source", [fence.libatomic, fence.membarrier, fence.os_memory_barrier])
def test_a_fence_that_this_system_has_can_be_called(source):
    try:
        found = source()
    except (OSError, AttributeError, KeyError):
        pytest.skip("not on this system")
    for _ in range(3):
        assert not found(), "a system call that fails returns -1"


def test_a_machine_that_reorders_and_has_no_fence_is_refused_and_one_that_keeps_order_is_not():
    def no_source():
        raise OSError("not here")

    with pytest.raises(RuntimeError, match="aarch64 .* install libatomic"):
        choose("aarch64", (no_source,))
    choose("x86_64", (no_source,))()
    assert platform.system() != "Linux" or isinstance(fence._fence(), partial)
    assert choose("aarch64", (no_source, lambda: print, no_source)) is print
