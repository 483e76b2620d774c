"""Notebook 06: the pool on the page heals as the package does, what the reader writes drives real services, and every request is accounted for."""

from __future__ import annotations

import ast
import asyncio
import math
import os
import random
import signal
import time
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import cloudpickle
import pytest
from test_notebooks import NOTEBOOKS, load

from zorplex_rl.course.widgets.service_player import RequestRecorder, film
from zorplex_rl.policy.load import load_policy
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.services.options import ServiceOptions
from zorplex_rl.services.replica import replicas_of, spawn
from zorplex_rl.services.service import Service
from zorplex_rl.training.generator import episode_seed

NOTEBOOK = next(path for path in NOTEBOOKS if path.stem == "06_services")


def small_06(**changes) -> SimpleNamespace:
    """Settings of 06 that are small enough for a test."""
    settings = {
        "policy": "embedded",
        "device": "cpu",
        "seed": 0,
        "replicas": 3,
        "tool_seconds": 0.1,
        "at_once": 4,
        "slow": 5,
        "routed_callers": 12,
        "warm_up_seconds": 1.0,
        "measured_seconds": 2.0,
        "crowds": (1, 2, 4),
        "callers": 18,
        "settle_seconds": 1.0,
        "burst": 60,
        "prompts": 4,
        "samples": 4,
    }
    return SimpleNamespace(**settings | changes)


@pytest.fixture(scope="module")
def page() -> Iterator[ModuleType]:
    """The notebook, with its classes and functions copied to other processes, as when it runs by itself."""
    module = load(NOTEBOOK)
    cloudpickle.register_pickle_by_value(module)
    yield module
    cloudpickle.unregister_pickle_by_value(module)


def pool_alone() -> tuple[str, type]:
    """The source of the page's pool, without its decorator, and the class that it makes with nothing but its imports."""
    (node,) = (node for node in ast.parse(NOTEBOOK.read_text()).body if getattr(node, "name", "") == "Pool")
    node.decorator_list = []
    source = ast.unparse(node)
    imports = (
        "import asyncio, os, signal\n"
        "from contextlib import suppress\n"
        "from zorplex_rl.services.runtime import ReplicaDied, start_runtime, this_host\n"
    )
    namespace: dict = {}
    exec(imports + source, namespace)
    return source, namespace["Pool"]


def test_the_pool_on_the_page_is_at_most_45_lines():
    assert len([line for line in pool_alone()[0].splitlines() if line.strip()]) <= 45


def kill_in_mid_request(process: int, number: int) -> None:
    """Kill ``process`` when all who ask it wait for its answer: it stands still for a while before it dies."""
    os.kill(process, signal.SIGSTOP)
    asyncio.get_running_loop().call_later(0.3, os.kill, process, number)


def test_the_pool_on_the_page_survives_the_kill_that_a_list_does_not_as_the_package_does(page, monkeypatch):
    _, pool_class = pool_alone()

    async def three():
        listed = [await spawn(f"tool_{number}", page.Tool, 0, 0.0) for number in range(3)]
        try:
            route = page.in_turns([replica.actor for replica in listed])
            await asyncio.gather(*(route("ping") for _ in listed))
            by_list = await page.through_a_kill(route, patience=3.0)
        finally:
            await asyncio.gather(*(replica.stop() for replica in listed))
        async with pool_class(page.Tool, 0, 0.0) as pool:
            by_pool = await page.through_a_kill(pool.route, patience=60.0)
        options = ServiceOptions(replicas=3, idempotent={"ping"})
        monkeypatch.setattr(page, "os", SimpleNamespace(kill=kill_in_mid_request))
        async with Service("tools", replicas_of(page.Tool, 0, 0.0), options) as service:
            recorder = RequestRecorder(service)
            by_service = await page.through_a_kill(lambda name: getattr(service, name).route(), patience=60.0)
            status = service.status()
        return by_list, by_pool, by_service, recorder, status

    by_list, by_pool, by_service, recorder, status = asyncio.run(three())
    assert by_list.failed > 3 and by_list.back == math.inf
    for run in (by_pool, by_service):
        assert run.failed == 0 and run.answered > 0 and run.back < 60
    # Each request that was lost with the replica has a second leg.
    lost = [leg for leg in recorder.legs if leg[5]]
    assert len(lost) == status.retries > 0
    assert len(recorder.legs) == status.requests + len(lost)


def test_the_pool_on_the_page_replaces_a_process_that_hangs(page):
    _, pool_class = pool_alone()

    async def hang():
        async with pool_class(page.Tool, 0, 0.0, replicas=2, limit=1.0) as pool:
            before = {await pool.route("ping") for _ in range(4)}
            os.kill(min(before), signal.SIGSTOP)
            async with asyncio.timeout(60):
                while (answered := await pool.route("ping")) in before:
                    await asyncio.sleep(0.02)
        return before, answered

    before, answered = asyncio.run(hang())
    assert len(before) == 2 and answered not in before


