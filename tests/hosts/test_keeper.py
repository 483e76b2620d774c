"""A host and its keeper: it serves one run at a time, and is lost when its keeper ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from contextlib import ExitStack, asynccontextmanager

import psutil
import pytest
from echo import Echo, Pupil
from runs import SMALL, as_flags, command, eventually, is_alive, rows, until

from zorplex_rl.config import Config
from zorplex_rl.errors import HostError
from zorplex_rl.hosts.hosts import open_hosts
from zorplex_rl.services.service import Service
from zorplex_rl.services.spawn import replicas_of
from zorplex_rl.training.trainer import TrainerHandle

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.path.isdir("/proc"), reason="it looks for processes in /proc"),
]


@asynccontextmanager
async def two_hosts():
    """Two hosts of this machine, and how to start replicas of ``actor_class`` on them."""
    async with open_hosts(Config(hosts="processes:2")) as hosts:

        def start(actor_class):
            return hosts.start(
                lambda config, devices, machine: replicas_of(actor_class, machine=machine), []
            )

        yield hosts, start


def kill_keeper(pid: int) -> None:
    """Kill the keeper of the host on which ``pid`` alone runs."""
    beside = [
        process.pid for process in psutil.Process(pid).parent().children() if process.pid != pid
    ]
    assert len(beside) == 1
    os.kill(beside[0], signal.SIGKILL)


async def test_a_host_without_its_keeper_is_lost_at_once_and_what_ran_there_ends_and_starts_elsewhere():
    async with two_hosts() as (hosts, start):
        first, second = hosts.hosts
        restarts = []
        # Generators begin with the second host.
        async with Service("generator", start(Echo)) as service:
            service.on_restart = restarts.append
            pid = await service.who.route()
            kill_keeper(pid)
            await until(second.lost.is_set, timeout=5)
            await until(lambda: restarts, timeout=15)
            assert not is_alive(pid)
            assert restarts[0].reason == f"its host {second.name} is lost"
            assert service.replicas[0].machine is first
            assert await service.who.route() == restarts[0].pid
        with pytest.raises(HostError, match="process 1 is lost"):
            async with second.mirror(None, is_filled=False):
                pass


@pytest.mark.long
async def test_a_trainer_whose_keeper_is_killed_before_a_checkpoint_writes_it_from_the_other_host(
    tmp_path,
):
    async with two_hosts() as (hosts, start):
        trainer = TrainerHandle(start(Pupil))
        async with trainer.service:
            await trainer.step("a")
            pid = trainer.service.replicas[0].pid
            kill_keeper(pid)
            await trainer.transfer("save", tmp_path)
            assert (tmp_path / "taught").read_text() == "a"
            assert trainer.service.replicas[0].machine is hosts.hosts[1]
            assert not is_alive(pid)


def test_a_worker_that_serves_a_run_refuses_another_and_the_first_goes_on(tmp_path):
    with ExitStack() as running, socket.create_server(("127.0.0.1", 0)) as free:
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        free.close()
        worker = running.enter_context(command("worker", "--insecure", "--listen", address))
        assert any("waiting for a run" in line for line in worker.process.stdout)

        def train(name: str, steps: int, **streams):
            flags = as_flags(SMALL.changed(hosts=f"attach:{address}", insecure=True, steps=steps))
            return running.enter_context(
                command("train", *flags, "--out", str(tmp_path / name), **streams)
            )

        first = train("first", steps=1000, stdout=subprocess.DEVNULL)

        # This program, Monarch's loop, the keeper, a replica.
        assert eventually(lambda: len(worker.members()) > 3)
        second = train("second", steps=1)
        code, output = second.finish()
        assert code == 1 and re.search(
            rf"zorplex-rl: host {address} serves another run; .*\n\Z", output
        )
        assert second.all_gone()
        assert eventually(
            lambda: len(rows(tmp_path / "first", "step")) > 2 or first.process.poll() is not None
        )
        assert first.process.poll() is None and not rows(tmp_path / "first", "restart")
