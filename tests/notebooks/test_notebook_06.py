"""Notebook 06: the pool with the learner's functions heals as the package's service does, and every
request is accounted for."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from types import ModuleType, SimpleNamespace

import cloudpickle
import pytest
from test_answers import answers, refusals
from test_notebooks import NOTEBOOKS, load, packages_of

from zorplex_rl.config import Config, LearnerConfig
from zorplex_rl.course import nb06
from zorplex_rl.course.lesson import keep_open
from zorplex_rl.services.options import ServiceOptions
from zorplex_rl.services.runtime import start_monarch, this_host
from zorplex_rl.services.service import Service
from zorplex_rl.services.spawn import replicas_of

pytestmark = pytest.mark.slow

NOTEBOOK = next(path for path in NOTEBOOKS if path.stem == "06_services")
EXAMPLES = NOTEBOOK.parents[1] / "examples"
SMALL = SimpleNamespace(replicas=3, callers=9, seconds=0.2, settle=0.7)


@pytest.fixture(scope="module")
def page() -> Iterator[ModuleType]:
    """The notebook, with its classes and functions copied to other processes, as when it runs by
    itself."""
    module = load(NOTEBOOK)
    cloudpickle.register_pickle_by_value(module)
    start_monarch()
    yield module
    cloudpickle.unregister_pickle_by_value(module)


def healing(page: ModuleType) -> type:
    """The page's pool, with the solutions in its holes."""
    methods = {name: getattr(page.Solutions, name) for name in ("keep_one", "route")}
    return type(
        "Healing", (page.Pool,), methods | {"retry_delay": staticmethod(page.Solutions.retry_delay)}
    )


def kept_by_the_learner(page: ModuleType) -> str:
    return nb06.pool_file(
        str(NOTEBOOK), page.Solutions.retry_delay, page.Solutions.keep_one, page.Solutions.route
    )


def test_both_files_need_monarch_alone(page):
    for text in ((EXAMPLES / "pool.py").read_text(), kept_by_the_learner(page)):
        assert packages_of(text) == {"monarch"}


