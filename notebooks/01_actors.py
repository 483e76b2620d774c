# /// script
# [tool.marimo.display]
# theme = "system"
# ///

import marimo

__generated_with = "0.25.2"
app = marimo.App(
    width="medium",
    app_title="Actors: objects that take messages",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)

with app.setup(hide_code=True):
    import asyncio
    import os
    import pickle
    import queue
    import subprocess
    import sys
    import threading
    import time
    from collections import Counter as CountOf
    from concurrent.futures import Future
    from contextlib import asynccontextmanager
    from itertools import accumulate
    from statistics import median
    from types import SimpleNamespace

    import marimo as mo
    import torch

    from zorplex_rl.course.figures.actor_charts import calls_chart, in_words, seconds_chart
    from zorplex_rl.course.figures.actor_drawings import (
        deadlock_drawing,
        delivery_drawing,
        mailbox_drawing,
    )
    from zorplex_rl.course.lesson import exercise, lesson, scene
    from zorplex_rl.course.lesson.plug_in import plug_in
    from zorplex_rl.services.runtime import (
        Actor,
        ActorError,
        concurrent_endpoint,
        current_rank,
        endpoint,
        start_runtime,
        this_host,
    )


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=45,
        hardware="two CPU cores, no network",
        goals=[
            "write an actor in twenty lines, and say what a real one adds",
            "choose between call, call_one, choose, broadcast and a slice, and say who waits for what",
            "see a deadlock coming, and remove it in two ways",
            "split work over a mesh of processes so that it pays",
            "say what a message costs, in time and in bytes, before you send it",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## An object with a mailbox

    A system that trains a language model by reinforcement has many parts. Generators write text, tools answer, a trainer changes weights.
    They run at the same time, in many processes, on several machines. Threads that share memory, and locks that let one of them in at a
    time, do not reach that far.

    One idea does: the **actor**. An actor is an ordinary object that nobody else may touch. To get something from it, you send it a message. The
    message waits in the actor's **mailbox** until the actor has time for it. Then the actor works on it, alone, and sends a reply.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        mailbox_drawing(),
        "Blue: messages. Green: replies. Nobody but the actor's own thread touches the object.",
    )
    return


@app.cell
def settings():
    config = SimpleNamespace(
        nap_seconds=0.2,  # of one call, where calls are watched
        naps=5,  # calls sent at the same moment
        work_seconds=0.4,  # of the call that nobody waits for
        patience=1.0,  # seconds until we call it a deadlock
        hits=100,  # of a rally
        numbers=4_000_000,  # to add up
        measured_seconds=0.4,  # for each kind of call
        message_sizes=(0, 1_000, 100_000, 1_000_000, 16_000_000),  # bytes
    )
    return (config,)


@app.cell(hide_code=True)
def _():
    lesson.ran_on()
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Here is all of it: a queue for the mailbox, and a thread that works through it. `pickle` turns a message into bytes and back. The caller
    gets a *future*, which is a place where the answer will be.
    """)
    return


@app.class_definition
class TinyActor:
    """Give ``thing`` a mailbox and a thread of its own."""

    def __init__(self, thing):
        self.mailbox = queue.SimpleQueue()
        threading.Thread(target=self.live, args=(thing,), daemon=True).start()

    def send(self, method, *arguments):
        reply = Future()
        self.mailbox.put((pickle.dumps((method, arguments)), reply))
        return asyncio.wrap_future(reply)

    def live(self, thing):
        while True:
            message, reply = self.mailbox.get()
            method, arguments = pickle.loads(message)
            if method == "stop":
                return reply.set_result(None)
            try:
                answer = getattr(thing, method)(*arguments)
                reply.set_result(pickle.loads(pickle.dumps(answer)))
            except Exception as error:
                reply.set_exception(error)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A message is a copy

    A shopping basket, to try it on. This one has a bad habit: it slips chocolate into whatever list it is given. `send` returns a future at once;
    `await` waits until its answer is there.
    """)
    return


@app.class_definition
class Basket:
    def __init__(self):
        self.items = []

    def sleep(self, seconds):
        time.sleep(seconds)

    def put(self, things):
        things.append("chocolate")
        self.items += things

    def show(self):
        return self.items


@app.function
async def go_shopping(send):
    """Send four messages, and change the list after it was sent."""
    shopping = ["milk", "eggs"]
    asleep = send("sleep", 0.3)
    put = send("put", shopping)
    shopping.append("tea")  # the basket is still asleep
    await asleep
    await put
    return await send("show"), shopping


