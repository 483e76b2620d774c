"""A trainer of several processes: it trains as one process does, its parts arrive whole, and no
rank outlives another."""

from __future__ import annotations

import asyncio
import copy
import functools
import json
import os
import signal
import socket
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from runs import SMALL, final_weights, same_weights
from sharded_ranks import one_process, train, train_sharded
from zorplex_rl.services.host import Host, Tenant
from zorplex_rl.services.host_agent import HostInfo
from zorplex_rl.training.hosts.placement import Hosts

from zorplex_rl.cli.commands import main
from zorplex_rl.config import Config, LearnerConfig
from zorplex_rl.errors import ConfigError, HostError
from zorplex_rl.learning.advantages import group_relative
from zorplex_rl.learning.batches import collate, split_by_tokens
from zorplex_rl.learning.checkpoint import load_learner, save_learner
from zorplex_rl.learning.learner import response_logprobs
from zorplex_rl.policy.load import load_policy
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.run.folder import RunFolder, seal
from zorplex_rl.services.replica import Replica, ServiceOptions, State
from zorplex_rl.services.runtime import ActorError, ReplicaDied
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.rewards import score
from zorplex_rl.training import trainer_group
from zorplex_rl.training.controller import StopRequest
from zorplex_rl.training.devices import one_each
from zorplex_rl.training.loop import run_training
from zorplex_rl.training.shard_transports import subscribe_to_group
from zorplex_rl.training.trainer import TrainerHandle
from zorplex_rl.training.trainer_group import TrainerGroup, TrainerRankActor, group_of

pytestmark = pytest.mark.slow

RANKS = 3
CASES = [
    ("plain", LearnerConfig(), "float32"),
    (
        "everything",
        LearnerConfig(
            loss="decoupled_ppo", updates_per_batch=2, kl_coefficient=0.1, token_budget=800, max_grad_norm=0.1
        ),
        "float32",
    ),
    ("bfloat16", LearnerConfig(), "bfloat16"),
    # Some tokens are left out, and which is decided on all ranks' tokens.
    ("of the whole batch", LearnerConfig(loss="m2po", truncation=1e-5, updates_per_batch=2), "float32"),
]
TWO = SMALL.changed(trainer_processes=2)


@pytest.fixture(scope="module")
def batch(embedded):
    """Four groups of four, one of which has a response of one token; with advantages, and log-probs
    of the reference."""
    zorplex = Zorplex(0)
    tasks = zorplex.tasks(("simple:easy", "compositional:easy"), 4, "train")
    requests = [RolloutRequest(task, 10 * g + i, g) for g, task in enumerate(tasks) for i in range(4)]
    episodes = rollout(embedded, requests, zorplex.execute, Sampling())
    for episode in episodes:
        episode.score = score(episode)
    rewards = [[e.score.reward for e in episodes[i : i + 4]] for i in range(0, 16, 4)]
    advantages = [a for group in group_relative(rewards) for a in group]
    short = next(i for i, advantage in enumerate(advantages) if advantage)
    for name in ("token_ids", "logprobs", "sampled"):
        setattr(episodes[short], name, getattr(episodes[short], name)[:1])
    return episodes, advantages, response_logprobs(embedded, episodes)


@pytest.fixture(scope="module")
def sharded(batch, tmp_path_factory):
    """``sharded(case)``: what became of one of ``CASES`` on ``RANKS`` ranks, and the folder with its
    checkpoints."""

    @functools.cache
    def of_case(name):
        folder = tmp_path_factory.mktemp(name)
        (case,) = (case for case in CASES if case[0] == name)
        learner = one_process(case)
        train(learner, batch)
        save_learner(learner, folder / "saved_by_one")
        train_sharded(folder, RANKS, case, batch)
        return [torch.load(folder / f"{rank}") for rank in range(RANKS)], folder

    return of_case


