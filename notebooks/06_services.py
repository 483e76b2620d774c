# /// script
# [tool.marimo.display]
# theme = "system"
# ///

import marimo

__generated_with = "0.25.2"
app = marimo.App(
    width="medium",
    app_title="Services that heal",
    css_file="../zorplex_rl/viz/lesson.css",
)

with app.setup(hide_code=True):
    import asyncio
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
    from contextlib import asynccontextmanager
    from pathlib import Path
    from statistics import fmean
    from types import SimpleNamespace

    import marimo as mo
    import psutil
    import torch

    from zorplex_rl.config import Config, LearnerConfig
    from zorplex_rl.services.options import ServiceOptions
    from zorplex_rl.services.registry import (
        get_service,
        list_services,
        register_service,
        unregister_service,
    )
    from zorplex_rl.services.replica import bring_up, replicas_of, spawn
    from zorplex_rl.services.requests import Overloaded, ServiceError
    from zorplex_rl.services.runtime import (
        Actor,
        ActorError,
        ReplicaDied,
        concurrent_endpoint,
    )
    from zorplex_rl.services.service import Service
    from zorplex_rl.task.curriculum import tier_of
    from zorplex_rl.task.environment import Zorplex
    from zorplex_rl.task.parser import find_call
    from zorplex_rl.training.actors import (
        AdvantageActor,
        DatasetActor,
        ReplayBufferActor,
        RewardActor,
        TimedActor,
        ToolActor,
    )
    from zorplex_rl.training.controller import services_of
    from zorplex_rl.viz import exercise, lesson, scene
    from zorplex_rl.viz.service_charts import Fault, rotation_chart, scaling_chart
    from zorplex_rl.viz.widgets import ServiceBoard

    # Every death below is intended; the page says more about it than a warning would.
    logging.getLogger("zorplex_rl").setLevel(logging.ERROR)


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=57,
        hardware="two CPU cores, no network; a GPU is used where there is one",
        goals=[
            "build a pool of replicas by hand, and say which duties it leaves to its callers",
            "choose a router, a bound for the queue and a back-off, and measure what each does",
            "kill one replica and hang another, and account for every request that was under way",
            "say which requests may be sent again after a failure, and which may not",
            "size the services of an RL run, and say what becomes of the run when one of its roles dies",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Many of the same

    At the end of notebook 05 the training loop had become a set of roles. Some of them should exist more than once: tools, because each call
    waits for somebody else; rewards, because they run tests; generators, because they set the pace. Whoever uses a tool does not want to know
    how many tool processes there are, which of them is free, or that one has just died.

    So there is a word for "some process of this kind". A **service** is one name in front of several interchangeable processes, its
    **replicas**. A **request** goes to the service, and the service finds a replica for it. This notebook builds up to that: first a pool by
    hand, then what is missing from it, measured on real processes that are really killed.
    """)
    return


@app.cell
def settings():
    config = SimpleNamespace(
        policy=mo.cli_args().get("policy") or "embedded",  # for the roles at the end
        device="cuda" if torch.cuda.is_available() else "cpu",
        seed=0,
        replicas=3,
        tool_seconds=0.1,  # what a call takes
        callers=24,  # each sends its next request when its last one is answered
        at_once=4,  # calls that one tool process works on; others wait in it
        routed_callers=12,  # in the comparison of routers
        slow=5,  # how many times slower one replica is, there
        warm_up_seconds=2.5,  # before it is measured: the slowest answer takes less
        measured_seconds=6.0,  # there
        crowds=(4, 12, 24, 48),  # callers, where the service fills up
        burst=120,  # requests, where the service scales
        most_replicas=3,  # there
        settle_seconds=1.0,  # that a figure shows before and after
        roles="dataset generator tools reward reference replay advantage trainer".split(),
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

    The tool of notebook 05 was a Python function. Below it is an *actor*: an object in a process of its own, whose endpoints are called by
    message. `execute` looks something up and changes nothing. `charge` does the same for money: it leaves a line in a ledger, which stands
    for any effect on the world (a mail, a purchase, a database row). The ledger is a file, so it survives the process, and will tell us later
    what was really done. A call only sleeps, and any number of sleeps fit into one process, so the semaphore gives it what a real tool has: a limit
    to what it can do at once. `note` remembers what it is told, for the part on sessions. From `TimedActor`, which all timed roles of the package
    share, it has `ping`, which answers with the number of its process.
    """)
    return


@app.class_definition
class Tool(TimedActor):
    """The tools of a Zorplex task, in a process of their own.

    A call takes ``seconds``; the process works on ``at_once`` of them, and others wait in it.
    """

    def __init__(self, seed, seconds, ledger=os.devnull, at_once=4):
        super().__init__("tool")
        self.zorplex, self.seconds, self.ledger = Zorplex(seed), seconds, ledger
        self.notes, self.hands = {}, asyncio.Semaphore(at_once)

    @concurrent_endpoint
    async def execute(self, task, call, request=None):
        return await self.work("execute", task, call, request)

    @concurrent_endpoint
    async def charge(self, task, call, request):
        return await self.work("charge", task, call, request)

    @concurrent_endpoint
    async def note(self, episode, text):
        self.notes.setdefault(episode, []).append(text)
        return self.notes[episode]

    async def work(self, kind, task, call, request):
        async with self.hands:
            await asyncio.sleep(self.seconds / 2)
            with open(self.ledger, "a") as ledger:
                ledger.write(f"{kind} {request}\n")
            await asyncio.sleep(self.seconds / 2)
            return self.zorplex.execute(task, call)