@app.cell(hide_code=True)
def _():
    when_copied = lesson.predict(
        "`sleep` keeps the basket busy for 0.3 seconds, so `put` waits in its mailbox. Meanwhile you add tea to your list. What will be in the basket?",
        "milk, eggs, tea, chocolate: it reads the list when it wakes up",
        "milk, eggs, chocolate: it has the list as it was when you sent it",
        "milk, eggs: the chocolate stays outside",
    )
    when_copied
    return (when_copied,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    The same script runs three times: on the basket itself, on a `TinyActor` around it, and on an actor of Monarch. Monarch is the library
    that this course is built on. Its actors live in processes of their own, here or on another machine.

    The class stays the same. It inherits from `Actor`, and `@endpoint` marks the methods that messages may call.
    """)
    return


@app.class_definition
class BasketActor(Actor):
    def __init__(self):
        self.items = []

    @endpoint
    def sleep(self, seconds):
        time.sleep(seconds)

    @endpoint
    def put(self, things):
        things.append("chocolate")
        self.items += things

    @endpoint
    def show(self):
        return self.items


@app.cell(hide_code=True)
def _():
    mo.md("""
    `start_runtime` is the course's own. It starts Monarch with four settings that suit a laptop:

    - a process that died is noticed within one second, not ten;
    - a dead actor does not end your notebook, which is Monarch's default;
    - only you can connect to your processes;
    - large transfers go in small pieces (notebook 07).

    `spawn_procs` starts processes on this machine. Ours are a grid of two rows and two columns. Such a group is a **process mesh**, and
    `spawn` puts one actor into each of its processes. `scene.enter` stops what an earlier run of the cell has left running.
    """)
    return


@app.function(hide_code=True)
@asynccontextmanager
async def running(procs):
    """Stop the processes at the end."""
    try:
        yield procs
    finally:
        await procs.stop()


@app.cell
async def _():
    start_runtime()
    procs = await scene.enter(
        "01", running(this_host().spawn_procs(per_host={"rows": 2, "columns": 2}))
    )
    baskets = procs.spawn("baskets", BasketActor)
    one_basket = baskets.slice(rows=0, columns=0)
    return one_basket, procs


@app.cell
async def _(one_basket):
    def send_to_monarch(method, *arguments):
        return getattr(one_basket, method).call_one(*arguments)

    tiny = TinyActor(Basket())
    shopped = {
        "the object itself": await go_shopping(call_directly(Basket())),
        "`TinyActor`": await go_shopping(tiny.send),
        "Monarch": await go_shopping(send_to_monarch),
    }
    await tiny.send("stop")
    return (shopped,)


@app.cell(hide_code=True)
def _(shopped, when_copied):
    _basket, _list = shopped["Monarch"]
    _right = {("milk", "eggs", "tea", "chocolate"): 0, ("milk", "eggs", "chocolate"): 1}
    _same = (
        "the same" if shopped["`TinyActor`"] == shopped["Monarch"] else "different things"
    )
    lesson.reveal(
        when_copied,
        right=_right.get(tuple(_basket), 2),
        why=f"""
        The list became bytes at the moment of sending. What you do to it afterwards concerns only you: your list now holds {", ".join(_list)}.
        What the basket does concerns only the basket, so the chocolate did not come back to you. `TinyActor` and Monarch say {_same}.
        The object itself behaves differently, because there both sides hold one and the same list.

        No lock is needed: two actors never hold the same object.
        """,
        shows=[
            lesson.table(
                "The same four messages",
                [
                    {
                        "sent to": who,
                        "in the basket": ", ".join(basket),
                        "on your list": ", ".join(shopping),
                    }
                    for who, (basket, shopping) in shopped.items()
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Five ways to send

    A mesh of actors is addressed as one. Choose a kind of call, and see who works and who answers.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        delivery_drawing(),
        "Blue: the message. Green, dashed: the answers. The names rows and columns are ours; a mesh may have any.",
    )
    return


@app.class_definition
class Counter(Actor):
    def __init__(self):
        self.count = 0

    @endpoint
    def add(self, amount, seconds=0.0):
        time.sleep(seconds)
        self.count += amount
        return self.count

    @endpoint
    def value(self):
        return self.count

    @endpoint
    def fail_at(self, unlucky):
        if current_rank().rank == unlucky:
            raise ValueError("I cannot count any further")
        self.count += 1000
        return self.count

    @endpoint
    def pid(self):
        return os.getpid()


@app.cell(hide_code=True)
def _():
    how_many = lesson.predict(
        "Four counters begin at 0. The five lines below run once each. What do the four counts add up to?",
        "5",
        "8",
        "12",
        "20",
    )
    how_many
    return (how_many,)


@app.cell
async def _(procs):
    counters = procs.spawn("counters", Counter)
    all_answers = await counters.add.call(1)
    row_answers = await counters.slice(rows=1).add.call(1)
    one_answer = await counters.slice(rows=0, columns=1).add.call_one(1)
    some_answer = await counters.add.choose(1)
    no_answer = counters.add.broadcast(1)

    counts = await counters.value.call()
    return (
        all_answers,
        counters,
        counts,
        no_answer,
        one_answer,
        row_answers,
        some_answer,
    )


@app.cell(hide_code=True)
async def _(
    all_answers,
    counters,
    counts,
    how_many,
    no_answer,
    one_answer,
    row_answers,
    some_answer,
):
    _total = sum(count for _, count in counts.items())
    _pids = await counters.pid.call()
    _drawn = CountOf([await counters.pid.choose() for _ in range(100)]).values()

    def _values(answers):
        return ", ".join(str(answer) for _, answer in answers.items())

    lesson.reveal(
        how_many,
        right={5: 0, 8: 1, 12: 2, 20: 3}.get(_total, []),
        why=f"""
        {_total}: four from `call`, two from the slice, one each from `call_one` and `choose`, and four from `broadcast`, which works although nothing comes back.
        `choose` draws lots. Of 100 further calls, the four actors got {", ".join(map(str, sorted(_drawn)))}.
        """,
        shows=[
            lesson.table(
                "What came back",
                [
                    {"call": "`call`", "gives": _values(all_answers)},
                    {"call": "`slice(rows=1)`, `call`", "gives": _values(row_answers)},
                    {"call": "`call_one`", "gives": str(one_answer)},
                    {"call": "`choose`", "gives": str(some_answer)},
                    {"call": "`broadcast`", "gives": str(no_answer)},
                ],
            ),
            lesson.table(
                "The four counters",
                [
                    {
                        "place": ", ".join(f"{name}={at}" for name, at in place.items()),
                        "process": str(_pids.item(**dict(place))),
                        "count": count,
                    }
                    for place, count in counts.items()
                ],
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _(config):
    lesson.md(f"""
    ### Nobody waits for a broadcast. Or do they?

    `broadcast` returns at once. The next cell broadcasts `add(1, seconds={config.work_seconds:g})`, so every counter works for {config.work_seconds:g} seconds. Right after
    it, the cell asks all counters for their value.
    """)
    return


@app.cell(hide_code=True)
def _():
    who_waits = lesson.predict(
        "What does the question for the value find?",
        "the old counts, at once: the work is not done yet",
        "the new counts, after the work: the question waits behind it",
        "an error: the actors are busy",
    )
    who_waits
    return (who_waits,)


@app.cell
async def _(config, counters, counts):
    _start = time.monotonic()
    counters.add.broadcast(1, seconds=config.work_seconds)
    sent_after = time.monotonic() - _start
    later = await counters.value.call()
    answered_after = time.monotonic() - _start
    grown = sum(n for _, n in later.items()) - sum(n for _, n in counts.items())
    return answered_after, grown, later, sent_after


@app.cell(hide_code=True)
def _(answered_after, config, grown, sent_after, who_waits):
    lesson.reveal(
        who_waits,
        right=1 if grown == 4 and answered_after >= config.work_seconds else 0,
        why=f"""
        The broadcast line took {in_words(sent_after)}. The answers came after {in_words(answered_after)}, and the counts had grown by {grown} in all.
        Messages from you to one actor arrive in the order in which you sent them, and an actor takes them one by one. So the price of the
        broadcast is still paid: by whoever asks next.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### One of four fails

    Now `call` goes to all four counters. Three of them add 1000. The one of rank 2 raises a `ValueError`. The **rank** is an actor's number
    in the mesh that is called, from 0.
    """)
    return


@app.cell(hide_code=True)
def _():
    who_counted = lesson.predict(
        "What do you get, and who has counted?",
        "three answers and one error; three have counted",
        "one error and no answers; three have counted all the same",
        "one error and no answers; nobody has counted",
    )
    who_counted
    return (who_counted,)


@app.cell
async def _(counters, later):
    try:
        outcome = await counters.fail_at.call(2)
    except ActorError as error:
        outcome = error
    after_failure = await counters.value.call()
    grew = [
        new - old
        for (_, new), (_, old) in zip(after_failure.items(), later.items(), strict=True)
    ]
    return grew, outcome


@app.cell(hide_code=True)
def _(grew, outcome, who_counted):
    _counted = sum(growth == 1000 for growth in grew)
    _error = isinstance(outcome, ActorError)
    lesson.reveal(
        who_counted,
        right=(1 if _counted == 3 else 2) if _error else 0,
        why=f"""
        You get {"one `ActorError`, whose last line is " + lesson.quote(str(outcome).strip().splitlines()[-1]) if _error else "answers"}. The counters have grown by
        {", ".join(map(str, grew))}. An error undoes nothing, and the answers of the others are lost to you. If you send the call again, {_counted} of them count twice.

        The failed actor lives on and takes the next message. Notebook 03 is about those that do not.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## One at a time

    If you know `asyncio`, you know that many coroutines can sleep side by side. Here is an actor whose endpoints are coroutines. Each call reads the
    count, sleeps, and writes the count back, increased by one. `alone` and `together` do exactly the same. Only the decorator differs:
    calls of a `concurrent_endpoint`, which is the course's own, may overlap.
    """)
    return


@app.class_definition
class Napper(Actor):
    def __init__(self):
        self.count = 0

    @endpoint
    async def alone(self, seconds):
        return await self.nap(seconds)

    @concurrent_endpoint
    async def together(self, seconds):
        return await self.nap(seconds)

    async def nap(self, seconds):
        began, count = time.monotonic(), self.count
        await asyncio.sleep(seconds)
        self.count = count + 1
        return began, time.monotonic(), self.count


@app.cell(hide_code=True)
def _(config):
    how_long = lesson.predict(
        f"{config.naps} calls of `alone` go to one actor at the same moment. Each awaits a sleep of {config.nap_seconds:g} seconds. When is the last answer there?",
        f"after {config.nap_seconds:g} s: they sleep side by side",
        f"after {config.naps * config.nap_seconds:g} s: one after the other",
    )
    how_long
    return (how_long,)


@app.cell(hide_code=True)
def _(config):
    what_count = lesson.predict(
        f"And `together`, where the calls do sleep side by side: what is the count after {config.naps} calls?",
        f"{config.naps}",
        "1",
        "something in between, a different number each time",
    )
    what_count
    return (what_count,)


@app.cell
async def _(config, procs):
    async def five_naps(nap):
        sent = time.monotonic()
        calls = [nap.call_one(config.nap_seconds) for _ in range(config.naps)]
        naps = await asyncio.gather(*calls)
        return [(began - sent, ended - sent, count) for began, ended, count in naps]

    nappers = procs.slice(rows=0).spawn("nappers", Napper)
    naps_alone = await five_naps(nappers.slice(columns=0).alone)
    naps_together = await five_naps(nappers.slice(columns=1).together)
    return naps_alone, naps_together


@app.cell(hide_code=True)
def _(config, how_long, naps_alone, naps_together, your_answer_times):
    _times, _whose = your_answer_times
    _seconds = [config.nap_seconds] * config.naps
    _last = max(ended for _, ended, _ in naps_alone)
    lesson.reveal(
        how_long,
        right=1 if _last > 0.75 * config.naps * config.nap_seconds else 0,
        why=f"""
        The last answer came after {_last:.2f} s. An actor finishes one message before it takes the next, even if the first only waits. In `asyncio` terms, the actor holds a
        lock around every endpoint.

        A `concurrent_endpoint` gives that up: its last answer came after {max(ended for _, ended, _ in naps_together):.2f} s.
        """,
        shows=[
            lesson.figure(
                calls_chart(
                    {
                        "alone: an endpoint": [nap[:2] for nap in naps_alone],
                        "together: a concurrent endpoint": [
                            nap[:2] for nap in naps_together
                        ],
                    },
                    {
                        "alone: an endpoint": _times(_seconds, False),
                        "together: a concurrent endpoint": _times(_seconds, True),
                    },
                ),
                f"Measured in the actors. Black ticks: when the answers should come, says {_whose}.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _(config, naps_alone, naps_together, what_count):
    _counts = [count for *_, count in naps_together]
    _alone = [count for *_, count in naps_alone]
    lesson.reveal(
        what_count,
        right={config.naps: 0, 1: 1}.get(_counts[-1], 2),
        why=f"""
        The calls of `together` answered {", ".join(map(str, _counts))}. All of them read the count before any had written it, so all but one of the additions are lost. The
        calls of `alone` answered {", ".join(map(str, _alone))}.

        That is what one at a time buys you: between two lines of an endpoint, nothing else changes the object. Make an endpoint concurrent if it mostly waits,
        and then let no `await` stand between reading and writing.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 1: when do the answers come?

    All messages are sent at time 0 to one actor. Message *i* takes `seconds[i]`. Complete `answer_times`, which returns the time of each answer, in
    order. If `concurrent` is true, the messages only sleep, side by side. The black ticks in the figure above are drawn by *your* function as
    soon as there is one.
    """)
    return


@app.function
def answer_times(seconds, concurrent):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: answer_times,
        check_answer_times,
        answer_times_solution,
        level="warm-up",
        minutes=3,
        hints=(
            "One at a time, each message begins when the one before it has ended.",
            "`itertools.accumulate` gives running totals.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    your_answer_times = plug_in(answer_times, answer_times_solution, gives_times)
    return (your_answer_times,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Ping-pong

    Actors call each other, too. A reference to an actor can be sent in a message like anything else. Two players in two processes meet, and then hit a ball back and forth. A player
    that gets `hit(left)` passes on `hit(left - 1)`, and waits until the rest of the rally has been played.
    """)
    return


