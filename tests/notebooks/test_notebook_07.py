"""Notebook 07: its publish and read are the package's, the reader's own is raced, and only pushing
waits."""

from __future__ import annotations

import ast
import asyncio
import random
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace

import cloudpickle
import pytest
import torch
from test_answers import answers, refusals
from test_course import minutes
from test_faults_and_shards import run
from test_notebooks import load

from zorplex_rl.course import nb07_torn
from zorplex_rl.weights.ring import WeightRing, read_rings

pytestmark = pytest.mark.slow

PATH = Path(__file__).parents[2] / "notebooks" / "07_rdma_weight_sync.py"
SIZE = 64


@pytest.fixture(scope="module")
def notebook() -> Iterator[ModuleType]:
    """The notebook, whose functions are copied to other processes as when it runs by itself."""
    module = load(PATH)
    cloudpickle.register_pickle_by_value(module)
    yield module
    cloudpickle.unregister_pickle_by_value(module)


def shown(*names: str) -> ast.Module:
    found = [
        node for node in ast.parse(PATH.read_text()).body if getattr(node, "name", "") in names
    ]
    assert len(found) == len(names)
    return ast.Module([*found], [])


def test_publish_and_read_have_at_most_20_lines_and_no_finished_read_is_visible():
    (read,) = (
        node for node in minutes.solutions_of(ast.parse(PATH.read_text())) if node.name == "read"
    )
    assert 0 < minutes.visible_lines(shown("publish")) + minutes._lines_of([read]) <= 20
    assert minutes.visible_lines(shown("read")) == minutes.visible_lines(shown("newest_slot")) == 2
    assert minutes.visible_lines(shown("Solutions")) == 0


@pytest.mark.parametrize("slots", [2, 3, 5])
def test_what_the_page_publishes_is_what_the_package_publishes_bit_for_bit(notebook, slots):
    ours = SimpleNamespace(headers=torch.tensor([[0, -1]] * slots), slots=torch.zeros(slots, SIZE))
    theirs = WeightRing({"w": torch.zeros(SIZE)}, slots)
    for version in (3, 4, 9, 10, 11, 40):
        weights = torch.full((SIZE,), float(version))
        notebook.publish(ours, weights, version)
        theirs.publish({"w": weights}, version)
        assert ours.headers.equal(theirs.headers)
        assert all(
            mine.equal(slot.view(torch.float32))
            for mine, slot in zip(ours.slots, theirs.slots, strict=True)
        )


@pytest.mark.parametrize("version_first", [False, True])
def test_the_solution_reads_as_the_package_does(notebook, version_first):
    """The same writer, step by step: the same version, and as many looks."""

    def by_the_package(ring: nb07_torn.PlayedRing) -> int:
        class Reader:
            async def read_headers(self) -> torch.Tensor:
                return torch.tensor(ring.read_headers())

            async def read_slot(self, slot: int, staging: list[int]) -> None:
                staging[:] = ring.read_slot(slot)

        return asyncio.run(read_rings([Reader()], [[]]))

    def played(seed: int) -> nb07_torn.PlayedRing:
        while True:
            ring = nb07_torn.PlayedRing(random.Random(seed), 2 + seed % 3, version_first)
            # The package says "never written" by the version -1, the page by the sequence 0.
            if all(sequence for sequence, _ in ring.headers):
                return ring
            seed += 1000

    for seed in range(100):
        ours, theirs = played(seed), played(seed)
        version, weights = notebook.Solutions.read(ours.read_headers, ours.read_slot)
        assert version == by_the_package(theirs) and ours.looks == theirs.looks
        assert weights == [version] * 4


SAID = [
    ("newest_slot", "not_only_even_ones", "a slot with an odd sequence is being written"),
    ("newest_slot", "the_version_itself", "return the slot, not its version"),
    ("read", "does_not_look_again", "you do not look at the headers again after the copy"),
    ("read", "reads_a_slot_that_is_being_written", "an odd sequence says that"),
    ("read", "compares_only_the_version", "the version alone is not enough"),
    ("read", "looks_only_whether_it_is_even_afterwards", "even is not enough"),
    ("read", "takes_a_slot_that_was_never_written", "a sequence of 0 is even, too"),
    ("read", "gives_up_after_one_attempt", "a torn copy is no reason to give up"),
    ("read", "skips_slot_0", "slot 0 is a slot, too"),
    ("read", "accepts_no_copy", "a copy is whole, and you do not accept it"),
    ("read", "returns_the_oldest", "take the newest complete slot"),
    ("slots_needed", "without_write", "a read is torn when the writer *begins*"),
    ("slots_needed", "rounded_down", "rounded down, the last part"),
]


@pytest.mark.parametrize(("name", "wrong", "words"), SAID)
def test_a_likely_mistake_is_told_first(name, wrong, words):
    (said,) = refusals("07", name, [getattr(answers("07"), wrong)]).values()
    assert said.startswith(words)


def test_a_story_has_at_most_seven_steps():
    said = refusals("07", "read", answers("07").WRONG["read"])
    assert not any("(8)" in sentence for sentence in said.values())


