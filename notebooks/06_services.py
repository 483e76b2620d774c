# /// script
# [tool.marimo.display]
# theme = "system"
# ///

import marimo

__generated_with = "0.25.2"
app = marimo.App(
    width="medium",
    app_title="Services that heal",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)

with app.setup(hide_code=True):
    import asyncio
    import hashlib
    import itertools
    import logging
    import math
    import os
    import random
    import signal
    import sqlite3
    import tempfile
    import time
    from collections import Counter
    from contextlib import asynccontextmanager, closing, suppress
    from pathlib import Path
    from statistics import fmean
    from types import SimpleNamespace

    import marimo as mo
    import torch

    from zorplex_rl.config import Config, LearnerConfig
    from zorplex_rl.course.figures import service_charts
    from zorplex_rl.course.figures.loop_drawing import loop_drawing
    from zorplex_rl.course.figures.service_charts import Fault
    from zorplex_rl.course.lesson import exercise, lesson, scene
    from zorplex_rl.course.lesson.plug_in import plug_in
    from zorplex_rl.course.widgets import ServiceBoard, ServicePlayer
    from zorplex_rl.course.widgets.service_player import RequestRecorder
    from zorplex_rl.services.options import ServiceOptions
    from zorplex_rl.services.registry import register_service, unregister_service
    from zorplex_rl.services.replica import replicas_of, spawn
    from zorplex_rl.services.requests import Overloaded, ServiceError
    from zorplex_rl.services.router import POLICIES
    from zorplex_rl.services.runtime import (
        Actor,
        ReplicaDied,
        concurrent_endpoint,
        endpoint,
        run_together,
        start_runtime,
        this_host,
    )
    from zorplex_rl.services.service import Service
    from zorplex_rl.task.curriculum import tier_of
    from zorplex_rl.task.environment import Zorplex
    from zorplex_rl.task.parser import find_call
    from zorplex_rl.training.actors import (
        AdvantageActor,
        DatasetActor,
        ReferenceActor,
        ReplayBufferActor,
        RewardActor,
        TimedActor,
        ToolActor,
    )
    from zorplex_rl.training.generator import GeneratorActor, episode_seed
    from zorplex_rl.training.trainer import TrainerActor

    # Every death below is intended; the page says more about it than a warning would.
    logging.getLogger("zorplex_rl").setLevel(logging.ERROR)


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=45,
        hardware="two CPU cores, no network; a GPU is used where there is one",
        goals=[
            "write a pool of processes that heals, and say what a service adds to it",
            "choose a router, a bound for the queue and a back-off, and measure each",
            "kill a replica, hang another, and account for every request",
            "make a request safe to send twice",
            "take one RL step through services, with a death in the middle",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        loop_drawing("generator", "tools", "reward"),
        "Lit: the parts of the loop that should exist more than once.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Many of the same

    Some roles of the training loop should exist more than once. Tools wait for somebody else, rewards run tests, generators set the pace. A caller
    does not want to know how many tool processes there are, which one is free, or that one has just died.

    A **service** is one name in front of several interchangeable processes. Each of them is a **replica**. A caller sends a request to the
    service, and the service finds a replica for it.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        service_charts.service_drawing(),
        "What this notebook builds: callers see one name, while replicas die and are replaced.",
    )
    return


@app.cell
def settings():
    config = SimpleNamespace(
        policy=mo.cli_args().get("policy") or "embedded",  # for the roles at the end
        device="cuda" if torch.cuda.is_available() else "cpu",
        seed=0,
        replicas=3,
        tool_seconds=0.1,  # what a call takes
        at_once=4,  # calls that one tool process works on; others wait in it
        slow=5,  # how many times slower one replica is, where routers are compared
        routed_callers=12,
        warm_up_seconds=2.0,
        measured_seconds=4.0,
        crowds=(1, 2, 4, 8, 16),  # callers of the sandboxes
        callers=18,  # of the service that is killed
        settle_seconds=1.0,  # that a figure shows before and after
        burst=120,  # requests, where the service scales
        prompts=4,  # of the RL step
        samples=4,  # of each prompt
    )
    return (config,)


@app.cell(hide_code=True)
def _():
    lesson.ran_on()
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The worker

    The tool of notebook 05 was a function. Here it is an actor in a process of its own. `execute` looks a word up. `charge` stands for any
    effect on the world: it also writes a line into a ledger, a file that survives the process. From `TimedActor`, a class of the package, it has `ping`, which answers with
    the number of its process.
    """)
    return


@app.class_definition
class Tool(TimedActor):
    """The tools of a Zorplex task. It works on ``at_once`` calls, each of ``seconds``."""

    def __init__(self, seed, seconds, ledger=os.devnull, at_once=4):
        super().__init__("tool")
        self.zorplex, self.seconds, self.ledger = Zorplex(seed), seconds, ledger
        self.notes, self.hands = [], asyncio.Semaphore(at_once)

    @concurrent_endpoint
    async def execute(self, task, call, request=None):
        return await self.work("execute", task, call, request)

    @concurrent_endpoint
    async def charge(self, task, call, request):
        return await self.work("charge", task, call, request)

    @concurrent_endpoint
    async def note(self, text):
        self.notes.append(text)
        return self.notes

    async def work(self, kind, task, call, request):
        async with self.hands:
            await asyncio.sleep(self.seconds / 2)
            with open(self.ledger, "a") as ledger:
                ledger.write(f"{kind} {request}\n")
            await asyncio.sleep(self.seconds / 2)
            return self.zorplex.execute(task, call)


@app.cell(hide_code=True)
def _(config):
    task = Zorplex(config.seed).task(("simple",), 0)
    call = find_call(f"LOOKUP[{task.words[0]}]")
    lesson.md(
        f"{task.question} The policy writes {lesson.quote(call)}, and somebody has to answer."
    )
    return call, task


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A pool by hand

    The simplest pool is a list. Ask its processes in turn; that is enough until one of them dies.
    """)
    return


@app.function
def in_turns(actors):
    """Return a function that asks the next actor on the list."""
    turns = itertools.cycle(actors)
    return lambda endpoint, *args: getattr(next(turns), endpoint).call_one(*args)


@app.cell(hide_code=True)
def _(config):
    ask_list = lesson.predict(
        f"{config.replicas} processes are asked in turn. One gets `kill -9`, which leaves it no time to say anything. What do the requests that are "
        "meant for it see from then on?",
        "they hang for ever",
        "the first one fails, then the list knows",
        "each of them fails",
    )
    ask_list
    return (ask_list,)


@app.cell(hide_code=True)
def _():
    start_pools = lesson.start_button("Kill one of three, under three pools", seconds=15)
    start_pools
    return (start_pools,)


@app.function(hide_code=True)
async def through_a_kill(route, patience, callers=3, settle=0.5):
    """Ask ``route("ping")`` all the time, kill the process that answered first, and go on until a new one has answered."""
    answers, over = [], asyncio.Event()

    async def caller():
        while not over.is_set():
            began = time.monotonic()
            try:
                who = await route("ping")
            except (ReplicaDied, ServiceError):
                who = None
            answers.append((time.monotonic(), who, time.monotonic() - began))
            await asyncio.sleep(0.02)

    asking = asyncio.gather(*(caller() for _ in range(callers)))
    try:
        begun, before = time.monotonic(), set()
        # Each of the three has answered, even on a machine that is slow today.
        while len(before) < 3 or time.monotonic() < begun + settle:
            await asyncio.sleep(0.02)
            before = {who for _, who, _ in answers if who}
        victim = next(who for _, who, _ in answers if who)
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()

        def back():
            return next(
                (when for when, who, _ in answers if who not in {None, *before}), math.inf
            )

        while time.monotonic() < min(back() + settle, killed + patience):
            await asyncio.sleep(0.02)
    finally:
        over.set()
        await asking
    after = [row for row in answers if row[0] > killed]
    return SimpleNamespace(
        answered=sum(who is not None for _, who, _ in after),
        failed=sum(who is None for _, who, _ in after),
        first=[seconds for _, who, seconds in after if who is None][:1],
        last=[seconds for _, who, seconds in after if who is None][-1:],
        longest=max((seconds for _, _, seconds in after), default=0.0),
        back=back() - killed,
    )


