# /// script
# [tool.marimo.display]
# theme = "system"
# ///

import marimo

__generated_with = "0.25.2"
app = marimo.App(
    width="medium",
    app_title="Fault tolerance: when a process dies",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)

with app.setup(hide_code=True):
    import asyncio
    import json
    import logging
    import math
    import os
    import random
    import signal
    import sys
    import tempfile
    import time
    from contextlib import asynccontextmanager, suppress
    from pathlib import Path
    from statistics import fmean, median
    from types import SimpleNamespace

    import marimo as mo
    import torch
    from torch import nn
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    # On this page Monarch alone judges silence. It reads its limits when it is imported.
    os.environ["HYPERACTOR_MESH_GET_ACTOR_STATE_MAX_IDLE"] = "3s"
    os.environ["HYPERACTOR_MESH_GET_PROC_STATE_MAX_IDLE"] = "3s"

    from zorplex_rl.course.figures import fault_charts
    from zorplex_rl.course.lesson import exercise, lesson
    from zorplex_rl.services.options import ServiceOptions
    from zorplex_rl.services.replica import replicas_of
    from zorplex_rl.services.replica_set import ReplicaSet
    from zorplex_rl.services.runtime import (
        Actor,
        ReplicaDied,
        endpoint,
        start_runtime,
        this_host,
    )

    # Every death below is intended; the page says more about it than a warning would.
    logging.getLogger("zorplex_rl").setLevel(logging.ERROR)


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=44,
        hardware="two CPU cores, no network",
        goals=[
            "say what a caller sees, and when, after an exception, `sys.exit`, `kill -9` and `SIGSTOP`",
            "write a supervisor that replaces a dead worker and spares a busy one",
            "say how much work a checkpoint saves, and choose how often to write one",
            "train on with one worker fewer, and say what the model forgets meanwhile",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Everything dies sometimes

    The actors of 01 and 02 always answered. In a training run of days on hundreds of machines, every few hours some
    process dies, or just stops answering. The run should lose minutes then, not days.

    This notebook breaks real processes, and asks three questions. What does a caller see? Who puts a new process in
    the place of the dead one? And what did the dead one know that nobody else knows? The drawing shows where four kinds of **fault** strike.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        fault_charts.four_faults(),
        "A fault of the endpoint, of the actor, of the process, and a process that is only silent.",
    )
    return


@app.cell
def settings():
    config = SimpleNamespace(
        seed=0,
        kills=5,  # processes that die in the same second
        hangs=3,  # processes that fall silent then
        patience=30.0,  # seconds that a caller waits for any answer
        probe_every=0.5,  # seconds between two probes of a supervisor
        probe_limit=1.5,  # seconds that a probe may take
        busy_seconds=4.0,  # a long call of a healthy worker
        checkpoints=(1, 10, 50),  # steps between two checkpoints
        deaths=3,  # of each of these workers
        learners=3,
        rounds=120,  # of training
        killed_in=40,  # the round in which a learner is killed
        local_steps=20,  # steps of a learner in a round
        rate=0.003,  # its learning rate
        learner_probe_limit=10.0,  # seconds; a busy machine delays a probe
        deadline=5.0,  # seconds that a round waits for its learners
    )
    return (config,)


@app.cell(hide_code=True)
def _():
    lesson.ran_on()
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## One worker, four faults

    Here is a worker with a little *state*: `total`, a number that only its process knows. Three of its endpoints exist to fail or to take
    long.
    """)
    return


@app.class_definition
class Worker(Actor):
    """Add numbers up, and fail on request."""

    def __init__(self):
        self.total = 0

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def add(self, number):
        self.total += number
        return self.total

    @endpoint
    def add_and_raise(self, number):
        self.total += number
        raise ValueError(f"{number} was not welcome")

    @endpoint
    def leave(self):
        sys.exit(3)

    @endpoint
    def work(self, seconds, ledger=os.devnull):
        time.sleep(seconds)
        with open(ledger, "a") as file:
            file.write("done\n")
        return "done"

    @endpoint
    def ping(self):
        return "here"


@app.cell(hide_code=True)
def _():
    mo.md("""
    `start` gives a worker a process of its own, so that it can die alone. With it comes a second actor in the same process, `Probe`, which we
    need later. `end` sends `kill -9`, since a process that hangs reacts to nothing else. `outcome` waits for an answer or for an
    error, and says how long that took.
    """)
    return


@app.class_definition
class Probe(Actor):
    """Answer for a process, whatever its worker is doing."""

    @endpoint
    def ping(self):
        return "here"


@app.function
async def start(actor_class, *args):
    start_runtime()
    procs = this_host().spawn_procs(per_host={"procs": 1})
    actor, probe = procs.spawn("worker", actor_class, *args), procs.spawn("probe", Probe)
    pid = await actor.pid.call_one()
    return SimpleNamespace(procs=procs, actor=actor, probe=probe, pid=pid)


@app.function
async def end(worker):
    with suppress(ProcessLookupError):
        os.kill(worker.pid, signal.SIGKILL)
    await worker.procs.stop()


@app.function
async def outcome(call, limit=30.0):
    """The answer, or the name of the error, and the seconds until it came."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(limit):
            answer = await call.as_asyncio()
    except Exception as error:
        answer = type(error).__name__
    return answer, time.monotonic() - began


@app.cell(hide_code=True)
def _():
    ask_faults = lesson.predict(
        "Four workers, one fault each: an exception in an endpoint, `sys.exit` in an endpoint, `kill -9`, `SIGSTOP`. Then each gets one more call. "
        "Which of them answer it?",
        "only the one that raised",
        "the ones that raised and that called `sys.exit`",
        "all but the one that was killed",
    )
    ask_faults
    return (ask_faults,)