@app.class_definition
class Player(Actor):
    def __init__(self):
        self.hits = 0

    @endpoint
    async def meet(self, other):
        self.other = other

    @endpoint
    async def hit(self, left):
        self.hits += 1
        if left > 0:
            await self.other.hit.call_one(left - 1)

    @endpoint
    async def hit_and_forget(self, left):
        self.hits += 1
        if left > 0:
            self.other.hit_and_forget.broadcast(left - 1)

    @concurrent_endpoint
    async def hit_together(self, left):
        self.hits += 1
        if left > 0:
            await self.other.hit_together.call_one(left - 1)

    @endpoint
    async def hits_so_far(self):
        return self.hits


@app.function(hide_code=True)
async def two_players(procs):
    """Start two players in two processes, and introduce them to each other."""
    ping = procs.slice(rows=1, columns=0).spawn("ping", Player)
    pong = procs.slice(rows=1, columns=1).spawn("pong", Player)
    await ping.meet.call_one(pong)
    await pong.meet.call_one(ping)
    return ping, pong


@app.function(hide_code=True)
async def answers_within(seconds, reply):
    """Return True if ``reply`` comes in time."""
    try:
        async with asyncio.timeout(seconds):
            await reply.as_asyncio()
    except TimeoutError:
        return False
    return True


