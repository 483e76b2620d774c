"""The trainer's way back: whether its process dies or hangs, in a call or between two, its weights
are the same afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from echo import DEADLY, Pupil

from zorplex_rl.run.folder import seal
from zorplex_rl.services.replica import ServiceOptions, replicas_of
from zorplex_rl.training.trainer import TrainerHandle

pytestmark = pytest.mark.slow

OPTIONS = ServiceOptions(probe_every=0.2, probe_timeout=2.0)
BLOWS = pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])


@asynccontextmanager
async def trainer_of(start=None, options=OPTIONS):
    """A trainer that is up, and the restarts that it has reported."""
    restarts = []
    trainer = TrainerHandle(start or replicas_of(Pupil), restarts.append, options)
    async with trainer.service:
        yield trainer, restarts


async def recorded(trainer):
    """What it has recorded since the last call, as the controller asks for it."""
    answers = await trainer.service.drain_spans.fanout()
    return [span for spans in answers if not isinstance(spans, Exception) for span in spans]


def strike(trainer, blow):
    pid = trainer.service.replicas[0].pid
    os.kill(pid, blow)
    # On a busy machine a stop takes effect only when the process is next scheduled, and until then
    # its threads go on answering.
    while blow == signal.SIGSTOP and not is_stopped(pid):
        time.sleep(0.01)


def is_stopped(pid):
    """Whether no thread of the process runs any more."""
    stats = [stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] in "TtZX" for stat in stats)


async def until(condition, timeout=60):
    deadline = time.monotonic() + timeout
    while not condition() and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    assert condition()


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@BLOWS
def test_struck_between_two_calls_it_comes_back_by_itself_with_the_weights_that_it_had(blow, tmp_path):
    async def scenario():
        async with trainer_of() as (trainer, restarts):
            await trainer.step("a")
            await trainer.call("save", str(tmp_path / "saved"))
            seal(tmp_path)
            trainer.checkpointed(tmp_path / "saved")
            await trainer.step("b")
            pid = trainer.service.replicas[0].pid
            strike(trainer, blow)
            struck = time.monotonic()
            await until(lambda: restarts)
            noticed = time.monotonic() - struck - restarts[0].seconds
            assert noticed < OPTIONS.probe_every + OPTIONS.probe_timeout + 1
            assert restarts[0].died == "trainer" and restarts[0].took_over == "trainer_1"
            assert await trainer.step("c") == ["a", "b", "c"]
            await until(lambda: not is_alive(pid))

    asyncio.run(scenario())


@BLOWS
def test_struck_in_the_middle_of_a_step_that_step_is_taken_again_and_counts_once(blow):
    async def scenario():
        async with trainer_of() as (trainer, restarts):
            await trainer.step("a")
            step = asyncio.create_task(trainer.step("b", 1.0))
            await asyncio.sleep(0.2)
            strike(trainer, blow)
            assert await step == ["a", "b"]
            assert len(restarts) == 1
            assert await trainer.step("c") == ["a", "b", "c"]

    asyncio.run(scenario())


def test_nobody_waits_for_what_a_hanging_trainer_has_recorded():
    async def scenario():
        async with trainer_of() as (trainer, _):
            await trainer.step("a")
            assert await recorded(trainer) == ["a"]
            strike(trainer, signal.SIGSTOP)
            assert await asyncio.wait_for(recorded(trainer), 20) == []
            assert await trainer.step("b") == ["a", "b"]

    asyncio.run(scenario())


def test_a_trainer_that_dies_of_its_step_again_and_again_is_an_error_for_everybody_who_waits_for_it():
    async def scenario():
        async with trainer_of() as (trainer, restarts):
            await trainer.step("a")
            with pytest.raises(
                RuntimeError,
                match="trainer has failed 6 times in a row without finishing anything.* while it ran step",
            ):
                await trainer.step(DEADLY)
            # The first one had finished a step.
            assert len(restarts) == OPTIONS.max_failures + 1
            for waiting in (trainer.actor(), trainer.call("ping")):
                with pytest.raises(RuntimeError, match="without finishing anything"):
                    await waiting
            assert await recorded(trainer) == []

    asyncio.run(scenario())


def test_a_start_that_fails_is_tried_again():
    async def scenario():
        starts = []

        async def start(name):
            starts.append(name)
            if len(starts) in (2, 3):
                raise OSError("no room on this device")
            return await replicas_of(Pupil)(name)

        async with trainer_of(start) as (trainer, restarts):
            await trainer.step("a")
            strike(trainer, signal.SIGKILL)
            assert await trainer.step("b") == ["a", "b"]
            assert starts == ["trainer", "trainer_1", "trainer_2", "trainer_3"]
            assert [restart.took_over for restart in restarts] == ["trainer_3"]

    asyncio.run(scenario())