def distance(one, other) -> float:
    """The norm of the difference of two lists of tensors, as a share of the norm of the second."""
    one, other = (torch.cat([t.float().flatten() for t in tensors]) for tensors in (one, other))
    return ((one - other).norm() / other.norm()).item()


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "tight"), list(zip(CASES, (2e-6, 2e-6, 0.005, 2e-6), strict=True)), ids=[c[0] for c in CASES]
)
def test_sharded_over_three_ranks_a_learner_makes_the_same_weights_up_to_the_order_of_sums(
    case, tight, batch, sharded, embedded
):
    learner = one_process(case)
    expected = train(learner, batch)
    ranks, _ = sharded(case[0])
    exact = case[2] == "float32"
    for metrics, own in zip(expected, ranks[0]["metrics"], strict=True):
        if not exact:
            # The largest rounding error of some hundred tokens: it is not the same in another order
            # of sums.
            metrics, own = ({k: v for k, v in m.items() if k != "max_logp_difference"} for m in (metrics, own))
        assert own == pytest.approx(metrics, rel=1e-4 if exact else 0.01, abs=1e-6 if exact else 0.02)
        assert list(own) == list(metrics)
    assert all(rank["metrics"] == ranks[0]["metrics"] for rank in ranks)
    assert [rank["state"] is None for rank in ranks] == [False, True, True]
    state, whole = ranks[0]["state"], learner.state_dict()
    moments, masters = (
        [[tensor for key, tensor in s.items() if key.endswith(end) or key.startswith(end)] for s in (state, whole)]
        for end in (".exp_avg", "masters.")
    )
    assert distance(*moments) < tight
    before = [p.detach().to(next(learner.policy.model.parameters()).dtype) for p in embedded.model.parameters()]
    moved = [[m - b.float() for m, b in zip(ms, before, strict=True)] for ms in masters]
    assert distance(*moved) < (1e-4 if exact else 0.1)
    assert (
        0.3 * embedded.model.num_parameters()
        < max(rank["own_parameters"] for rank in ranks)
        < 0.36 * embedded.model.num_parameters()
    )


def test_a_checkpoint_of_a_group_is_continued_by_one_process_and_the_reverse(batch, sharded):
    of_group, of_one = (one_process(CASES[0]) for _ in range(2))
    ranks, folder = sharded("plain")
    load_learner(of_one, folder / "saved_by_one")
    load_learner(of_group, folder / "saved_by_group")
    state = ranks[0]["state"]
    # The counts of the optimizer's steps are not copied in ``state``, and have gone on.
    of_run, of_file = (
        {name: tensor for name, tensor in found.items() if not name.endswith(".step")}
        for found in (state, of_group.state_dict())
    )
    assert same_weights(of_run, of_file)
    expected = of_one.step(*batch)
    assert of_group.step(*batch) == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert ranks[0]["metrics_after_load"] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    weights = of_one.policy.model.state_dict()
    for name, found in ranks[0]["weights_after_load"].items():
        torch.testing.assert_close(found, weights[name], atol=1e-5, rtol=0)


def test_the_parts_of_a_micro_batch_are_its_rows_each_once_and_stay_within_the_budget(batch):
    episodes, advantages, _ = batch
    budget = 400
    parts = [collate(episodes, advantages, budget, part=(k, 3)) for k in range(3)]
    assert len({len(batches) for batches in parts}) == 1
    assert sorted(i for batches in parts for b in batches for i in b.episodes) == list(range(16))
    longest = max(len(e.prompt_ids) for e in episodes)
    for batches in parts:
        for b in batches:
            assert b.ids.shape[1] >= 2
            assert len(b.episodes) < 2 or len(b.episodes) * (longest + b.ids.shape[1]) <= budget + len(b.episodes)
    assert [len(b.episodes) for batches in parts for b in batches].count(0), "no part was idle: too easy"


def test_with_one_part_micro_batches_are_what_they_were():
    lengths = [10, 30, 9, 10, 8]
    assert split_by_tokens(lengths, 30) == split_by_tokens(lengths, 30, parts=1) == [[4, 2, 0], [3], [1]]
    assert split_by_tokens([5, 5, 5, 5], 10, parts=2) == [[0, 1, 2, 3]]
    assert split_by_tokens([5, 5, 5, 5], 1, parts=2) == [[0, 1], [2, 3]]


OPTIONS = ServiceOptions(probe_every=0.5, probe_timeout=10.0)


@asynccontextmanager
async def group_trainer(config):
    """A trainer of two processes that is up, and the restarts that it has reported."""
    restarts = []
    trainer = TrainerHandle(group_of(TrainerRankActor, config, ["cpu", "cpu"]), restarts.append, OPTIONS)
    async with trainer.service:
        yield trainer, restarts


