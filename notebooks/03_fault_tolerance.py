# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["marimo", "zorplex-rl"]
# tool.uv.sources.zorplex-rl = { path = "..", editable = true }
# tool.marimo.display.theme = "system"
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
    import signal
    import sys
    import tempfile
    import time
    from contextlib import suppress
    from pathlib import Path
    from statistics import fmean
    from types import SimpleNamespace

    import marimo as mo
    import torch

    # Monarch's own limits, which it reads when it is imported. The supervisor below has shorter ones.
    SILENCE = "HYPERACTOR_MESH_GET_ACTOR_STATE_MAX_IDLE"
    os.environ[SILENCE] = "3s"
    os.environ["HYPERACTOR_MESH_GET_PROC_STATE_MAX_IDLE"] = "3s"

    from zorplex_rl.course import nb03
    from zorplex_rl.course.figures import drawing_of, lines, spans
    from zorplex_rl.course.lesson import exercise, lesson
    from zorplex_rl.course.nb03 import curve, first_weights, local_steps, losses_of
    from zorplex_rl.services.runtime import (
        Actor,
        ReplicaDied,
        endpoint,
        start_monarch,
        this_host,
    )

    # Every death below is intended; the page says more about it than a warning would.
    for _name in ("zorplex_rl", "monarch.supervision"):
        logging.getLogger(_name).setLevel(logging.ERROR)


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=50,
        hardware="two CPU cores, no network",
        goals=[
            "say what a caller sees, and when, after an exception, `sys.exit`, `kill -9` and `SIGSTOP`",
            "write a supervisor's decision: what has become of a worker, and what to do about it",
            "choose how often to write a checkpoint",
            "train on with one worker fewer, and say what becomes of the model",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Everything dies sometimes

    A training run takes days on hundreds of machines. Every few hours some process dies or goes silent.
    The others wait for it, and hundreds of GPUs stand idle. The run should lose minutes, not days.

    This page breaks real processes. What does a caller see? Who starts a new one? What did only the
    dead one know? The drawing shows where four kinds of **fault** strike.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        drawing_of("four_faults.svg"),
        "`SIGSTOP` freezes a process: it exists, but does nothing until `SIGCONT` lets it go on. "
        "To a caller, an overloaded machine looks the same.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## One worker, four faults

    This worker has some *state*: `total`, a number that only its process knows. Its other endpoints
    fail, or take long.
    """)
    return


@app.class_definition
class Worker(Actor):
    """Add numbers up, and fail on request."""

    def __init__(self):
        self.total = 0

    @endpoint
    def add(self, number, then_raise=False):
        self.total += number
        if then_raise:
            raise ValueError(f"{number} was not welcome")
        return self.total

    @endpoint
    def leave(self):
        sys.exit(3)

    @endpoint
    def crash(self, text=""):
        # As a bug in a C extension that some input sets off: no Python exception,
        # the process is gone.
        os._exit(11)

    @endpoint
    def work(self, seconds, ledger=os.devnull):
        time.sleep(seconds)
        Path(ledger).write_text("done")
        return "done"


@app.cell(hide_code=True)
def _():
    mo.md("""
    Short functions are folded. `start` starts a process with a worker and a second actor. `end` sends it `kill -9`.
    `outcome` returns the answer to a call, or the *name* of its error. `kill -9` and `SIGSTOP` hit a worker in the middle of a call.
    """)
    return


@app.function(hide_code=True)
async def break_worker(worker, fault):
    """Call a worker and break it. Returns the call, whose caller still waits."""
    if fault == "exception":
        return worker.actor.add.call_one(1, then_raise=True)
    if fault == "sys.exit":
        return worker.actor.leave.call_one()
    call = worker.actor.work.call_one(60)
    await asyncio.sleep(0.3)  # now it is at work
    if fault == "kill -9":
        os.kill(worker.pid, signal.SIGKILL)
    else:
        os.kill(worker.pid, signal.SIGSTOP)
    return call


@app.function(hide_code=True)
async def start(actor_class, *args):
    start_monarch()
    procs = this_host().spawn_procs(per_host={"procs": 1})
    actor, probe = procs.spawn("worker", actor_class, *args), procs.spawn("probe", Probe)
    pid = await probe.pid.call_one()
    return SimpleNamespace(procs=procs, actor=actor, probe=probe, pid=pid)


@app.function(hide_code=True)
async def end(worker):
    with suppress(ProcessLookupError):
        os.kill(worker.pid, signal.SIGKILL)
    await worker.procs.stop()


@app.function(hide_code=True)
async def outcome(answer, limit=30.0):
    """Return the answer, or the name of the error, and the seconds until it came."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(limit):
            found = await answer
    except Exception as error:
        found = type(error).__name__
    return found, time.monotonic() - began


@app.function(hide_code=True)
async def suffer(fault):
    """Start a worker, break it, and look at what is left of it."""
    worker = await start(Worker)
    try:
        await worker.actor.add.call_one(5)
        call = await break_worker(worker, fault)
        saw, seconds = await outcome(call.as_asyncio())
        next_answer, _ = await outcome(worker.actor.add.call_one(1).as_asyncio())
        beside, _ = await outcome(worker.probe.ping.call_one().as_asyncio())
        return SimpleNamespace(
            fault=fault, saw=saw, seconds=seconds, next=next_answer, beside=beside
        )
    finally:
        await end(worker)


@app.cell(hide_code=True)
def _():
    ask_faults = lesson.predict(
        "Each of four workers meets one fault, and shares its process with a second actor. One of them calls "
        "`sys.exit` in an endpoint. Who answers the next call?",
        "neither of the two: the process has ended",
        "the second actor alone",
        "both: it was an error like any other",
    )
    start_faults = lesson.start_button("Break the workers", seconds=16)
    mo.vstack([ask_faults, start_faults])
    return ask_faults, start_faults


@app.cell(hide_code=True)
async def _(start_faults):
    lesson.wait_for(start_faults)
    with mo.status.spinner("Breaking four workers", remove_on_exit=True):
        suffered = await asyncio.gather(
            *map(suffer, ("exception", "sys.exit", "kill -9", "SIGSTOP"))
        )
    return (suffered,)


@app.cell(hide_code=True)
def _(ask_faults, suffered):
    _exited = suffered[1]
    lesson.reveal(
        ask_faults,
        right=(_exited.beside == "here") + isinstance(_exited.next, int),
        why=f"""
        `sys.exit` in an endpoint {"ends the actor only: the second actor in its process still answers" if _exited.beside == "here" else "ends the whole process"}.

        An exception is an *answer*: it travels back inside an `ActorError` with its traceback, and the actor goes on. A
        `SupervisionError` means that nobody is left to answer. A process that was stopped still
        exists, but a long silence counts as death.

        The first worker had 5, added 1, raised, and then said {suffered[0].next}. An exception undoes
        nothing, so a caller who tries again adds twice. Make such a call **idempotent**: doing it
        twice has the effect of doing it once, for example by numbering calls, and skipping a number that was seen.
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
                        "the second actor": f"`{one.beside}`",
                    }
                    for one in suffered
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## How long until somebody knows?

    A caller waits until somebody tells it that no answer will come. In Monarch this is the task of
    **supervision**: it asks for the state of every process at regular intervals. If a process has
    died, its machine knows, and a look finds it out. If it is only silent, no look helps. So Monarch needs a
    time limit, after which silence counts as death. By default it looks every 10 s and allows 60 s of
    silence. On this page these are 1 s and 3 s, so that you need not wait.
    """)
    return


@app.cell(hide_code=True)
def settings():
    config = SimpleNamespace(
        watched=8.0,  # seconds that a supervisor is watched at work
        learners=3,
        rounds=60,  # of training
        killed_in=30,  # the round in which a learner is killed
        local_steps=10,  # steps of a learner in a round
        rate=0.01,  # its learning rate
        deadline=5.0,  # seconds that a round waits for its learners
    )
    return (config,)


@app.cell(hide_code=True)
async def _(suffered):
    lesson.needs(lambda: suffered)  # this cell runs after the one that breaks four workers
    with mo.status.spinner("Breaking more workers", remove_on_exit=True):
        woken, handled, passed_on = await asyncio.gather(
            stop_and_wake(), lose_child(True), lose_child(False)
        )
    return handled, passed_on, woken


@app.cell(hide_code=True)
def _(suffered):
    _left, _killed, _silent = suffered[1:]
    lesson.md(f"""
    An actor that ends by itself still sends word, because its process goes on: `sys.exit` took {_left.seconds:.2f} s. A process that is gone sends nothing, so
    Monarch knows at its next look: `kill -9` took {_killed.seconds:.2f} s. The silence took {_silent.seconds:.2f} s: the limit, and up to one look.
    A shorter limit would also declare workers dead that are only slow.

    To catch the error of a call is not enough: a *parent* has to take care of the fault, as the fold below shows. If none does, the fault *ends the program*: the default `monarch.actor.unhandled_fault_hook` is
    `sys.exit(1)`. This course's `start_monarch` replaces it with a line in the log.
    """)
    return


@app.class_definition(hide_code=True)
class Parent(Actor):
    def __init__(self, procs, handles):
        self.child = procs.spawn("child", Worker)
        self.handles = handles
        self.deaths = 0

    @endpoint
    async def lose_child(self):
        await self.child.crash.call_one()

    @endpoint
    async def count_deaths(self):
        return self.deaths

    def __supervise__(self, failure):
        self.deaths += 1
        return self.handles


@app.function(hide_code=True)
async def lose_child(handles):
    """Let the child of a new parent crash. Returns how many deaths the parent counts, or an error."""
    home = await start(Worker)
    family = await start(Parent, home.procs, handles)
    try:
        await outcome(family.actor.lose_child.call_one().as_asyncio())
        await asyncio.sleep(2)  # Monarch looks every second
        return (await outcome(family.actor.count_deaths.call_one().as_asyncio()))[0]
    finally:
        await asyncio.gather(end(family), end(home))


@app.cell(hide_code=True)
def _(handled, passed_on):
    lesson.folded(
        "Who else is told: the parent of a dead actor",
        f"""
        Actors form a tree. Whoever spawned an actor is its *parent*, and your notebook is the root. If an
        actor dies, Monarch calls `__supervise__` of its parent. `True` says that the fault is dealt with.
        Otherwise the parent fails, too, and *its* parent is told.

        Two parents have been started, and their children have crashed. `Parent`, in the folded code above, counts these
        deaths in `__supervise__`. Then each parent was asked for its count. The one that returns
        `True` answered {lesson.quote(handled)}. The one that returns `False` answered {lesson.quote(passed_on)}.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## After `SIGCONT`

    One more worker was stopped in the middle of a call, which ends with a line in a file, its `ledger`.
    Its caller was told that it is dead. Then the worker was let go on.
    """)
    return


@app.function(hide_code=True)
async def stop_and_wake():
    worker = await start(Worker)
    ledger = Path(tempfile.mkdtemp()) / "ledger"
    call = worker.actor.work.call_one(1.0, str(ledger))
    await asyncio.sleep(0.3)
    os.kill(worker.pid, signal.SIGSTOP)
    told, _ = await outcome(call.as_asyncio())
    before = ledger.exists()
    os.kill(worker.pid, signal.SIGCONT)
    await asyncio.sleep(1.2)
    after = ledger.exists()
    next_answer, _ = await outcome(worker.actor.add.call_one(1).as_asyncio())
    await end(worker)
    return SimpleNamespace(told=told, before=before, after=after, next=next_answer)


@app.cell(hide_code=True)
def _():
    ask_wake = lesson.predict(
        "The process was let go on after its caller had been told that it is dead. What happened?",
        "it wrote its line, and its callers got answers again",
        "it did not write its line, for Monarch had ended it",
        "it wrote its line, and its callers still got errors",
    )
    ask_wake
    return (ask_wake,)


@app.cell(hide_code=True)
def _(ask_wake, woken):
    _late = woken.after and not woken.before
    lesson.reveal(
        ask_wake,
        right=0 if isinstance(woken.next, int) else 2 if _late else 1,
        why=f"""
        When the caller was told `{woken.told}`, the line {"had" if woken.before else "had not"} been written.
        After `SIGCONT` the line {"was" if woken.after else "was not"} there, and the next call got
        `{woken.next}`. "Dead" is what the others decided, and the process does not know it. If a
        successor had started by then, both would have written into one ledger. So `end` sends `kill -9` *before* a
        successor starts. This is called **fencing**.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## You decide: dead, stuck, slow or busy

    Monarch's supervision starts no new process, and says nothing about a worker whose
    call never ends. A **supervisor** acts: it replaces a worker that is no longer well. But how does it
    know? It cannot ask the worker, because an actor answers one call at a time, and the question would
    wait behind a long call. So it asks the second actor in the same process, the probe.
    """)
    return


@app.class_definition
class Probe(Actor):
    """Answer for a process, whatever its worker is doing."""

    @endpoint
    def ping(self):
        return "here"

    @endpoint
    def pid(self):
        return os.getpid()


@app.cell(hide_code=True)
def _():
    mo.md("""
    The probe does not see everything:

    - It also answers beside a worker in an endless loop, so it cannot tell whether the call will end. A call needs a time limit of
      its own.
    - It also answers if the worker alone has ended, by `sys.exit`. Only the worker's caller learns of that. So our supervisor
      makes the calls itself, and a `SupervisionError` tells it that the worker is gone.

    ### Exercise 1: the supervisor's decision

    Complete `decide`. It returns two words. The first word says what the worker is. Take the first line
    that is true.

    1. `"dead"`: it is gone, or its process has been silent for more than `limits.silent` seconds.
    2. `"stuck"`: its call has run for more than `limits.busy` seconds, whether its probe answers or not.
    3. `"slow"`: it has been silent for more than 0 seconds. `decide` is asked right after each probe, so that means a probe was missed.
    4. `"busy"`: it is in a call, which has run for more than 0 seconds.
    5. `"idle"`.

    The second word says what to do. Slow, busy and idle workers get `"wait"`, dead and stuck ones
    `"replace"`. But some faults are in the *input*: a text that crashes one process crashes the
    next one, too. So a dead or stuck worker gets `"give up"` if it had already failed `limits.restarts`
    times within the last `limits.window` seconds.
    """)
    return


@app.function
def decide(gone, silent_for, busy_for, limits, failed_at, now):
    """Return what a worker is, and what its supervisor does: two strings.

    gone        True if Monarch says that the worker or its process
                has ended
    silent_for  seconds since its last answer to a probe; 0 if it has
                just answered
    busy_for    seconds that its present call has run; 0 without a call
    failed_at   moments of the earlier failures, without the present
                one
    now         the present moment, on the same clock

    limits = SimpleNamespace(silent=2.5, busy=4, restarts=2, window=20)
    decide(False, 1.2, 3, limits, [], 50) is ("slow", "wait")
    decide(True, 0, 0, limits, [10, 40], 50) is ("dead", "replace")
    decide(True, 0, 0, limits, [30, 40], 50) is ("dead", "give up"):
    30 is exactly 20 seconds ago, and counts.
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: decide,
        Solutions,
        level="stretch",
        minutes=11,
        lines=9,
        hints=(
            "Which question comes first, so that the later ones need not ask it again? And which of "
            "the failures in `failed_at` still count?",
            '`dead = …`, `stuck = …`. If neither, return one of three words with `"wait"`. Else count '
            "`recent = sum(now - moment <= limits.window for moment in failed_at)`, and compare.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    The supervisor is folded. Every 0.25 s it probes its worker, and asks your `decide`. If need be, it ends the
    old process (fencing), and only then starts a new one.
    """)
    return