@pytest.mark.parametrize(
    ("rank", "on_the_first"),
    [("solution", 0.5), (lambda under_way, last_turn: -under_way, 1.0)],
    ids=["right", "wrong"],
)
def test_the_readers_rank_decides_which_replica_of_a_real_service_works(page, rank, on_the_first):
    rank = page.rank_solution if rank == "solution" else rank
    tool_of = page.Zorplex(0).task(("simple",), 0)
    call = page.find_call(f"LOOKUP[{tool_of.words[0]}]")

    async def press():
        options = ServiceOptions(replicas=2, router=lambda replica: rank(replica.load, replica.turn))
        async with Service("tools", replicas_of(page.Tool, 0, 0.05), options) as tools:
            await asyncio.gather(*(tools.execute.route(tool_of, call) for _ in range(40)))
            return [row.requests for row in tools.status().replicas]

    requests = asyncio.run(press())
    assert max(requests) / sum(requests) == pytest.approx(on_the_first, abs=0.05)


def test_only_a_rule_that_checks_and_charges_in_one_step_charges_once_under_kills(page):
    async def all_three():
        rules = (page.charge_always, page.note_then_charge, page.charge_once_solution)
        return [await page.charge_under_kills(rule) for rule in rules]

    always, noted, once = asyncio.run(all_three())
    assert once.made == [1] * 10 and once.retries > 0 and once.errors == []
    assert max(always.made) > 1 and min(always.made) == 1
    assert min(noted.made) == 0 and max(noted.made) == 1


@pytest.mark.long
def test_one_step_through_services_is_undisturbed_by_a_kill(page):
    config = small_06(prompts=2, samples=2)
    _, values = page.rl_roles.run(config=config)
    run = values["run"]

    async def step():
        async with page.all_of(values["starts"], values["repeatable"]) as (roles, seconds):
            killing = asyncio.create_task(page.kill_a_writer(roles.policy))
            done = await page.one_step(roles, config.prompts)
            _, lost = await killing
            return done, seconds, lost, roles.policy.status().retries

    done, seconds, lost, retries = asyncio.run(step())
    assert set(seconds) == set(values["starts"])
    assert lost >= 1 and retries >= 1
    assert done.versions and set(done.versions) == {1}
    policy, zorplex = load_policy(), page.Zorplex(run.seed)
    requests = [
        RolloutRequest(zorplex.task(page.tier_of(run.task), number, "train"), episode_seed(0, number, sample), number)
        for number in range(2)
        for sample in range(2)
    ]
    alone = rollout(policy, requests, zorplex.execute, Sampling(1.0, run.max_tokens, run.max_turns, run.slots))
    assert [episode.token_ids for episode in alone] == [episode.token_ids for episode in done.episodes]


def test_a_tool_works_on_so_many_calls_at_once_and_no_more(page):
    tool = page.Tool(0, 0.02, at_once=2)
    task = page.Zorplex(0).task(("simple",), 0)
    call = page.find_call(f"LOOKUP[{task.words[0]}]")

    async def five() -> list[int]:
        calls = {asyncio.create_task(tool.work("execute", task, call, number)) for number in range(5)}
        together = []
        while calls:
            done, calls = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            together.append(len(done))
        return together

    began = time.monotonic()
    assert max(asyncio.run(five())) <= 2
    assert time.monotonic() - began >= 3 * 0.02


def test_routers_are_measured_after_their_warm_up(page):
    """What is answered before the warm-up ends, however much, is in no rate."""
    began = time.monotonic()

    async def ask():
        await asyncio.sleep(0.001 if time.monotonic() - began < 0.3 else 0.1)

    run = asyncio.run(page.press(ask, callers=2, warm_up=0.5, measured=1.0))
    assert 8 <= run.rate <= 20
    assert min(run.seconds) >= 0.1


def test_callers_that_are_refused_together_stay_together_without_jitter(page):
    random.seed(0)

    def load(draw):
        return page.all_at_once(lambda failures: page.retry_delay_solution(failures, 0.25, 8.0, draw()))

    together, spread = load(lambda: 1.0), load(random.random)
    assert max(together[1:]) == 190
    assert max(spread[1:]) < 190 / 2
    assert sum(spread) < sum(together) / 2
    assert len(spread) < len(together) / 5


def test_a_delay_of_nothing_ends_all_the_same(page):
    """A reader's wrong rule may never let a caller wait; the simulation is over when all are served."""
    assert sum(page.all_at_once(lambda failures: -1.0)) == sum(range(10, 201, 10))


@pytest.mark.long
def test_runs_from_its_first_cell_to_its_last(page):
    _, values = page.app.run(defs={"config": small_06()})
    account, stage = values["account"], values["stage"]
    for facts in account.values():
        assert facts["without any outcome"] == facts["answered, but not done"] == 0
    assert account["charge"]["done twice"] == account["execute"]["failed with `ReplicaFailed`"] == 0
    assert sum(facts["answered"] for facts in account.values()) == stage.final.answered
    assert values["charged"]["`charge_once`"].made == [1] * 10
    assert values["same_choices"] == 1000
    assert min(len(status.replicas) for _, status in values["load"][-3:]) == 1, "the chart shows the way down"
    shown = film(stage.recorder.legs, values["killed"].samples, values["killed"].fault)
    assert any(leg[5] for leg in shown["legs"]), "requests were with the dead replica"
    assert values["same_episodes"] == len(values["done"].episodes) == 16