@app.cell
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
    The package's own `ToolActor` is this without ledger, notes and semaphore, and with a latency drawn anew for each call.

    ## A pool by hand

    Three processes, and a list to go through in turn. `spawn` starts an actor in a new process; `call_one` sends it a request and waits for the
    answer. That is enough until one of them dies.
    """)
    return


@app.cell(hide_code=True)
def _(config):
    lesson.predict(
        f"{config.replicas} replicas are asked in turn. The process of the first is killed with `kill -9`, which leaves it no time to say anything. "
        "What do the next requests that are meant for it see?",
        "they hang for ever",
        "the first one fails, then the pool knows",
        "each of them fails",
    )
    return


@app.function
async def ask_in_turn(pool, requests, task, call):
    """Ask the replicas one after the other; who was asked, what came, how long it took."""
    rows = []
    for replica in itertools.islice(itertools.cycle(pool), requests):
        began = time.monotonic()
        try:
            outcome = await replica.actor.execute.call_one(task, call)
        except ReplicaDied:
            outcome = "ReplicaDied"
        rows.append((replica.name, outcome, time.monotonic() - began))
    return rows


@app.cell
async def _(call, config, task):
    pool = []
    try:
        for _number in range(config.replicas):
            pool.append(
                await spawn(f"tool_{_number}", Tool, config.seed, config.tool_seconds)
            )
        before = await ask_in_turn(pool, 2 * config.replicas, task, call)
        os.kill(await pool[0].actor.ping.call_one(), signal.SIGKILL)
        after = await ask_in_turn(pool, 4 * config.replicas, task, call)
    finally:
        for _replica in pool:
            await _replica.stop()
    return after, before


@app.cell(hide_code=True)
def _(after, before):
    def _summary(rows, name):
        counts = Counter(
            "failed" if a == "ReplicaDied" else "answered" for w, a, _ in rows if w == name
        )
        return ", ".join(f"{count} {how}" for how, count in counts.items())

    lesson.table(
        "Asked in turn, before and after tool_0 was killed",
        [
            {
                "replica": f"`{name}`",
                "before": _summary(before, name),
                "after": _summary(after, name),
                "seconds that these took": ", ".join(
                    f"{s:.3f}" for who, _, s in after if who == name
                ),
            }
            for name in dict.fromkeys(who for who, _, _ in before)
        ],
    )
    return


@app.cell(hide_code=True)
def _(after):
    _failed = [seconds for _, outcome, seconds in after if outcome == "ReplicaDied"]
    lesson.reveal(f"""
    Each of them fails: {len(_failed)} of {len(after)} requests here, and it would go on like this, since nobody takes `tool_0` off the list.
    The first one waited {_failed[0]:.2f} s until Monarch had noticed that the process was gone; the last one failed within
    {1000 * _failed[-1]:.1f} ms. That is worse than it looks: a caller who prefers the quickest replica would send *everything* to the dead one.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    What a pool should do for its callers, and this one does not:

    | duty | by hand |
    |---|---|
    | notice a replica that is dead or hangs, even if nobody happens to call it | the caller notices |
    | take it out of rotation at once, and put another one in its place | it stays on the list |
    | decide what becomes of the requests that were with it | the caller gets the error |
    | hold no more requests than can be answered, and say so when it is full | no bound |
    | let others find the pool | they would need the list |

    The first step is a list that can change.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 1: fair turns (4 minutes)

    An index into a list is no longer fair once replicas come and go: somebody is skipped, somebody is asked twice. Complete `next_replica`.
    `present` names the replicas that are there now, and `history` those that were chosen so far, the latest last. Choose whoever was chosen
    longest ago; a replica that was never chosen comes before all others, and among several of those the first in `present`.
    """)
    return


@app.function
def next_replica(present, history):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(lambda: next_replica, check_next_replica, next_replica_solution)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The same as a service

    `Service` starts the replicas, each in a process of its own so that it can die alone, and stops them at the end of the block, whatever
    happens in it. Every endpoint of the actor becomes an attribute: `route` asks one healthy replica, `fanout` all of them.
    """)
    return


