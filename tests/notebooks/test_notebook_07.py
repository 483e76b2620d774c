"""Notebook 07: its publish and read are the package's, torn and mended alike; the reader's own is raced on the real ring; prose follows numbers."""

from __future__ import annotations

import ast
import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import cloudpickle
import pytest
import torch
from test_actor_notebooks import written_out
from test_course import minutes
from test_faults_and_shards import run
from test_notebooks import load

from zorplex_rl.course.lesson.plug_in import plug_in
from zorplex_rl.weights.fence import fence
from zorplex_rl.weights.ring import WeightRing

PATH = Path(__file__).parents[2] / "notebooks" / "07_rdma_weight_sync.py"
SIZE = 256


@pytest.fixture(scope="module")
def notebook() -> Iterator[ModuleType]:
    """The notebook, whose classes are copied to other processes as when it runs by itself."""
    module = load(PATH)
    cloudpickle.register_pickle_by_value(module)
    yield module
    cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture(scope="module")
def alone() -> dict:
    """What the page writes out, and nothing else of the notebook."""
    written: dict = {"fence": fence}
    exec(written_out(PATH, "publish_carelessly", "read_carelessly", "publish", "read"), written)
    return written


def filled(version: int) -> torch.Tensor:
    """One version of the weights, as bytes."""
    return torch.full((SIZE // 4,), float(version)).view(torch.uint8)


def ring_of(slots: int) -> WeightRing:
    return WeightRing({"w": torch.zeros(SIZE // 4)}, slots)


def shown(*names: str) -> ast.Module:
    found = [node for node in ast.parse(PATH.read_text()).body if getattr(node, "name", "") in names]
    assert len(found) == len(names)
    return ast.Module([*found], [])


def test_publish_and_read_are_visible_and_have_at_most_20_lines():
    assert 0 < minutes.visible_lines(shown("publish", "read")) <= 20
    assert minutes.visible_lines(shown("publish_carelessly")) > 0


@pytest.mark.parametrize("slots", [2, 3, 5])
def test_what_the_page_publishes_is_what_the_package_publishes_bit_for_bit(alone, slots):
    ours, theirs = ring_of(slots), ring_of(slots)
    for version in (3, 4, 9, 10, 11, 40):
        alone["publish"](ours, filled(version), version)
        theirs.publish({"w": filled(version).view(torch.float32)}, version)
        assert ours.headers.equal(theirs.headers)
        assert all(mine.equal(package) for mine, package in zip(ours.slots, theirs.slots, strict=True))


class Interrupted:
    """A ring in which a writer's steps happen at a chosen access of the reader."""

    def __init__(self, ring: WeightRing, at: int, act) -> None:
        self.ring, self.at, self.act, self.accesses = ring, at, act, 0

    def _access(self):
        if self.accesses == self.at:
            self.act(self.ring)
        self.accesses += 1

    @property
    def headers(self):
        self._access()
        return self.ring.headers

    @property
    def slots(self):
        self._access()
        return self.ring.slots


def half_written(ring: WeightRing) -> None:
    """A writer that has come round: it has begun to write version 9 into the newest slot."""
    slot = int(ring.headers[:, 1].argmax())
    ring.headers[slot, 0] += 1
    ring.slots[slot][: SIZE // 2] = filled(9)[: SIZE // 2]


def finished(ring: WeightRing) -> None:
    slot = int(ring.headers[:, 1].argmax())
    ring.slots[slot].copy_(filled(9))
    ring.headers[slot] = torch.tensor([int(ring.headers[slot, 0]) // 2 * 2 + 2, 9])


def test_a_careless_reader_takes_a_torn_copy_and_a_careful_one_never(alone):
    """A writer in the middle of its copy, and then one that has finished it, at every moment of the reader."""
    outcomes = {}
    for name, act, at in itertools.product(
        ("read_carelessly", "read"), (half_written, lambda ring: (half_written(ring), finished(ring))), range(8)
    ):
        ring = ring_of(2)
        for version in (1, 2):
            alone["publish"](ring, filled(version), version)
        staging = torch.zeros(SIZE, dtype=torch.uint8)
        watched = Interrupted(ring, at, act)
        version = alone[name](watched, staging)
        numbers = staging.view(torch.float32)
        outcomes.setdefault(name, []).append(bool((numbers == version).all()))
    assert all(outcomes["read"])
    assert not all(outcomes["read_carelessly"])


@pytest.mark.parametrize("publisher", ["publish", "publish_by_package"])
@pytest.mark.parametrize("reader", ["read", "read_by_package"])
def test_mended_copies_are_whole_whoever_publishes_and_reads(notebook, publisher, reader):
    found = notebook.race(getattr(notebook, publisher), getattr(notebook, reader), megabytes=4, reads=25)
    assert set(found.verdicts) <= {"whole", "given up"}
    assert "whole" in found.verdicts


def test_careless_copies_of_a_writer_that_never_rests_are_torn(notebook):
    found = notebook.race(notebook.publish_carelessly, notebook.read_carelessly, megabytes=32, reads=200, rest=0)
    assert {"torn", "another version"} & set(found.verdicts)


def keeping_to_its_first_look(read_header, read_payload):
    """Read once the slot has another version, under that of the first look. Without the wait a busy machine may let the writer rest meanwhile."""
    _, version = read_header()
    while read_header()[1] == version:
        pass
    return version, read_payload()


def test_the_readers_reader_is_raced_on_the_real_ring(notebook):
    """The solution lets nothing through; one that does not look again does."""

    async def both():
        async with notebook.processes(writer=(notebook.RestlessWriter, notebook.layers, 16)) as (writer,):
            right = await notebook.race_from_afar(notebook.read_whole_solution, writer, reads=20)
            wrong = await notebook.race_from_afar(keeping_to_its_first_look, writer, reads=20)
        return right, wrong

    right, wrong = asyncio.run(both())
    assert set(right.verdicts) <= {"whole", "given up"} and "whole" in right.verdicts
    assert right.copies >= len(right.verdicts)
    assert {"torn", "another version"} & set(wrong.verdicts)


def test_what_does_not_answer_is_not_plugged_in(notebook):
    def used(reader):
        return plug_in(reader, notebook.read_whole_solution, notebook.answers_at_all, 0.5)[0]

    def for_ever(read_header, read_payload):
        while True:
            pass

    for silent in (notebook.read_whole, for_ever, lambda read_header: None, lambda header, payload: None):
        assert used(silent) is notebook.read_whole_solution

    def without_looking(read_header, read_payload):
        return read_header()[1], read_payload()

    assert used(without_looking) is without_looking


def test_pushing_is_pulling_and_one_line_more():
    pulling, pushing = (ast.unparse(shown(name).body[0].body).splitlines() for name in ("pulling", "pushing"))
    assert pushing[: len(pulling)] == pulling
    assert len(pushing) == len(pulling) + 1


def test_the_trainer_that_pushes_waits_for_every_generator(notebook):
    """The protocols alone, with a generator that takes weights late: versions go out in order, and only pushing waits."""
    order = []

    class Call:
        def __init__(self, act):
            self.act = act

        def __await__(self):
            return self.act().__await__()

        def as_asyncio(self):
            return asyncio.ensure_future(self.act())

    async def step(version):
        order.append(version)

    async def take():
        await asyncio.sleep(0.01)
        order.append("taken")

    trainer = SimpleNamespace(step=SimpleNamespace(call_one=lambda version: Call(lambda: step(version))))
    slow = SimpleNamespace(take=SimpleNamespace(call_one=lambda: Call(take)))
    asyncio.run(notebook.pushing(trainer, [slow], (1, 2)))
    assert order == [1, "taken", 2, "taken"]
    order.clear()
    asyncio.run(notebook.pulling(trainer, [slow], (1, 2)))
    assert order == [1, 2]


@pytest.mark.long
def test_runs_from_its_first_cell_to_its_last():
    config = {
        "policy": "embedded", "device": "cpu", "threads": 1, "megabytes": 8, "repeats": 2, "busy_seconds": 2.0, "stopped_seconds": 1.2,
        "late_seconds": 1.0, "race_megabytes": 8, "ring_megabytes": 4, "careless_reads": 20, "reads": 10, "ring_slots": [2, 3], "far_reads": 2,
        "mismatch_episodes": 4, "steps": 2, "batches": [2, 8],
    }  # fmt: skip
    found = run(
        "07_rdma_weight_sync",
        config,
        "dict(waits=waits, rungs=list(rates), late=late_move, same=same_memory, mended=[found.verdicts for found in mended.values()],"
        "handles=[handle for _, handle, _ in handle_rows], waited=waited_for_busy, backend=backend,"
        "protocols={name: [run.step, run.waits, run.ages] for name, run in protocols.items()})",
    )
    assert max(found["handles"]) < 2 * min(found["handles"]), "a handle does not grow with its memory"
    assert "message" in found["waited"]
    assert found["waits"]["message"]["busy"] > 1.5 > found["waits"]["RDMABuffer"]["busy"]
    if found["backend"] != "ibverbs":
        assert found["waits"]["RDMABuffer"]["stopped"] > 1.0
    if "shared memory" in found["waits"]:
        assert found["waits"]["shared memory"]["stopped"] < 1.0
    assert {"message", "file", "broadcast (gloo)", "memcpy"} <= set(found["rungs"])
    assert found["late"][0] > 0.9, "the trainer waits in its own call"
    assert found["same"]
    assert {verdict for verdicts in found["mended"] for verdict in verdicts} <= {"whole", "given up"}
    assert all(step > 0 and 0 <= waits < 1 for step, waits, _ in found["protocols"].values())
    assert all(min(ages, default=0) >= 0 for *_, both in found["protocols"].values() for ages in both)