@app.function(hide_code=True)
async def watch(supervisor):
    limits = supervisor.limits
    heard = time.monotonic()
    while True:
        await asyncio.sleep(limits.every)
        ping = supervisor.worker.probe.ping.call_one().as_asyncio()
        answer, _ = await outcome(ping, limits.probe)
        now = time.monotonic()
        if answer == "here":
            heard = now
        # Its process has ended, or a call to this worker got a SupervisionError.
        gone = answer == "SupervisionError" or supervisor.lost is supervisor.worker
        state, action = supervisor.decide(
            gone, now - heard, supervisor.busy(now), limits, supervisor.failed_at, now
        )
        supervisor.decisions.append((now, state, action))
        if action != "wait":
            supervisor.failed_at.append(now)
            await supervisor.end_worker()
            if action == "give up":
                return
            supervisor.worker = await supervisor.begin()
            heard = time.monotonic()


@app.class_definition(hide_code=True)
class Supervisor:
    """Keep one worker running: probe it, and do what ``decide`` says."""

    def __init__(self, begin, limits, decide):
        self.begin, self.limits, self.decide = begin, limits, decide
        self.worker = None  # while there is none to call
        self.lost = None  # the last worker whose call got a SupervisionError
        self.call_began = None
        self.failed_at, self.decisions = [], []

    async def __aenter__(self):
        self.worker = await self.begin()
        self.watching = asyncio.create_task(watch(self))
        return self

    async def __aexit__(self, *_):
        self.watching.cancel()
        await asyncio.gather(self.watching, return_exceptions=True)
        if self.worker:
            await end(self.worker)

    async def call(self, name, *args):
        """Call an endpoint of the worker; until it answers, the worker is busy."""
        worker = self.worker
        began = self.call_began = time.monotonic()
        try:
            return await getattr(worker.actor, name).call_one(*args).as_asyncio()
        except ReplicaDied:
            self.lost = worker
            raise
        finally:
            if self.call_began == began:  # else a later call has begun meanwhile
                self.call_began = None

    def busy(self, now):
        """Return the seconds that the present call has run."""
        return now - self.call_began if self.call_began else 0

    async def end_worker(self):
        old = self.worker
        self.worker = None
        self.call_began = None
        await end(old)