def test_a_race_with_a_sequence_number_is_never_torn_and_its_versions_go_on(notebook):
    found = notebook.race(notebook.publish, notebook.Solutions.read, megabytes=4, reads=25)
    assert set(found.verdicts) == {"whole"}
    assert found.attempts >= 25
    assert max(max(copy) for copy in found.copies) > 3


def test_careless_copies_of_a_writer_that_never_rests_are_torn(notebook):
    """Half of them: so twenty are enough, and up to ten times as many for a machine that is busy."""
    careless = notebook.publish_carelessly, notebook.read_carelessly
    races = (notebook.race(*careless, megabytes=32, reads=20, rest=0) for _ in range(10))
    assert any({"torn", "another version"} & set(race.verdicts) for race in races)


def keeping_to_its_first_look(read_headers, read_slot):
    """Read once the slot has another version, under that of the first look. Without the wait a busy
    machine may let the writer rest meanwhile."""
    _, version = read_headers()[0]
    while read_headers()[0][1] == version:
        pass
    return version, read_slot(0)


@pytest.mark.long
def test_the_readers_reader_is_raced_on_the_real_ring(notebook, monkeypatch):
    """The solution lets nothing through; one that does not look again does, with the same process."""

    async def both():
        async with nb07_torn.processes(
            writer=(nb07_torn.RestlessWriter, nb07_torn.layers, 16)
        ) as writers:
            monkeypatch.setattr(nb07_torn, "processes", lambda **wanted: nullcontext(writers))
            readers = notebook.Solutions.read, keeping_to_its_first_look
            return [await nb07_torn.race_from_afar(reader, 16, 20) for reader in readers]

    right, wrong = asyncio.run(both())
    assert set(right.verdicts) <= {"whole", "given up"} and "whole" in right.verdicts
    assert len(right.copies) >= right.verdicts.count("whole")
    assert {"torn", "another version"} & set(wrong.verdicts)


def test_at_a_small_rate_most_weights_need_not_travel(notebook):
    policy = notebook.load_policy("embedded", "cpu")
    small, large = (notebook.share_unchanged(policy, rate) for rate in (1e-6, 4e-4))
    assert large < 0.9 < small < 1


def test_pushing_is_pulling_and_one_line_more():
    pulling, pushing = (
        ast.unparse(shown(name).body[0].body).splitlines() for name in ("pulling", "pushing")
    )
    assert pushing[: len(pulling)] == pulling
    assert len(pushing) == len(pulling) + 1


def test_the_trainer_that_pushes_waits_for_every_generator(notebook):
    """The protocols alone, with a generator that takes weights late: versions go out in order, and
    only pushing waits."""
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

    trainer = SimpleNamespace(
        step=SimpleNamespace(call_one=lambda version: Call(lambda: step(version)))
    )
    slow = SimpleNamespace(take=SimpleNamespace(call_one=lambda: Call(take)))
    asyncio.run(notebook.pushing(trainer, [slow], (1, 2)))
    assert order == [1, "taken", 2, "taken"]
    order.clear()
    asyncio.run(notebook.pulling(trainer, [slow], (1, 2)))
    assert order == [1, 2]


@pytest.mark.long
def test_runs_from_its_first_cell_to_its_last():
    config = {
        "policy": "embedded", "device": "cpu", "megabytes": 8, "repeats": 3, "busy_seconds": 1.5, "late_seconds": 1.0,
        "careless_reads": 20, "reads": 10, "steps": 2, "batches": {"fast": 2, "slow": 8},
    }  # fmt: skip
    found = run(
        "07_rdma_weight_sync",
        config,
        "dict(waits=waits, rates=rates, late=late_move.publish, careful=careful.verdicts, afar=afar.verdicts,"
        "phases={rung: [one.publish + one.fetch + one.swap, one.total] for rung, one in middle.items()},"
        "still={rung: one.still for rung, one in middle.items()}, waited=waited_for_busy, backend=backend,"
        "whole=whole_model[1].total, ages=[run.ages for run in protocols.values()])",
    )
    assert found["still"]["TCP"] < found["still"]["message"], "a message takes the trainer's time"
    assert "message" in found["waited"]
    assert found["waits"]["message"]["busy"] > 1.3 > found["waits"]["RDMABuffer"]["busy"]
    if found["backend"] != "ibverbs":
        assert found["waits"]["RDMABuffer"]["stopped"] > 1.0
    if "shared memory" in found["waits"]:
        assert found["waits"]["shared memory"]["stopped"] < 1.0
    assert {"message", "file", "broadcast (gloo)"} <= set(found["rates"])
    for rung, (phases, total) in found["phases"].items():
        assert total == pytest.approx(phases) or rung.startswith("broadcast"), (
            "all phases count, the save of a file too"
        )
        assert found["rates"][rung] == pytest.approx(0.008 / total)
    assert found["late"] > 0.9, "the trainer waits in its own call"
    assert set(found["careful"]) == {"whole"}
    assert set(found["afar"]) <= {"whole", "given up"}
    assert found["whole"] > found["phases"].get("shared memory", found["phases"]["TCP"])[1]
    assert all(min(ages, default=0) >= 0 for run in found["ages"] for ages in run)
