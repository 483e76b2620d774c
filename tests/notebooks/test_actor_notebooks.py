"""Notebooks 01 and 02: what they write out does what Monarch and PyTorch do, and what the reader
writes drives the processes."""

from __future__ import annotations

import ast
import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

import cloudpickle
import psutil
import pytest
import torch
from test_answers import answers as answers_of
from test_answers import refusals
from test_faults_and_shards import run
from test_notebooks import NOTEBOOKS, load

from zorplex_rl.course import nb01, nb02
from zorplex_rl.services.runtime import ActorError, start_monarch, this_host

pytestmark = pytest.mark.slow

answers, answers_02 = answers_of("01"), answers_of("02")

ACTORS, INTERACTIVE = (
    next(path for path in NOTEBOOKS if path.stem == stem)
    for stem in ("01_actors", "02_interactive_devx")
)


def travelling(notebook: Path) -> Iterator[ModuleType]:
    """Load a notebook so that its classes and functions are copied to other processes, as when it
    runs by itself."""
    module = load(notebook)
    cloudpickle.register_pickle_by_value(module)
    yield module
    cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture(scope="module")
def actors() -> Iterator[ModuleType]:
    cloudpickle.register_pickle_by_value(answers)
    yield from travelling(ACTORS)
    cloudpickle.unregister_pickle_by_value(answers)


@pytest.fixture(scope="module")
def interactive() -> Iterator[ModuleType]:
    cloudpickle.register_pickle_by_value(answers_02)
    yield from travelling(INTERACTIVE)
    cloudpickle.unregister_pickle_by_value(answers_02)


@asynccontextmanager
async def mesh(**per_host: int):
    start_monarch()
    procs = this_host().spawn_procs(per_host=per_host)
    try:
        yield procs
    finally:
        await procs.stop()