KEPT = """
import asyncio, os, signal, time
from pathlib import Path
import kept
from monarch.actor import Actor, concurrent_endpoint

class Good(Actor):
    @concurrent_endpoint
    async def ping(self): return os.getpid()
    @concurrent_endpoint
    async def add(self, n):
        await asyncio.sleep(0.2)
        return n + 1
    @concurrent_endpoint
    async def fail(self): raise ValueError("my own")

class Bad(Good):
    def __init__(self): raise ValueError("no disk")

open_pool = getattr(kept, "healing_pool", None) or kept.Pool

async def working(route): return set(await asyncio.gather(*(route("ping", again=True) for _ in range(12))))

async def main():
    async with open_pool(Good) as pool:
        route = getattr(pool, "route", pool)
        for fault in (signal.SIGKILL, signal.SIGSTOP):
            victim = min(await working(route))
            once = [asyncio.create_task(route("add", n, again=False)) for n in range(3)]
            asked = [asyncio.create_task(route("add", n, again=True)) for n in range(12)]
            await asyncio.sleep(0.1)
            os.kill(victim, fault)
            assert await asyncio.gather(*asked) == list(range(1, 13))
            ends = await asyncio.gather(*once, return_exceptions=True)
            lost = [end for end in ends if isinstance(end, kept.ReplicaDied)]
            assert len(lost) == 1 and len([end for end in ends if isinstance(end, int)]) == 2, ends
            while victim in (now := await working(route)) or len(now) < 3:
                await asyncio.sleep(0.02)
        try:
            await route("fail", again=True)
        except Exception as error:
            assert "my own" in str(error) and len(await working(route)) == 3, "the caller's error, no death"
    began = time.monotonic()
    try:
        async with open_pool(Bad): pass
    except kept.ReplicaDied as error:
        print("no disk" in str(error), time.monotonic() - began < 60)
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while children.read_text() and time.monotonic() - began < 60:
        await asyncio.sleep(0.1)
    print("left over:", children.read_text() or "none")

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "file", [pytest.param("the course's", marks=pytest.mark.long), "the learner's"]
)
def test_the_file_to_keep_survives_a_kill_and_a_hang_and_does_not_wait_for_what_cannot_start(
    file, page, tmp_path
):
    text = (
        (EXAMPLES / "pool.py").read_text() if file == "the course's" else kept_by_the_learner(page)
    )
    (tmp_path / "kept.py").write_text(text)
    (tmp_path / "program.py").write_text(KEPT)
    without = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=without,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "True True\nleft over: none" in done.stdout, (done.stdout, done.stderr[-2000:])


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_the_pool_of_the_page_answers_or_refuses_every_request_whatever_happens_to_a_replica(
    page, fault
):
    film, books = asyncio.run(
        nb06.under_load(healing(page), page.Tool, page.call_for_ever, page.break_one, SMALL, fault)
    )
    assert books["look_up"]["failed"] == books["charge"]["done twice"] == 0
    for rows in books.values():
        assert (
            rows["answered"] > 0
            and rows["without any outcome"] == rows["answered, but not done"] == 0
        )
    assert 0 < film.noticed < film.whole < 30
    assert any(lost for *_, lost in film.legs), "requests were with the dead replica"


def test_the_packages_service_survives_the_same_kill(page):
    async def killed(route):
        before = {await route() for _ in range(20)}
        victim = min(before)
        asked = [asyncio.create_task(route()) for _ in range(12)]
        os.kill(victim, signal.SIGKILL)
        answers = await asyncio.gather(*asked)
        async with asyncio.timeout(60):
            while await route() in before:
                await asyncio.sleep(0.02)
        return len(before), len(answers)

    async def both():
        async with healing(page)(page.Tool, 0.0, replicas=1) as pool:
            by_pool = await killed(partial(pool.route, "ping", again=True))
        options = ServiceOptions(replicas=1, idempotent={"ping"})
        async with Service("tools", replicas_of(page.Tool, 0.0), options) as service:
            return by_pool, await killed(service.ping.route)

    by_pool, by_service = asyncio.run(both())
    assert by_pool == by_service == (1, 12)


def test_a_probe_that_is_cancelled_as_its_answer_arrives_does_not_go_on_for_ever(page):
    """In Python 3.11 ``asyncio.wait_for`` loses such a cancellation, and a pool that is closed
    waited for its keeper."""

    async def cancelled_after(ticks: int) -> None:
        answered, pool = asyncio.Event(), page.Pool(page.Tool)
        pool.ask = lambda replica, endpoint: answered.wait()
        probe = asyncio.create_task(pool.answers(SimpleNamespace()))
        await asyncio.sleep(0.01)
        answered.set()
        for _ in range(ticks):
            await asyncio.sleep(0)
        if probe.cancel():
            with pytest.raises(asyncio.CancelledError):
                await probe

    for ticks in range(4):
        asyncio.run(cancelled_after(ticks))


@pytest.mark.long
def test_only_a_rule_that_checks_and_charges_in_one_step_charges_once_under_kills(page):
    async def all_three():
        rules = (page.charge_always, page.note_then_charge, page.Solutions.charge_once)
        return [await nb06.charge_under_kills(healing(page), page.Till, rule) for rule in rules]

    always, noted, once = asyncio.run(all_three())
    assert once == [1] * 10
    assert max(always) > 1 and min(always) == 1
    assert min(noted) == 0 and max(noted) == 1
    assert [number for number, _ in nb06.DoomedConnection.moments] == [2, 5, 8]  # the page's table
    assert always[8] > 1 and noted[5] == noted[8] == 0


@pytest.mark.parametrize(
    ("name", "attempt", "words"),
    [
        ("retry_delay", "overflows_after_a_thousand_failures", "(5000, 1.0, 8.0, 1.0)`"),
        ("keep_one", "sleeps_before_it_probes", "you sleep before the first probe. "),
        ("route", "ends_the_process", "ending its process is the work of `keep_one`. "),
        ("route", "ignores_again", "it is sent again, although `again` is False. "),
        ("route", "leaves_the_dead_in_rotation", "a dead replica is asked once more: remove it. "),
        ("charge_once", "never_commits", "nothing is committed: use `with database:`. "),
        ("charge_once", "looks_into_the_charges", "two processes looked, and both found nothing"),
    ],
)
def test_a_likely_mistake_is_told_in_words(name, attempt, words):
    said = refusals("06", name, [getattr(answers("06"), attempt)])[attempt]
    assert words in said


def test_the_pool_is_found_by_its_name_and_a_successor_answers_under_it(page, capfd):
    first, second = asyncio.run(page.ask_by_name(healing(page)))
    assert first != second
    assert "panicked" not in capfd.readouterr().err


def test_whether_a_request_may_be_sent_twice_goes_through_the_name(page):
    class EchoPool:
        async def route(self, *request, again):
            return [*request, again]

    async def ask_both():
        async with keep_open.stopping(this_host().spawn_procs()) as procs:
            names = procs.spawn("names", page.Names)
            pool = procs.spawn("pool", page.PoolActor, EchoPool())
            await names.publish.call_one("tools", pool)
            trainer = procs.spawn("trainer", page.Trainer, names)
            return [await trainer.ask.call_one("tools", "charge", again) for again in (True, False)]

    assert asyncio.run(ask_both()) == [["charge", True], ["charge", False]]


def test_a_pool_that_closes_waits_for_a_replica_that_is_starting(page):
    async def close_while_one_starts():
        async with healing(page)(page.Tool, 0.0, replicas=1) as pool:
            os.kill(pool.ready[0].pid, signal.SIGKILL)
            while all(replica.pid for replica in pool.started):
                await asyncio.sleep(0.01)
            (starting,) = pool.started
        return starting.pid

    assert asyncio.run(close_while_one_starts())


ALL_ARE_READY = """
    while sum(replica.state == "ready" for replica in roles.policy.replicas) < 2:
        await asyncio.sleep(0.05)