@app.cell(hide_code=True)
async def _(config, start_pools):
    lesson.wait_for(start_pools)
    _list = []
    with mo.status.spinner("A list of processes", remove_on_exit=True):
        try:
            for _number in range(config.replicas):
                _list.append(await spawn(f"tool_{_number}", Tool, config.seed, 0.0))
            _route = in_turns([replica.actor for replica in _list])
            await asyncio.gather(*(_route("ping") for _ in _list))
            listed = await through_a_kill(_route, patience=3.0)
        finally:
            await asyncio.gather(*(replica.stop() for replica in _list))
    return (listed,)


@app.cell(hide_code=True)
def _(ask_list, listed):
    _requests = listed.answered + listed.failed
    lesson.reveal(
        ask_list,
        right=2 if listed.failed > 3 else 1 if listed.failed else 0,
        why=f"""
        {listed.failed} of the {_requests} requests after the kill failed, and nobody takes the dead process off the list. The first failure took
        {max(listed.first, default=0):.2f} s, until Monarch had noticed the death. The last one took {1000 * max(listed.last, default=0):.1f} ms. A caller that prefers
        whoever answers quickest would send *everything* to the dead one.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A pool that heals

    A better pool has four duties. It **probes** its replicas: it asks each one regularly whether it still answers. It takes a failed replica out of turn at
    once. It starts another in its place. And it sends the requests of the dead one to somebody else. This is all of it, on bare Monarch actors:
    """)
    return


@app.class_definition
class Pool:
    """Replicas of an actor. One that fails is replaced; its requests go to the others."""

    def __init__(self, actor_class, *args, replicas=3, every=0.5, limit=3.0):
        self.recipe, self.replicas = (actor_class, *args), replicas
        self.every, self.limit = every, limit
        self.ready = {}  # replica: its process; whose turn it is stands first

    async def __aenter__(self):
        start_runtime()
        places = range(self.replicas)
        self.keepers = [asyncio.create_task(self.keep_one()) for _ in places]
        while len(self.ready) < self.replicas:
            await asyncio.sleep(0.01)
        return self

    async def __aexit__(self, *_):
        for keeper in self.keepers:
            keeper.cancel()
        await asyncio.gather(*self.keepers, return_exceptions=True)

    async def keep_one(self):
        while True:
            procs = this_host().spawn_procs(per_host={"procs": 1})
            replica = procs.spawn("replica", *self.recipe)
            pid = self.ready[replica] = await replica.ping.call_one()
            try:
                while replica in self.ready:
                    await asyncio.sleep(self.every)
                    await asyncio.wait_for(replica.ping.call_one().as_asyncio(), self.limit)
            except (ReplicaDied, TimeoutError):
                pass  # and start the next
            finally:
                self.ready.pop(replica, None)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)  # it may only hang
                procs.stop()  # nobody waits: one that hung says nothing

    async def route(self, endpoint, *args):
        while True:
            while not self.ready:
                await asyncio.sleep(0.01)
            replica = next(iter(self.ready))
            self.ready[replica] = self.ready.pop(replica)  # to the end
            asked = getattr(replica, endpoint).call_one(*args).as_asyncio()
            while replica in self.ready and not asked.done():
                await asyncio.wait({asked}, timeout=self.every)
            if asked.done() and not isinstance(asked.exception(), ReplicaDied):
                return asked.result()
            self.ready.pop(replica, None)  # and ask the next one


@app.cell(hide_code=True)
def _():
    mo.md("""
    `Service` is the package's pool. It has the same parts, in `zorplex_rl/services/`: `replica_set.py` keeps places filled, `router.py` sends requests.
    `route` asks one healthy replica, and `fanout` asks all of them:
    """)
    return


@app.cell
async def _(config, start_pools):
    lesson.wait_for(start_pools)
    async with Service(
        "tools",
        replicas_of(Tool, config.seed, config.tool_seconds),
        ServiceOptions(replicas=config.replicas),
    ) as _tools:
        turns = [await _tools.ping.route() for _ in range(3 * config.replicas)]
        everyone = await _tools.ping.fanout()
        at_rest = _tools.status()
    return at_rest, everyone, turns