@app.cell
async def _(config):
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
                "A **place** stays when the replica in it is replaced: training loops refer to places, since a process may not be there tomorrow."
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Routing

    Round robin is fair in *requests*. When replicas are not equally fast, because one shares its machine, runs hot or has got the long
    inputs, that is not what you want. Least loaded sends a request to whoever has the fewest under way.
    """)
    return


@app.cell(hide_code=True)
def _(config):
    lesson.predict(
        f"One of {config.replicas} replicas is {config.slow} times slower than the others. {config.routed_callers} callers each send their next request as soon as "
        "their last one is answered. How many more requests a second does least loaded get through than round robin?",
        "about as many",
        "half as many again",
        "twice as many or more",
    )
    return


@app.function
async def send(tools, task, call, requests, callers):
    """``requests`` from ``callers`` at a time: seconds of each, and the rate."""
    left, seconds, began = iter(range(requests)), [], time.monotonic()

    async def caller():
        for _ in left:
            sent = time.monotonic()
            await tools.execute.route(task, call)
            seconds.append(time.monotonic() - sent)

    await asyncio.gather(*(caller() for _ in range(callers)))
    return SimpleNamespace(seconds=seconds, rate=requests / (time.monotonic() - began))


@app.function
async def press(tools, task, call, callers, warm_up, measured):
    """``callers`` that never rest: what was answered in ``measured`` seconds after a warm-up."""
    start = time.monotonic() + warm_up
    seconds, halves = [], [0, 0]

    async def caller():
        while (sent := time.monotonic()) < start + measured:
            await tools.execute.route(task, call)
            done = time.monotonic()
            if start <= done < start + measured:
                seconds.append(done - sent)
                halves[done >= start + measured / 2] += 1

    await asyncio.gather(*(caller() for _ in range(callers)))
    return SimpleNamespace(
        seconds=seconds,
        rate=len(seconds) / measured,
        halves=[2 * count / measured for count in halves],
    )


@app.function
async def watch(service, samples, show=lambda status: None):
    """Note the state of ``service`` ten times a second, until cancelled."""
    while True:
        samples.append((time.monotonic(), service.status()))
        show(samples[-1][1])
        await asyncio.sleep(0.1)


@app.cell(hide_code=True)
def _():
    start_routing = lesson.start_button("Compare routers", seconds=30)
    start_routing
    return (start_routing,)


@app.cell
async def _(call, config, start_routing, task):
    lesson.wait_for(start_routing)

    async def start_uneven(name):
        times = config.slow if name == "tools_0" else 1
        seconds = times * config.tool_seconds
        return await spawn(name, Tool, config.seed, seconds, os.devnull, config.at_once)

    bound = config.routed_callers // config.replicas
    contenders = {
        "round robin": ServiceOptions(config.replicas),
        "least loaded": ServiceOptions(config.replicas, router="least_loaded"),
        f"round robin, ≤ {bound} in flight": ServiceOptions(
            config.replicas, max_in_flight=bound
        ),
    }
    routing = {}
    for _name, _options in mo.status.progress_bar(contenders.items(), remove_on_exit=True):
        async with Service("tools", start_uneven, _options) as _tools:
            _samples = []
            _watching = asyncio.create_task(watch(_tools, _samples))
            routing[_name] = await press(
                _tools,
                task,
                call,
                config.routed_callers,
                config.warm_up_seconds,
                config.measured_seconds,
            )
            _watching.cancel()
            routing[_name].samples, routing[_name].status = _samples, _tools.status()
    return bound, routing


@app.function(hide_code=True)
def share_of_first(run):
    """The share of all requests that went to the replica in place 0."""
    counts = [row.requests for row in run.status.replicas]
    return counts[0] / sum(counts)


@app.cell(hide_code=True)
def _(config, routing):
    lesson.table(
        f"{config.routed_callers} callers for {config.measured_seconds:g} s after {config.warm_up_seconds:g} s of warm-up, the replica in place 0 {config.slow} times slower",
        [
            {
                "router": name,
                "requests/s": f"{run.rate:.0f}",
                "in each half": " and ".join(f"{rate:.0f}" for rate in run.halves),
                "median, s": f"{sorted(run.seconds)[len(run.seconds) // 2]:.2f}",
                "95th percentile, s": f"{sorted(run.seconds)[int(0.95 * len(run.seconds))]:.2f}",
                "sent to the slow one": f"{share_of_first(run):.0%}",
            }
            for name, run in routing.items()
        ],
    )
    return


@app.cell(hide_code=True)
def _(bound, config, routing):
    _round, _least, _bounded = routing.values()
    _crowd = max(status.replicas[0].in_flight for _, status in _round.samples)
    lesson.reveal(f"""
    {_least.rate / _round.rate:.1f} times as many. Round robin goes on giving the slow replica its turn
    ({share_of_first(_round):.0%} of all requests). What comes faster than it can work piles up there: at one moment {_crowd} of {config.routed_callers} callers waited for it, while the
    others had next to nothing to do. Least loaded counts requests under way, and a slow replica has many. The third row is round robin again,
    with a bound on what may be under way at one replica: full ones are passed over, and with {bound} each it reaches {_bounded.rate / _least.rate:.0%} of least loaded. Both look
    at the load; plain round robin does not.

    The warm-up matters: at first the queue of the slow replica is empty, and nobody waits in it yet. The rates of the two halves say whether the
    measurement had settled.
    """)
    return


@app.cell(hide_code=True)
def _(config, routing):
    def _in_flight(run):
        busy = [status.in_flight for _, status in run.samples if status.in_flight]
        return fmean(busy) if busy else 0.0

    mo.vstack(
        [
            lesson.md(f"""
            There is a law behind it. Whatever the router does, **requests under way = requests per second × seconds per request** (Little's law).
            With {config.routed_callers} callers the left side cannot grow, so a longer mean latency *is* a lower rate. The first column was sampled from
            `status()`, the last one computed from the latencies that the callers saw.
            """),
            lesson.table(
                "Little's law, measured",
                [
                    {
                        "router": name,
                        "under way, sampled": f"{_in_flight(run):.1f}",
                        "requests/s": f"{run.rate:.1f}",
                        "mean latency, s": f"{fmean(run.seconds):.3f}",
                        "rate × mean latency": f"{run.rate * fmean(run.seconds):.1f}",
                    }
                    for name, run in routing.items()
                ],
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _(config):
    lesson.predict(
        f"Now {config.replicas} equal replicas. Each works on {config.at_once} calls of {config.tool_seconds:g} s at once. From {config.crowds[0]} callers to {config.crowds[-1]}: what becomes of the rate, "
        "and what of the time that an answer takes?",
        "the rate grows with the callers, the time stays",
        "the rate grows up to a limit, and then the time grows",
        "both grow all the way",
    )
    return


@app.cell(hide_code=True)
def _():
    start_crowding = lesson.start_button("Fill the service", seconds=15)
    start_crowding
    return (start_crowding,)


@app.cell
async def _(call, config, start_crowding, task):
    lesson.wait_for(start_crowding)
    crowded = {}
    _start = replicas_of(Tool, config.seed, config.tool_seconds, os.devnull, config.at_once)
    _options = ServiceOptions(config.replicas, router="least_loaded")
    async with Service("tools", _start, _options) as _tools:
        for _callers in mo.status.progress_bar(config.crowds, remove_on_exit=True):
            crowded[_callers] = await press(_tools, task, call, _callers, 1.0, 2.0)
    return (crowded,)


@app.cell(hide_code=True)
def _(config, crowded):
    _capacity = config.replicas * config.at_once / config.tool_seconds
    _fewest, *_, _most = crowded.values()
    mo.vstack(
        [
            lesson.table(
                "A service that fills up",
                [
                    {
                        "callers": callers,
                        "requests/s": f"{run.rate:.0f}",
                        "of capacity": f"{run.rate / _capacity:.0%}",
                        "mean latency, s": f"{fmean(run.seconds):.3f}",
                    }
                    for callers, run in crowded.items()
                ],
            ),
            lesson.reveal(f"""
            The service can answer {config.replicas} × {config.at_once} / {config.tool_seconds:g} s = {_capacity:.0f} requests a second and no more. Beyond
            {config.replicas * config.at_once} callers a further one gets nothing done sooner: from {config.crowds[0]} callers to {config.crowds[-1]} the rate grew by a factor of
            {_most.rate / _fewest.rate:.1f} and the latency by one of {fmean(_most.seconds) / fmean(_fewest.seconds):.1f}. This is *saturation*: past it, more load buys only waiting.
            """),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Back-pressure

    A service that accepts everything only moves the queue to where nobody sees it: memory fills, and each answer is late. A service has three
    bounds: how many requests may be *in flight* at a replica, how many may wait *in its one queue*, and how long a request may wait there
    before it is sent. Who waits is slowed down, and that is the point: a generator whose tools are behind should not start more episodes.
    Who waits too long gets an error that says so.
    """)
    return


@app.cell
def _():
    limits = ServiceOptions(replicas=2, max_in_flight=4, max_queue=50, wait_timeout=1.25)
    crowd, tool_takes = 60, 0.5
    return crowd, limits, tool_takes


@app.cell(hide_code=True)
def _(crowd, limits, tool_takes):
    lesson.predict(
        f"Two replicas, at most {limits.max_in_flight} requests in flight at each and {limits.max_queue} in the queue of the service, {tool_takes:g} s for a call. {crowd} requests come at the same "
        f"moment, and none may wait longer than {limits.wait_timeout:g} s. How many are answered?",
        f"{2 * limits.max_in_flight}: those in flight",
        f"{2 * limits.max_in_flight * (1 + int(limits.wait_timeout / tool_takes))}: those whose turn comes in time",
        f"{crowd}",
    )
    return


@app.cell
async def _(call, config, crowd, limits, task, tool_takes):
    async with Service(
        "tools",
        replicas_of(Tool, config.seed, tool_takes),
        limits,
    ) as _tools:
        _requests = [
            asyncio.create_task(_tools.execute.route(task, call)) for _ in range(crowd)
        ]
        await asyncio.sleep(tool_takes / 4)
        full = _tools.status()
        outcomes = await asyncio.gather(*_requests, return_exceptions=True)
        settled = _tools.status()
    refused = [outcome for outcome in outcomes if isinstance(outcome, Overloaded)]
    return full, outcomes, refused, settled


@app.cell(hide_code=True)
def _(crowd, full, settled):
    def _where(status):
        return {
            "in flight": status.in_flight,
            "in the queue": status.queue_depth,
            "answered": status.answered,
            "refused with `Overloaded`": status.errors,
        }

    lesson.table(
        f"Where the {crowd} requests are",
        [
            {"where": where, "after a moment": count, "in the end": _where(settled)[where]}
            for where, count in _where(full).items()
        ],
    )
    return