@app.cell(hide_code=True)
def _():
    mo.md("""
    Now seven workers meet seven fates, each under a supervisor of its own:

    - `sys.exit` in an endpoint,
    - `kill -9`, once,
    - `SIGSTOP`, for good,
    - `SIGSTOP` for 1 s, then `SIGCONT`,
    - a call of 3 s,
    - a call of 60 s,
    - a text that crashes it, which its caller sends again and again.

    The last fate is a fault in the input. These are the supervisors' limits. Their limit of silence is shorter than Monarch's 3 s, so a supervisor is the first to
    find a silent worker dead.
    """)
    return


@app.cell
def _():
    limits = SimpleNamespace(
        every=0.25,  # seconds between two probes
        probe=0.5,  # seconds that a supervisor waits for one answer
        silent=2.5,  # seconds of silence that are allowed
        busy=4.0,  # seconds that a call may take
        restarts=2,  # earlier failures after which it gives up …
        window=20.0,  # … if they lie within so many seconds
    )
    return (limits,)


@app.cell(hide_code=True)
def _():
    ask_fates = lesson.predict(
        "With these limits, how often is the last worker replaced, before its supervisor gives up?",
        "once",
        "twice",
        "three times",
        "more often, as long as the caller sends its text",
    )
    start_fates = lesson.start_button("Seven workers, seven fates", seconds=16)
    mo.vstack([ask_fates, start_fates])
    return ask_fates, start_fates


