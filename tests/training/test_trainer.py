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
from runs import is_alive, until

from zorplex_rl.errors import CheckpointError, HostError
from zorplex_rl.run.folder import seal
from zorplex_rl.services.machine import Machine
from zorplex_rl.services.options import GivenUp, ServiceOptions
from zorplex_rl.services.spawn import replicas_of
from zorplex_rl.training.trainer import TrainerHandle

pytestmark = pytest.mark.slow

OPTIONS = ServiceOptions(probe_every=0.2, probe_timeout=2.0, progress=("step",))
BLOWS = pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])


@asynccontextmanager
async def trainer_of(start=None):
    """A trainer that is up, and the restarts that it has reported."""
    restarts = []
    trainer = TrainerHandle(start or replicas_of(Pupil), OPTIONS)
    trainer.service.on_restart = restarts.append
    async with trainer.service:
        yield trainer, restarts


async def recorded(trainer):
    """What it has recorded since the last call, as the controller asks for it."""
    answers = await trainer.service.drain_spans.fanout()
    return [span for spans in answers if not isinstance(spans, Exception) for span in spans]


def strike(trainer, blow) -> int:
    """Kill its process or have it stand still. Returns the process's number."""
    pid = trainer.service.replicas[0].pid
    os.kill(pid, blow)
    # On a busy machine a stop takes effect only when the process is next scheduled.
    while blow == signal.SIGSTOP and not is_stopped(pid):
        time.sleep(0.01)
    return pid


def is_stopped(pid):
    """Whether no thread of the process runs any more."""
    stats = [stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] in "TtZX" for stat in stats)


async def checkpoint(trainer, folder: Path) -> None:
    await trainer.transfer("save", folder / "saved")
    seal(folder)
    trainer.checkpointed(folder / "saved")


@BLOWS
def test_struck_between_two_calls_it_comes_back_by_itself_with_the_weights_that_it_had(
    blow, tmp_path
):
    async def scenario():
        async with trainer_of() as (trainer, restarts):
            await trainer.step("a")
            await checkpoint(trainer, tmp_path)
            await trainer.step("b")
            assert await recorded(trainer) == ["a", "b"]
            pid, struck = strike(trainer, blow), time.monotonic()
            # What a hanging trainer has recorded is not waited for.
            assert await asyncio.wait_for(recorded(trainer), 20) in ([], ["a", "b"])
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


def test_a_trainer_that_dies_of_its_step_again_and_again_is_an_error_for_everyone_who_waits_for_it():
    """The steps that it takes again at each start are no progress."""

    async def scenario():
        async with trainer_of() as (trainer, restarts):
            await trainer.step("a")
            with pytest.raises(GivenUp, match="trainer has failed 6 times .* while it ran step"):
                await trainer.step(DEADLY)
            # The first one had finished a step.
            assert len(restarts) == OPTIONS.max_failures + 1
            for waiting in (trainer.actor(), trainer.call("ping")):
                with pytest.raises(GivenUp):
                    await waiting
            assert await recorded(trainer) == []

    asyncio.run(scenario())


def test_a_start_that_fails_is_tried_again_but_not_from_a_checkpoint_that_is_broken(tmp_path):
    async def scenario():
        starts = []

        async def start(name):
            starts.append(name)
            if len(starts) in (2, 3):
                raise OSError("no room on this device")
            return await replicas_of(Pupil)(name)

        async with trainer_of(start) as (trainer, restarts):
            await trainer.step("a")
            await checkpoint(trainer, tmp_path)
            strike(trainer, signal.SIGKILL)
            assert await trainer.step("b") == ["a", "b"]
            assert starts == ["trainer", "trainer_1", "trainer_2", "trainer_3"]
            assert [restart.took_over for restart in restarts] == ["trainer_3"]
            (tmp_path / "saved" / "taught").write_text("of another run")
            strike(trainer, signal.SIGKILL)
            with pytest.raises(CheckpointError, match="the trainer died"):
                await trainer.step("c")
            assert len(starts) == 5

    asyncio.run(scenario())


def test_a_host_that_is_lost_while_the_trainer_comes_back_on_it_is_not_the_end_while_another_is_left(
    tmp_path,
):
    class Losing(Machine):
        """The hosts of a run: the first is lost as it gets the checkpoint."""

        lent = 0

        @asynccontextmanager
        async def mirror(self, folder, is_filled):
            self.lent += is_filled
            if is_filled and self.lent == 1:
                raise HostError("host a is lost")
            yield str(folder)

    async def scenario():
        async with trainer_of(replicas_of(Pupil, machine=Losing())) as (trainer, restarts):
            await trainer.step("a")
            await checkpoint(trainer, tmp_path)
            strike(trainer, signal.SIGKILL)
            assert await trainer.step("b") == ["a", "b"]
            assert [restart.took_over for restart in restarts] == ["trainer_2"]

    asyncio.run(scenario())