@app.cell(hide_code=True)
def _(crowd, limits, outcomes, refused, tool_takes):
    _answered = sum(isinstance(outcome, str) for outcome in outcomes)
    _expected = 2 * limits.max_in_flight * (1 + int(limits.wait_timeout / tool_takes))
    lesson.reveal(f"""
    Answered were {_answered}. In {limits.wait_timeout:g} s there is time for {1 + int(limits.wait_timeout / tool_takes)} rounds of {2 * limits.max_in_flight}, which
    makes {_expected}{"" if _answered == _expected else "; this machine did not keep up exactly"}. The other {crowd - _answered} were told:

    > {refused[0] if refused else "nothing, since nobody was refused"}

    Nothing has happened to a request that was refused: it was never sent, so the caller may try again later.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: try again, but later (4 minutes)

    Later by how much? Too soon, and the service that was full is full again. So the delay doubles with each failure in a row, up to a cap. Complete
    `retry_delay`: no delay after the first failure, `base` seconds after the second, twice that after the third, and so on, never more than
    `cap`. Someone may have been failing for days.
    """)
    return


@app.function
def retry_delay(failures, base, cap):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(lambda: retry_delay, check_retry_delay, retry_delay_solution)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    The package uses exactly this rule for one thing: before it *starts* a replica again that keeps dying. There one supervisor waits for one
    replica, and the rule is complete. A *request* that is sent again is something else. Many callers were refused at the same
    moment, so by this rule they all come back at the same moment, and again, and again. Doubling makes the crowds rarer, it does not
    break them up. For that a caller draws its delay at random, between nothing and what the rule says. This is called *full jitter*
    ([M. Brooker, 2015](https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/)).

    Below, a simulation of 200 callers that arrive together at a service which takes 10 requests in each tenth of a second and refuses the rest.
    """)
    return


@app.function
def all_at_once(delay, callers=200, taken=10, slot=0.1):
    """Requests in each slot of time until every caller has been served; ``delay(failures)``."""
    load, failures = [], {0: [0] * callers}
    while failures:
        now = min(failures)
        waiting = failures.pop(now)
        load += [0] * (now - len(load)) + [len(waiting)]
        random.shuffle(waiting)
        for failed in waiting[taken:]:
            later = now + 1 + int(delay(failed + 1) / slot)
            failures.setdefault(later, []).append(failed + 1)
    return load


@app.cell
def _(config):
    random.seed(config.seed)

    def longest(failures):
        return retry_delay_solution(failures + 1, 0.25, 8.0)

    returning = {
        "at once": all_at_once(lambda failures: 0.0),
        "doubling": all_at_once(longest),
        "doubling, with full jitter": all_at_once(
            lambda failures: random.uniform(0, longest(failures))
        ),
    }
    lesson.table(
        "200 callers, 10 served in a tenth of a second; simulated",
        [
            {
                "who is refused comes back": how,
                "requests sent": sum(load),
                "most in a tenth, after the first": max(load[1:]),
                "tenths in which nobody came": load.count(0),
                "all served after, s": f"{len(load) / 10:.1f}",
            }
            for how, load in returning.items()
        ],
    )
    return (returning,)


@app.cell(hide_code=True)
def _(returning):
    _once, _doubling, _jitter = returning.values()
    lesson.md(f"""
    Coming back at once costs {sum(_once):,} requests for 200 answers. Doubling sends {sum(_doubling):,}, but in crowds of up to {max(_doubling[1:])} with {_doubling.count(0)} empty
    tenths between them, in which the service has nothing to do: it takes {len(_doubling) / 10:.1f} s. With jitter the largest crowd is {max(_jitter[1:])}, and everybody has been served
    after {len(_jitter) / 10:.1f} s with {sum(_jitter):,} requests.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What is a failure?

    A replica fails if its process is gone, or if it does not answer a *probe* in time. The probe is a second small actor in the same process,
    which is asked once a second. It asks whether the process answers, not whether the tool is busy: a request may take as long as it likes.

    And an exception? Here is a malformed request, twenty times: no tool can run a call that is `None`.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.predict(
        "Twenty requests in a row make the tool raise an exception. What should the service do?",
        "replace the replica after the first one",
        "replace it after a few in a row",
        "nothing",
    )
    return


@app.cell
async def _(config, task):
    async with Service(
        "tools", replicas_of(Tool, config.seed, 0.0), ServiceOptions(replicas=1)
    ) as _tools:
        _pid = await _tools.ping.route()
        raised = await asyncio.gather(
            *(_tools.execute.route(task, None) for _ in range(20)), return_exceptions=True
        )
        same_process = await _tools.ping.route() == _pid
        raising = _tools.status()
    return raised, raising, same_process


@app.cell(hide_code=True)
def _(raised, raising, same_process):
    lesson.reveal(f"""
    Nothing. An exception is an answer: it went to the caller as an `ActorError` with the remote traceback ({sum(isinstance(e, ActorError) for e in raised)} of
    {len(raised)}), whose last line is {lesson.quote(str(raised[0]).strip().splitlines()[-1])}. `status()` counts {raising.application_errors} application errors,
    {raising.errors} failed requests and {raising.restarts} restarts, and afterwards {"the same process" if same_process else "another process"} answered. A service that
    killed its replicas over bad input could be emptied by a single caller with a bug.
    """)
    return


@app.cell(hide_code=True)
def _(config):
    lesson.md(f"""
    ## Kill one

    Now for real. Below, {config.replicas} replicas answer {config.callers} callers that hardly rest: half of the requests are `execute`, which is declared
    **idempotent** (to do it twice is as good as once), the other half are `charge`, which is not. Then one replica's process gets `kill -9`,
    and later another one `SIGSTOP`. A stopped process is the nastier case: it has not died, it holds its connections, and it says nothing any more.

    In `marimo edit` you do that yourself, with buttons, and watch the board. On a page without a kernel the same has been done for you, and
    the board shows the last state before the service was closed.
    """)
    return


@app.cell
def _(config):
    options = ServiceOptions(
        replicas=config.replicas, router="least_loaded", idempotent={"execute"}
    )
    return (options,)


@app.function
async def call_for_ever(stage, task, call):
    """A caller. Writes down what became of each of its requests, by number."""
    while not stage.over:
        await asyncio.sleep(random.uniform(0, 0.05))  # else all callers fall into step
        number = len(stage.outcomes)
        stage.outcomes.append("lost")
        method = stage.tools.execute if number % 2 else stage.tools.charge
        try:
            await method.route(task, call, number)
            stage.outcomes[number] = "answered"
        except ServiceError as error:
            stage.outcomes[number] = type(error).__name__