@app.cell(hide_code=True)
def _():
    long_rally = lesson.predict(
        "`ping.hit(0)` answers, and so does `ping.hit(1)`. What happens at `ping.hit(2)`?",
        "it answers, and so does any longer rally",
        "it never answers",
        "it raises an error after a while",
    )
    long_rally
    return (long_rally,)


@app.cell
async def _(config, procs):
    ping, _pong = await two_players(procs)
    rallies = {
        left: await answers_within(config.patience, ping.hit.call_one(left))
        for left in range(3)
    }
    still_there = await answers_within(config.patience, ping.hits_so_far.call_one())
    return rallies, still_there


@app.cell(hide_code=True)
def _(config, long_rally, rallies, still_there):
    _after = (
        "also answered"
        if still_there
        else f"had no answer after {config.patience:g} s either"
    )
    lesson.reveal(
        long_rally,
        right=0 if rallies[2] else 1,
        why=f"""
        `hit(2)` {"answered" if rallies[2] else f"had no answer after {config.patience:g} s"}, and there will be none. ping waits for pong. pong calls ping, but ping is busy: it works on
        `hit(2)`, and it is one at a time. Each waits for the other. That is a **deadlock**. There is no error, only silence.

        A question to ping, `hits_so_far`, {_after}. It lies in the mailbox behind a call that never ends.
        """,
        shows=[lesson.figure(deadlock_drawing(), "An arrow: waits for an answer from.")],
    )
    return