@app.function(hide_code=True)
async def suffer(fault):
    """Start a worker, let it meet ``fault``, and look at what is left of it."""
    worker = await start(Worker)
    try:
        await worker.actor.add.call_one(5)
        if fault == "exception":
            call = worker.actor.add_and_raise.call_one(1)
        elif fault == "sys.exit":
            call = worker.actor.leave.call_one()
        else:
            call = worker.actor.work.call_one(60)
            await asyncio.sleep(0.3)  # now it is at work
            os.kill(worker.pid, getattr(signal, fault))
        saw, seconds = await outcome(call)
        next_answer, _ = await outcome(worker.actor.add.call_one(1))
        exists = Path(f"/proc/{worker.pid}").exists()
        return SimpleNamespace(
            fault=fault, saw=saw, seconds=seconds, next=next_answer, exists=exists
        )
    finally:
        await end(worker)


@app.cell(hide_code=True)
def _():
    start_faults = lesson.start_button("Four workers, four faults", seconds=7)
    start_faults
    return (start_faults,)


@app.cell(hide_code=True)
async def _(start_faults):
    lesson.wait_for(start_faults)
    with mo.status.spinner("Breaking four workers", remove_on_exit=True):
        suffered = await asyncio.gather(
            *map(suffer, ("exception", "sys.exit", "SIGKILL", "SIGSTOP"))
        )
    return (suffered,)