class CountingReader:
    """Reads as ``reader`` does, and counts the bytes."""

    def __init__(self, reader) -> None:
        self.layout, self.transport = reader.layout, reader.transport
        self.reader, self.bytes = reader, 0

    async def read_headers(self):
        return await self.reader.read_headers()

    async def read_slot(self, slot, staging) -> None:
        self.bytes += len(staging)
        await self.reader.read_slot(slot, staging)


def listening(pid: int) -> set[str]:
    """The addresses at which the process accepts TCP connections, as the kernel writes them."""
    sockets = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                found.add(fields[1].partition(":")[0])
    return found


LOOPBACK = {
    socket.inet_aton("127.0.0.1")[::-1].hex().upper(),
    "00000000000000000000000001000000",
    "0000000000000000FFFF00000100007F",
}


def whole(embedded):
    model = copy.deepcopy(embedded.model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


def test_each_byte_of_a_version_is_read_once_and_when_a_rank_dies_or_hangs_all_are_killed_and_the_weights_come_back(
    batch, embedded, tmp_path
):
    async def scenario():
        async with group_trainer(TWO) as (trainer, restarts):
            await every_generator_reads_each_byte_once(trainer, batch, embedded, tmp_path)
            await the_group_comes_back_from_blows(trainer, restarts, batch, tmp_path)

    asyncio.run(scenario())


async def every_generator_reads_each_byte_once(trainer, batch, embedded, folder):
    """And has the trainer's weights, by each transport."""
    await trainer.publish()
    actor = await trainer.actor()
    models = {transport: whole(embedded) for transport in ("shm", "message", "auto")}
    pulls = {}
    for transport, model in models.items():
        pulls[transport] = pull = await subscribe_to_group(actor, 2, model, transport)
        pull.readers = [CountingReader(reader) for reader in pull.readers]
    for version in (0, 1):
        if version:
            await trainer.step(*batch)
            await trainer.publish()
        await trainer.call("export", str(folder / f"{version}"))
        trained = load_policy(str(folder / f"{version}")).model
        size = sum(4 * p.numel() for p in trained.parameters())
        for transport, pull in pulls.items():
            for again in range(2):
                assert await pull.fetch() == pull.swap() == version
                assert len(pull.readers) == 2 and all(reader.bytes > 0.4 * size for reader in pull.readers)
                assert sum(reader.bytes for reader in pull.readers) == size, (transport, again)
            for reader in pull.readers:
                reader.bytes = 0
            expected = dict(trained.named_parameters())
            for name, parameter in models[transport].named_parameters():
                assert torch.equal(parameter, expected[name]), (transport, name)
    pids = trainer.replica.pids
    assert len(pids) == 2
    # The meeting place and the ranks' own connections.
    assert set.union(*map(listening, pids)) and set.union(*map(listening, pids)) <= LOOPBACK
    plain = folder / "plain"
    embedded.model.save_pretrained(plain)
    written = json.loads((folder / "1" / "config.json").read_text())
    assert written == json.loads((plain / "config.json").read_text())


async def the_group_comes_back_from_blows(trainer, restarts, batch, folder):
    """Its ranks are all killed, and the new ones have the same weights."""

    async def weights_as(name):
        await trainer.call("export", str(folder / name))
        return load_policy(str(folder / name)).model.state_dict()

    large = [2 * part for part in batch]
    await trainer.call("save", str(folder / "saved" / "trainer"))
    seal(folder / "saved")
    trainer.checkpointed(folder / "saved" / "trainer")
    steps = [await trainer.step(*batch), await trainer.step(*large)]
    expected = await weights_as("expected")

    for blow in (signal.SIGKILL, signal.SIGSTOP):
        await trainer.load(folder / "saved" / "trainer")
        assert await trainer.step(*batch) == steps[0]
        deaths, pids = len(restarts), trainer.replica.pids
        step = asyncio.create_task(trainer.step(*large))
        # The other rank then waits for this one, in a collective of this step.
        await asyncio.sleep(0.1)
        os.kill(pids[1], blow)
        assert await step == steps[1]
        await until(lambda deaths=deaths: len(restarts) > deaths)
        await until(lambda pids=pids: not any(map(is_alive, pids)))
        found = await weights_as(blow.name)
        assert all(torch.equal(found[name], weight) for name, weight in expected.items())


async def until(condition, timeout=120) -> None:
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.long
def test_a_run_with_two_processes_that_is_continued_with_one_ends_in_the_weights_of_one_process(sync_run, tmp_path):
    folder = RunFolder.create(tmp_path / "run", TWO)
    controllers = []

    def stop_after_two(row):
        if row["event"] == "step" and row["step"] == 2:
            controllers[0].stop_requested = True

    with pytest.raises(StopRequest):
        asyncio.run(run_training(TWO, folder, show=stop_after_two, on_start=controllers.append))
    asyncio.run(run_training(SMALL, folder, resume=folder.newest_checkpoint()))
    expected, found = final_weights(sync_run.path), final_weights(folder.path)
    assert expected.keys() == found.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, atol=1e-5, rtol=0)