@pytest.mark.long
@pytest.mark.parametrize("notebook", [ACTORS, INTERACTIVE], ids=lambda path: path.stem)
def test_as_a_script_it_is_silent_and_leaves_no_process(notebook):
    script = subprocess.Popen(
        [sys.executable, str(notebook)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    printed, complained = script.communicate(timeout=500)
    left = [process for process in psutil.process_iter() if _session(process.pid) == script.pid]
    assert (script.returncode, printed, complained) == (0, "", "")
    assert [process for process in left if process.status() != psutil.STATUS_ZOMBIE] == []


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def written_out(notebook: Path, *names: str) -> str:
    """Return the source of these top-level definitions, without decorators: what a reader would
    type again."""
    found = {
        node.name: node for node in ast.parse(notebook.read_text()).body if hasattr(node, "name")
    }
    for name in names:
        found[name].decorator_list = []
    return "\n\n".join(ast.unparse(found[name]) for name in names)


def test_01_the_tiny_actor_alone_answers_as_monarchs_does(actors):
    alone: dict = {}
    exec(
        "import asyncio, pickle, queue, threading, time\nfrom concurrent.futures import Future",
        alone,
    )
    exec(written_out(ACTORS, "TinyActor", "Basket", "go_shopping"), alone)

    async def both():
        tiny = alone["TinyActor"](alone["Basket"]())
        here = await alone["go_shopping"](tiny.send)
        with pytest.raises(AttributeError):
            await tiny.send("no_such_method")
        await tiny.send("stop")
        async with mesh(procs=1) as procs:
            basket = procs.spawn("basket", actors.BasketActor)
            there = await alone["go_shopping"](
                lambda method, *sent: getattr(basket, method).call_one(*sent)
            )
        return here, there

    here, there = asyncio.run(both())
    assert here == there == (["milk", "eggs", "chocolate"], ["milk", "eggs", "tea"])


SAID = {
    ("01", "AddsFirst"): "the total has changed in a call that raised. After `add",
    ("01", "RefusesZero"): "a total of exactly 0 is allowed",
    ("01", "LearnsItsRankOnce"): "how many actors are called, in each message",
    ("01", "KeepsItsRank"): "a rank stored in `__init__` is the place in the whole mesh",
    ("01", "ForFourActors"): "not always 4",
    ("01", "EverybodyAddsAll"): "every actor adds up all numbers",
    ("01", "IncludesTheEnd"): "`end` itself does not belong to the sum",
    ("01", "AddsUpToWhereItFails"): "only the total after the whole list counts",
    (
        "02",
        "sum_of_means",
    ): "the gradient is 2 times the right one, because you added up the ranks' means",
    ("02", "weighs_a_mean_of_nothing"): "the mean of no examples is `nan`, so use a sum",
    (
        "02",
        "adds_up_the_loss",
    ): "no gradient flows back through it: call `backward` on your own loss",
    ("02", "stays_away_without_examples"): "equally often, those that have nothing to give, too",
}


@pytest.mark.parametrize(("number", "name"), [("01", "Summer"), ("02", "ddp_step")])
def test_a_likely_mistake_is_told_by_what_was_misunderstood(number, name):
    found = refusals(number, name, answers_of(number).WRONG[name])
    wanted = {attempt: said for (page, attempt), said in SAID.items() if page == number}
    assert {
        attempt: found[attempt] for attempt in wanted if wanted[attempt] not in found[attempt]
    } == {}
    assert not any("SGD" in said or "Sequential" in said for said in found.values())


@pytest.mark.parametrize("size", [(2, 2), (1, 3)])
def test_01_an_actor_that_passes_its_check_does_the_same_on_monarchs_mesh(actors, size):
    rows, columns = size

    async def use(procs, summer_class):
        summers = procs.spawn(summer_class.__name__, summer_class)
        added = list((await summers.add.call([5, 2])).values())
        with pytest.raises(ActorError, match="below|would be"):
            await summers.add.call([-9])
        kept = list((await summers.add.call([])).values())
        assert added == kept == [7] * (rows * columns), summer_class
        asked = [part.add_range.call(1001) for part in (summers, summers.slice(rows=rows - 1))]
        whole, row = [list((await part).values()) for part in asked]
        assert whole == [
            sum(range(rank, 1001, rows * columns)) for rank in range(rows * columns)
        ], summer_class
        assert row == [sum(range(rank, 1001, columns)) for rank in range(columns)], summer_class

    async def use_all():
        async with mesh(rows=rows, columns=columns) as procs:
            for summer_class in (actors.Solutions.Summer, answers.UndoesIt):
                await use(procs, summer_class)

    asyncio.run(use_all())


def test_01_a_mended_player_plays_a_long_rally_in_two_processes_and_the_first_one_does_not(actors):
    async def use():
        async with mesh(rows=2, columns=2) as procs:
            for player_class in (actors.Solutions.MendedPlayer, answers.Broadcasts):
                ping, pong = await nb01.two_players(procs, player_class)
                assert await nb01.play(ping, pong, 101) < 30
                assert [await each.hits_so_far.call_one() for each in (ping, pong)] == [51, 50]
            ping, _ = await nb01.two_players(procs, actors.Player)
            assert await nb01.answers_within(5, ping.hit.call_one(1))
            assert not await nb01.answers_within(0.5, ping.hit.call_one(2))

    asyncio.run(use())


@pytest.mark.long
def test_02_a_step_that_passes_its_check_trains_two_ranks_as_one_process(interactive):
    inputs = torch.linspace(-1, 1, 8)[:, None]
    settings = (inputs, inputs.sin()), 20, 0.3
    losses, weights = interactive.train(
        interactive.new_model(), interactive.plain_step, settings[0], *settings
    )
    untrained = torch.nn.functional.mse_loss(interactive.new_model()(inputs), inputs.sin())
    assert losses[0] == untrained.item(), "in the page's figure all curves begin in one point"
    attempts = answers_02.RIGHT["ddp_step"]

    def as_it_is(model):
        return model

    async def all_runs():
        async with mesh(ranks=2) as procs:
            workers = procs.spawn("workers", interactive.Worker)
            await workers.join.call(f"{tempfile.mkdtemp()}/meeting")

            async def off(step, wrap, first):
                runs = await workers.run.call(
                    interactive.train_as_rank, step, wrap, first, *settings
                )
                assert all(len(found) == len(losses) for found, _ in runs.values())
                return nb02.furthest([found for _, found in runs.values()], weights)

            found = {
                (a.__name__, first): await off(a, as_it_is, first)
                for a in attempts
                for first in (4, 6)
            }
            ddp = torch.nn.parallel.DistributedDataParallel
            by_torch = {first: await off(interactive.plain_step, ddp, first) for first in (4, 6)}
            kept = await workers.run.call(interactive.grow, interactive.Solutions.hand_over)
            return (
                found,
                by_torch,
                await off(interactive.plain_step, as_it_is, 4),
                list(kept.values()),
            )

    found, by_torch, alone, kept = asyncio.run(all_runs())
    assert (
        len(found) == 2 * len(attempts)
        and {run: off for run, off in found.items() if off >= 1e-5} == {}
    )
    assert by_torch[4] < 1e-5 < 1e-3 < min(by_torch[6], alone)
    assert kept == [["0.weight", "0.bias"]] * 2


@pytest.mark.long
def test_02_collects_four_lines_into_one_and_running_actors_keep_their_code():
    found = run(
        "02_interactive_devx",
        {"patience": 1.0, "talkers": 4},
        "dict(lines=terminal, counted=list(counted.values()), first_nan=first_nan, greetings=[greeting, new_greeting])",
    )
    (collected,) = [line for line in found["lines"] if "similar log lines" in line]
    assert "[4 similar log lines]" in collected
    assert sum(line.count("step 7") for line in found["lines"]) == 4 + 1
    assert sorted(found["counted"]) == [1, 3] and found["first_nan"] == 2
    assert found["greetings"] == ["hello from the old code", "hello from the new code"]