@app.cell(hide_code=True)
def _(config):
    lesson.md(f"""
    There are two ways out. *Do not wait*: `hit_and_forget` passes the ball on by `broadcast`, and is done. Or *do not block*: `hit_together` is a
    concurrent endpoint, so ping can take the next ball while it waits. The next cell plays {config.hits} hits of each with new players.
    """)
    return


@app.cell(hide_code=True)
def _():
    which_cure = lesson.predict(
        "Which rally is faster?",
        "not waiting is at least half as fast again",
        "waiting in a concurrent endpoint is at least half as fast again",
        "neither by that much",
    )
    which_cure
    return (which_cure,)


@app.cell
def _(config):
    async def rally_and_forget(ping, pong):
        ping.hit_and_forget.broadcast(config.hits - 1)
        hits = 0
        while hits < config.hits:
            hits = await ping.hits_so_far.call_one() + await pong.hits_so_far.call_one()

    async def rally_together(ping, pong):
        await ping.hit_together.call_one(config.hits - 1)

    return rally_and_forget, rally_together


@app.cell(hide_code=True)
async def _(procs, rally_and_forget, rally_together):
    rally_seconds = {}
    for _name, _rally in {"forget": rally_and_forget, "together": rally_together}.items():
        _players = await two_players(procs)
        _start = time.monotonic()
        await _rally(*_players)
        rally_seconds[_name] = time.monotonic() - _start
    return (rally_seconds,)


@app.cell(hide_code=True)
def _(config, rally_seconds, which_cure):
    _forget, _together = rally_seconds.values()
    _right = 0 if _together > 1.5 * _forget else 1 if _forget > 1.5 * _together else 2
    lesson.reveal(
        which_cure,
        right=_right,
        why=f"""
        Not waiting took {in_words(_forget / config.hits)} a hit, waiting in a concurrent endpoint {in_words(_together / config.hits)}. Waiting costs a second message
        for every hit, the answer, and {config.hits // 2} open calls in each player. Not waiting has its own price: nobody tells you when the rally is over, so the cell above asks again and again. An error would have no caller to go to.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: find the deadlock

    A monitor has written down who waits for whom: `{"ping": "pong", "pong": "ping", "you": "ping"}`. Each actor is plain, so it waits for at most one
    other. Complete `stuck`, which returns the set of all names that will wait for ever. That includes those who wait for somebody who is stuck. Those who wait for
    somebody who is free will be served.
    """)
    return