@app.cell(hide_code=True)
def _(at_rest, everyone, turns):
    _counts = Counter(turns).values()
    _times = " to ".join(map(str, sorted({min(_counts), max(_counts)})))
    mo.vstack(
        [
            lesson.table(
                "What status() says",
                [
                    {
                        "place": row.place,
                        "replica": f"`{row.replica}`",
                        "state": row.state,
                        "process": str(row.pid),
                        "requests": row.requests,
                    }
                    for row in at_rest.replicas
                ],
            ),
            lesson.md(
                f"`route` was answered by {len(set(turns))} processes, {_times} times each, and one `fanout` by {len(set(everyone))}. "
                "A *place* stays when the replica in it is replaced."
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    ask_pool = lesson.predict(
        "The same kill again, under `Pool` and under `Service`. How many of their requests end in an error?",
        "none",
        "those that were with the dead process",
        "all until its successor is ready",
    )
    ask_pool
    return (ask_pool,)


@app.cell(hide_code=True)
async def _(config, start_pools):
    lesson.wait_for(start_pools)
    with mo.status.spinner("Your pool", remove_on_exit=True):
        async with Pool(Tool, config.seed, 0.0, replicas=config.replicas) as _pool:
            pooled = await through_a_kill(_pool.route, patience=30.0)
    with mo.status.spinner("The package's", remove_on_exit=True):
        _options = ServiceOptions(replicas=config.replicas, idempotent={"ping"})
        async with Service(
            "tools", replicas_of(Tool, config.seed, 0.0), _options
        ) as _tools:
            served = await through_a_kill(
                lambda name: getattr(_tools, name).route(), patience=30.0
            )
    return pooled, served


@app.cell(hide_code=True)
def _(ask_pool, listed, pooled, served):
    _errors = max(pooled.failed, served.failed)
    lesson.reveal(
        ask_pool,
        right=0 if _errors == 0 else 1 if _errors <= 3 else 2,
        why=f"""
        {"Nobody saw an error." if _errors == 0 else f"{_errors} requests failed."} Those that were with the dead process were answered by another, and nobody waited longer than
        {max(pooled.longest, served.longest):.2f} s. Both pools were whole again, after {pooled.back:.1f} and {served.back:.1f} s. `Pool` has two gaps. It sends *every* request again, also
        one that must not be done twice. And it has no bound: it takes whatever comes.
        """,
        shows=[
            lesson.table(
                "From kill -9 on",
                [
                    {
                        "pool": name,
                        "answered": run.answered,
                        "failed": run.failed,
                        "longest wait, s": f"{run.longest:.2f}",
                        "whole again after, s": f"{run.back:.1f}"
                        if run.back < math.inf
                        else "never",
                    }
                    for name, run in (
                        ("a list", listed),
                        ("`Pool`", pooled),
                        ("`Service`", served),
                    )
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Routing

    Which replica gets the next request is decided by the **router**. It ranks all replicas that may take the request, and the lowest rank wins. *Round
    robin* ranks by the last turn: whoever was asked longest ago is next. That is fair in *requests*. When replicas are not equally fast, it is not what you want.

    ### Exercise 1: least loaded

    Complete `rank`. `under_way` is the number of requests that a replica has now, `last_turn` the moment of its last one. The replica with the fewest requests
    should come first; among equals, the one that was asked longest ago.
    """)
    return


@app.function
def rank(under_way, last_turn):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: rank,
        check_rank,
        rank_solution,
        level="warm-up",
        minutes=2,
        hints=(
            "The rank may be anything that Python can sort.",
            "Python compares tuples entry by entry.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(config):
    ask_routing = lesson.predict(
        f"`rank` is *plugged in*: it routes for a real service. One of {config.replicas} replicas is {config.slow} times slower, and {config.routed_callers} callers never rest. "
        "How many times the rate of round robin does least loaded reach?",
        "about the same",
        "half as much again",
        "twice or more",
    )
    ask_routing
    return (ask_routing,)


@app.function(hide_code=True)
async def press(ask, callers, warm_up, measured):
    """``callers`` that never rest: what was answered in ``measured`` seconds after a warm-up."""
    start, seconds = time.monotonic() + warm_up, []

    async def caller():
        while (sent := time.monotonic()) < start + measured:
            await ask()
            done = time.monotonic()
            if start <= done < start + measured:
                seconds.append(done - sent)

    await asyncio.gather(*(caller() for _ in range(callers)))
    return SimpleNamespace(seconds=seconds, rate=len(seconds) / measured)


@app.function(hide_code=True)
async def watch(service, samples, show=lambda status: None):
    """Note the state of ``service`` ten times a second, until cancelled."""
    while True:
        samples.append((time.monotonic(), service.status()))
        show(samples[-1][1])
        await asyncio.sleep(0.1)


@app.cell(hide_code=True)
def _():
    start_routing = lesson.start_button("Compare routers", seconds=16)
    start_routing
    return (start_routing,)


@app.cell
async def _(call, config, start_routing, task):
    lesson.wait_for(start_routing)
    ranked, whose_rank = plug_in(
        rank, rank_solution, lambda rank: (rank(1, 2) < rank(2, 1)) in (True, False)
    )

    async def start_uneven(name):
        seconds = config.tool_seconds * (config.slow if name == "tools_0" else 1)
        return await spawn(name, Tool, config.seed, seconds, os.devnull, config.at_once)

    async def measure(router):
        async with Service(
            "tools", start_uneven, ServiceOptions(config.replicas, router=router)
        ) as tools:
            run = await press(
                lambda: tools.execute.route(task, call),
                config.routed_callers,
                config.warm_up_seconds,
                config.measured_seconds,
            )
            run.requests = [row.requests for row in tools.status().replicas]
        return run

    with mo.status.spinner("Round robin, then yours", remove_on_exit=True):
        in_turn = await measure("round_robin")
        by_load = await measure(lambda replica: ranked(replica.load, replica.turn))
    return by_load, in_turn, ranked, whose_rank


@app.cell(hide_code=True)
def _(ranked):
    # Does it choose as the package's policy does? A thousand states of three replicas.
    _dice = random.Random(0)
    _states = [
        [
            SimpleNamespace(load=_dice.randrange(4), turn=turn)
            for turn in _dice.sample(range(99), 3)
        ]
        for _ in range(1000)
    ]
    same_choices = sum(
        min(state, key=lambda replica: ranked(replica.load, replica.turn))
        is min(state, key=POLICIES["least_loaded"])
        for state in _states
    )
    return (same_choices,)


@app.cell(hide_code=True)
def _(ask_routing, by_load, config, in_turn, same_choices, whose_rank):
    _ratio = by_load.rate / in_turn.rate
    _shares = [run.requests[0] / sum(run.requests) for run in (in_turn, by_load)]
    lesson.reveal(
        ask_routing,
        right=0 if _ratio < 1.25 else 1 if _ratio < 1.75 else 2,
        why=f"""
        {_ratio:.1f} times the rate, routed by {whose_rank}. Round robin gives the slow replica its turn ({_shares[0]:.0%} of all requests), and callers pile up there while the others
        have little to do. By load it got {_shares[1]:.0%}. In {same_choices:,} of 1,000 random states this `rank` chooses the same replica as the package's `least_loaded`.
        """,
        shows=[
            lesson.table(
                f"{config.routed_callers} callers for {config.measured_seconds:g} s, one replica {config.slow} times slower",
                [
                    {
                        "router": name,
                        "requests/s": f"{run.rate:.0f}",
                        "mean, s": f"{fmean(run.seconds):.2f}",
                        "slowest, s": f"{max(run.seconds):.2f}",
                    }
                    for name, run in (("round robin", in_turn), ("`rank`", by_load))
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Saturation

    Some tools wait, others compute. A sandbox that runs tests keeps a core busy, and a core does one thing at a time. Below, `run` does real work: it hashes a
    password many times.
    """)
    return


@app.class_definition
class Sandbox(Actor):
    @endpoint
    def run(self, program):
        return hashlib.pbkdf2_hmac("sha256", program, b"salt", 60_000).hex()


@app.cell(hide_code=True)
def _(config):
    ask_crowd = lesson.predict(
        f"Two sandboxes, and {config.crowds[0]} to {config.crowds[-1]} callers that never rest. What becomes of the rate, and of the time for one answer?",
        "the rate grows with the callers, the time stays",
        "the rate grows up to a limit, then the time grows",
        "both grow all the way",
    )
    ask_crowd
    return (ask_crowd,)


@app.cell(hide_code=True)
def _():
    start_crowding = lesson.start_button("Fill the service", seconds=12)
    start_crowding
    return (start_crowding,)


@app.cell
async def _(config, start_crowding):
    lesson.wait_for(start_crowding)
    crowded = {}
    _options = ServiceOptions(2, router="least_loaded")
    async with Service("sandboxes", replicas_of(Sandbox), _options) as _boxes:
        for _callers in mo.status.progress_bar(config.crowds, remove_on_exit=True):
            crowded[_callers] = await press(
                lambda: _boxes.run.route(b"x"), _callers, 0.4, 1.6
            )
    return (crowded,)


@app.cell(hide_code=True)
def _(ask_crowd, config, crowded):
    _alone, *_, _most = crowded.values()
    _capacity = 2 / fmean(_alone.seconds)
    _growth = {
        "rate": _most.rate / crowded[2].rate,
        "time": fmean(_most.seconds) / fmean(crowded[2].seconds),
    }
    _last = config.crowds[-1]
    lesson.reveal(
        ask_crowd,
        right=1
        if _growth["rate"] < 2 < _growth["time"]
        else 0
        if _growth["time"] < 2
        else 2,
        why=f"""
        One run takes {1000 * fmean(_alone.seconds):.0f} ms alone, so two sandboxes can do {_capacity:.0f} a second at best. From 2 callers to {_last} the rate changed
        by a factor of {_growth["rate"]:.1f}, and the time by {_growth["time"]:.1f}. This is **saturation**: past it, more load buys only waiting.

        A law says by how much. *Requests under way = rate × time for one* (Little's law). With {_last} callers: {_most.rate:.1f} × {fmean(_most.seconds):.2f} =
        {_most.rate * fmean(_most.seconds):.1f}{"" if abs(_most.rate * fmean(_most.seconds) / _last - 1) < 0.2 else ", since this run had not settled yet"}. It also says how many replicas you need for a given rate.
        """,
        shows=[
            lesson.figure(
                service_charts.saturation_chart(
                    {n: (run.rate, fmean(run.seconds)) for n, run in crowded.items()},
                    _capacity,
                ),
                "Measured. Dashed: twice what one caller gets from one sandbox.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Back-pressure

    A service that accepts everything moves its queue to where nobody sees it, and every answer is late. So a service has three bounds: how many requests are *in
    flight* at a replica, how many wait *in its queue*, and how long each may wait. Callers that wait are slowed down. This is **back-pressure**, and
    it is wanted: a generator whose tools are behind should not start more episodes.
    """)
    return


@app.cell
def _():
    limits = ServiceOptions(replicas=2, max_in_flight=4, max_queue=50, wait_timeout=1.25)
    crowd, tool_takes = 60, 0.5
    return crowd, limits, tool_takes


@app.cell(hide_code=True)
def _(crowd, limits, tool_takes):
    in_time = 2 * limits.max_in_flight * (1 + int(limits.wait_timeout / tool_takes))
    ask_full = lesson.predict(
        f"These are the limits, and a call takes {tool_takes:g} s. {crowd} requests come at the same moment. How many are answered?",
        f"{2 * limits.max_in_flight}",
        f"about {in_time}",
        f"{crowd}",
    )
    ask_full
    return ask_full, in_time


@app.cell
async def _(call, config, crowd, limits, task, tool_takes):
    async with Service(
        "tools", replicas_of(Tool, config.seed, tool_takes), limits
    ) as _tools:
        _calls = (_tools.execute.route(task, call) for _ in range(crowd))
        outcomes = await asyncio.gather(*_calls, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, Overloaded)]
    return outcomes, refused


@app.cell(hide_code=True)
def _(ask_full, crowd, in_time, limits, outcomes, refused):
    _answered = sum(isinstance(outcome, str) for outcome in outcomes)
    _options = (2 * limits.max_in_flight, in_time, crowd)
    lesson.reveal(
        ask_full,
        right=min(range(3), key=lambda index: abs(_options[index] - _answered)),
        why=f"""
        {_answered} were answered: in {limits.wait_timeout:g} s there is time for {in_time // (2 * limits.max_in_flight)} rounds of {2 * limits.max_in_flight}. The other {crowd - _answered} were told:

        > {refused[0] if refused else "nothing, since nobody was refused"}

        A refused request was never sent, so its caller may try again later.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: try again, but later

    Later by how much? Too soon, and the service is full again. So the wait doubles with each failure, up to a cap: this is **back-off**. But all who were refused together
    would come back together. So each caller takes only a random part of its wait: **jitter**.

    Complete `retry_delay`. After the first failure the wait is `base` seconds, after each further one twice as long, and at most `cap`. Return `draw` times
    that; `draw` is between 0 and 1. Somebody may have been failing for days.
    """)
    return


@app.function
def retry_delay(failures, base, cap, draw):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: retry_delay,
        check_retry_delay,
        retry_delay_solution,
        level="core",
        minutes=4,
        hints=(
            "After `failures` failures the wait was doubled `failures - 1` times.",
            "`2.0 ** 5000` raises an OverflowError. Bound the exponent before you use it.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    ask_jitter = lesson.predict(
        "A simulation: 100 callers come together, the service takes 10 in each tenth of a second and refuses the rest. `draw` is 1 for all, or "
        "random. When has everybody been served?",
        "later with jitter: random waits are wasted",
        "at about the same time",
        "much sooner with jitter",
    )
    ask_jitter
    return (ask_jitter,)


@app.function(hide_code=True)
def all_at_once(delay, callers=200, taken=10, slot=0.1, most=5000):
    """Requests in each slot of time until every caller has been served, or the slots are over; ``delay(failures)``."""
    load, failures = [], {0: [0] * callers}
    while failures and len(load) < most:
        now = min(failures)
        waiting = failures.pop(now)
        load += [0] * (now - len(load)) + [len(waiting)]
        random.shuffle(waiting)
        for failed in waiting[taken:]:
            later = now + 1 + int(max(delay(failed + 1), 0) / slot)
            failures.setdefault(later, []).append(failed + 1)
    return load


@app.cell(hide_code=True)
def _(config):
    random.seed(config.seed)
    _delay, whose_delay = plug_in(
        retry_delay,
        retry_delay_solution,
        lambda retry_delay: (
            retry_delay(1, 0.25, 2.0, 0.5) < math.inf
            and retry_delay(60, 0.25, 2.0, 1.0) <= 2.0
        ),
    )
    _rules = {
        "at once": lambda failures: 0.0,
        "doubling": lambda failures: _delay(failures, 0.25, 2.0, 1.0),
        "doubling, with jitter": lambda failures: _delay(
            failures, 0.25, 2.0, random.random()
        ),
    }
    returning = {name: all_at_once(rule, callers=100) for name, rule in _rules.items()}
    return returning, whose_delay


@app.cell(hide_code=True)
def _(ask_jitter, returning, whose_delay):
    _once, _doubling, _jitter = returning.values()
    _ratio = len(_doubling) / len(_jitter)
    lesson.reveal(
        ask_jitter,
        right=0 if _ratio < 0.8 else 1 if _ratio < 1.25 else 2,
        why=f"""
        Waits by {whose_delay}. Without jitter everybody is served after {len(_doubling) / 10:.1f} s: crowds of up to {max(_doubling[1:])} come, and {_doubling.count(0)} tenths are empty. With it: {len(_jitter) / 10:.1f} s
        and {sum(_jitter):,} requests, where coming back at once costs {sum(_once):,}.

        Keep this *retry* of a request apart from the *respawn* of a replica. A respawn also backs off, in `replica_set.py`, but there one supervisor waits for one
        process. It protects the machine from a replica that dies at every start. A retry protects the service from its callers.
        """,
        shows=[
            lesson.figure(
                service_charts.returns_chart(returning, taken=10),
                "Simulated; all panels have the same axes.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _(config):
    lesson.md(f"""
    ## Kill one

    {config.replicas} replicas answer {config.callers} callers. Half of the requests are `execute`, declared idempotent in the options. The other half are
    `charge`, which is not. One replica gets `kill -9`, and later another one `SIGSTOP`. A stopped process is worse than a dead one: it is there, and says nothing.
    (An exception of an endpoint is an answer, as in notebook 03, and replaces nobody.)

    In `marimo edit` you do that, with buttons. On a page without a kernel it was done for you.
    """)
    return


@app.cell
def _(config):
    options = ServiceOptions(
        replicas=config.replicas,
        router="least_loaded",
        max_in_flight=config.at_once,
        idempotent={"execute"},
    )
    return (options,)


@app.function
async def call_for_ever(stage, task, call):
    """A caller. Writes down what became of each of its requests, by number."""
    while not stage.over:
        await asyncio.sleep(random.uniform(0, 0.05))  # else all fall into step
        number = len(stage.outcomes)
        stage.outcomes.append("lost")
        method = stage.tools.execute if number % 2 else stage.tools.charge
        try:
            await method.route(task, call, number)
            stage.outcomes[number] = "answered"
        except ServiceError as error:
            stage.outcomes[number] = type(error).__name__


@app.cell(hide_code=True)
def _():
    @asynccontextmanager
    async def under_load(config, options, task, call, board):
        """A service, its callers, and somebody who takes notes."""
        stage = SimpleNamespace(
            over=False, outcomes=[], samples=[], restarts=[], strikes={}
        )
        with tempfile.TemporaryDirectory() as folder:
            ledger = Path(folder) / "ledger"
            start = replicas_of(
                Tool, config.seed, 2 * config.tool_seconds, str(ledger), config.at_once
            )
            async with Service(
                "tools", start, options, stage.restarts.append
            ) as stage.tools:
                stage.recorder = RequestRecorder(stage.tools)
                watching = asyncio.create_task(
                    watch(stage.tools, stage.samples, board.show)
                )
                calls = [call_for_ever(stage, task, call) for _ in range(config.callers)]
                callers = asyncio.gather(*calls)
                try:
                    yield stage
                finally:
                    stage.over = True
                    await callers
                    watching.cancel()
                    # After the last answer: the board and the callers count the same.
                    stage.final = stage.tools.status()
                    board.show(stage.final)
                    stage.ledger = Counter(ledger.read_text().splitlines())

    return (under_load,)


@app.function(hide_code=True)
async def strike(stage, fault, what, settle):
    """Send a signal to the oldest replica; return when its place is filled again."""
    tools, restarts = stage.tools, len(stage.restarts)
    victim = max(tools.status().replicas, key=lambda row: row.up)

    async def until(changed):
        while not changed(tools.status().replicas[victim.place]):
            await asyncio.sleep(0.02)
        return time.monotonic()

    await asyncio.sleep(settle)
    struck = time.monotonic()
    os.kill(victim.pid, fault)
    left = await until(lambda row: row.replica != victim.replica)
    back = await until(lambda row: row.state == "ready")
    while len(stage.restarts) == restarts:
        await asyncio.sleep(0.02)
    await asyncio.sleep(settle)
    return SimpleNamespace(
        fault=Fault(struck, victim.replica, what),
        left=left - struck,
        back=back - struck,
        restart=stage.restarts[restarts],
        samples=[sample for sample in stage.samples if sample[0] > struck - settle],
    )


@app.cell(hide_code=True)
def _(options):
    board = ServiceBoard(queue_limit=options.max_queue)
    board
    return (board,)


@app.cell(hide_code=True)
def _():
    open_stage = lesson.start_button("Start the service and its callers", seconds=3)
    open_stage
    return (open_stage,)


@app.cell(hide_code=True)
async def _(board, call, config, open_stage, options, task, under_load):
    await scene.leave("06")  # what an earlier run of this cell has left open
    lesson.wait_for(open_stage)
    stage = await scene.enter("06", under_load(config, options, task, call, board))
    lesson.md(f"Running: {len(stage.tools.status().replicas)} replicas under load.")
    return (stage,)


@app.cell(hide_code=True)
def _():
    ask_kill = lesson.predict(
        "From `kill -9` to a new replica that answers: how long?",
        "less than a second",
        "one to five seconds",
        "more than five seconds",
    )
    ask_kill
    return (ask_kill,)


@app.cell(hide_code=True)
def _():
    kill = lesson.start_button("kill -9 the oldest replica", seconds=4)
    kill
    return (kill,)


@app.cell(hide_code=True)
async def _(config, kill, stage):
    lesson.wait_for(kill)
    # After the end of the service, what was measured stays.
    if not stage.over:
        stage.strikes["kill"] = await strike(
            stage, signal.SIGKILL, "kill -9", config.settle_seconds
        )
    mo.stop(
        "kill" not in stage.strikes,
        mo.md("The service has been stopped. Start it again first."),
    )
    killed = stage.strikes["kill"]
    return (killed,)


@app.cell(hide_code=True)
def _(ask_kill, killed, stage):
    lesson.reveal(
        ask_kill,
        right=0 if killed.back < 1 else 1 if killed.back <= 5 else 2,
        why=f"""
        {killed.back:.2f} s. For {killed.left:.2f} s nobody knew: Monarch looks after its processes once a second. The first request that finds its process gone
        is enough, and the replica leaves the rotation. Starting process and actor, and a first probe, took the other {killed.back - killed.left:.2f} s.

        Replay it. Look at two things: what becomes of the dots of the dead replica, and where the queue grows.
        """,
        shows=[ServicePlayer(stage.recorder, killed.samples, killed.fault)],
    )
    return


@app.cell(hide_code=True)
def _():
    ask_hang = lesson.predict(
        "Now `SIGSTOP`: the process hangs. When is it noticed, compared with the dead one?",
        "sooner",
        "about as soon",
        "at least a second later",
    )
    ask_hang
    return (ask_hang,)


@app.cell(hide_code=True)
def _():
    hang = lesson.start_button("Hang the oldest replica (SIGSTOP)", seconds=8)
    hang
    return (hang,)


@app.cell(hide_code=True)
async def _(config, hang, stage):
    lesson.wait_for(hang)
    if not stage.over:
        stage.strikes["hang"] = await strike(
            stage, signal.SIGSTOP, "SIGSTOP", config.settle_seconds
        )
    mo.stop(
        "hang" not in stage.strikes,
        mo.md("The service has been stopped. Start it again first."),
    )
    hung = stage.strikes["hang"]
    return (hung,)


@app.cell(hide_code=True)
def _(ask_hang, hung, killed, options):
    def _facts(struck):
        return {
            "fault": f"`{struck.fault.what}`".replace(" ", "\N{NO-BREAK SPACE}"),
            "out of rotation, s": f"{struck.left:.2f}",
            "back in rotation, s": f"{struck.back:.2f}",
            "who": f"`{struck.restart.died}→{struck.restart.took_over}`",
        }

    _later = hung.left - killed.left
    lesson.reveal(
        ask_hang,
        right=2 if _later >= 1 else 1 if _later > -0.5 else 0,
        why=f"""
        Out of rotation after {hung.left:.2f} s, compared with {killed.left:.2f} s. The operating system reports a death. A silent process may only be slow,
        so it gets time: a probe every {options.probe_every:g} s, which may take {options.probe_timeout:g} s. A shorter limit notices sooner and, on a busy machine, kills the
        living. A replica that is given up is killed for good. Otherwise it could wake up, and its place would have two owners.
        """,
        shows=[
            lesson.figure(
                service_charts.rotation_chart(
                    [(killed.samples, killed.fault), (hung.samples, hung.fault)]
                ),
                "From `status()`, ten times a second; both on one time scale. Dashed: the fault.",
            ),
            lesson.table("Both faults", [_facts(killed), _facts(hung)]),
            lesson.folded(
                "What Monarch said",
                "\n\n".join(
                    f"{_facts(struck)['fault']}: {lesson.quote(struck.restart.reason)}"
                    for struck in (killed, hung)
                ),
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The account

    A request is **idempotent** if doing it twice is as good as doing it once. When a replica fails, nobody outside can know whether it did what it had been sent. So the service sends
    idempotent requests again. All others fail with an error that names the replica. The ledger knows what was really done.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_done = lesson.predict(
        "Some `charge` requests were with a replica when it failed, and got `ReplicaFailed`. Had the money been taken?",
        "from none of them",
        "from all of them",
        "from some of them",
    )
    ask_done
    return (ask_done,)


@app.cell(hide_code=True)
def _():
    count = lesson.start_button("Stop the service and count", seconds=1)
    count
    return (count,)


@app.cell(hide_code=True)
async def _(count, stage):
    lesson.wait_for(count)
    await scene.leave("06")
    fates = {"execute": [], "charge": []}
    for _number, _outcome in enumerate(stage.outcomes):
        _name = "execute" if _number % 2 else "charge"
        fates[_name].append((_outcome, stage.ledger[f"{_name} {_number}"]))
    return (fates,)


@app.cell(hide_code=True)
def _(fates):
    account = {
        name: {
            "requests": len(pairs),
            "answered": sum(fate == "answered" for fate, _ in pairs),
            "failed with `ReplicaFailed`": sum(
                fate == "ReplicaFailed" for fate, _ in pairs
            ),
            "without any outcome": sum(fate == "lost" for fate, _ in pairs),
            "answered, but not done": sum(
                fate == "answered" and not done for fate, done in pairs
            ),
            "failed, but done": sum(
                fate == "ReplicaFailed" and done > 0 for fate, done in pairs
            ),
            "done twice": sum(done > 1 for _, done in pairs),
        }
        for name, pairs in fates.items()
    }
    return (account,)


@app.cell(hide_code=True)
def _(account, ask_done, stage):
    _charge, _execute = account["charge"], account["execute"]
    _done, _failed = _charge["failed, but done"], _charge["failed with `ReplicaFailed`"]
    _callers = _charge["answered"] + _execute["answered"]
    lesson.reveal(
        ask_done,
        right=[] if not _failed else 0 if not _done else 1 if _done == _failed else 2,
        why=f"""
        From {_done} of {_failed}. A call writes its line in the middle of its time, and the fault may come before or after. Whether to try again is for the caller, who
        knows what a second charge would mean. `execute` was sent again {stage.final.retries} times instead. {f"{_execute['done twice']} of its requests were done twice, which is what *idempotent* allows." if _execute["done twice"] else "None was done twice this time, and *idempotent* would allow it."}
        The callers counted {_callers:,} answers, and the service {stage.final.answered:,}.
        """,
        shows=[
            lesson.table(
                "What became of every request",
                [
                    {"outcome": row}
                    | {f"`{name}`": facts[row] for name, facts in account.items()}
                    for row in _execute
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Charge once

    To make `charge` idempotent, give each charge a number, and let the *ledger* remember the numbers that it has seen. `Till` charges by a rule that it is given. The
    ledger is now a database with two tables, `seen(number)` and `charges(number, amount)`. Here are two rules that are almost right:
    """)
    return


@app.class_definition
class Till(TimedActor):
    def __init__(self, rule, path):
        super().__init__("till")
        self.rule = rule
        self.database = connect(path, DoomedConnection)  # it dies at the worst moments

    @concurrent_endpoint
    async def charge(self, number, amount):
        self.rule(self.database, number, amount)


@app.function
def charge_always(database, number, amount):
    with database:  # one transaction: all of it, or nothing
        database.execute("INSERT INTO charges VALUES (?, ?)", [number, amount])


@app.function
def note_then_charge(database, number, amount):
    with database:
        new = database.execute("INSERT OR IGNORE INTO seen VALUES (?)", [number])
    if new.rowcount:
        with database:
            database.execute("INSERT INTO charges VALUES (?, ?)", [number, amount])


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: exactly once

    Complete `charge_once`, so that a charge is made once however often it is sent, and wherever the process dies. `number` is the key of `seen`, so
    `INSERT OR IGNORE` into it either notes a new number or does nothing. Its `rowcount` tells which.
    """)
    return


@app.function
def charge_once(database, number, amount):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: charge_once,
        check_charge_once,
        charge_once_solution,
        level="stretch",
        minutes=6,
        hints=(
            "`note_then_charge` dies between its two transactions: the number is noted, and nobody charges any more.",
            "The check and the effect must be one step. Put both statements into the same `with database:`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    ask_once = lesson.predict(
        "Ten charges, now declared idempotent. Three times a process gets `kill -9` at the worst moment: after a first write, after a second, and between commit and "
        "answer. What does `charge_always` do wrong, and what `note_then_charge`?",
        "both charge twice",
        "the first charges twice, the second forgets a charge",
        "the first forgets a charge, the second charges twice",
    )
    ask_once
    return (ask_once,)


@app.class_definition(hide_code=True)
class DoomedConnection(sqlite3.Connection):
    """Ends its process by ``kill -9``, once at each of three moments: (number of the charge, after what)."""

    moments = ((2, "write 1"), (5, "write 2"), (8, "commit"))
    number, writes = None, 0

    def execute(self, statement, values=()):
        found = super().execute(statement, values)
        if statement.lstrip()[:6].upper() in ("INSERT", "UPDATE", "DELETE", "REPLAC"):
            self.writes = self.writes + 1 if values[0] == self.number else 1
            self.number = values[0]
            self.now(f"write {self.writes}")
        return found

    def commit(self):
        super().commit()
        self.now("commit")

    def __exit__(self, *exception):
        super().__exit__(*exception)
        self.now("commit")

    def now(self, what):
        if (self.number, what) in self.moments:
            ((_, _, path),) = super().execute("PRAGMA database_list")
            with suppress(FileExistsError):
                os.close(os.open(f"{path}.{self.number}", os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)


@app.function(hide_code=True)
def connect(path, factory=sqlite3.Connection, timeout=10.0):
    """Open the ledger at ``path``, made anew if it is not there."""
    database = sqlite3.connect(path, timeout, factory=factory, check_same_thread=False)
    database.executescript(
        "CREATE TABLE IF NOT EXISTS seen (number INTEGER PRIMARY KEY);"
        "CREATE TABLE IF NOT EXISTS charges (number INTEGER, amount INTEGER)"
    )
    return database


@app.function(hide_code=True)
async def charge_under_kills(rule, charges=10):
    """Send each charge once to a service of tills whose processes are killed; how often each was made, and what the service says."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "ledger")
        connect(path).close()
        tills = ServiceOptions(replicas=2, idempotent={"charge"}, back_off=0.1)
        async with Service("tills", replicas_of(Till, rule, path), tills) as service:
            outcomes = await asyncio.gather(
                *(service.charge.route(number, 100) for number in range(charges)),
                return_exceptions=True,
            )
            status = service.status()
        with closing(connect(path)) as database:
            made = Counter(
                number for (number,) in database.execute("SELECT number FROM charges")
            )
    return SimpleNamespace(
        made=[made[number] for number in range(charges)],
        errors=[outcome for outcome in outcomes if outcome is not None],
        retries=status.retries,
    )


@app.cell(hide_code=True)
def _():
    start_charging = lesson.start_button("Charge under three kills", seconds=10)
    start_charging
    return (start_charging,)


@app.cell(hide_code=True)
async def _(start_charging):
    lesson.wait_for(start_charging)

    def _usable(rule):
        with closing(connect(":memory:")) as database:
            rule(database, 1, 100)
        return True

    _rule, whose_rule = plug_in(charge_once, charge_once_solution, _usable)
    _rules = {
        "`charge_always`": charge_always,
        "`note_then_charge`": note_then_charge,
        "`charge_once`": _rule,
    }
    with mo.status.spinner("Three rules, three kills each", remove_on_exit=True):
        charged = dict(
            zip(
                _rules,
                await asyncio.gather(*map(charge_under_kills, _rules.values())),
                strict=True,
            )
        )
    return charged, whose_rule


@app.cell(hide_code=True)
def _(ask_once, charged, whose_rule):
    _wrong = {
        name: (sum(n > 1 for n in run.made), sum(n == 0 for n in run.made))
        for name, run in charged.items()
    }
    _always, _noted, _once = _wrong.values()
    _found = (_always[0] > 0, _noted[0] > 0, _always[1] > 0, _noted[1] > 0)
    lesson.reveal(
        ask_once,
        right={
            (True, True, False, False): 0,
            (True, False, False, True): 1,
            (False, True, True, False): 2,
        }.get(_found, []),
        why=f"""
        `charge_always` made {_always[0]} charges twice. `note_then_charge` forgot {_noted[1]}: the number was noted, and the process died before the effect. `charge_once`
        ({whose_rule}): {_once[0]} twice, {_once[1]} forgotten. Exactly once is *at least once* with a memory, if the check and the effect are *one atomic step*. Where the
        effect is in another system, pass the number on, and let that system do the same.
        """,
        shows=[
            lesson.table(
                "Ten charges, three kills",
                [
                    {
                        "rule": name,
                        "sent again": run.retries,
                        "once": sum(n == 1 for n in run.made),
                        "twice or more": _wrong[name][0],
                        "never": _wrong[name][1],
                    }
                    for name, run in charged.items()
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Sessions

    Replicas are interchangeable as long as they remember nothing. A sandbox in which an agent has written a file is not. A **session** sends all
    requests of a caller to the same replica, in order, as long as it lives. Six notes without a session, six within one, and one more after a kill:
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_session = lesson.predict(
        "The session has sent six notes when its replica is killed. Then it sends a seventh. How many of the seven does the replica that takes it know?",
        "all seven: the session brings them along",
        "only the seventh",
    )
    ask_session
    return (ask_session,)


@app.cell
async def _(config):
    _start = replicas_of(Tool, config.seed, config.tool_seconds)
    async with Service(
        "tools", _start, ServiceOptions(config.replicas, idempotent={"ping"})
    ) as _tools:
        scattered = await asyncio.gather(*(_tools.note.route(n) for n in range(6)))
        async with _tools.session() as _session:
            together = await asyncio.gather(
                *(_session.note.route(n) for n in range(10, 16))
            )
            os.kill(await _session.ping.route(), signal.SIGKILL)
            await _session.ping.route()
            forgotten = await _session.note.route(16)
    return forgotten, scattered, together


@app.cell(hide_code=True)
def _(ask_session, forgotten, scattered, together):
    _own = [note for note in forgotten if note >= 10]
    lesson.reveal(
        ask_session,
        right={7: 0, 1: 1}.get(len(_own), []),
        why=f"After the kill the session went on elsewhere, with {len(_own)} of its 7 notes. What must survive belongs to the caller or into a store.",
        shows=[
            lesson.table(
                "What the replica knew when it had taken the last note",
                [
                    {
                        "requests": "six (0 to 5), each routed anew",
                        "it knew": str(scattered[-1]),
                    },
                    {
                        "requests": "six (10 to 15) in a session",
                        "it knew": str(together[-1]),
                    },
                    {
                        "requests": "a seventh (16), after kill -9",
                        "it knew": str(forgotten),
                    },
                ],
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## As many as it takes

    Load in RL comes in bursts: a whole batch calls its tools within one second, then nobody does. The service below may have one to three replicas. If more requests wait
    than are under way, it doubles. If one replica fewer would be at most half busy, for three seconds without a break, it lets one go.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_scale = lesson.predict(
        "A burst comes and ends. Which takes longer: from the first long queue to three replicas, or from the last answer of the burst to one?",
        "the way up",
        "about the same",
        "the way down",
    )
    ask_scale
    return (ask_scale,)


@app.cell(hide_code=True)
def _():
    start_burst = lesson.start_button("Send a burst", seconds=14)
    start_burst
    return (start_burst,)


@app.cell
async def _(call, config, start_burst, task):
    lesson.wait_for(start_burst)
    load = []
    _options = ServiceOptions(min_replicas=1, max_replicas=3, max_in_flight=4)
    async with Service("tools", replicas_of(Tool, config.seed, 0.25), _options) as _tools:
        _watching = asyncio.create_task(watch(_tools, load))
        with mo.status.spinner("Calm, a burst, and calm", remove_on_exit=True):
            await press(lambda: _tools.execute.route(task, call), 2, 0.0, 1.0)
            _burst = [_tools.execute.route(task, call) for _ in range(config.burst)]
            burst = await asyncio.gather(*_burst, return_exceptions=True)
            burst_over = time.monotonic()
            while len(_tools.status().replicas) > 1:
                await _tools.execute.route(task, call)
            await asyncio.sleep(config.settle_seconds)
        _watching.cancel()
    return burst, burst_over, load


@app.cell(hide_code=True)
def _(ask_scale, burst, burst_over, load):
    def _ready(status):
        return sum(row.state == "ready" for row in status.replicas)

    _most = max(_ready(status) for _, status in load)
    _queued = next(time for time, status in load if status.queue_depth > 4)
    _up = next(time for time, status in load if _ready(status) == _most) - _queued
    _alone = max(time for time, status in load if len(status.replicas) > 1)
    _down = _alone - burst_over
    lesson.reveal(
        ask_scale,
        right=0 if _up > 1.3 * _down else 2 if _down > 1.3 * _up else 1,
        why=f"""
        Up to {_most} replicas: {_up:.1f} s. Down to one: {_down:.1f} s, and {sum(isinstance(answer, str) for answer in burst)} of {len(burst)} requests were answered. The gap between the two
        rules is called **hysteresis**. Without it a load that swings would start and stop replicas all the time. Where a start means loading a model for a minute, keep a
        **spare** instead: a replica that is started and idle.
        """,
        shows=[
            lesson.figure(
                service_charts.scaling_chart(load),
                "From `status()`, ten times a second, until one replica is left.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## One step of RL through services

    Now every role of the loop becomes a service: eight names, and no line below knows which process answers. The generator goes by what it holds, the `policy`. It finds the
    tools by their name, in another process, through the **registry**.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(loop_drawing(), "All of it, as services.")
    return


@app.cell
def rl_roles(config):
    run = Config(
        policy=config.policy,
        device=config.device,
        prompts_per_step=config.prompts,
        group_size=config.samples,
        max_lag=0,
        learner=LearnerConfig(kl_coefficient=0.01),
        tool_latency=0.05,
    )
    starts = {
        "dataset": replicas_of(DatasetActor, run, tier_of(run.task)),
        "policy": replicas_of(GeneratorActor, run, config.device, "tools", named=True),
        "tools": replicas_of(ToolActor, run, named=True),
        "reward": replicas_of(RewardActor, named=True),
        "reference": replicas_of(ReferenceActor, run, config.device, named=True),
        "replay": replicas_of(ReplayBufferActor, run),
        "advantages": replicas_of(AdvantageActor, run),
        "trainer": replicas_of(TrainerActor, run, config.device, named=True),
    }
    repeatable = {
        "policy": {"generate"},  # the same seeds and weights give the same episodes
        "tools": {"execute"},
        "reward": {"score"},
        "reference": {"logprobs"},
    }
    return repeatable, run, starts


@app.function
async def one_step(roles, prompts):
    """Take one training step: tasks, episodes, scores, advantages, new weights."""
    version = await roles.trainer.publish.route()
    publisher = (await roles.trainer.replica_at(0)).actor
    await roles.policy.subscribe.fanout(publisher)
    await roles.policy.pull.fanout()  # every replica needs the weights

    numbers = await roles.replay.admit_now.route(version, prompts)
    tasks = await roles.dataset.tasks.route(numbers)

    async def write_and_score(number, task):
        [(_, group)] = await roles.policy.generate.route([(number, task)])
        texts = [(e.task, e.sampled_text, e.tool_calls, e.finish) for e in group]
        scores = await roles.reward.score.route(texts)
        for episode, score in zip(group, scores, strict=True):
            episode.score = score
        await roles.replay.add.route([(number, group)])

    await asyncio.gather(*map(write_and_score, numbers, tasks))
    groups = [group for _, group in await roles.replay.take.route()]
    rewards = [[episode.score.reward for episode in group] for group in groups]
    by_group = await roles.advantages.compute.route(rewards)
    advantages = [advantage for group in by_group for advantage in group]
    episodes = [episode for group in groups for episode in group]
    reference = await roles.reference.logprobs.route(episodes)
    metrics = await roles.trainer.step.route(episodes, advantages, reference)
    await roles.trainer.publish.route()
    versions = await roles.policy.pull.fanout()
    return SimpleNamespace(
        episodes=episodes,
        advantages=advantages,
        reference=reference,
        metrics=metrics,
        versions=versions,
    )


@app.cell(hide_code=True)
def _(config):
    ask_step = lesson.predict(
        f"Two `policy` processes write {config.prompts} groups. One of them is killed while it writes. How do the {config.prompts * config.samples} episodes of the step differ from those of an undisturbed one?",
        "some are missing",
        "those of the dead process are others",
        "not at all",
    )
    ask_step
    return (ask_step,)


@app.function(hide_code=True)
@asynccontextmanager
async def all_of(starts, repeatable):
    """A service for every role; each name → its service, and the seconds until it was up."""
    services = {
        name: Service(
            name,
            start,
            ServiceOptions(
                replicas=2 if name == "policy" else 1,
                router="least_loaded",
                idempotent=repeatable.get(name, ()),
                probe_timeout=20.0,
            ),
        )
        for name, start in starts.items()
    }
    seconds = {}

    async def open_one(name):
        began = time.monotonic()
        await services[name].open()
        seconds[name] = time.monotonic() - began

    try:
        await run_together(*map(open_one, services))
        await register_service(services["tools"])  # generators find it by its name
        yield SimpleNamespace(**services), seconds
    finally:
        await asyncio.gather(*(service.close() for service in services.values()))
        with suppress(ServiceError):
            await unregister_service("tools")


@app.function(hide_code=True)
async def kill_a_writer(policy):
    """Kill a process of ``policy`` once both have begun to write; its name, and the groups that it was writing."""
    writing = Counter()

    def note(what, request, replica):
        if request.method == "generate" and replica:
            writing[replica] += 1 if what == "sent" else -1

    policy.router.watchers.append(note)
    while min((writing[replica] for replica in policy.replicas), default=0) < 1:
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)
    victim, groups = writing.most_common(1)[0]
    os.kill(victim.pid, signal.SIGKILL)
    return victim.name, groups


@app.cell(hide_code=True)
def _():
    start_step = lesson.start_button("One step, with a kill in it", seconds=30)
    start_step
    return (start_step,)


@app.cell(hide_code=True)
async def _(config, repeatable, run, start_step, starts):
    lesson.wait_for(start_step)
    with mo.status.spinner("Starting nine processes", remove_on_exit=True) as _spinner:
        async with all_of(starts, repeatable) as (_roles, up_after):
            _spinner.update("One step")
            _killing = asyncio.create_task(kill_a_writer(_roles.policy))
            _began = time.monotonic()
            try:
                done = await one_step(_roles, config.prompts)
            finally:
                _killing.cancel()
            done.seconds = time.monotonic() - _began
            done.victim, done.lost = await _killing
            done.retries = _roles.policy.status().retries
            done.states = [row.state for row in _roles.policy.status().replicas]
    return done, up_after


@app.cell(hide_code=True)
def _(config, done, run):
    # The same step in this process: no services, no kill.
    from zorplex_rl.learning.learner import Learner
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout

    _threads = torch.get_num_threads()
    torch.set_num_threads(run.threads)
    _policy, _zorplex = load_policy(run.policy, config.device), Zorplex(run.seed, run.hints)
    _requests = [
        RolloutRequest(
            _zorplex.task(tier_of(run.task), number, "train"),
            episode_seed(run.seed, number, sample),
            number,
        )
        for number in range(config.prompts)
        for sample in range(config.samples)
    ]
    _alone = rollout(
        _policy,
        _requests,
        _zorplex.execute,
        Sampling(run.temperature, run.max_tokens, run.max_turns, run.slots),
    )
    same_episodes = sum(
        one.token_ids == other.token_ids
        for one, other in zip(_alone, done.episodes, strict=False)
    )
    _learner = Learner(_policy, run.learner, run.steps, run.temperature)
    alone_metrics = _learner.step(done.episodes, done.advantages, done.reference)
    torch.set_num_threads(_threads)
    return alone_metrics, same_episodes


@app.cell(hide_code=True)
def _(alone_metrics, ask_step, config, done, same_episodes):
    _all = config.prompts * config.samples
    _gap = abs(alone_metrics["loss"] - done.metrics["loss"])
    lesson.reveal(
        ask_step,
        # Nothing is decided if the kill came when all was written already.
        right=[]
        if not done.retries
        else 0
        if len(done.episodes) < _all
        else 2
        if same_episodes == _all
        else 1,
        why=f"""
        {len(done.episodes)} of {_all} episodes arrived, and {same_episodes} of them are token for token those of the same step in one process, without services. `{done.victim}` died while it wrote {done.lost} group{"s" * (done.lost != 1)},
        and {done.retries} request{"s were" if done.retries != 1 else " was"} sent again. Each episode has its own seed, so the other process wrote the same tokens from the same weights.

        The loss is {done.metrics["loss"]:.4f}, and computed here it {"is the same, bit for bit" if _gap == 0 else f"differs by {lesson.tiny(_gap)}"}. The step took {done.seconds:.1f} s. After it {len(done.versions)} `policy` process{"es" if len(done.versions) > 1 else ""} had version
        {done.versions[0]}, and the two places were {" and ".join(done.states)}. A successor must pull before it may write.
        """,
    )
    return


@app.cell(hide_code=True)
def _(up_after):
    _about = {
        "dataset": (
            "It numbers the tasks.",
            "which tier began when",
            "the run ends, and resumes from its checkpoint",
        ),
        "policy": (
            "It writes episodes.",
            "a copy of the weights",
            "its groups are written again; a spare pulls weights",
        ),
        "tools": ("It answers the calls in them.", "nothing", "calls go elsewhere"),
        "reward": ("It scores what was written.", "nothing", "calls go elsewhere"),
        "reference": (
            "It says how likely the first policy finds them.",
            "weights that never change",
            "calls wait for its successor",
        ),
        "replay": (
            "It holds groups and bounds their age.",
            "groups, and their age",
            "the run ends, and resumes from its checkpoint",
        ),
        "advantages": (
            "It compares the rewards of a group.",
            "nothing",
            "the run ends; it need not",
        ),
        "trainer": (
            "It takes the step.",
            "weights and optimizer",
            "it loads a checkpoint and takes the steps since then again",
        ),
    }
    _names = ("purpose", "remembers", "if it dies in `zorplex-rl train`")
    mo.vstack(
        [
            lesson.table(
                "The roles; the last column was measured",
                [
                    {
                        "role": role,
                        **dict(zip(_names, about, strict=True)),
                        "up after, s": f"{up_after[role]:.1f}",
                    }
                    for role, about in _about.items()
                ],
            ),
            mo.md("""
            Read *remembers* from top to bottom. Where it says "nothing", a service is the natural form. Where it names what exists only once, more replicas do not help:
            such a role needs a checkpoint.
            """),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.predicted(13)
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        "A pool that heals probes, removes, restarts and sends again. A service adds a bound, a router, and a word for what may be sent twice.",
        "Requests under way are the load. Route by them, bound them, and slow callers down before the service is full.",
        "A dead process is noticed quickly, a silent one only when its time is up.",
        "What was sent to a replica that failed may have been done. Exactly once needs a memory, written in the same step as the effect.",
        "What a role remembers decides its form: replicas where it is nothing, a checkpoint where it exists once.",
    )
    return


@app.cell(hide_code=True)
def _(hung, killed):
    lesson.headline(
        f"all replicas were back {killed.back:.1f} s after `kill -9`, and {hung.back:.1f} s after `SIGSTOP`."
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.function(hide_code=True)
def check_rank(rank):
    def order(*replicas):
        return sorted(range(len(replicas)), key=lambda place: rank(*replicas[place]))

    order.__name__ = "the order by rank of (under_way, last_turn)"
    exercise.expect(order, (3, 1), (0, 2), result=[1, 0])
    exercise.expect(order, (2, 9), (2, 4), (2, 7), result=[1, 2, 0])
    exercise.expect(order, (1, 1), (0, 1000), result=[1, 0])
    exercise.expect(order, (4, 3), (1, 8), (1, 5), (0, 9), result=[3, 2, 1, 0])


@app.function(hide_code=True)
def rank_solution(under_way, last_turn):
    return under_way, last_turn


@app.function(hide_code=True)
def check_retry_delay(retry_delay):
    exercise.expect(retry_delay, 1, 0.25, 8.0, 1.0, result=0.25)
    exercise.expect(retry_delay, 2, 0.25, 8.0, 1.0, result=0.5)
    exercise.expect(retry_delay, 2, 0.25, 8.0, 0.5, result=0.25)
    exercise.expect(retry_delay, 5, 0.25, 8.0, 1.0, result=4.0)
    exercise.expect(retry_delay, 8, 0.25, 8.0, 0.25, result=2.0)
    exercise.expect(retry_delay, 3, 0.25, 8.0, 0.0, result=0.0)
    exercise.expect(retry_delay, 5000, 0.25, 8.0, 1.0, result=8.0)


@app.function(hide_code=True)
def retry_delay_solution(failures, base, cap, draw):
    # Beyond 2 ** 1023 a float ends.
    return draw * min(base * 2.0 ** min(failures - 1, 60), cap)


@app.function(hide_code=True)
def check_charge_once(charge_once):
    class Crash(Exception):
        pass

    class Breaking(sqlite3.Connection):
        left = math.inf

        def execute(self, statement, values=()):
            found = super().execute(statement, values)
            if statement.lstrip()[:6].upper() in ("INSERT", "UPDATE", "DELETE", "REPLAC"):
                self.left -= 1
                if self.left == 0:
                    raise Crash
            return found

    def charges(*sent, dies_after=math.inf):
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "ledger")
            for place, number in enumerate(sent):
                with closing(connect(path, Breaking, timeout=1.0)) as database:
                    database.left = math.inf if place else dies_after
                    with suppress(Crash):
                        charge_once(database, number, 100)
                    database.rollback()  # what a dead process has not committed is not there
            with closing(connect(path)) as database:
                return database.execute("SELECT * FROM charges ORDER BY number").fetchall()

    charges.__name__ = "charges"
    exercise.expect(charges, 1, result=[(1, 100)])
    exercise.expect(charges, 1, 2, result=[(1, 100), (2, 100)])
    exercise.expect(charges, 1, 1, result=[(1, 100)])
    for writes in (1, 2):
        found = charges(1, 1, dies_after=writes)
        assert found == [(1, 100)], (
            f"the process dies after write {writes} of charge 1, which is then sent again: the charges are {found}, and should be [(1, 100)]"
        )


@app.function(hide_code=True)
def charge_once_solution(database, number, amount):
    with database:
        new = database.execute("INSERT OR IGNORE INTO seen VALUES (?)", [number])
        if new.rowcount:
            database.execute("INSERT INTO charges VALUES (?, ?)", [number, amount])


if __name__ == "__main__":
    app.run()