@app.function(hide_code=True)
async def strike(fate, guard):
    """Let one thing happen to the worker of a supervisor."""
    pid = guard.worker.pid
    if fate == "sys.exit":
        await outcome(guard.call("leave"))
    elif fate == "kill -9":
        os.kill(pid, signal.SIGKILL)
    elif fate.startswith("SIGSTOP"):
        os.kill(pid, signal.SIGSTOP)
        if fate == "SIGSTOP for 1 s":
            await asyncio.sleep(1)
            os.kill(pid, signal.SIGCONT)
    elif fate.startswith("a call"):
        await outcome(guard.call("work", 60 if "60" in fate else 3))
    else:  # the caller tries the same strange text again and again
        while not guard.watching.done():
            if guard.worker:
                await outcome(guard.call("crash", "strange\0text"))
            await asyncio.sleep(0.05)


@app.cell(hide_code=True)
async def _(config, limits, start_fates):
    lesson.wait_for(start_fates)
    _decide, whose_decide = exercise.running(lambda: decide, Solutions)

    _fates = (
        "sys.exit", "kill -9", "SIGSTOP", "SIGSTOP for 1 s", "a call of 3 s", "a call of 60 s", "a text that crashes it",
    )  # fmt: skip

    async def _live(fate):
        async with Supervisor(lambda: start(Worker), limits, _decide) as guard:
            before, _ = await outcome(guard.call("add", 5))
            await asyncio.sleep(0.5)
            began = time.monotonic()
            striking = asyncio.create_task(strike(fate, guard))
            # A supervisor's watch ends when it gives up. On a busy machine that takes longer.
            _seconds = limits.window if fate == _fates[-1] else config.watched
            await asyncio.wait({guard.watching}, timeout=_seconds)
            striking.cancel()
            after = (await outcome(guard.call("add", 1)))[0] if guard.worker else None
        decisions = [(when - began, *found) for when, *found in guard.decisions]
        return SimpleNamespace(before=before, after=after, decisions=decisions)

    with mo.status.spinner("Seven supervisors at work", remove_on_exit=True):
        lived = dict(zip(_fates, await asyncio.gather(*map(_live, _fates)), strict=True))
    return lived, whose_decide