@app.function
def stuck(waits_for):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: stuck,
        check_stuck,
        stuck_solution,
        level="stretch",
        minutes=7,
        hints=(
            "Start at a name and follow the arrows. Either you reach somebody who waits for nobody, or you come back to where you have been.",
            "Keep the names on the way in a set. Stop when the next name is missing from `waits_for`, or is in the set already.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(config):
    lesson.md(f"""
    ## A mesh that sums

    Four processes should add numbers faster than one. Add the numbers from 0 to {config.numbers - 1:,} in three ways. First, here. Second, on the mesh, sending each actor a quarter of all numbers. Third, on the mesh, sending each actor only *where its quarter begins and ends*.
    """)
    return


@app.class_definition
class Summer(Actor):
    @endpoint
    def add_up(self, numbers):
        return sum(numbers)

    @endpoint
    def add_up_my_part(self, part_of, total):
        me = current_rank()  # who I am, among how many
        first, end = part_of(total, me.rank, me.extent.nelements)
        return sum(range(first, end))


@app.cell(hide_code=True)
def _():
    send_numbers = lesson.predict(
        "You send each of four processes a quarter of all numbers. Compared with adding all numbers here, this is",
        "faster: four add at the same time",
        "about as fast",
        "at least twice as slow",
    )
    send_numbers
    return (send_numbers,)


@app.cell
def _(config, part_in_use, procs):
    summers = procs.spawn("summers", Summer)
    quarters = [list(range(first, config.numbers, 4)) for first in range(4)]

    async def here():
        return sum(range(config.numbers))

    async def numbers_sent():
        answers = [
            summers.slice(rows=place // 2, columns=place % 2).add_up.call_one(quarter)
            for place, quarter in enumerate(quarters)
        ]
        return sum(await asyncio.gather(*answers))

    async def limits_sent():
        parts = await summers.add_up_my_part.call(part_in_use, config.numbers)
        return sum(part for _, part in parts.items())

    return here, limits_sent, numbers_sent, summers


@app.cell(hide_code=True)
async def _(here, limits_sent, numbers_sent, summers):
    await summers.add_up.call([])  # so that nobody is still starting
    sums, sum_seconds = {}, {}
    for _how, _add in {
        "here": here,
        "numbers sent": numbers_sent,
        "limits sent": limits_sent,
    }.items():
        _start = time.monotonic()
        sums[_how] = await _add()
        sum_seconds[_how] = time.monotonic() - _start
    return sum_seconds, sums


@app.cell(hide_code=True)
def _(config, send_numbers, sum_seconds, sums, whose_part):
    _here, _sent, _limits = sum_seconds.values()
    _gain = _here / _limits
    _faster = (
        f"{_gain:.1f} times as fast as here"
        if _gain > 1.15
        else f"no faster than here: this machine has {os.cpu_count()} cores, and in this run they were busy"
    )
    _because = (
        f" To turn {config.numbers:,} numbers into bytes and back is more work than to add them."
        if _sent > _here
        else ""
    )
    lesson.reveal(
        send_numbers,
        right=2 if _sent > 2 * _here else 0 if _sent < 0.8 * _here else 1,
        why=f"""
        Sending the numbers took {_sent / _here:.1f} times as long as adding them here.{_because} Sending only the limits was {_faster}.

        So *send the work to the data, not the data to the work*. Who set the limits: {whose_part}. That is why, in the coming notebooks, weights and batches stay where they are, and messages say what to do with them.
        """,
        shows=[
            lesson.table(
                f"The sum of 0 to {config.numbers - 1:,}",
                [
                    {
                        "how": how,
                        "seconds": f"{seconds:.3f}",
                        "sum": f"{sums[how]:,}",
                        "": "right" if sums[how] == sums["here"] else "wrong",
                    }
                    for how, seconds in sum_seconds.items()
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: my part

    Complete `my_part`. It returns `(first, end)`: the actor of `rank` among `size` adds the numbers from `first` up to, but not including, `end`. The parts
    follow each other without a gap, and their lengths differ by at most one. Longer parts come first.

    *Plugged in:* your function is sent to the four processes and decides what the mesh adds. Look at the table above: if your parts overlap or leave a gap, the mesh's sum is wrong.
    """)
    return


@app.function
def my_part(total, rank, size):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: my_part,
        check_my_part,
        my_part_solution,
        level="core",
        minutes=6,
        hints=(
            "`divmod(total, size)` gives the length of the shorter parts, and how many parts are one longer.",
            "Before rank r come r shorter lengths, and one more for each longer part among them: `min(r, longer)`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(config):
    part_in_use, whose_part = plug_in(
        my_part, my_part_solution, lambda part: stays_within(part, config.numbers)
    )
    return part_in_use, whose_part


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Half a mesh

    Each actor asks `current_rank()` who it is, and takes that part. Now the message goes to row 1 only: to two of the four actors.
    """)
    return


@app.cell(hide_code=True)
def _():
    half_mesh = lesson.predict(
        "`summers.slice(rows=1).add_up_my_part.call(...)`: what do the two answers add up to?",
        "half of the sum: these two add their own quarters",
        "the whole sum",
        "an error: ranks 0 and 1 are missing",
    )
    half_mesh
    return (half_mesh,)


@app.cell
async def _(config, part_in_use, summers):
    half_parts = await summers.slice(rows=1).add_up_my_part.call(
        part_in_use, config.numbers
    )
    return (half_parts,)


@app.cell(hide_code=True)
def _(half_mesh, half_parts, sums):
    _share = sum(part for _, part in half_parts.items()) / sums["limits sent"]
    lesson.reveal(
        half_mesh,
        right=1 if _share > 0.99 else 0,
        why=f"""
        They add up to {_share:.0%} of the sum. A rank belongs to the mesh that is *called*, not to the process: in the slice, the two actors are ranks 0 and 1 of 2. The same code runs
        on four workers or on the two that are left. You will use that when a worker has died.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What a call costs

    A message is packed, sent to another process, unpacked, worked on, and the answer comes back the same way. How expensive is that? The next figure compares it with other ways to get
    something done.
    """)
    return


@app.cell(hide_code=True)
def _():
    how_dear = lesson.predict(
        "How many plain calls of a Python method fit into one `call_one` to another process?",
        "about ten",
        "some hundreds",
        "thousands",
    )
    how_dear
    return (how_dear,)


@app.class_definition(hide_code=True)
class Adder:
    def __init__(self):
        self.count = 0

    def add(self, amount):
        self.count += amount
        return self.count


@app.cell(hide_code=True)
async def _(config, counters):
    async def plain_calls(times):
        for _ in range(times):
            adder.add(1)

    async def tiny_calls(times):
        for _ in range(times):
            await tiny_adder.send("add", 1)

    async def calls(times):
        for _ in range(times):
            await counter.add.call_one(1)

    async def calls_at_once(times):
        await asyncio.gather(*(counter.add.call_one(1) for _ in range(times)))

    async def programs(times):
        for _ in range(times):
            subprocess.run([sys.executable, "-c", "pass"], check=True)

    async def meshes(times):
        async with running(this_host().spawn_procs(per_host={"procs": 1})) as procs:
            await procs.spawn("counter", Counter).add.call_one(1)

    async def timed(work, times=1):
        return await seconds_each(work, times, config.measured_seconds)

    adder, tiny_adder = Adder(), TinyActor(Adder())
    counter = counters.slice(rows=0, columns=0)
    costs = {
        "method of an object": await timed(plain_calls, 10_000),
        "TinyActor (a thread)": await timed(tiny_calls),
        "Monarch, many at once": await timed(calls_at_once, 50),
        "Monarch, call_one": await timed(calls),
        "a Python program": await timed(programs),
        "new process, actor, one call": await timed(meshes),
    }
    await tiny_adder.send("stop")
    return (costs,)


@app.cell(hide_code=True)
def _(config, costs, how_dear):
    _function, _tiny, _many, _one, _program, _mesh = costs.values()
    _ratio = _one / _function
    lesson.reveal(
        how_dear,
        right=0 if _ratio < 100 else 1 if _ratio < 1000 else 2,
        why=f"""
        About {float(f"{_ratio:.2g}"):,.0f}. One call takes {in_words(_one)}; of many calls at once, each takes {in_words(_many)}{", so much of a single call is waiting" if _many < 0.6 * _one else ""}. A new Python program
        takes {in_words(_program)}, and a new process with an actor in it, stopped again, {in_words(_mesh)}.

        A rule of thumb from these numbers: for calls to cost less than a tenth of the time, each should do at least {in_words(9 * _one)} of work.
        """,
        shows=[
            lesson.figure(
                seconds_chart(costs, "seconds for one"),
                f"Medians of what fits into {config.measured_seconds:g} s each, on this machine. Each grid line is ten times the one before.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### And what its size costs

    You have a matrix of 1,000 × 1,000 numbers in PyTorch, four million bytes. An actor needs only its first row, so you send `matrix[0]`.
    """)
    return


@app.cell(hide_code=True)
def _():
    row_size = lesson.predict(
        "How many bytes does the message have?",
        "about 4 thousand: one row",
        "about 4 million: the whole matrix",
    )
    row_size
    return (row_size,)


@app.class_definition
class Reader(Actor):
    @endpoint
    def length(self, message):
        return len(message)


@app.cell
async def _(procs):
    matrix = torch.zeros(1000, 1000)
    messages = {
        "`matrix[0]`": matrix[0],
        "`matrix[0].clone()`": matrix[0].clone(),
        "`matrix`": matrix,
    }
    reader = procs.slice(rows=0, columns=0).spawn("reader", Reader)
    seen = {name: await reader.length.call_one(sent) for name, sent in messages.items()}
    return messages, reader, seen


@app.cell(hide_code=True)
async def _(config, messages, reader, seen):
    async def read(times):
        for _ in range(times):
            await reader.length.call_one(message)

    # The reader has imported torch with the messages that it has seen.
    plain_bytes = {f"{size:,} plain bytes": bytes(size) for size in config.message_sizes}
    sizes = {}
    for _name, message in ({name: messages[name] for name in seen} | plain_bytes).items():
        _seconds = await seconds_each(read, 1, config.measured_seconds)
        sizes[_name] = len(pickle.dumps(message)), _seconds
    return (sizes,)


@app.cell(hide_code=True)
def _(row_size, sizes):
    (
        (_row, _row_seconds),
        (_clone, _clone_seconds),
        _,
        (_, _empty),
        *_,
        (_large_size, _large),
    ) = sizes.values()
    lesson.reveal(
        row_size,
        right=1 if _row > 1_000_000 else 0,
        why=f"""
        {_row:,} bytes. A row of a tensor is a *view*: it has no memory of its own, only a place in the memory of the matrix. All of that memory gets packed. With `clone()`
        the message has {_clone:,} bytes and takes {in_words(_clone_seconds)} instead of {in_words(_row_seconds)}. Nobody warns you: the answer is right both ways.

        Without tensors, an empty message took {in_words(_empty)}, and one of {_large_size:,} bytes {in_words(_large)}. For small messages you pay by the piece, for large ones by the byte. For
        weights that is too slow, and notebook 07 shows another way.
        """,
        shows=[
            lesson.table(
                "Messages to one actor, and back",
                [
                    {
                        "message": name,
                        "bytes": f"{size:,}",
                        "time of a call": in_words(seconds),
                    }
                    for name, (size, seconds) in sizes.items()
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Stop the processes

    If you start processes, you stop them. This works for the deadlocked players, too: the processes end, and the silence with them.
    """)
    return


@app.cell
async def _(
    costs,
    grew,
    half_parts,
    rally_seconds,
    shopped,
    sizes,
    still_there,
):
    # The cell uses all results above, so that it runs last.
    _results = costs, grew, half_parts, rally_seconds, shopped, sizes, still_there
    await scene.leave("01")
    return


@app.cell(hide_code=True)
def _():
    lesson.predicted(12)
    return


@app.cell(hide_code=True)
def _(costs):
    lesson.recap(
        "An actor is an object with a mailbox. Messages and answers are copies, made at the moment of sending.",
        "`call` reaches all and waits for all, `call_one` one, `choose` one by lot, `broadcast` all without waiting, and a slice is a smaller mesh.",
        "An actor works on one message at a time, even across `await`. That protects its state, and it is how actors deadlock.",
        "An error in one actor undoes nothing in the others.",
        f"A call cost {in_words(costs['Monarch, call_one'])} here, so make messages few, worth it, and small: send the work to the data.",
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.function(hide_code=True)
def call_directly(thing):
    """Return a way to call the methods of ``thing`` that can be awaited, as messages are."""

    def send(method, *arguments):
        return asyncio.sleep(0, getattr(thing, method)(*arguments))

    return send


@app.function(hide_code=True)
async def seconds_each(work, times, within):
    """Return the seconds for one of ``times``: the median of all runs that begin ``within`` so many seconds."""
    runs, end = [], time.perf_counter() + within
    while not runs or time.perf_counter() < end:
        start = time.perf_counter()
        await work(times)
        runs.append((time.perf_counter() - start) / times)
    return median(runs)


@app.function(hide_code=True)
def gives_times(answer_times):
    """Return True if the figure can draw what ``answer_times`` returns."""
    found = [answer_times([0.1, 0.2], concurrent) for concurrent in (False, True)]
    return all(len(times) == 2 and all(0 <= t < 60 for t in times) for times in found)


@app.function(hide_code=True)
def stays_within(my_part, total):
    """Return True if the actors can add what ``my_part`` returns, right or wrong."""
    parts = [my_part(total, rank, size) for size in (2, 4) for rank in range(size)]
    return all(
        end in range(total + 1) and first in range(total + 1) for first, end in parts
    )


@app.function(hide_code=True)
def check_answer_times(answer_times):
    exercise.expect(answer_times, [2.0], False, result=[2.0])
    exercise.expect(answer_times, [1.0, 3.0, 0.5], False, result=[1.0, 4.0, 4.5])
    exercise.expect(answer_times, [1.0, 3.0, 0.5], True, result=[1.0, 3.0, 0.5])
    exercise.expect(answer_times, [], False, result=[])


@app.function(hide_code=True)
def answer_times_solution(seconds, concurrent):
    return list(seconds) if concurrent else list(accumulate(seconds))


@app.function(hide_code=True)
def check_stuck(stuck):
    exercise.expect(stuck, {"ping": "pong", "pong": "ping"}, result={"ping", "pong"})
    exercise.expect(stuck, {"you": "ping", "ping": "pong"}, result=set())
    exercise.expect(
        stuck,
        {"you": "ping", "ping": "pong", "pong": "ping", "tool": "disk"},
        result={"you", "ping", "pong"},
    )
    exercise.expect(stuck, {"me": "me"}, result={"me"})
    exercise.expect(stuck, {"a": "b", "b": "c", "c": "b", "d": "a"}, result=set("abcd"))


@app.function(hide_code=True)
def stuck_solution(waits_for):
    for_ever = set()
    for name in waits_for:
        here, passed = name, set()
        while here in waits_for and here not in passed:
            passed.add(here)
            here = waits_for[here]
        if here in passed:
            for_ever.add(name)
    return for_ever


@app.function(hide_code=True)
def check_my_part(my_part):
    exercise.expect(my_part, 8, 1, 4, result=(2, 4))
    exercise.expect(my_part, 10, 0, 4, result=(0, 3))
    exercise.expect(my_part, 10, 1, 4, result=(3, 6))
    exercise.expect(my_part, 10, 3, 4, result=(8, 10))
    exercise.expect(my_part, 2, 3, 4, result=(2, 2))


@app.function(hide_code=True)
def my_part_solution(total, rank, size):
    length, longer = divmod(total, size)
    first = rank * length + min(rank, longer)
    return first, first + length + (rank < longer)


if __name__ == "__main__":
    app.run()