"""


@pytest.mark.long
def test_one_step_through_services_is_undisturbed_by_a_kill_and_a_successor_has_its_weights(
    tmp_path,
):
    last = "    versions = await roles.policy.pull.fanout()"
    before, _, after = (EXAMPLES / "service_step.py").read_text().partition(last)
    (tmp_path / "service_step.py").write_text(before + ALL_ARE_READY + last + after)
    spec = importlib.util.spec_from_file_location("service_step", tmp_path / "service_step.py")
    step = sys.modules["service_step"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(step)
    run = Config(
        device="cpu",
        prompts_per_step=2,
        group_size=2,
        max_lag=0,
        learner=LearnerConfig(kl_coefficient=0.01),
        tool_latency=0.05,
    )
    done = asyncio.run(step.step_under_a_kill(run))
    assert done.retries >= 1
    assert done.versions and set(done.versions) == {1}
    assert [one.token_ids for one in step.alone(run)] == [one.token_ids for one in done.episodes]


@pytest.mark.long
def test_what_a_service_adds_is_measured():
    done = subprocess.run(
        [sys.executable, EXAMPLES / "services.py"], capture_output=True, text=True, timeout=180
    )
    turns, load = map(
        int, re.search(r"(\d+) answers/s in turns, (\d+) by load", done.stdout).groups()
    )
    assert load > turns
    assert all(
        word in done.stdout for word in ("A bound: of 60", "Sessions: ", "from 1 to 3 replicas")
    )


@pytest.mark.long
def test_runs_from_its_first_cell_to_its_last():
    _, values = load(NOTEBOOK).app.run(defs={"config": SMALL})
    books = values["books"]
    for rows in books.values():
        assert rows["without any outcome"] == rows["answered, but not done"] == 0
    assert values["once"] == [1] * 10
    assert values["pool_py"].startswith('"""A pool of processes that heals')