@app.cell(hide_code=True)
def _(ask_fates, limits, lived, whose_decide):
    _spared = [
        fate
        for fate, one in lived.items()
        if all(action == "wait" for *_, action in one.decisions)
    ]
    _actions = [
        action
        for *_, action in lived["a text that crashes it"].decisions
        if action != "wait"
    ]
    lesson.reveal(
        ask_fates,
        right=_actions.index("give up") - 1 if "give up" in _actions else [],
        why=f"""
        The last row is a fault that comes back. The supervisor
        answered it with *{"*, *".join(_actions or ["wait"])}*{"" if "give up" in _actions else ". The watch ended before the next failure"}. All this was decided by {whose_decide}.

        Not replaced: {", ".join(f"*{fate}*" for fate in _spared) or "none"}. Below the limit of
        {limits.silent:g} s, silence is only slow.
        """,
        shows=[
            lesson.figure(
                spans.fates_chart({fate: one.decisions for fate, one in lived.items()}),
                "What each supervisor found, from the moment of the fault. "
                "Gaps: a new process starts, and imports torch. Each piece of a bar is a decision, and lasts until the next. "
                f"A probe that is missed takes {limits.probe:g} s, so its colour comes late by as much.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _(lived):
    _one = lived["kill -9"]
    lesson.md(f"""
    ## A checkpoint bounds the loss

    The killed worker had last answered {_one.before}. Its successor's first `add(1)` gave {_one.after}. A supervisor
    brings back the *process*, not the state, which was in the memory of the dead one. For a trainer
    that is the whole run.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    A **checkpoint** is a copy of the state outside the process. A new kind of worker, folded below, counts steps, and writes
    one after every 50. Its successor begins where the file says.
    """)
    return


@app.function
def write_checkpoint(steps, file):
    """Write a draft and rename it. A rename happens whole or not at all, so
    whenever the process dies, the file is the old one or the new one."""
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(steps))
    draft.replace(file)


@app.class_definition(hide_code=True)
class Saving(Actor):
    """Take steps, and remember every so many of them in a file."""

    def __init__(self, file, every):
        self.file, self.every = Path(file), every
        self.steps = json.loads(self.file.read_text()) if self.file.exists() else 0

    @endpoint
    def step(self):
        self.steps += 1
        if self.steps % self.every == 0:
            write_checkpoint(self.steps, self.file)
        return self.steps


@app.cell(hide_code=True)
async def _(lived):
    lived  # a bare name: marimo runs this cell after the one that computes it
    _every = 50
    with tempfile.TemporaryDirectory() as _folder:
        _file = Path(_folder) / "steps"
        _worker = await start(Saving, str(_file), _every)
        for _ in range(117):
            known = await _worker.actor.step.call_one()
        await end(_worker)
        _worker = await start(Saving, str(_file), _every)
        resumed = await _worker.actor.step.call_one() - 1
        await end(_worker)
    lesson.md(f"""
    It died after step {known}, and its successor began at {resumed}: {known - resumed} steps are to be
    done again. A checkpoint does not prevent the loss, it bounds it: fewer than {_every} steps.
    """)
    return known, resumed


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: how often?

    Writing a checkpoint takes `save` seconds, once every `t` seconds: a share of `save / t`. A failure comes every `mtbf`
    seconds (*mean time between failures*), on average halfway between two checkpoints. So `t / 2` seconds of work are done again, once every
    `mtbf` seconds. The share of time that is lost to both is `save / t + t / (2 * mtbf)`.
    Complete `best_interval`: return the `t` that makes it smallest, as a formula.
    """)
    return


@app.function
def best_interval(save, mtbf):
    """Return the best seconds between checkpoints.

    best_interval(2, 3600) is 120.
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: best_interval,
        Solutions,
        level="warm-up",
        minutes=3,
        hints=(
            "What is the derivative by `t` at the minimum?",
            "`-save / t**2 + 1 / (2 * mtbf) = 0`. Solve for `t`: a square root is left.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    _best, _whose = exercise.running(lambda: best_interval, Solutions)
    with tempfile.TemporaryDirectory() as _folder:
        _began = time.perf_counter()
        torch.save(torch.zeros(16 << 20), Path(_folder) / "weights.pt")
        _seconds = time.perf_counter() - _began
    _save, _mtbf = 100 * _seconds, 3600.0
    _t = _best(_save, _mtbf)
    lesson.md(f"""
    At the speed at which 64 MB were written here, a checkpoint of 6.4 GB takes {_save:.1f} s. With a failure every hour,
    {_whose} says: one every {_t:.0f} s. A failure then costs {_t / 120:.0f} minutes on average. In all {_save / _t + _t / _mtbf / 2:.0%} of the time is lost, at twice that
    interval a quarter more, so it need not be exact (J. W. Young 1974).
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Training that goes on

    In data-parallel training all workers add up their gradients after every step. If one is missing,
    all others wait. **Semi-synchronous training** talks less often. In each round, every learner gets
    the weights, takes some steps on its own, and sends back how its weights have changed. Those changes
    are averaged. A learner that does not answer by the deadline is left out of this round.

    The task is to learn a curve, with a small network. Each learner owns one part of the curve, and sees no other data. We train
    twice: once undisturbed, and once with one learner killed halfway. `one_round`, folded, gives your `merge` the changes of a round:
    those of a learner that failed are not in the list.
    """)
    return


@app.class_definition(hide_code=True)
class Learner(Actor):
    """Train on a share of the data, from the weights that each round sends."""

    def __init__(self, share, shares):
        torch.set_num_threads(1)
        self.x, self.y = curve(share, shares)
        # The first step imports a part of torch, which takes seconds; no round must wait for it.
        local_steps(self.x, self.y, first_weights(), steps=1, rate=0.001)

    @endpoint
    def train(self, weights, steps, rate):
        return local_steps(self.x, self.y, weights, steps, rate)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: merge what has come back

    Complete `merge`. A change counts as often as there were examples behind it. If nobody answered, the weights stay as they
    are. Do not modify an argument.
    """)
    return


@app.function
def merge(weights, changes):
    """Return `weights` plus the mean change, weighted by examples.

    changes is a list of pairs: a change of the weights (a tensor), and
    the number of examples behind it.

    merge(torch.zeros(1), [(torch.ones(1), 30), (torch.zeros(1), 10)])
    is tensor([0.75])
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: merge,
        Solutions,
        level="core",
        minutes=4,
        hints=(
            "By what do you divide, if the number of learners must not appear?",
            "`sum(examples * change …) / sum(examples …)`; take care of the empty list.",
        ),
    )
    return


@app.function(hide_code=True)
async def one_round(learners, weights, config, merge):
    given = weights, config.local_steps, config.rate
    answers = await asyncio.gather(
        *(
            outcome(learner.actor.train.call_one(*given).as_asyncio(), config.deadline)
            for learner in learners
        )
    )
    # Who failed, or was too late, has the name of an error here: a string.
    changes = [answer for answer, _ in answers if isinstance(answer, tuple)]
    return merge(weights, changes), len(changes)


@app.function(hide_code=True)
async def semi_sync(learners, config, merge, killed_in=None):
    """Train for some rounds. Returns the weights, and the learners and errors of each round."""
    weights, history = first_weights(), []
    for number in range(1, config.rounds + 1):
        if number == killed_in:
            os.kill(learners[-1].pid, signal.SIGKILL)
        weights, present = await one_round(learners, weights, config, merge)
        history.append((present, losses_of(weights, config.learners)))
    return weights, history


@app.cell(hide_code=True)
def _(config):
    ask_forget = lesson.predict(
        f"In round {config.killed_in} of {config.rounds} learner {config.learners - 1} is killed, "
        "for good. The others train on. What becomes of the error on *its* part of the curve?",
        "it goes on falling: the others share the weights",
        "it stays about where it was in that round",
        "it rises: the others' steps unlearn that part",
    )
    start_training = lesson.start_button("Train twice", seconds=9)
    mo.vstack([ask_forget, start_training])
    return ask_forget, start_training


@app.cell(hide_code=True)
async def _(config, resumed, start_training):
    lesson.needs(lambda: resumed)  # this cell runs after the one that computes it
    lesson.wait_for(start_training)
    used_merge, whose_merge = exercise.running(lambda: merge, Solutions)
    with mo.status.spinner("Training", remove_on_exit=True):
        _shares = range(config.learners)
        _learners = await asyncio.gather(
            *(start(Learner, share, config.learners) for share in _shares)
        )
        try:
            trained = {
                "undisturbed": await semi_sync(_learners, config, used_merge),
                "one fewer": await semi_sync(
                    _learners, config, used_merge, config.killed_in
                ),
            }
        finally:
            await asyncio.gather(*map(end, _learners))
    return trained, whose_merge


@app.cell(hide_code=True)
def _(ask_forget, config, trained, whose_merge):
    _, _history = trained["one fewer"]
    _then, _end = (_history[i][1][-1] for i in (config.killed_in - 2, -1))
    _whole = trained["undisturbed"][1][-1][1]  # the errors at the end, part by part
    _others = [fmean(_history[i][1][:-1]) for i in (config.killed_in - 2, -1)]
    lesson.reveal(
        ask_forget,
        right=2 if _end > 1.5 * _then else 0 if _end < _then / 1.5 else 1,
        why=f"""
        Before the kill, the error on the dead learner's part was {_then:.3f}; after round {config.rounds} it was
        {_end:.3f}. On the others' parts it went from {_others[0]:.3f} to {_others[1]:.3f}, and to {fmean(_whole[:-1]):.3f} in the undisturbed run. With the learner, its *data* are gone.
        Had every learner drawn from all data, a death would only have cost some speed.

        In the undisturbed run the error on this part ended at {_whole[-1]:.3f}. To get there after a
        death, keep a **spare** ready: a process with the same data, which a supervisor puts in the dead one's place. It needs no checkpoint, because each round sends it the weights. The notebook, which
        merges, holds them: if *it* dies, only a checkpoint helps.

        The changes were averaged by {whose_merge}.
        """,
        shows=[
            lesson.figure(
                lines.fits_chart(
                    *nb03.whole_curve(config.learners),
                    {
                        name: nb03.predictions(weights, config.learners)
                        for name, (weights, _) in trained.items()
                    },
                    config.learners,
                ),
                f"Grey: the curve to learn, a part for each learner. {config.rounds} rounds are too few for a good fit: compare the part of learner {config.learners - 1}. "
                "The learners that are left can fit their own parts sooner, because nobody pulls the weights elsewhere.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        4,
        "An exception is an answer. `sys.exit`, `kill -9` and `SIGSTOP` end in a `SupervisionError`.",
        "The end of an actor is known at once, the death of a process at the next look, silence at a time limit. A process that was declared dead may still run, so kill it before its successor starts.",
        "A supervisor replaces the dead and the stuck, and spares the slow and the busy. It gives up on a fault that comes back.",
        "A supervisor brings back the process, not its state. A checkpoint bounds the loss.",
        "Training in rounds goes on without a learner. It forgets what only that learner's data could teach.",
    )
    return


@app.cell(hide_code=True)
def _(suffered):
    lesson.headline(
        f"with a look every second and a limit of {os.environ[SILENCE].replace('s', ' s')}, a caller learned of `kill -9` after {suffered[2].seconds:.1f} s, and of silence after {suffered[3].seconds:.1f} s. Monarch's defaults are 10 s and 60 s."
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__, machine=True)
    return


@app.class_definition(hide_code=True)
class Solutions:
    """Check the exercises of this page, and solve them."""

    def check_decide(decide):
        for rule, given in nb03.RULES.items():
            nb03.compare_decisions(decide, Solutions.decide, given, f"{rule}. ")
        exercise.shortest(
            lambda draw: nb03.compare_decisions(
                decide, Solutions.decide, nb03.draw_situation(draw)
            ),
            times=300,
        )

    def decide(gone, silent_for, busy_for, limits, failed_at, now):
        dead = gone or silent_for > limits.silent
        stuck = busy_for > limits.busy
        if not (dead or stuck):
            return "slow" if silent_for > 0 else "busy" if busy_for > 0 else "idle", "wait"
        found = "dead" if dead else "stuck"
        recent = sum(now - moment <= limits.window for moment in failed_at)
        if recent >= limits.restarts:
            return found, "give up"
        return found, "replace"

    def check_best_interval(best_interval):
        right = Solutions.best_interval
        exercise.agree(
            best_interval,
            right,
            lambda draw: (draw.uniform(0.1, 60), draw.uniform(100, 1e4)),
            examples=[(2.0, 3600.0), (0.3, 50.0)],
            mistakes={
                "nearly: derive `t` instead of rounding or searching, the check looks at six digits": (
                    lambda *given: (
                        best_interval(*given)
                        if abs(best_interval(*given) / right(*given) - 1) < 0.2
                        else None
                    )
                ),
                "a factor is missing: in the second term `t` is divided by 2": (
                    lambda save, mtbf: math.sqrt(save * mtbf)
                ),
                "the 2 belongs above the line": lambda save, mtbf: math.sqrt(
                    save * mtbf / 2
                ),
                "that is `t` squared": lambda save, mtbf: 2 * save * mtbf,
            },
        )

    def best_interval(save, mtbf):
        return math.sqrt(2 * save * mtbf)

    def check_merge(merge):
        exercise.agree(
            merge,
            Solutions.merge,
            nb03.draw_changes,
            times=40,
            mistakes={
                "each change counts alike, not by its examples": (
                    lambda weights, changes: Solutions.merge(
                        weights, [(change, 1) for change, _ in changes]
                    )
                ),
                "the sum is not divided by the number of all examples": (
                    lambda weights, changes: (
                        weights + sum(n * change for change, n in changes)
                    )
                ),
                "the mean change is returned, not the weights plus it": (
                    lambda weights, changes: (
                        Solutions.merge(weights, changes) - weights * bool(changes)
                    )
                ),
            },
        )
        one = torch.ones(1)
        merge(one, [(one, 3)])
        assert one == 1, (
            "an argument is modified: after `merge(weights, changes)` your `weights`, or a change in `changes`, are other ones"
        )

    def merge(weights, changes):
        examples = sum(count for _, count in changes)
        return weights + sum(count * change for change, count in changes) / max(examples, 1)


if __name__ == "__main__":
    app.run()