def test_two_processes_on_one_gpu_are_refused():
    assert one_each(["cpu", "cpu"]) == ["cpu", "cpu"]
    assert one_each(["cuda:0", "cuda:1"]) == ["cuda:0", "cuda:1"]
    with pytest.raises(ConfigError, match="--trainer-processes is 2, but this machine has 1 GPU"):
        one_each(["cuda:0", "cuda:0"])


def a_host(gpus: int) -> Host:
    """A host that nobody has reached yet, with a replica of one process on it."""
    host = Host("far", mesh=None, lease=10.0)
    host.info = HostInfo("far", "", "0", "0", cuda_count=gpus)
    generator = Replica("generator_0")
    host.tenants.append(Tenant(generator.name, 1, generator.ended.is_set, generator.fail))
    return host


def test_on_a_host_each_rank_gets_a_gpu_of_its_own_and_a_host_with_too_few_is_refused():
    config, here = Config().changed(trainer_processes=2), ["cpu", "cpu"]
    given = []

    def on(config, devices, host):
        async def start(name):
            given.extend(devices)
            return Replica(name)

        return start

    asyncio.run(Hosts(config, [a_host(3)]).start_as(on, here)("trainer"))
    assert given == ["cuda:1", "cuda:2"]
    trainer = TrainerHandle(Hosts(config, [a_host(1)]).start_as(on, here))
    with pytest.raises(HostError, match="--trainer-processes is 2, but host far has 1 GPU"):
        asyncio.run(trainer.service.open())


def test_a_group_fails_as_soon_as_its_host_is_lost_and_counts_there_with_all_its_ranks():
    host = a_host(0)
    group = TrainerGroup("trainer", None, SimpleNamespace(slice=lambda procs: procs), width=2)
    host.tenants.append(Tenant("trainer", 2, group.ended.is_set, group.fail))
    assert host.occupants == 3 and group.ranks == [0, 1]
    host.lose("is gone")
    assert group.state is State.FAILED and host.occupants == 0


def test_a_run_may_be_continued_with_another_number_of_trainer_processes_but_with_no_other_setting(sync_run, capsys):
    assert main(["train", "--resume", str(sync_run.path), "--trainer-processes", "2"]) == 0
    assert "already finished" in capsys.readouterr().out
    assert main(["train", "--resume", str(sync_run.path), "--generators", "2"]) == 2
    assert "--generators 1 ≠ 2" in capsys.readouterr().err


def test_a_rank_that_lost_its_partner_reports_an_error_and_the_death_of_the_partner_is_what_counts(monkeypatch):
    monkeypatch.setattr(trainer_group, "LAST_WORDS_SECONDS", 0.2)
    broken, died = ActorError(RuntimeError("connection closed by peer")), ReplicaDied("the process is gone")

    async def answers_of(*outcomes):
        """What the group answers if its ranks answer so, one after the other; None is no answer at
        all."""
        futures = [asyncio.get_running_loop().create_future() for _ in outcomes]
        answer = asyncio.ensure_future(trainer_group._first_of(futures))
        for future, outcome in zip(futures, outcomes, strict=True):
            await asyncio.sleep(0.01)
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            elif outcome is not None:
                future.set_result(outcome)
        (found,) = await asyncio.gather(answer, return_exceptions=True)
        return found

    async def scenario():
        assert await answers_of("rank 0", "rank 1") == "rank 0"
        assert await answers_of(broken, died) is died
        assert await answers_of(died, None) is died
        assert await answers_of(None, broken) is broken
        assert await answers_of("rank 0", broken) is broken

    asyncio.run(scenario())
