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
    app_title="Actors: objects that take messages",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)

with app.setup(hide_code=True):
    import asyncio
    import pickle
    import queue
    import threading
    import time
    import timeit
    from concurrent.futures import Future
    from itertools import accumulate
    from types import SimpleNamespace

    import marimo as mo

    from zorplex_rl.course import nb01
    from zorplex_rl.course.figures import drawing_of
    from zorplex_rl.course.lesson import exercise, keep_open, lesson
    from zorplex_rl.devices import cores
    from zorplex_rl.services.runtime import (
        Actor,
        ActorError,
        concurrent_endpoint,
        current_rank,
        endpoint,
        start_monarch,
        this_host,
    )


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=50,
        hardware="two CPU cores, no network",
        goals=[
            "write an actor, and run it in four processes",
            "choose between call, call_one, choose, broadcast and a slice",
            "see a deadlock coming, and remove it",
            "say what a message costs",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Several programs, one model

    Later in this course a language model learns by trying. One program writes attempts: the
    **generator**. Another looks things up when an attempt asks for it: a tool. A third one, the
    **trainer**, improves the model. Writing is slow, since each word waits for the word before. If one
    process did everything in turn, the trainer's GPU would stand idle while the generator writes. So
    they run at the same time, in processes of their own, often on different machines.

    But they share things: the weights, the finished texts, the list of what is still to do. In one
    process you would share an object and protect it with a lock. Across machines there is no shared
    memory to lock. So give each object to one owner, and send this owner messages.

    Such an owner is an **actor**. Nobody else may touch its object. Your message waits in its
    **mailbox** until the actor has finished the messages before it. Then it works on yours, and
    replies. Five words to begin with:

    | word | what it is | in our system |
    |---|---|---|
    | actor | an object with a mailbox, in a process: only messages reach it | a generator with its copy of the model |
    | endpoint | a method of it that messages may call | `generate`, `load_weights` |
    | message | the call and its arguments, as a copy | a question, a finished text |
    | mesh | many processes, or actors, under one name | eight generators |
    | slice | a part of a mesh, called like a mesh | the generators of one machine |
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        drawing_of("mailbox.svg"),
        "Blue: messages. Green: a reply, which goes to whoever sent the message; one of three is drawn. Only the actor's own thread touches the object.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A whole actor

    An actor is a queue, and a thread that works through it. `send` returns a *future* at once: a
    place where the answer will be. `pickle` turns a message into bytes and back, because a message
    to another machine has to become bytes, too.
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
        # `await` cannot wait for a future of threads, so it is wrapped.
        return asyncio.wrap_future(reply)

    def live(self, thing):
        while True:
            message, reply = self.mailbox.get()
            method, arguments = pickle.loads(message)
            if method == "stop":
                return reply.set_result(None)
            try:
                answer = getattr(thing, method)(*arguments)
                # The caller gets a copy, too, and not the object's own list.
                reply.set_result(pickle.loads(pickle.dumps(answer)))
            except Exception as error:
                reply.set_exception(error)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A message is a copy

    This shopping basket has a bad habit: it slips chocolate into the list that it is given.
    `go_shopping` sends it three messages. `send` returns at once; only `await` waits. The first
    message keeps the basket busy, so that the tea is added before the basket works on `put`.
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
    """Send three messages, and change the list between the second and the third."""
    shopping = ["milk", "eggs"]
    asleep = send("sleep", 0.3)
    put = send("put", shopping)
    shopping.append("tea")
    await asleep
    await put
    return await send("show"), shopping


@app.cell(hide_code=True)
def _():
    mo.md("""
    `go_shopping` runs three times: on a plain basket, on a `TinyActor` around one, and on an actor of
    Monarch, the library of this course. Monarch's actors live in processes of their own. Here is
    the basket as such an actor. Two things are new: the base class, and the mark at each method that
    messages may call. Such a method is an **endpoint**. With Monarch, `send("put", shopping)` is
    written `one_basket.put.call_one(shopping)`.
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
    `spawn_procs` starts processes in two rows and two columns: a **process mesh**. `spawn` puts an
    actor into each. You choose the names of the axes. On a cluster you might write
    `{"hosts": 32, "gpus": 8}`, and `slice(hosts=3)` is then the eight of one machine.
    """)
    return


@app.cell
def _():
    start_monarch()
    procs = this_host().spawn_procs(per_host={"rows": 2, "columns": 2})
    baskets = procs.spawn("baskets", BasketActor)
    one_basket = baskets.slice(rows=0, columns=0)
    return one_basket, procs


@app.cell(hide_code=True)
async def _(procs):
    # First stops the processes of an earlier run of these cells, so that they do not pile up.
    opened = await keep_open.enter("01", keep_open.stopping(procs))
    return (opened,)


@app.cell(hide_code=True)
def _():
    when_copied = lesson.predict(
        "`go_shopping` sends its three messages to Monarch's `one_basket`. In the end, what is on the list `shopping`, which stayed with you?",
        "milk, eggs, tea",
        "milk, eggs, tea, chocolate",
        "milk, eggs, chocolate, tea",
    )
    when_copied
    return (when_copied,)


@app.cell(hide_code=True)
async def _(one_basket):
    def send_directly(method, *arguments):
        reply = Future()
        reply.set_result(getattr(basket, method)(*arguments))  # a plain call: no copy
        return asyncio.wrap_future(reply)

    def send_to_monarch(method, *arguments):
        return getattr(one_basket, method).call_one(*arguments)

    basket = Basket()
    tiny = TinyActor(Basket())
    shopped = {
        "the object itself": await go_shopping(send_directly),
        "`TinyActor`": await go_shopping(tiny.send),
        "Monarch": await go_shopping(send_to_monarch),
    }
    await tiny.send("stop")
    return (shopped,)


@app.cell(hide_code=True)
def _(shopped, when_copied):
    _yours = ", ".join(shopped["Monarch"][1])
    lesson.reveal(
        when_copied,
        right=[n for n, option in enumerate(when_copied.options) if option == _yours],
        why=f"""
        On your list is {_yours}. The list became bytes when it was sent. The chocolate went into the
        actor's copy, and your tea came too late for it. Only the plain basket wrote into *your* list.
        Two actors never hold the same object, so they need no lock.
        """,
        shows=[
            lesson.table(
                "The same three messages",
                [
                    {
                        "sent to": who,
                        "in the basket": ", ".join(basket),
                        "on your list": ", ".join(yours),
                    }
                    for who, (basket, yours) in shopped.items()
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## An actor of your own

    The rest of this page runs on an actor that you write. It keeps a total, and adds up its part of
    a large sum. How does it know which part is its own? By its **rank**: its number, counted from 0,
    among the actors that are called. Call all four, and they are ranks 0 to 3 of 4. Call only two of
    them, and these two are ranks 0 and 1 of 2. So the rank comes with each message. In an endpoint,
    `current_rank().rank` is this number, and `current_rank().extent.nelements` says how many are
    called.

    ### Exercise 1: `Summer`

    To write here, you need this page as a notebook: run `uv run zorplex-rl open 01` in a clone of
    the repository. It starts `marimo edit`, which shows the page in your browser; marimo is a notebook
    for Python. Replace the `...` by methods. The page then runs `summer_class`: yours once it passes its check, the course's until then.
    """)
    return


@app.class_definition
class Summer(Actor):
    """Keep a running total, which begins at 0. It has two endpoints.

    add(numbers): add a list of numbers to the total. Returns the
    new total. If that would be below 0: raises ValueError, and the
    total stays.

    add_range(end): actor r of n adds up r, r + n, r + 2n, …, as far
    as they are below end. Returns this sum. The total stays.

    With 4 actors, rank 1 answers add_range(10) with 1 + 5 + 9.
    After add([5, 2]) returned 7, add([-9]) raises, and add([]) returns 7.
    """

    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: Summer,
        Solutions,
        level="core",
        minutes=15,
        lines=13,
        hints=(
            "What has to be known before the total may change? And when does an actor learn its "
            "rank: when it is made, or with each message?",
            "`__init__` sets the total. `add` computes the new total, raises or keeps it, and returns "
            "it. `add_range` needs one `range(first, end, step)`. Put `@endpoint` above both.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    summer_class, whose_summer = exercise.running(lambda: Summer, Solutions)
    return summer_class, whose_summer


@app.cell(hide_code=True)
def _(whose_summer):
    lesson.md(f"""
    ## Five ways to send

    `add` says *what* is to be done. The word behind it says who does it, and what becomes of the
    answers.

    | word | who works | what comes back |
    |---|---|---|
    | `call` | all actors of the mesh | each one's answer, with its place |
    | `slice(rows=1).call` | the actors of row 1 | each one's answer, with its place |
    | `call_one` | the only actor: the mesh or slice must have exactly one | its answer itself |
    | `choose` | one actor, drawn at random for each call | its answer itself |
    | `broadcast` | all actors | nothing, so you do not wait |

    Choose a kind of call. The actors below run {whose_summer}.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        drawing_of("delivery.html"),
        "Blue: the message. Green, dashed: the answers. `rows` and `columns` are the names that we chose in `spawn_procs`.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    The code uses each of the five once, to add 1. Its last line reads the totals: `add([])` adds nothing
    and returns them. `.values()` drops the places.
    """)
    return


@app.cell
async def _(procs, summer_class):
    summers = procs.spawn("summers", summer_class)
    all_answers = await summers.add.call([1])
    row_answers = await summers.slice(rows=1).add.call([1])
    one_answer = await summers.slice(rows=0, columns=1).add.call_one([1])
    some_answer = await summers.add.choose([1])
    no_answer = summers.add.broadcast([1])
    totals = (await summers.add.call([])).values()
    return (
        all_answers,
        no_answer,
        one_answer,
        row_answers,
        some_answer,
        summers,
        totals,
    )


@app.cell(hide_code=True)
def _():
    how_many = lesson.predict(
        "Four totals begin at 0. What do they add up to after the five calls with `[1]`?",
        "5",
        "8",
        "12",
        "20",
    )
    how_many
    return (how_many,)


@app.cell(hide_code=True)
def _(all_answers, how_many, no_answer, one_answer, row_answers, some_answer, totals):
    lesson.reveal(
        how_many,
        right={5: 0, 8: 1, 12: 2, 20: 3}.get(sum(totals), []),
        why=f"""
        They add up to {sum(totals)}. Count actors, not calls: four, two, one, one, four. The calls returned
        {nb01.listed(all_answers)}; then {nb01.listed(row_answers)}; then `{one_answer}`,
        `{some_answer}` and `{no_answer}`.
        """,
    )
    return


@app.cell(hide_code=True)
def settings():
    config = SimpleNamespace(
        long_sum=40_000_000,  # how many numbers every actor of a broadcast shares in adding up
        naps=5,  # calls of a Napper, all sent at the same moment
        nap_seconds=0.2,  # how long each of these calls sleeps
        patience=1.0,  # seconds without an answer that we call a deadlock
        hits=100,  # in the long rally of ping-pong
        numbers=4_000_000,  # how many numbers the mesh adds up
    )
    return (config,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    Two questions are left. *Does a broadcast wait?* We broadcast a long sum, and ask for all totals
    right after it. *What is left when some actors fail?* One actor adds 1,000. Then all four are asked
    to add −10, which only this one can do without falling below 0.
    """)
    return


@app.cell
async def _(config, summers, totals):
    summers.add_range.broadcast(0)  # so that no first use is timed
    await summers.add.call([])
    _start = time.monotonic()
    summers.add_range.broadcast(config.long_sum)
    sent_after = time.monotonic() - _start
    await summers.add.call([])
    answered_after = time.monotonic() - _start

    await summers.slice(rows=1, columns=0).add.call_one([1000])  # rank 2 of the four
    try:
        outcome = await summers.add.call([-10])
    except ActorError as error:
        outcome = error
    after_failure = (await summers.add.call([])).values()
    return after_failure, answered_after, outcome, sent_after


@app.cell(hide_code=True)
def _(after_failure, answered_after, outcome, sent_after, totals):
    lesson.md(f"""
    Sending the broadcast took {lesson.in_words(sent_after)}, and the answer to the next question came {lesson.in_words(answered_after)}
    after the start. So {"the broadcast did not wait for the sum, but the question did" if sent_after < answered_after / 2 else "this time even sending took long, on a busy machine"}. An actor takes
    messages one at a time, and yours in the order in which you sent them. Monarch promises this order.

    The totals were {nb01.listed(totals)}, and are {nb01.listed(after_failure)}. Three actors raised, and
    you got {"one `ActorError`" if isinstance(outcome, ActorError) else "answers"}. The answer of rank 2 is
    lost, but its total has changed: an error in one actor undoes nothing in the others.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## One at a time

    One message at a time is safe, and slow where an actor only waits, for a tool or for another
    actor. `alone` and `together` below do the same. Only the decorator differs: calls of a
    `concurrent_endpoint` may overlap. Each reads the count, sleeps, and writes the count back.

    An endpoint that awaits is written `async def`, and then all endpoints of its class have to be.
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
        count = self.count
        await asyncio.sleep(seconds)
        self.count = count + 1
        return self.count


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: when do the answers come?

    All messages are sent to one actor at time 0. Message *i* sleeps for `seconds[i]`; if
    `concurrent`, side by side with the others.
    """)
    return


@app.function
def answer_times(seconds, concurrent):
    """Return a list: at place i, when the answer to message i comes, in seconds.

    >>> answer_times([1.0, 3.0], False)
    [1.0, 4.0]
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: answer_times,
        Solutions,
        level="warm-up",
        minutes=3,
        hints=(
            "One at a time: when does a message begin?",
            "`itertools.accumulate` gives running totals.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(config):
    what_count = lesson.predict(
        f"{config.naps} calls of `together` are sent at the same moment. What is the count after them?",
        f"{config.naps}",
        "1",
        "something in between",
    )
    what_count
    return (what_count,)


@app.cell
async def _(config, procs):
    async def ask_at_once(nap):
        start = time.monotonic()
        calls = [nap.call_one(config.nap_seconds) for _ in range(config.naps)]
        return await asyncio.gather(*calls), time.monotonic() - start

    nappers = procs.slice(rows=0).spawn("nappers", Napper)
    counts_alone, seconds_alone = await ask_at_once(nappers.slice(columns=0).alone)
    counts_together, seconds_together = await ask_at_once(nappers.slice(columns=1).together)
    return counts_alone, counts_together, seconds_alone, seconds_together


@app.cell(hide_code=True)
def _(config, counts_alone, counts_together, seconds_alone, seconds_together, what_count):
    _times, _whose = exercise.running(lambda: answer_times, Solutions)
    _alone, _together = (
        max(_times([config.nap_seconds] * config.naps, kind)) for kind in (False, True)
    )
    lesson.reveal(
        what_count,
        right={config.naps: 0, 1: 1}.get(max(counts_together), 2),
        why=f"""
        `together` answered {nb01.listed(counts_together)}, the last after {seconds_together:.2f} s: all
        read the count before any had written it. `alone` answered {nb01.listed(counts_alone)}, the last
        after {seconds_alone:.2f} s. By {_whose} it should be {_together:.1f} and {_alone:.1f} s.

        A plain endpoint ends before the next call begins, even while it only waits. In a concurrent one,
        never put an `await` between reading a value and writing it.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Ping-pong

    Actors also call each other: a generator asks a tool, a trainer asks for finished texts. For that,
    an actor is sent to another one as an argument, as `meet` does below.

    The player that gets `hit(left)` sends `hit(left - 1)` to the other one, and waits until the rest
    of the rally has been played. `nb01.two_players` puts ping and pong into two processes and lets them
    meet. `nb01.answers_within` is true if an answer comes within so many seconds.
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
    async def hits_so_far(self):
        return self.hits


@app.cell(hide_code=True)
def _():
    long_rally = lesson.predict(
        "`ping.hit(0)` answers, and so does `ping.hit(1)`. What happens at `ping.hit(2)`?",
        "it answers",
        "it never answers",
        "it raises an error",
    )
    long_rally
    return (long_rally,)


@app.cell
async def _(config, procs):
    _ping, _ = await nb01.two_players(procs, Player)
    answered = [
        await nb01.answers_within(config.patience, _ping.hit.call_one(left))
        for left in range(3)
    ]
    return (answered,)


@app.cell(hide_code=True)
def _(answered, config, long_rally):
    lesson.reveal(
        long_rally,
        right=0 if answered[2] else 1,
        why=f"""
        `hit(2)` {"answered" if answered[2] else f"had no answer after {config.patience:g} s"}. ping waits
        for pong; pong calls ping, which is busy with `hit(2)`. That is a **deadlock**: no error, only
        silence. Whatever you send next waits behind a call that never ends.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: mend the deadlock

    Rewrite `hit`, so that a rally of any length ends, and every hit is counted.
    """)
    return


@app.class_definition
class MendedPlayer(Player):
    """Play rallies of any length: ping.hit(4) is 3 hits by ping and 2 by pong.

    hit(left): count a hit. If left is above 0, pass hit(left - 1) on
    to self.other.
    """

    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: MendedPlayer,
        Solutions,
        level="stretch",
        minutes=6,
        lines=5,
        hints=(
            "Two things together make the deadlock: a player waits, and takes nothing else "
            "meanwhile. Which one do you give up?",
            "Either a `concurrent_endpoint` that waits, or an `endpoint` that passes the ball on by "
            "`broadcast`. Monarch wants `async def` in all endpoints of a class, or in none.",
        ),
    )
    return


@app.cell(hide_code=True)
async def _(config, procs):
    player_class, whose_player = exercise.running(lambda: MendedPlayer, Solutions)
    ping, pong = await nb01.two_players(procs, player_class)
    rally_seconds = await nb01.play(ping, pong, config.hits)
    return rally_seconds, whose_player


@app.cell(hide_code=True)
def _(config, rally_seconds, whose_player):
    lesson.md(f"""
    A rally of {config.hits} hits ended after {lesson.in_words(rally_seconds)}, with {whose_player}.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.folded(
        "There are two ways out. What does each cost?",
        """
        A player that waits in a concurrent endpoint keeps a call open for every hit. One that
        broadcasts is never told that the rally is over, and an error has no caller to go to.
        """,
    )
    return


@app.cell(hide_code=True)
def _(config):
    lesson.md(f"""
    ## A mesh that sums

    The numbers from 0 to {config.numbers - 1:,} are added up three times. First in this process. Then
    on the mesh, with a quarter of the *numbers* sent to each actor. Last, with only the *end* sent.
    """)
    return


@app.cell(hide_code=True)
def _():
    send_numbers = lesson.predict(
        "Each of four processes is sent a quarter of the numbers. Compared with adding here, this is",
        "faster",
        "about as fast",
        "slower, but less than twice",
        "at least twice as slow",
    )
    send_numbers
    return (send_numbers,)


@app.cell(hide_code=True)
async def _(config, procs, summer_class):
    fresh = procs.spawn("fresh", summer_class)
    await fresh.add.call([])  # so that nobody is still starting
    quarters = [list(range(first, config.numbers, 4)) for first in range(4)]

    async def add_here():
        return sum(range(config.numbers))

    async def send_quarters():
        actors = [
            fresh.slice(rows=row, columns=column) for row in (0, 1) for column in (0, 1)
        ]
        calls = [
            actor.add.call_one(part) for actor, part in zip(actors, quarters, strict=True)
        ]
        return sum(await asyncio.gather(*calls))

    async def send_the_end():
        return sum((await fresh.add_range.call(config.numbers)).values())

    # Each way gives its sum and the seconds that it took.
    sums = [await nb01.timed(way()) for way in (add_here, send_quarters, send_the_end)]
    return (sums,)


@app.cell(hide_code=True)
def _(send_numbers, sums):
    (_, _here), (_, _sent), (_, _end) = sums
    lesson.reveal(
        send_numbers,
        right=sum(_sent / _here > edge for edge in (0.8, 1.2, 2)),
        why=f"""
        Sending the numbers took {_sent / _here:.1f} times as long as adding them here; sending the end took
        {_end / _here:.1f} times as long, on {cores()} cores. With as many free cores as actors it could be a quarter; on busy cores
        it may take longer than in one process.
        {"All three sums are equal." if len({found for found, _ in sums}) == 1 else "The sums differ!"}
        {"*Send the work to the data, not the data to the work.*" if _end < _sent else "Sending the data cost less this time."}
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What a call costs

    `nb01.seconds_each` repeats some work and returns the median seconds. Its second argument divides them by so many calls.
    """)
    return


@app.cell
async def _(summers):
    one = summers.slice(rows=0, columns=0)
    method = timeit.timeit(Basket().show, number=100_000) / 100_000
    call = await nb01.seconds_each(lambda: one.add.call_one([]))
    many = await nb01.seconds_each(
        lambda: asyncio.gather(*(one.add.call_one([]) for _ in range(50))), 50
    )
    return call, many, method


@app.cell(hide_code=True)
def _(call, many, method):
    lesson.md(f"""
    A plain method takes {lesson.in_words(method)}, a call to another process {lesson.in_words(call)}. Fifty calls
    that are sent at once take {lesson.in_words(many)} each on average. The actor still answers one after the other. But while it
    works on one call, the next are on their way. If at most a tenth of the time may
    be spent on calling, a call must do nine times its own cost in work: about {lesson.in_words(9 * call)}.

    Bytes cost, too. A row `matrix[0]` of a *torch* tensor is a view into the memory of the matrix, and `pickle` packs all of that
    memory. A row of 1000 × 1000 numbers then takes 4 MB, not 4 kB. So send `matrix[0].clone()`.
    """)
    return


@app.cell(hide_code=True)
async def _(
    after_failure, answered, call, counts_alone, opened, rally_seconds, shopped, sums
):
    # It uses all results above, so it runs last.
    _last = (
        after_failure,
        answered,
        call,
        counts_alone,
        opened,
        rally_seconds,
        shopped,
        sums,
    )
    await keep_open.done("01")
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        5,
        "An actor is an object with a mailbox. Messages and answers are copies.",
        "`call` asks all, `call_one` one, `choose` one at random. `broadcast` does not wait. A slice is a smaller mesh.",
        "A plain endpoint runs to its end before the next begins, even across `await`. That protects the state, and can deadlock. Calls of a `concurrent_endpoint` overlap.",
    )
    return


@app.cell(hide_code=True)
def _(call):
    lesson.headline(
        f"a call to another process cost {lesson.in_words(call)}, so make messages few, and send the work to the data."
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__, machine=True)
    return


@app.class_definition(hide_code=True)
class Solutions:
    """Check the exercises of this page, and solve them."""

    def check_Summer(Summer):
        nb01.expect_a_summer(Summer)

    class Summer(Actor):
        def __init__(self):
            self.total = 0

        @endpoint
        def add(self, numbers):
            after = self.total + sum(numbers)
            if after < 0:
                raise ValueError(f"the total would be {after}")
            self.total = after
            return after

        @endpoint
        def add_range(self, end):
            me = current_rank()
            return sum(range(me.rank, end, me.extent.nelements))

    def check_answer_times(answer_times):
        exercise.agree(
            answer_times,
            Solutions.answer_times,
            nb01.draw_naps,
            times=40,
            examples=[([1.0, 3.0], False), ([3.0, 1.0], True)],
            mistakes={
                "you sorted the times, and place *i* is that of message *i*": (
                    lambda seconds, concurrent: (
                        sorted(seconds) if concurrent else list(accumulate(seconds))
                    )
                ),
                "one at a time, a message begins when the one before has ended": (
                    lambda seconds, concurrent: list(seconds)
                ),
                "side by side, no message waits for the one before": (
                    lambda seconds, concurrent: list(accumulate(seconds))
                ),
            },
        )

    def answer_times(seconds, concurrent):
        return list(seconds) if concurrent else list(accumulate(seconds))

    def check_MendedPlayer(MendedPlayer):
        nb01.expect_long_rallies(MendedPlayer)

    class MendedPlayer(Player):
        @concurrent_endpoint
        async def hit(self, left):
            self.hits += 1
            if left > 0:
                await self.other.hit.call_one(left - 1)


if __name__ == "__main__":
    app.run()