@app.cell(hide_code=True)
def _(ask_faults, suffered):
    _answered = [one.fault for one in suffered if isinstance(one.next, int)]
    _by_name = {one.fault: one for one in suffered}
    lesson.reveal(
        ask_faults,
        right={
            ("exception",): 0,
            ("exception", "sys.exit"): 1,
            ("exception", "sys.exit", "SIGSTOP"): 2,
        }.get(tuple(_answered), []),
        why=f"""
        An exception is an *answer*: it travels back as an `ActorError` with the remote traceback, and the actor goes on. `sys.exit` ends the
        actor, and the process {"stays behind, empty" if _by_name["sys.exit"].exists else "ends with it"}. A `SupervisionError` means that nobody is left to
        answer. `SIGSTOP` shows the limit of all this: the process exists, but silence for long enough counts as death.
        """,
        shows=[
            lesson.table(
                "What the caller saw; each worker had `total` 5 before",
                [
                    {
                        "fault": one.fault,
                        "the caller sees": f"`{one.saw}`",
                        "after, s": f"{one.seconds:.3f}",
                        "the next `add(1)`": f"`{one.next}`",
                        "process exists": "yes" if one.exists else "no",
                    }
                    for one in suffered
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    ask_total = lesson.predict(
        "The first worker had `total` 5. `add_and_raise(1)` adds 1 and then raises. What did the next `add(1)` return?",
        "6: a call that raises changes nothing",
        "7: what it had changed stays changed",
    )
    ask_total
    return (ask_total,)


@app.cell(hide_code=True)
def _(ask_total, suffered):
    _next = suffered[0].next
    lesson.reveal(
        ask_total,
        right={6: 0, 7: 1}.get(_next, []),
        why=f"""
        It returned {_next}. An endpoint is no transaction: an exception stops it where it stands and undoes nothing. A caller who simply tries again
        adds the number twice. Check first and change last, or make the call **idempotent**: doing it twice has the effect of doing it once.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## How long until somebody knows?

    A caller without an answer learns nothing until somebody tells it that none will come. With Monarch that is **supervision**: every process
    is asked for its state at regular intervals. `kill -9` leaves a fact that the operating system can report. Silence leaves
    nothing, so it needs a limit. Monarch asks every 10 s, and allows 60 s
    of silence. On this page it is 1 s and 3 s, by `SUPERVISION_POLL_FREQUENCY` and `MAX_IDLE`. A training run lets its own probes judge silence.
    """)
    return


@app.cell(hide_code=True)
def _(config):
    ask_spread = lesson.predict(
        f"{config.kills} workers get the same `kill -9`, each at its own moment within one second. Each has a caller. How far apart are the "
        "times that these callers wait for their error?",
        "within 0.1 s of each other",
        "spread over something like a second",
        "spread over three seconds or more",
    )
    ask_spread
    return (ask_spread,)


@app.function(hide_code=True)
async def time_to_error(worker, fault, after):
    """Seconds from ``fault``, which strikes ``after`` some seconds, to the caller's error."""
    call = worker.actor.work.call_one(60)
    await asyncio.sleep(after)
    os.kill(worker.pid, fault)
    return (await outcome(call))[1]


@app.cell(hide_code=True)
def _():
    start_spread = lesson.start_button("Kill some, hang some", seconds=9)
    start_spread
    return (start_spread,)


@app.cell(hide_code=True)
async def _(config, start_spread):
    lesson.wait_for(start_spread)
    _faults = [signal.SIGKILL] * config.kills + [signal.SIGSTOP] * config.hangs
    with mo.status.spinner(f"Breaking {len(_faults)} workers", remove_on_exit=True):
        _workers = await asyncio.gather(*(start(Worker) for _ in _faults))
        try:
            _times = await asyncio.gather(
                *(
                    time_to_error(worker, fault, 0.3 + number % config.kills / config.kills)
                    for number, (worker, fault) in enumerate(
                        zip(_workers, _faults, strict=True)
                    )
                )
            )
        finally:
            await asyncio.gather(*map(end, _workers))
    kill_times, hang_times = _times[: config.kills], _times[config.kills :]
    return hang_times, kill_times


@app.cell(hide_code=True)
def _(ask_spread, hang_times, kill_times, suffered):
    _spread = max(kill_times) - min(kill_times)
    _quick = {one.fault: [one.seconds] for one in suffered[:2]}
    lesson.reveal(
        ask_spread,
        right=0 if _spread <= 0.1 else 2 if _spread >= 3 else 1,
        why=f"""
        They are {_spread:.2f} s apart, from {min(kill_times):.2f} to {max(kill_times):.2f} s. Death is noticed when the next poll comes. A process
        that dies just before a poll is found at once; one that dies just after it is found a whole period later. Silence took {min(hang_times):.1f} to
        {max(hang_times):.1f} s. To notice sooner, ask more often, or allow less silence and kill some that are only slow.
        """,
        shows=[
            lesson.figure(
                fault_charts.detection_chart(
                    _quick | {"kill -9": kill_times, "SIGSTOP": hang_times}
                ),
                "One dot for each worker, measured above. The first two rows are those of the table.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The dead may wake up

    A stopped process is not gone. A laptop lid opens again, an overloaded machine catches up. In the next cell a
    worker is stopped in the middle of a call. That call ends with a line in a ledger, which is a file. The caller waits until it is told that the
    worker is dead. Then `SIGCONT` lets the process run on.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_wake = lesson.predict(
        "The process continues after its caller has been told that it is dead. What happens?",
        "it is taken back: its callers get answers again",
        "it does nothing more: Monarch has ended it",
        "it finishes the call and writes its line, and its callers still get errors",
    )
    ask_wake
    return (ask_wake,)


@app.cell
async def _(start_spread):
    lesson.wait_for(start_spread)
    with tempfile.TemporaryDirectory() as _folder:
        _ledger = Path(_folder) / "ledger"
        _worker = await start(Worker)
        try:
            _call = _worker.actor.work.call_one(1.0, str(_ledger))
            await asyncio.sleep(0.3)
            os.kill(_worker.pid, signal.SIGSTOP)
            told, _ = await outcome(_call)
            written_before = _ledger.exists()
            os.kill(_worker.pid, signal.SIGCONT)
            await asyncio.sleep(1.2)
            written_after = _ledger.exists()
            woken, _ = await outcome(_worker.actor.add.call_one(1))
        finally:
            await end(_worker)
    return told, woken, written_after, written_before


@app.cell(hide_code=True)
def _(ask_wake, told, woken, written_after, written_before):
    _late = written_after and not written_before
    lesson.reveal(
        ask_wake,
        right=0 if isinstance(woken, int) else 2 if _late else 1,
        why=f"""
        The caller was told `{told}`, when {"the line had been written" if written_before else "no line had been written"}. After `SIGCONT` the line
        {"was there" if written_after else "was not there"}, and the next call got `{woken}`. "Dead" is a decision of the others, and the process does not know of it. If somebody
        has been put in its place, there are two now: one works, and the other one thinks that it does. So a supervisor first makes sure: `end` sends
        `kill -9` *before* a successor starts. This is called **fencing**.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A supervisor on one page

    A **supervisor** keeps a worker running that somebody else uses. It probes the worker, and when the probe fails it ends the worker and
    starts the next one. Read `watch` first.
    """)
    return


@app.class_definition
class Supervisor:
    """Keep one worker running: probe it, and replace it when it is dead or silent."""

    def __init__(self, begin, every, limit, may_restart=lambda failed_at, now: True):
        self.begin, self.every, self.limit = begin, every, limit
        self.may_restart = may_restart
        self.worker = None  # while there is none to call
        self.failed_at, self.starts = [], []  # moments, and seconds that starts took

    async def __aenter__(self):
        self.worker = await self.begin()
        self.watching = asyncio.create_task(self.watch())
        return self

    async def __aexit__(self, *_):
        self.watching.cancel()
        await asyncio.gather(self.watching, return_exceptions=True)
        if self.worker:
            await end(self.worker)

    async def watch(self):
        while True:
            await asyncio.sleep(self.every)
            probe = self.worker.probe.ping.call_one().as_asyncio()
            try:
                async with asyncio.timeout(self.limit):
                    await probe
            except (ReplicaDied, TimeoutError):
                noticed = time.monotonic()
                self.failed_at.append(noticed)
                dead, self.worker = self.worker, None
                await end(dead)
                if not self.may_restart(self.failed_at, noticed):
                    return
                self.worker = await self.begin()
                self.starts.append(time.monotonic() - noticed)


@app.cell(hide_code=True)
def _():
    mo.md("""
    `ReplicaDied` is this package's name for Monarch's `SupervisionError`. `ReplicaSet`, in `zorplex_rl/services/replica_set.py`, is the package's supervisor. It does
    the same, with the same two numbers, and more: spares, back-off, scaling. Both now get the same test: a caller adds 1 again
    and again, and after half a second its worker is killed.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_gap = lesson.predict(
        "From `kill -9` to the first answer of the successor, under your supervisor: where does most of the time go?",
        "into noticing that the worker is dead",
        "into starting the next process",
    )
    ask_gap
    return (ask_gap,)


@app.function(hide_code=True)
async def call_through_a_kill(current, calm=0.5, longest=60.0):
    """Call the ``current()`` worker all the time, and kill it; when, and who answered."""
    answers, first, struck = [], None, math.inf
    began = time.monotonic()
    while time.monotonic() - began < longest:
        worker = current()
        saw, _ = await outcome(worker.actor.add.call_one(1)) if worker else (None, 0)
        first = first or worker
        who = "first process" if worker is first else "its successor"
        if not isinstance(saw, int):
            who = "call failed"
        answers.append((time.monotonic(), who, saw))
        if struck == math.inf and time.monotonic() > began + calm:
            struck = time.monotonic()
            os.kill(worker.pid, signal.SIGKILL)
        successor = [when for when, who, _ in answers if who == "its successor"]
        if successor and time.monotonic() > successor[0] + calm:
            break
        await asyncio.sleep(0.03)
    return SimpleNamespace(
        calls=[(when - struck, who) for when, who, _ in answers],
        values=[(who, value) for _, who, value in answers],
        back=successor[0] - struck if successor else math.nan,
        struck=struck,
    )


@app.cell(hide_code=True)
def _():
    start_rescue = lesson.start_button("Kill a worker under each supervisor", seconds=10)
    start_rescue
    return (start_rescue,)


@app.cell
async def _(config, start_rescue):
    lesson.wait_for(start_rescue)
    with mo.status.spinner("Your supervisor", remove_on_exit=True):
        async with Supervisor(
            lambda: start(Worker), config.probe_every, config.probe_limit
        ) as _mine:
            ours = await call_through_a_kill(lambda: _mine.worker)
    ours.noticed = _mine.failed_at[0] - ours.struck
    return (ours,)


@app.cell(hide_code=True)
async def _(config, ours, start_rescue):
    ours  # one after the other: they would share the processor
    lesson.wait_for(start_rescue)
    _package = ReplicaSet(
        "worker",
        replicas_of(Worker),
        ServiceOptions(probe_every=config.probe_every, probe_timeout=config.probe_limit),
    )
    with mo.status.spinner("The package's", remove_on_exit=True):
        try:
            await _package.open()
            theirs = await call_through_a_kill(
                lambda: next(
                    (r for r in _package.replicas.values() if r.state == "ready"), None
                )
            )
        finally:
            await _package.close()
    return (theirs,)


@app.cell(hide_code=True)
def _(ask_gap, ours, theirs):
    _starting = ours.back - ours.noticed
    _both = {"your supervisor": ours, "ReplicaSet": theirs}
    lesson.reveal(
        ask_gap,
        right=0 if ours.noticed > _starting else 1,
        why=f"""
        Noticing took {ours.noticed:.2f} s, and everything from there to the first answer {_starting:.2f} s. Your supervisor was back after {ours.back:.2f} s and
        the package's after {theirs.back:.2f} s: {"about the same" if max(ours.back, theirs.back) < 1.5 * min(ours.back, theirs.back) else "this depends on the moment of the kill between two polls"}. A worker that first
        loads a model for a minute spends most of the time on its start. Then a *spare*, started in advance, is worth its memory.
        """,
        shows=[
            lesson.figure(
                fault_charts.answers_chart(
                    {name: run.calls for name, run in _both.items()}
                ),
                "One mark for each call, at the time of its answer.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Slow is not dead

    The supervisor asks `Probe`, an actor of its own beside the worker. Why not the worker itself? Actors answer one call at a time. So let two
    supervisors guard the same healthy worker, which is busy with one long call. The first pings the worker, the second pings `Probe`.
    """)
    return


@app.cell(hide_code=True)
def _(config):
    ask_busy = lesson.predict(
        f"A call takes {config.busy_seconds:g} s. The supervisor pings the worker itself, and a ping may take {config.probe_limit:g} s. What becomes of the call?",
        "it is answered: the ping waits until the call is done",
        "it is answered: the ping overtakes it",
        "it is lost: the supervisor kills the healthy worker",
    )
    ask_busy
    return (ask_busy,)


@app.cell
async def _(config, start_rescue, theirs):
    theirs  # not beside the comparison above
    lesson.wait_for(start_rescue)

    async def start_probed_by_itself():
        worker = await start(Worker)
        worker.probe = worker.actor
        return worker

    async def busy(begin):
        async with Supervisor(begin, config.probe_every, config.probe_limit) as guard:
            call = guard.worker.actor.work.call_one(config.busy_seconds)
            saw, seconds = await outcome(call)
        return SimpleNamespace(saw=saw, seconds=seconds, killed=len(guard.failed_at))

    with mo.status.spinner("Two busy workers", remove_on_exit=True):
        pinged, probed = await asyncio.gather(
            busy(start_probed_by_itself), busy(lambda: start(Worker))
        )
    return pinged, probed


@app.cell(hide_code=True)
def _(ask_busy, config, pinged, probed):
    lesson.reveal(
        ask_busy,
        right=2 if pinged.killed else 0,
        why=f"""
        The ping stood in the queue behind the call, {config.probe_limit:g} s passed, and the supervisor {"killed a worker that had nothing wrong with it" if pinged.killed else "waited"}. With
        `Probe` it {"stayed alive" if not probed.killed else "was killed all the same"}: an actor has its own thread, and answers while its neighbour works. The package does so too
        (`HealthProbe`). It says less, though: the *process* answers. A worker in an endless loop passes that probe, so a call needs a time limit of its own.
        """,
        shows=[
            lesson.table(
                f"A healthy worker in a call of {config.busy_seconds:g} s",
                [
                    {
                        "who is pinged": who,
                        "the call": f"`{run.saw}`",
                        "after, s": f"{run.seconds:.1f}",
                        "times killed": run.killed,
                    }
                    for who, run in (("the worker", pinged), ("`Probe`", probed))
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A fault that comes back

    Some faults are in the input. A request that crashes native code crashes it again in the next process, and a caller that tries
    again keeps killing workers. The supervisor needs a reason to give up.

    ### Exercise 1: enough is enough

    Complete `may_restart`. `failed_at` lists the moments of all failures so far in seconds, oldest first; the last one is this one. Return whether the worker
    may be started again: yes, unless `most` or more of these failures lie in the last `window` seconds before `now`. A failure exactly `window` seconds old still
    counts.
    """)
    return


@app.function
def may_restart(failed_at, now, most=3, window=10.0):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: may_restart,
        check_may_restart,
        may_restart_solution,
        level="core",
        minutes=4,
        hints=(
            "Which of the failures count now? Those with `now - moment <= window`.",
            "Count them with a generator expression in `sum`, and compare with `most`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Your rule is *plugged in* below: the supervisor asks it before every start. `parse` stands for native code that a strange text crashes.
    """)
    return


@app.class_definition
class Fragile(Worker):
    @endpoint
    def parse(self, text):
        if "\0" in text:
            os._exit(11)
        return len(text)


@app.cell(hide_code=True)
def _():
    ask_poison = lesson.predict(
        "With at most 2 restarts in 10 seconds: how long does the supervisor go on, from the first request until it gives up?",
        "less than 2 seconds",
        "2 to 8 seconds",
        "longer",
    )
    ask_poison
    return (ask_poison,)


@app.cell(hide_code=True)
def _():
    start_poison = lesson.start_button("Try the same request again and again", seconds=8)
    start_poison
    return (start_poison,)


@app.cell(hide_code=True)
async def _(config, start_poison):
    lesson.wait_for(start_poison)
    mine = exercise.complaint(check_may_restart, may_restart) is None
    _rule = may_restart if mine else may_restart_solution

    tries = 0
    async with Supervisor(
        lambda: start(Fragile), config.probe_every, config.probe_limit, _rule
    ) as _guard:
        _began = time.monotonic()
        while not _guard.watching.done() and time.monotonic() - _began < config.patience:
            if _guard.worker:
                tries += 1
                await outcome(_guard.worker.actor.parse.call_one("strange\0text"))
            await asyncio.sleep(0.05)
    poisoned = SimpleNamespace(
        gave_up=_guard.watching.done() and not _guard.watching.cancelled(),
        failures=len(_guard.failed_at),
        starts=len(_guard.starts),
        seconds=time.monotonic() - _began,
    )
    return mine, poisoned, tries


@app.cell(hide_code=True)
def _(ask_poison, mine, poisoned, tries):
    lesson.reveal(
        ask_poison,
        right=0 if poisoned.seconds < 2 else 1 if poisoned.seconds <= 8 else 2,
        why=f"""
        With {"*your* rule" if mine else "the rule of the solution, since yours does not pass its check yet,"} the supervisor {"gave up" if poisoned.gave_up else "had not given up"} after
        {poisoned.failures} failures, {poisoned.starts} restarts and {poisoned.seconds:.1f} s. The caller had tried {tries} times. Without the rule it would go on for ever. `ReplicaSet` goes
        on too, and waits longer after each early failure (its *back-off*). Both limit what a bad input may cost.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What died with it

    Look again at the successor in the kill above. It answered, so the service was back. What did it answer?
    """)
    return


@app.cell(hide_code=True)
def _(ours):
    _last = [value for who, value in ours.values if who == "first process"][-1]
    ask_state = lesson.predict(
        f"The last answer of the killed worker was {_last}: it had added 1 that many times. What did the first `add(1)` to its successor return?",
        f"{_last + 1}",
        "1",
        f"a number between 1 and {_last}",
    )
    ask_state
    return (ask_state,)


@app.cell(hide_code=True)
def _(ask_state, ours, theirs):
    def _around(run):
        by = {
            who: [value for found, value in run.values if found == who]
            for who in ("first process", "its successor")
        }
        return by["first process"][-1], by["its successor"][0]

    _last, _first = _around(ours)
    lesson.reveal(
        ask_state,
        right=0 if _first == _last + 1 else 1 if _first == 1 else 2,
        why=f"""
        {_last} before, {_first} after; under `ReplicaSet`, {_around(theirs)[0]} before and {_around(theirs)[1]} after. A supervisor brings back the *process*. The state was in
        its memory, and is gone. For a tool that looks things up this does not matter. For a trainer it is the whole run. So keep state where it
        outlives the process: in another process, or in a file.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A checkpoint bounds the loss

    A **checkpoint** is a copy of the state outside the process. This worker takes steps, writes its state every `every` of them, and begins
    where the file says. It first writes another file and then renames it: a rename happens whole or not at all, so a death in the middle of
    writing leaves the old checkpoint.
    """)
    return


@app.class_definition
class Saving(Actor):
    """Take steps, and remember every so many of them in a file."""

    def __init__(self, file, every):
        self.file, self.every = Path(file), every
        self.steps = json.loads(self.file.read_text()) if self.file.exists() else 0

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def step(self):
        self.steps += 1
        if self.steps % self.every == 0:
            draft = self.file.with_suffix(".draft")
            draft.write_text(json.dumps(self.steps))
            draft.replace(self.file)
        return self.steps


@app.cell(hide_code=True)
def _():
    ask_flush = lesson.predict(
        "The file is written without `fsync`, so nobody forces it to the disk. `kill -9` strikes after a random number of steps, in the middle of the next one. Is every checkpoint whose step "
        "was answered still there?",
        "no: what was not forced to the disk is lost with the process",
        "yes: the operating system has it, and that did not die",
        "some are there only in part",
    )
    ask_flush
    return (ask_flush,)


@app.function(hide_code=True)
async def die_and_resume(every, deaths, file, draw):
    """Let a ``Saving`` worker step and die, ``deaths`` times; the steps known and resumed."""
    rows = []
    for _ in range(deaths):
        worker = await start(Saving, str(file), every)
        for _ in range(draw.randint(20, 120)):
            known = await worker.actor.step.call_one()
        last_call = worker.actor.step.call_one()  # death strikes in the middle of it
        os.kill(worker.pid, signal.SIGKILL)
        await asyncio.gather(last_call.as_asyncio(), end(worker), return_exceptions=True)
        saved = json.loads(file.read_text()) if file.exists() else 0
        rows.append(SimpleNamespace(every=every, known=known, saved=saved))
    return rows


@app.cell(hide_code=True)
def _():
    start_deaths = lesson.start_button("Step, die, resume", seconds=7)
    start_deaths
    return (start_deaths,)


@app.cell(hide_code=True)
async def _(config, start_deaths):
    lesson.wait_for(start_deaths)
    _draw = random.Random(config.seed)
    with (
        tempfile.TemporaryDirectory() as _folder,
        mo.status.spinner("Many short lives", remove_on_exit=True),
    ):
        resumed = {
            every: await die_and_resume(
                every, config.deaths, Path(_folder) / f"every_{every}", _draw
            )
            for every in config.checkpoints
        }
    return (resumed,)


@app.cell(hide_code=True)
def _(ask_flush, resumed):
    _rows = [row for rows in resumed.values() for row in rows]
    _missing = [row for row in _rows if row.saved < row.known - row.known % row.every]
    _lost = {
        every: [max(0, row.known - row.saved) for row in rows]
        for every, rows in resumed.items()
    }
    lesson.reveal(
        ask_flush,
        right=0 if _missing else 1,
        why=f"""
        {len(_rows) - len(_missing)} of {len(_rows)} deaths left every answered checkpoint in place. A written file is with the operating system, and that survives
        its processes. `fsync` is for the day when the *machine* dies. What is lost are the steps since the last checkpoint, always fewer than
        `every`. Those steps must be done again: a checkpoint does not prevent the loss, it bounds it.
        """,
        shows=[
            lesson.table(
                "Steps that were lost, by the steps between two checkpoints",
                [
                    {
                        "a checkpoint every": every,
                        "lost at each death": ", ".join(map(str, lost)),
                        "mean": f"{fmean(lost):.1f}",
                        "can be at most": every - 1,
                    }
                    for every, lost in _lost.items()
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: how many steps again?

    Complete `steps_lost`: a worker that has done `step` steps dies. It wrote a checkpoint after every `every` steps. How many steps must its successor do
    again?
    """)
    return


@app.function
def steps_lost(step, every):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: steps_lost,
        check_steps_lost,
        steps_lost_solution,
        level="warm-up",
        minutes=2,
        hints=(
            "The last checkpoint was after the largest multiple of `every` that is not above `step`.",
            "What remains after dividing `step` by `every`?",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: how often?

    A checkpoint of a real model is no number in a file. Below, one of 64 MB is written, and timed. Let a checkpoint take `save` seconds, with
    `t` seconds between two of them. Let a failure come every `mtbf` seconds on average.
    Then the share of time that is lost is about `save / t + t / (2 * mtbf)`.

    The second term: a failure comes halfway between two checkpoints on average, so half of `t` is done again. Complete `best_interval`: return
    the `t` that makes the sum smallest.
    """)
    return


@app.function
def best_interval(save, mtbf):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: best_interval,
        check_best_interval,
        best_interval_solution,
        level="core",
        minutes=4,
        hints=(
            "At the minimum the derivative by `t` is zero: `-save / t**2 + 1 / (2 * mtbf) = 0`.",
            "Solve for `t`. A square root is left.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    with tempfile.TemporaryDirectory() as _folder:
        _began = time.perf_counter()
        torch.save(torch.zeros(16 << 20), Path(_folder) / "weights.pt")
        save_seconds = time.perf_counter() - _began
    mtbf = 3600.0  # one failure an hour
    _interval = (
        best_interval
        if exercise.complaint(check_best_interval, best_interval) is None
        else best_interval_solution
    )
    chosen = _interval(100 * save_seconds, mtbf)  # a model a hundred times larger
    return chosen, mtbf, save_seconds


@app.cell(hide_code=True)
def _(chosen, mtbf, save_seconds):
    _save = 100 * save_seconds
    _grid = [10 ** (0.5 + 3 * step / 120) for step in range(121)]
    mo.vstack(
        [
            lesson.figure(
                fault_charts.interval_chart(
                    [(t, _save / t, t / (2 * mtbf)) for t in _grid], chosen
                ),
                f"For 6.4 GB at the speed measured here, {_save:.1f} s a checkpoint, and a failure an hour.",
            ),
            lesson.md(f"""
            64 MB took {1e3 * save_seconds:.0f} ms. A checkpoint of 6.4 GB would take {_save:.1f} s at that speed, and the best interval is {chosen:.0f} s, where
            {_save / chosen + chosen / (2 * mtbf):.1%} of the time is lost. The curve is flat around its minimum: twice that interval costs
            {_save / (2 * chosen) + chosen / mtbf:.1%}. The rule is due to J. W. Young (1974).
            """),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Training that goes on

    In data-parallel training all workers average their gradients after every step. If one is missing, all others wait: one death
    stops the run. **Semi-synchronous training** needs its workers to meet more rarely. A round sends the weights to all learners; each takes some
    steps on its own, and sends back how its weights have changed. The changes are averaged. A learner that does not answer by the deadline is left
    out of this round.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        fault_charts.one_round(),
        "One round: two changes come in time, and the mean is over those two.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    The task is small enough to draw: learn a curve. Each learner owns one third of it, and sees no other data. A learner keeps nothing from
    round to round, so its successor can step in at any time. To import torch takes seconds, so the last learner has a **spare**: a second process,
    ready and waiting, that its supervisor takes instead of starting one.
    """)
    return


@app.function
def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(1, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1)
    )


@app.function
def curve(share, shares, points=64):
    """The part of the curve that is the ``share``-th of ``shares``."""
    x = torch.linspace(2 * share / shares - 1, 2 * (share + 1) / shares - 1, points)[
        :, None
    ]
    return x, torch.sin(6 * x) + 0.5 * x


@app.function
def local_steps(x, y, weights, steps, rate):
    """Train from ``weights`` on some data; how they changed, and by how many examples."""
    model = network()
    vector_to_parameters(weights.clone(), model.parameters())
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return parameters_to_vector(model.parameters()).detach() - weights, len(x)


@app.class_definition
class Learner(Actor):
    """Train on a share of the data, from the weights that each round sends."""

    def __init__(self, share, shares):
        torch.set_num_threads(1)
        self.x, self.y = curve(share, shares)
        # The first step imports a part of torch, which takes seconds; a round must not wait for it.
        weights = parameters_to_vector(network().parameters()).detach()
        local_steps(self.x, self.y, weights, steps=1, rate=0.001)

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def train(self, weights, steps, rate):
        return local_steps(self.x, self.y, weights, steps, rate)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 4: whoever is there

    Complete `merge`. `changes` is a list of pairs: a change of the weights (a tensor), and the number of examples behind it. Return `weights` plus the
    mean change, in which each change counts by its examples. If nobody answered, the weights stay as they are. Do not modify an argument.
    """)
    return


@app.function
def merge(weights, changes):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: merge,
        check_merge,
        merge_solution,
        level="stretch",
        minutes=6,
        hints=(
            "The number of learners must not appear: divide by the examples that came.",
            "`sum(examples * change …) / sum(examples …)`; take care of the empty list.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    `merge` is plugged in: if yours passes its check, it trains the model below. `semi_sync` is all that the training needs. Note what it does *not*
    contain: no handling of faults beyond leaving out what did not come. Replacing is the supervisors' business.
    """)
    return


@app.function
async def semi_sync(guards, config, merge, strike=lambda number: None):
    """Train for some rounds; the weights, and of each round learners, loss and seconds."""
    weights = parameters_to_vector(network().parameters()).detach()
    history = []
    for number in range(1, config.rounds + 1):
        strike(number)
        began = time.monotonic()
        answers = await asyncio.gather(
            *(
                outcome(
                    guard.worker.actor.train.call_one(
                        weights, config.local_steps, config.rate
                    ),
                    config.deadline,
                )
                for guard in guards
                if guard.worker
            )
        )
        changes = [answer for answer, _ in answers if isinstance(answer, tuple)]
        weights = merge(weights, changes)
        seconds = time.monotonic() - began
        history.append((len(changes), losses_of(weights, config.learners), seconds))
    return weights, history


@app.function(hide_code=True)
def losses_of(weights, shares):
    """The mean squared error on every share of the curve."""
    model = network()
    vector_to_parameters(weights.clone(), model.parameters())
    with torch.no_grad():
        parts = (curve(share, shares) for share in range(shares))
        return [nn.functional.mse_loss(model(x), y).item() for x, y in parts]


@app.cell(hide_code=True)
def _(config):
    ask_forget = lesson.predict(
        f"In round {config.killed_in} of {config.rounds} the process of learner {config.learners - 1} is killed, for good. The others train on. What becomes of the error on *its* third "
        "of the curve, by the end?",
        "it goes on falling: the others share the weights",
        "it stays about where it was in that round",
        "it rises: the others' steps unlearn that third",
    )
    ask_forget
    return (ask_forget,)


@app.function(hide_code=True)
@asynccontextmanager
async def guarded_learners(config):
    """A supervisor for every learner, and a spare for the last; they end with the block."""
    shares = [*range(config.learners), config.learners - 1]
    started = await asyncio.gather(
        *(start(Learner, share, config.learners) for share in shares),
        return_exceptions=True,
    )
    waiting = [
        (share, worker)
        for share, worker in zip(shares, started, strict=True)
        if not isinstance(worker, BaseException)
    ]

    def next_in_line(share):
        async def begin():
            for one in waiting:
                if one[0] == share:
                    waiting.remove(one)
                    return one[1]
            return await start(Learner, share, config.learners)

        return begin

    guards = []
    try:
        for share in range(config.learners):
            guard = Supervisor(
                next_in_line(share), config.probe_every, config.learner_probe_limit
            )
            guards.append(await guard.__aenter__())
        yield guards
    finally:
        await asyncio.gather(
            *(guard.__aexit__() for guard in guards),
            *(end(worker) for _, worker in waiting),
        )


@app.cell(hide_code=True)
def _():
    start_training = lesson.start_button("Train three times", seconds=18)
    start_training
    return (start_training,)


@app.cell(hide_code=True)
async def _(config, start_training):
    lesson.wait_for(start_training)
    merged_by_reader = exercise.complaint(check_merge, merge) is None
    _merge = merge if merged_by_reader else merge_solution
    torch.set_num_threads(1)
    trained = {}
    with mo.status.spinner("Starting three learners", remove_on_exit=True) as _spinner:
        async with guarded_learners(config) as _guards:

            def _kill_the_last(number):
                if number == config.killed_in and _guards[-1].worker:
                    os.kill(_guards[-1].worker.pid, signal.SIGKILL)

            _spinner.update("Undisturbed")
            trained["undisturbed"] = await semi_sync(_guards, config, _merge)
            _spinner.update("One is killed and replaced")
            trained["replaced"] = await semi_sync(_guards, config, _merge, _kill_the_last)
            async with asyncio.timeout(config.patience):
                while not (_guards[-1].starts and _guards[-1].worker):
                    await asyncio.sleep(0.1)
            _guards[-1].may_restart = lambda failed_at, now: False
            _spinner.update("One is killed for good")
            trained["one fewer"] = await semi_sync(_guards, config, _merge, _kill_the_last)
    return merged_by_reader, trained


@app.cell(hide_code=True)
def _(ask_forget, config, trained):
    _, _history = trained["one fewer"]
    _then, _end = (_history[i][1][-1] for i in (config.killed_in - 2, -1))
    _others = [fmean(_history[i][1][:-1]) for i in (config.killed_in - 2, -1)]
    _at = [
        value.item()
        for share in range(config.learners)
        for value in curve(share, config.learners)[0]
    ]
    _target = [
        value.item()
        for share in range(config.learners)
        for value in curve(share, config.learners)[1]
    ]

    def _fit(weights):
        model = network()
        vector_to_parameters(weights.clone(), model.parameters())
        with torch.no_grad():
            return model(torch.tensor(_at)[:, None])[:, 0].tolist()

    lesson.reveal(
        ask_forget,
        right=2 if _end > 1.5 * _then else 0 if _end < _then / 1.5 else 1,
        why=f"""
        On the third of the dead learner the error went from {_then:.3f} to {_end:.3f}; on the others' from {_others[0]:.3f} to {_others[1]:.3f}. With a learner its *data* went, and
        nothing held the weights to them any more. Had every learner drawn from all data, a death would only have cost some speed.
        """,
        shows=[
            lesson.figure(
                fault_charts.rounds_chart(
                    {
                        name: [fmean(losses) for _, losses, _ in history]
                        for name, (_, history) in trained.items()
                    },
                    config.killed_in,
                ),
                "Error over the whole curve.",
            ),
            lesson.figure(
                fault_charts.fits_chart(
                    _at,
                    _target,
                    {name: _fit(weights) for name, (weights, _) in trained.items()},
                    config.learners,
                ),
                "Grey: the curve to learn. Each third is one learner's.",
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _(config, merged_by_reader, trained):
    def _facts(name):
        _, history = trained[name]
        seconds = [seconds for *_, seconds in history]
        return {
            "run": name,
            "full rounds": sum(present == config.learners for present, *_ in history),
            "with fewer": sum(present < config.learners for present, *_ in history),
            "median, ms": f"{1e3 * median(seconds):.0f}",
            "longest, ms": f"{1e3 * max(seconds):.0f}",
            "error": f"{fmean(history[-1][1]):.4f}",
        }

    mo.vstack(
        [
            lesson.table("The three runs", [_facts(name) for name in trained]),
            lesson.md(f"""
            {"*Your* `merge` averaged the changes." if merged_by_reader else "The `merge` of the solution averaged the changes, since yours does not pass its check yet."} The
            round with the kill waits until the deadline ({config.deadline:g} s) or until Monarch knows, whichever comes first. All rounds after it go on at full speed
            with those who are there. When the supervisor has a successor ready, it takes part in the next round: it needs nothing but the
            weights of that round.
            """),
        ]
    )
    return


@app.cell(hide_code=True)
def _(config, trained):
    # The first rounds of the undisturbed run again, in this process and without actors.
    _weights = parameters_to_vector(network().parameters()).detach()
    _shares = [curve(share, config.learners) for share in range(config.learners)]
    for _ in range(config.killed_in):
        _changes = [
            local_steps(x, y, _weights, config.local_steps, config.rate) for x, y in _shares
        ]
        _weights = merge_solution(_weights, _changes)
    in_one_process = losses_of(_weights, config.learners)
    return (in_one_process,)


@app.cell(hide_code=True)
def _(config, in_one_process, trained):
    _before = trained["undisturbed"][1][: config.killed_in]
    _apart = max(abs(a - b) for a, b in zip(in_one_process, _before[-1][1], strict=True))
    _late = sum(present < config.learners for present, *_ in _before)
    lesson.md(
        f"The first {config.killed_in} rounds, repeated in one process without actors: the errors "
        + (
            "are the same to the last bit."
            if _apart == 0
            else f"differ by {_apart:.0e} at most."
        )
        + (f" In {_late} of those rounds a learner was late." if _late else "")
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.predicted(10)
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        "An exception is an answer. `sys.exit`, `kill -9` and `SIGSTOP` end in a `SupervisionError`, after milliseconds, about a second, and some seconds.",
        "Death is noticed at the next poll, silence at a time limit. Who is declared dead may still run, so kill it first.",
        "A supervisor probes, ends and starts again. Probe beside the worker, or you will kill those that are only busy.",
        "What comes back is the process, not its state. A checkpoint bounds the loss to the steps since it was written.",
        "Training in rounds goes on without a learner. It forgets what only that learner's data could teach.",
    )
    return


@app.cell(hide_code=True)
def _(hang_times, kill_times):
    lesson.headline(
        f"callers learned of `kill -9` after {median(kill_times):.1f} s, and of a process that hangs after {median(hang_times):.1f} s (medians of {len(kill_times)} and {len(hang_times)})."
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.function(hide_code=True)
def check_may_restart(may_restart):
    exercise.expect(may_restart, [5.0], 5.0, result=True)
    exercise.expect(may_restart, [1.0, 3.0, 5.0], 5.0, result=False)
    exercise.expect(may_restart, [1.0, 2.0, 3.0, 30.0], 30.0, result=True)
    exercise.expect(may_restart, [10.0, 15.0, 20.0], 20.0, result=False)
    exercise.expect(may_restart, [9.5, 15.0, 20.0], 20.0, result=True)
    exercise.expect(may_restart, [4.0, 5.0], 5.0, 2, 60.0, result=False)


@app.function(hide_code=True)
def may_restart_solution(failed_at, now, most=3, window=10.0):
    recent = sum(now - moment <= window for moment in failed_at)
    return recent < most


@app.function(hide_code=True)
def check_steps_lost(steps_lost):
    exercise.expect(steps_lost, 57, 10, result=7)
    exercise.expect(steps_lost, 60, 10, result=0)
    exercise.expect(steps_lost, 9, 50, result=9)
    exercise.expect(steps_lost, 99, 1, result=0)


@app.function(hide_code=True)
def steps_lost_solution(step, every):
    return step % every


@app.function(hide_code=True)
def check_best_interval(best_interval):
    exercise.expect(best_interval, 2.0, 3600.0, result=120.0)
    exercise.expect(best_interval, 0.5, 100.0, result=10.0)
    exercise.expect(best_interval, 30.0, 86400.0, result=math.sqrt(2 * 30 * 86400))


@app.function(hide_code=True)
def best_interval_solution(save, mtbf):
    return math.sqrt(2 * save * mtbf)


@app.function(hide_code=True)
def check_merge(merge):
    def merged(weights, changes):
        start = torch.tensor(weights)
        found = merge(start, [(torch.tensor(change), count) for change, count in changes])
        assert start.tolist() == weights, "merge modifies the weights that it is given"
        return [round(value, 6) for value in found.tolist()]

    merged.__name__ = "merge"
    exercise.expect(merged, [1.0, 2.0], [([3.0, -1.0], 10)], result=[4.0, 1.0])
    exercise.expect(merged, [0.0], [([3.0], 64), ([1.0], 64)], result=[2.0])
    exercise.expect(merged, [0.0], [([3.0], 30), ([1.0], 10)], result=[2.5])
    exercise.expect(merged, [1.0], [], result=[1.0])


@app.function(hide_code=True)
def merge_solution(weights, changes):
    if not changes:
        return weights
    examples = sum(count for _, count in changes)
    return weights + sum(count * change for change, count in changes) / examples


if __name__ == "__main__":
    app.run()