@app.cell
def _():
    @asynccontextmanager
    async def under_load(config, options, task, call, board):
        """A service, its callers, and somebody who takes notes."""
        stage = SimpleNamespace(over=False, outcomes=[], samples=[], restarts=[])
        with tempfile.TemporaryDirectory() as folder:
            ledger = Path(folder) / "ledger"
            start = replicas_of(Tool, config.seed, config.tool_seconds, str(ledger))
            async with Service(
                "tools", start, options, stage.restarts.append
            ) as stage.tools:
                watching = asyncio.create_task(
                    watch(stage.tools, stage.samples, board.show)
                )
                calls = [call_for_ever(stage, task, call) for _ in range(config.callers)]
                callers = asyncio.gather(*calls)
                try:
                    yield stage
                finally:
                    stage.over = True
                    watching.cancel()
                    await callers
                    stage.ledger = Counter(ledger.read_text().splitlines())

    return (under_load,)


@app.function
async def strike(stage, blow, what, settle):
    """Send a signal to the oldest replica; return when its place is filled again."""
    tools, restarts = stage.tools, len(stage.restarts)
    victim = max(tools.status().replicas, key=lambda row: row.up)

    async def until(changed):
        while not changed(tools.status().replicas[victim.place]):
            await asyncio.sleep(0.02)
        return time.monotonic()

    await asyncio.sleep(settle)
    struck = time.monotonic()
    os.kill(victim.pid, blow)
    left = await until(lambda row: row.replica != victim.replica)
    back = await until(lambda row: row.state == "ready")
    await asyncio.sleep(settle)
    return SimpleNamespace(
        blow=Fault(struck, victim.replica, what),
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


@app.cell
async def _(board, call, config, open_stage, options, task, under_load):
    await scene.leave("06")  # what an earlier run of this cell has left open
    lesson.wait_for(open_stage)
    stage = await scene.enter("06", under_load(config, options, task, call, board))
    lesson.md(f"Running: {len(stage.tools.status().replicas)} replicas under load.")
    return (stage,)


@app.cell(hide_code=True)
def _():
    lesson.predict(
        "From `kill -9` to a new replica in rotation: how long? It has to be noticed, taken out, stopped for good, started anew and probed.",
        "less than a second",
        "one to five seconds",
        "more than five seconds",
    )
    return


@app.cell(hide_code=True)
def _():
    kill = lesson.start_button("kill -9 the oldest replica", seconds=4)
    kill
    return (kill,)


@app.cell
async def _(config, kill, stage):
    lesson.wait_for(kill)
    mo.stop(stage.over, mo.md("The service has been stopped; start it again first."))
    killed = await strike(stage, signal.SIGKILL, "kill -9", config.settle_seconds)
    lesson.figure(
        rotation_chart(killed.samples, killed.blow),
        "Drawn from `status()`, noted ten times a second. Dashed: the blow.",
    )
    return (killed,)


@app.cell(hide_code=True)
def _(killed):
    def blow_facts(struck):
        return {
            "blow": f"`{struck.blow.what}`".replace(" ", "\N{NO-BREAK SPACE}"),
            "out of rotation, s": f"{struck.left:.2f}",
            "back in rotation, s": f"{struck.back:.2f}",
            "who": f"`{struck.restart.died}→{struck.restart.took_over}`",
            "because": struck.restart.reason,
        }

    mo.vstack(
        [
            lesson.table("Measured, from the blow", [blow_facts(killed)]),
            lesson.reveal(f"""
            {killed.back:.1f} s in all. For {killed.left:.1f} s nobody knew: the operating system had ended the process, and Monarch looks after
            its processes once a second. Callers do not wait for the probe: the first request that finds its process gone is enough to take the
            replica out. Starting a new process, the actor in it and a first probe took the other {killed.back - killed.left:.1f} s.
            """),
        ]
    )
    return (blow_facts,)


@app.cell(hide_code=True)
def _():
    lesson.predict(
        "Now `SIGSTOP`: the process hangs, but it is there. Will it be noticed sooner or later than the dead one?",
        "sooner",
        "about as soon",
        "later",
    )
    return


@app.cell(hide_code=True)
def _():
    hang = lesson.start_button("Hang the oldest replica (SIGSTOP)", seconds=8)
    hang
    return (hang,)


@app.cell
async def _(config, hang, stage):
    lesson.wait_for(hang)
    mo.stop(stage.over, mo.md("The service has been stopped; start it again first."))
    hung = await strike(stage, signal.SIGSTOP, "SIGSTOP", config.settle_seconds)
    lesson.figure(
        rotation_chart(hung.samples, hung.blow),
        "The same for a process that hangs.",
    )
    return (hung,)


@app.cell(hide_code=True)
def _(blow_facts, hung, killed, options):
    _later = "Later" if hung.left > killed.left else "Not later, this time"
    mo.vstack(
        [
            lesson.table("Both blows", [blow_facts(killed), blow_facts(hung)]),
            lesson.reveal(f"""
            {_later}: out of rotation after {hung.left:.1f} s, compared with {killed.left:.1f} s. A dead process is a fact that the operating system reports.
            A silent one may only be slow, so it is given time: a probe is sent every {options.probe_every:g} s and may take {options.probe_timeout:g} s. A
            shorter limit notices sooner and, on a busy machine, kills the living. Whoever is given up is also killed for good: a process
            that woke up again later would be a second owner of the same place.
            """),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The account

    Requests kept flowing all the while. When their replica failed, some had not been sent yet: they went elsewhere, and nobody noticed. Some
    had been sent. Of these nobody can know, from outside, whether the replica did the work and died before it could say so. The service
    therefore sends idempotent ones again, and fails the others with an error that names the replica. The ledger knows what was really done.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.predict(
        "Some `charge` requests were with a replica when it failed, and got `ReplicaFailed`. Had the money been taken?",
        "from none of them",
        "from all of them",
        "from some of them",
    )
    return


@app.cell(hide_code=True)
def _():
    count = lesson.start_button("Stop the service and count", seconds=1)
    count
    return (count,)


@app.cell
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
def _(account, stage):
    mo.vstack(
        [
            lesson.table(
                "What became of every request",
                [
                    {"outcome": row}
                    | {f"`{name}`": facts[row] for name, facts in account.items()}
                    for row in account["execute"]
                ],
            ),
            lesson.md(
                f"Sent again after a failure, which only `execute` may be: {stage.tools.status().retries}."
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _(account):
    _charge, _execute = account["charge"], account["execute"]
    _lost = _charge["without any outcome"] + _execute["without any outcome"]
    _done, _failed = _charge["failed, but done"], _charge["failed with `ReplicaFailed`"]
    _verdict = (
        "The caller cannot tell which, so the error is right to say that the request *may or may not have finished*"
        if 0 < _done < _failed
        else "That none is mixed in here is chance: a call writes its line in the middle of its time, and the blow may come before or after"
    )
    lesson.reveal(f"""
    From {_done} of {_failed}. {_verdict}. Whether to try again is for the caller to decide, who knows what a second charge would mean. {_charge["done twice"]} charges were made twice, and {_lost} requests got neither an answer nor an
    error. `execute` was sent again instead: {_execute["failed with `ReplicaFailed`"]} of its requests failed, and {_execute["done twice"]} were done twice,
    which is what *idempotent* allows.

    To be able to retry a charge, give it a number that the *ledger* checks: "charge number 17, if you have not yet". Then doing it twice is
    as good as once, and it may be declared idempotent, if the check and the charge are **one step**.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Why one step? The first copy of a request may still be at work when the second comes: its replica hung, and the service has given up
    on it, but the request had got through. If the ledger looks first and writes afterwards, both copies look, both find nothing, and both charge. Below, twenty charges are
    sent twice at the same time to two ledgers in a database. One looks and then writes. In the other the number is a primary key, so looking
    and writing are a single statement that the database does as a whole or not at all.
    """)
    return


@app.function
async def look_then_charge(database, number):
    if not database.execute("SELECT 1 FROM looked WHERE number = ?", [number]).fetchone():
        await asyncio.sleep(0.001)  # here another copy of the request may look
        database.execute("INSERT INTO looked VALUES (?)", [number])


@app.function
async def charge_if_new(database, number):
    await asyncio.sleep(0.001)
    database.execute("INSERT OR IGNORE INTO keyed VALUES (?)", [number])


@app.cell
async def _():
    _database = sqlite3.connect(":memory:", isolation_level=None)
    _database.execute("CREATE TABLE looked (number INTEGER)")
    _database.execute("CREATE TABLE keyed (number INTEGER PRIMARY KEY)")
    for _charge in (look_then_charge, charge_if_new):
        _copies = [_charge(_database, number) for number in range(20) for _ in range(2)]
        await asyncio.gather(*_copies)
    charged = {
        ledger: _database.execute(f"SELECT COUNT(*) FROM {ledger}").fetchone()[0]
        for ledger in ("looked", "keyed")
    }
    _database.close()
    return (charged,)


@app.cell(hide_code=True)
def _(charged):
    lesson.md(f"""
    Look, then write: {charged["looked"]} charges were made for 20. One step: {charged["keyed"]}. So exactly-once is at-least-once with a memory at the place where the effect
    is, *written in the same step as the effect*. Where the effect is elsewhere (a mail that another system sends), no transaction of yours can
    include it: pass the number on, and let that system check it in the same way.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: what becomes of a request (4 minutes)

    Write the rule down. A request has met with an error. Complete `what_to_do`, given three facts: `sent`, whether it had already gone out to a
    replica; `raised`, whether the *endpoint* raised the error (else the replica failed); and `idempotent`. Return `"tell the caller"` or
    `"send elsewhere"`.
    """)
    return


@app.function
def what_to_do(sent, raised, idempotent):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(lambda: what_to_do, check_what_to_do, what_to_do_solution)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Sessions

    Replicas are interchangeable as long as they remember nothing. A sandbox in which an agent has written a file is not, and neither is a
    generator that holds the cache of a conversation. A **session** is a caller's claim on one replica: its requests go to the same process,
    in the order in which they were made, as long as that process lives. Below, six notes without a session, six within one, and one more
    after the session's replica has been killed. A replica answers with all notes of the episode that it has.
    """)
    return


@app.cell
async def _(config):
    async with Service(
        "tools",
        replicas_of(Tool, config.seed, config.tool_seconds),
        ServiceOptions(replicas=config.replicas, idempotent={"ping"}),
    ) as _tools:
        scattered = await asyncio.gather(
            *(_tools.note.route("episode 1", number) for number in range(6))
        )
        async with _tools.session("episode 2") as _session:
            together = await asyncio.gather(
                *(_session.note.route("episode 2", number) for number in range(6))
            )
            _home = await _session.ping.route()
            os.kill(_home, signal.SIGKILL)
            moved = await _session.ping.route() != _home
            forgotten = await _session.note.route("episode 2", 6)
    return forgotten, moved, scattered, together


@app.cell(hide_code=True)
def _(forgotten, moved, scattered, together):
    _in_order = together[-1] == sorted(together[-1]) and len(together[-1]) == 6
    mo.vstack(
        [
            lesson.table(
                "What the replica knew when it had taken the last note",
                [
                    {"requests": "six, each routed anew", "it knew": str(scattered[-1])},
                    {"requests": "six in a session", "it knew": str(together[-1])},
                    {"requests": "a seventh, after kill -9", "it knew": str(forgotten)},
                ],
            ),
            lesson.md(
                f"In the session all six were there{', in order' if _in_order else ', but not in order'}. After the kill "
                f"{'another replica took over, without' if moved else 'the same replica answered, with'} its memory. Stickiness is not durability: "
                "state that must survive belongs to the caller, who can tell it again, or into a store."
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Discovery

    The generator that needs a tool lives in another process than the code that started the tools. It knows a name. `register_service` puts
    the addresses of the replicas into a registry, an actor of which there is one, and does so again whenever a replica joins or leaves;
    `get_service` makes a client of the same replicas in the process that asks. Requests go straight from there to a replica.
    """)
    return


@app.class_definition
class Asker(Actor):
    """Somebody in another process, who knows the name of a service and nothing else."""

    @concurrent_endpoint
    async def ask(self, name, requests):
        tools = await get_service(name)
        return [await tools.ping.route() for _ in range(requests)]


@app.cell
async def _(config):
    _options = ServiceOptions(replicas=config.replicas, idempotent={"ping"})
    _start = replicas_of(Tool, config.seed, config.tool_seconds)
    async with Service("course_tools", _start, _options) as _tools:
        await register_service(_tools)
        asker = await spawn("asker", Asker)
        try:
            found = await asker.actor.ask.call_one("course_tools", 9)
            os.kill(_tools.status().replicas[0].pid, signal.SIGKILL)
            while _tools.status().restarts < 1:
                await asyncio.sleep(0.02)
            found_later = await asker.actor.ask.call_one("course_tools", 9)
            listed = (await list_services())["course_tools"].partition(",")[0]
        finally:
            await asker.stop()
    await unregister_service("course_tools")
    return found, found_later, listed


@app.cell(hide_code=True)
def _(found, found_later, listed):
    _new, _gone = set(found_later) - set(found), set(found) - set(found_later)
    lesson.table(
        f"Nine requests from another process; the registry lists {listed}",
        [
            {
                "when": when,
                "answered": len(homes),
                "by these processes": ", ".join(
                    f"{pid}{' (new)' * (pid in new)}" for pid in sorted(set(homes))
                ),
            }
            for when, homes, new in (
                ("before", found, set()),
                (
                    f"after {', '.join(map(str, _gone)) or 'one'} was killed and replaced",
                    found_later,
                    _new,
                ),
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    The registry is asked once and then only tells of changes: it is the *control plane*. Requests are the *data plane* and never pass through
    it, so it is no bottleneck, and a run whose registry is busy goes on. Weights get a plane of their own in notebook 07.

    ## As many as it takes

    How many replicas? Load in RL comes in bursts: a whole batch of episodes calls its tools within the same second, and then nobody does. The
    service below may have between one replica and a few, each with at most four requests in flight. It looks at its queue ten times a second. If
    more requests wait than are under way, it doubles. If nothing waits and one replica fewer would be at most half busy, for three seconds
    without a break, it lets one go, which first answers what it was given.

    A new replica starts empty, so it takes waiting requests from the queue, the oldest first. Those of a session wait for their own replica:
    it is the one that remembers.
    """)
    return


@app.cell(hide_code=True)
def _(config):
    lesson.predict(
        f"First two callers, then 40 at once until {config.burst} requests are answered, then a single one. Why is the rule for going down so much slower "
        "than the one for going up?",
        "stopping a process takes longer than starting one",
        "a load that swings would start and stop replicas all the time",
        "to save the requests that are under way",
    )
    return


@app.cell(hide_code=True)
def _():
    start_burst = lesson.start_button("Send a burst", seconds=13)
    start_burst
    return (start_burst,)


@app.cell
async def _(call, config, start_burst, task):
    lesson.wait_for(start_burst)
    load = []
    async with Service(
        "tools",
        replicas_of(Tool, config.seed, 0.25),
        ServiceOptions(
            min_replicas=1,
            max_replicas=config.most_replicas,
            max_in_flight=4,
        ),
    ) as _tools:
        _watching = asyncio.create_task(watch(_tools, load))
        with mo.status.spinner("Calm, a burst, and calm until one replica is left"):
            await send(_tools, task, call, requests=6, callers=2)
            burst = await send(_tools, task, call, config.burst, callers=40)
            while len(_tools.status().replicas) > 1:
                await _tools.execute.route(task, call)
        _watching.cancel()
        at_the_end = _tools.status()
    lesson.figure(scaling_chart(load), "From `status()`, ten times a second.")
    return at_the_end, burst, load


@app.cell(hide_code=True)
def _(at_the_end, burst, load):
    def _when(condition):
        return next((time for time, status in load if condition(status)), None)

    _most = max(sum(row.state == "ready" for row in status.replicas) for _, status in load)
    _queued = _when(lambda status: status.queue_depth > 4)
    _full = _when(
        lambda status: sum(row.state == "ready" for row in status.replicas) == _most
    )
    lesson.reveal(f"""
    A load that swings would start and stop replicas all the time. Here {_most} replicas were in rotation
    {(_full or 0) - (_queued or 0):.1f} s after the queue had begun to grow, and the burst got an answer to each of its {len(burst.seconds)} requests, the slowest after
    {max(burst.seconds):.1f} s; {at_the_end.errors} failed. To keep a replica for some seconds too long costs
    little; to start it again costs a start. The gap between the two rules is called
    *hysteresis*. If starting a replica means loading a model for a minute, do not scale with the burst at all: keep *spares*.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The roles of an RL run as services

    Now the roles from notebook 05. Which of them should be a service? The question is always the same: what does it remember, and may a
    request be repeated? The cell below starts one process of each role of a real run, side by side, as `zorplex-rl train` does.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.predict(
        "A role that dies has to be started again. For which of them does that take longest, and by how much longer than for a tool?",
        "the replay buffer, which has to read its episodes again",
        "those that hold a model, a few times longer",
        "all about the same",
    )
    return


@app.cell(hide_code=True)
def _():
    start_roles = lesson.start_button("Start one of each role", seconds=10)
    start_roles
    return (start_roles,)


@app.cell
async def _(config, start_roles):
    lesson.wait_for(start_roles)
    from zorplex_rl.training.actors import ReferenceActor
    from zorplex_rl.training.generator import GeneratorActor
    from zorplex_rl.training.trainer import TrainerActor

    run = Config(
        policy=config.policy,
        device=config.device,
        tool_latency=config.tool_seconds,
        learner=LearnerConfig(kl_coefficient=0.01),
    )
    roles = {
        "dataset": replicas_of(DatasetActor, run, tier_of(run.task)),
        "generator": replicas_of(GeneratorActor, "generator", run, config.device),
        "tools": replicas_of(ToolActor, "tools", run),
        "reward": replicas_of(RewardActor, "reward"),
        "reference": replicas_of(ReferenceActor, "reference", run, config.device),
        "replay": replicas_of(ReplayBufferActor, run),
        "advantage": replicas_of(AdvantageActor, run),
        "trainer": replicas_of(TrainerActor, "trainer", run, config.device),
    }
    started = {}

    async def start_and_measure(role, start):
        began = time.monotonic()
        replica = await bring_up(role, start, start_timeout=300)
        seconds = time.monotonic() - began
        started[role] = seconds, psutil.Process(replica.pid).memory_info().rss
        await replica.stop()

    with mo.status.spinner("Starting one process of each role"):
        await asyncio.gather(
            *(start_and_measure(role, roles[role]) for role in config.roles)
        )
    return run, started


@app.cell(hide_code=True)
def _(run, started):
    services = services_of(run)

    def _kept(role):
        if role not in services:
            return "one process, from checkpoints" if role == "trainer" else "one process"
        options = services[role].options
        spares = f" and {options.spares} spare" if options.spares else ""
        return f"service of {options.replicas}{spares}"

    lesson.table(
        "Each role: how this package keeps it, and what a process of it costs here",
        [
            {
                "role": role,
                "kept as": _kept(role),
                "declared idempotent": ", ".join(
                    f"`{name}`"
                    for name in (
                        services[role].options.idempotent if role in services else ()
                    )
                )
                or "–",
                "up after, s": f"{seconds:.1f}",
                "memory, MB": f"{size / 1e6:,.0f}",
            }
            for role, (seconds, size) in sorted(started.items(), key=lambda item: item[1])
        ],
    )
    return (services,)


@app.cell(hide_code=True)
def _(services, started):
    _slowest = max(started, key=lambda role: started[role][0])
    lesson.reveal(f"""
    Slowest was `{_slowest}`, up after {started[_slowest][0]:.1f} s: {started[_slowest][0] / started["tools"][0]:.1f} times as long as a tool
    ({started["tools"][0]:.1f} s). Loading libraries and a model takes the time, and a larger model takes longer. That is why
    the generator service keeps {services["generator"].options.spares} spare: a loaded replica outside the rotation, which takes a dead one's place at once.
    The replay buffer does not read anything again. Its checkpoint holds the numbers of the groups, and what was lost is generated anew.
    """)
    return


@app.cell(hide_code=True)
def _():
    _names = ("role", "remembers", "wants", "safe to repeat", "grows by", "when it dies")
    _rows = [
        (
            "dataset",
            "which tier began at which group",
            "a CPU",
            "yes: a number gives a task",
            "one is enough",
            "the run ends",
        ),
        (
            "generator",
            "a copy of the weights; a cache while it decodes",
            "an accelerator",
            "same draws, maybe other weights",
            "replicas",
            "its groups are generated again; the spare takes over and pulls weights",
        ),
        (
            "tools",
            "nothing",
            "little, it waits; often a sandbox",
            "these are",
            "replicas",
            "calls go elsewhere",
        ),
        (
            "reward",
            "nothing",
            "a CPU; for tests, a sandbox",
            "yes",
            "replicas",
            "calls go elsewhere",
        ),
        (
            "reference",
            "weights that never change",
            "an accelerator",
            "yes",
            "replicas",
            "calls wait for its successor",
        ),
        (
            "replay",
            "groups under way and ready, and their age",
            "memory",
            "`add` is, `take` is not",
            "one is enough",
            "the run ends",
        ),
        ("advantage", "nothing", "a CPU", "yes", "one is enough", "the run ends"),
        (
            "trainer",
            "weights and optimizer",
            "accelerators, in step",
            "no: it would be another step",
            "ranks of one model",
            "the next one loads the checkpoint and takes the steps since then again, with the same batches",
        ),
    ]
    mo.vstack(
        [
            lesson.table(
                "What this package does",
                [dict(zip(_names, row, strict=True)) for row in _rows],
            ),
            mo.md("""
            Read the column *remembers* from top to bottom. Where it says "nothing", a service is the natural form, and a dead replica is soon
            forgotten. Where it names something that exists only once, replicas do not help: such a role needs a checkpoint, or it takes
            the run with it. This package lets three small roles end the run, among them `advantage`, which could well be a service; `zorplex-rl train --resume`
            continues from the last checkpoint, which holds what they remembered.
            """),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 4: how many? (4 minutes)

    Little's law says how many requests are under way: rate times duration. Complete `replicas_needed`: how many replicas a tool service needs
    for `rate` calls a second of `seconds` each, if a replica may have `at_once` of them in flight and should be `busy` only to that
    share of it. The rest is room for bursts.
    """)
    return


@app.function
def replicas_needed(rate, seconds, at_once, busy):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: replicas_needed, check_replicas_needed, replicas_needed_solution
    )
    return


@app.cell(hide_code=True)
def _():
    _rate = 8 * 10 * 2
    mo.vstack(
        [
            lesson.md(f"""
            For example: 8 generators write 10 episodes a second each, with 2 calls in an episode. That makes {_rate} calls a second. The table is
            computed with the solution of the exercise, at 70 % busy.
            """),
            lesson.table(
                "Tool replicas, by what a replica can do at once",
                [
                    {
                        "a call takes": f"{seconds:g} s",
                        "under way": f"{_rate * seconds:,.0f}",
                    }
                    | {
                        f"{at_once} at once": f"{replicas_needed_solution(_rate, seconds, at_once, 0.7):,}"
                        for at_once in (1, 16, 64)
                    }
                    for seconds in (0.1, 1.0, 10.0)
                ],
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    One at a time is a sandbox that runs tests on a core; 64 at once is a client that waits for a web page. The same law sizes generators
    (rate in episodes) and answers the opposite question too: with the replicas that you have, how fast can the loop go? Notebook 09
    puts all roles of a run into one such calculation.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        "A service is one name for interchangeable processes; it notices, removes and replaces those that fail, so that callers need not.",
        "Requests under way are the load: least loaded looks at it, and a bound on it protects everybody. Who waits too long gets an error.",
        "A dead process is noticed quickly, a hanging one only when its time is up. An exception of an endpoint is an answer, no failure.",
        "What was sent to a replica that failed may have been done. Idempotent requests are sent again, others fail with an error that says so.",
        "What a role remembers decides its form: replicas for those that remember nothing, a checkpoint for those of which there is one.",
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.function(hide_code=True)
def check_next_replica(next_replica):
    exercise.expect(next_replica, ["a", "b", "c"], ["a", "b"], result="c")
    exercise.expect(next_replica, ["a", "b", "c"], ["a", "b", "c"], result="a")
    exercise.expect(next_replica, ["a", "c"], ["a", "b"], result="c")
    exercise.expect(next_replica, ["a", "c"], ["a", "b", "c", "b", "c", "a"], result="c")
    exercise.expect(next_replica, ["b", "c", "d"], ["a", "b", "c"], result="d")
    exercise.expect(next_replica, ["a", "b"], [], result="a")
    history, present = [], ["a", "b", "c"]
    for turn in range(24):
        if turn == 8:
            present = ["a", "c"]
        if turn == 14:
            present = ["c", "d", "a"]
        history.append(next_replica(present, history))
    last = Counter(history[-9:])
    assert set(last.values()) == {3}, (
        f"with {present} there for the last ten turns, they were chosen {dict(last)} times in nine"
    )


@app.function(hide_code=True)
def next_replica_solution(present, history):
    def last_turn(replica):
        turns = [turn for turn, chosen in enumerate(history) if chosen == replica]
        return turns[-1] if turns else -1

    return min(present, key=last_turn)


@app.function(hide_code=True)
def check_retry_delay(retry_delay):
    exercise.expect(retry_delay, 1, 0.25, 8.0, result=0.0)
    exercise.expect(retry_delay, 2, 0.25, 8.0, result=0.25)
    exercise.expect(retry_delay, 3, 0.25, 8.0, result=0.5)
    exercise.expect(retry_delay, 6, 0.25, 8.0, result=4.0)
    exercise.expect(retry_delay, 8, 0.25, 8.0, result=8.0)
    exercise.expect(retry_delay, 5000, 0.25, 8.0, result=8.0)


@app.function(hide_code=True)
def retry_delay_solution(failures, base, cap):
    if failures < 2:
        return 0.0
    # Beyond 2 ** 1023 a float ends, and so would the service.
    return min(base * 2.0 ** min(failures - 2, 60), cap)


@app.function(hide_code=True)
def check_what_to_do(what_to_do):
    # An exception of the endpoint is an answer.
    for idempotent in (True, False):
        exercise.expect(what_to_do, True, True, idempotent, result="tell the caller")
        exercise.expect(what_to_do, False, False, idempotent, result="send elsewhere")
    exercise.expect(what_to_do, True, False, True, result="send elsewhere")
    exercise.expect(what_to_do, True, False, False, result="tell the caller")


@app.function(hide_code=True)
def what_to_do_solution(sent, raised, idempotent):
    if raised:
        return "tell the caller"
    return "send elsewhere" if idempotent or not sent else "tell the caller"


@app.function(hide_code=True)
def check_replicas_needed(replicas_needed):
    exercise.expect(replicas_needed, 40, 0.5, 4, 1.0, result=5)
    exercise.expect(replicas_needed, 40, 0.5, 4, 0.8, result=7)
    exercise.expect(replicas_needed, 1, 0.125, 16, 0.75, result=1)
    exercise.expect(replicas_needed, 200, 2.5, 64, 0.7, result=12)


@app.function(hide_code=True)
def replicas_needed_solution(rate, seconds, at_once, busy):
    under_way = rate * seconds
    return math.ceil(under_way / (at_once * busy))


if __name__ == "__main__":
    app.run()
