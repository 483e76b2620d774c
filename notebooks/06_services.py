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
    app_title="Services that heal",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)

with app.setup(hide_code=True):
    import asyncio
    import logging
    import os
    import random
    import signal
    from contextlib import suppress
    from functools import partial
    from types import SimpleNamespace

    import marimo as mo

    from zorplex_rl.course import nb06, nb06_checks
    from zorplex_rl.course.figures import drawing_of
    from zorplex_rl.course.kept_file import keep, kept
    from zorplex_rl.course.lesson import exercise, keep_open, lesson
    from zorplex_rl.course.widgets import ServicePlayer
    from zorplex_rl.services.runtime import (
        Actor,
        ReplicaDied,
        concurrent_endpoint,
        start_monarch,
        this_host,
    )

    # Every death below is intended; the page says more about it than a warning would.
    logging.getLogger("monarch.supervision").setLevel(logging.ERROR)


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=48,
        hardware="two CPU cores, no network, no GPU",
        goals=[
            "write a pool of processes that heals: notice, replace, back off, send again",
            "kill a process, hang another, and account for every request",
            "make a request safe to send twice",
            "let an actor find others by a name",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Many of the same

    A large model needs more answers than one generator writes, and more tool calls than one process serves. So we run several copies of the
    generator, of the reward function and of each tool. And one of many is always about to fail: a process runs out of memory, or hangs. You
    do not want to restart a training of two days for that.

    A caller should not have to know which process is free, or has just died. So it asks a *pool*: one name for several
    equal processes. They are the pool's **replicas**. A pool *heals*: it notices that a replica is gone, replaces it, and sends its requests to another one.

    If you have not done *Actors* (01): an **actor** is an object in a process of its own. Other processes can call its
    endpoints, the methods under `@concurrent_endpoint`. `await actor.ping.call_one()` does that. *Concurrent* means
    that a call may begin while others wait at an `await`. So a busy process still answers a ping, and busy is not dead.

    This tool has `look_up` for reading; its `charge` must not happen twice. Both write a line for each call into a
    ledger, a file that survives the process. For a `charge` the line stands for money; the line of a `look_up` is only
    our count, for a table below.
    """)
    return


@app.class_definition
class Tool(Actor):
    def __init__(self, seconds, ledger=os.devnull):
        self.seconds, self.ledger = seconds, ledger

    @concurrent_endpoint
    async def ping(self):
        return os.getpid()

    @concurrent_endpoint
    async def look_up(self, number):
        await self.work("look_up", number)

    @concurrent_endpoint
    async def charge(self, number):
        await self.work("charge", number)

    async def work(self, kind, number):
        await asyncio.sleep(self.seconds / 2)
        with open(self.ledger, "a") as ledger:
            ledger.write(f"{kind} {number}\n")
        await asyncio.sleep(self.seconds / 2)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The pool, with three holes

    The drawing shows what a pool does. `keep_one`, `route` and `retry_delay` are missing: you write them.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        drawing_of("pool.svg"),
        "A replica's load: the requests that it has and has not answered yet.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    The rest of `Pool` is given. You need these parts of it:

    | part | what it does |
    |---|---|
    | `await self.start()` | starts a replica in a process of its own, and returns it |
    | `await self.answers(replica)` | asks it whether it is alive: false if it is dead, or has not answered within `self.limit`, 3 s |
    | `self.end(replica)` | takes it out of the pool, and kills its process |
    | `await self.wait(failures)` | sleeps as long as your `retry_delay` says |
    | `self.every` | seconds between two probes: 0.5 |
    | `await self.there()` | returns the replicas that may be asked, as soon as there is one |
    | `replica.load` | how many requests it has |
    | `await self.ask(replica, endpoint, *args)` | sends it a request and returns its answer; raises `ReplicaDied` if the replica is gone before it has answered |
    | `self.remove(replica)` | takes it out of the pool: it gets no more requests. Its process goes on |
    """)
    return


@app.class_definition(hide_code=True)
class Pool:
    """Replicas of an actor, each in a process of its own. One that fails is replaced."""

    def __init__(self, actor_class, *args, replicas=3, every=0.5, limit=3.0):
        self.recipe, self.replicas = (actor_class, *args), replicas
        self.every, self.limit = every, limit  # seconds between two probes, and for one
        self.started, self.ready, self.failure = [], [], None

    async def __aenter__(self):
        self.keepers = [asyncio.create_task(self.keep_one()) for _ in range(self.replicas)]
        while len(self.ready) < self.replicas:
            await asyncio.sleep(0.01)
            if self.failure:  # nobody waits for what cannot start
                await self.__aexit__()
                raise self.failure
        return self

    async def __aexit__(self, *_):
        # Monarch prints a long trace if a process is stopped while its actor is being made.
        while not (self.failure or all(replica.pid for replica in self.started)):
            await asyncio.sleep(0.01)
        for keeper in self.keepers:
            keeper.cancel()
        await asyncio.gather(*self.keepers, return_exceptions=True)
        for replica in self.started[:]:
            self.end(replica)

    async def start(self):
        """Start a replica. It is in ``ready`` once it answers: never, if its constructor raises."""
        procs = this_host().spawn_procs(per_host={"procs": 1})
        actor = procs.spawn("replica", *self.recipe)
        replica = SimpleNamespace(procs=procs, actor=actor, pid=0, load=0)
        self.started.append(replica)
        try:
            replica.pid = await actor.ping.call_one()
            self.ready.append(replica)
        except ReplicaDied as error:
            self.failure = error
        return replica

    async def answers(self, replica):
        """Probe: true if it is in ``ready`` and answers within ``limit`` seconds."""
        with suppress(ReplicaDied, TimeoutError):
            async with asyncio.timeout(self.limit):
                return await self.ask(replica, "ping")

    async def ask(self, replica, endpoint, *args):
        """Return its answer. Raises ReplicaDied if it is gone before, or not in ``ready``."""
        replica.load += 1
        try:
            asked = getattr(replica.actor, endpoint).call_one(*args).as_asyncio()
            # So that Python does not complain of an error that nobody has read.
            asked.add_done_callback(asyncio.Future.exception)
            # Monarch may never answer for a process that hangs. So look again and again whether
            # its keeper has taken it out.
            while replica in self.ready and not asked.done():
                await asyncio.wait({asked}, timeout=self.every)
            if not asked.done():
                raise ReplicaDied("its replica was taken out of the pool")
            return asked.result()
        finally:
            replica.load -= 1

    async def there(self):
        """Return the replicas in ``ready``, as soon as there is one."""
        while not self.ready:
            await asyncio.sleep(0.01)
        return self.ready

    def remove(self, replica):
        """Take it out of ``ready``, if it is there: it gets no more requests."""
        if replica in self.ready:
            self.ready.remove(replica)

    def end(self, replica):
        """Remove and kill it: one that only hangs could wake up."""
        self.remove(replica)
        self.started.remove(replica)
        with suppress(ProcessLookupError):
            if replica.pid:
                os.kill(replica.pid, signal.SIGKILL)
            else:
                replica.procs.stop().as_asyncio()

    async def wait(self, failures):
        await asyncio.sleep(self.retry_delay(failures, 0.25, 8.0, random.random()))


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 1: back off

    A replica that fails at every start would be started again at once, for ever. So the pool waits before the next start: twice as
    long after each failure, up to a cap. That is **back-off**. And it waits a random part of that, which is **jitter**: what has
    failed together would otherwise start together, and fail together again.
    """)
    return


@app.function
def retry_delay(failures, base, cap, draw):
    """Return the seconds to wait: ``draw`` (0 to 1) times the wait.

    The wait is ``base`` after failure 1, doubles with each further one, and is
    at most ``cap``. Somebody may have failed for days: ``failures`` can be 5000.

    >>> retry_delay(3, 0.25, 8.0, 0.5)
    0.5
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: retry_delay,
        Solutions,
        level="warm-up",
        minutes=3,
        lines=1,
        hints=(
            "How often has the wait doubled after `failures` failures?",
            "`base * pow(2.0, failures - 1)`, cut at `cap`. But `pow(2.0, 5000)` raises an OverflowError: bound the exponent first.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: notice, replace, back off

    The pool runs one `keep_one` for each place. It **probes** its replica: it asks again and again
    whether it answers. A process that hangs says nothing by itself, and a probe is how that is noticed.
    """)
    return


@app.function
async def keep_one(self):
    """Keep one place of the pool filled, for ever (the pool cancels it).

    ``self`` is the pool. Use ``await self.start()``, ``self.end(replica)``,
    ``await self.answers(replica)`` and ``await self.wait(failures)``. Probe as
    soon as the replica has started, and sleep ``self.every`` seconds after each
    probe that it answers. ``failures`` counts the replicas that failed one after
    the other: an answered probe sets it back to 0. Also end a replica that never
    answered.

    A replica that answers two probes and dies, and one that cannot start:
    start, answers → True, answers → True, answers → False, end, wait(1),
    start, answers → False, end, wait(2), start, …
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: keep_one,
        Solutions,
        level="core",
        minutes=11,
        lines=9,
        hints=(
            "What happens for every replica of the place, and what only as long as it answers? These are two loops.",
            "`while True:` start one; `while await self.answers(replica):` set `failures` to 0 and sleep; then end it, count, wait.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: route

    Which replica gets a request? If they took turns, requests would pile up at a slow one. So take
    the one with the least *load*. Beware: a dead replica has no requests, so it has the least load, and would get all of them. So remove
    it before you ask another one. Its `keep_one` ends it.

    A dead replica never answers, so its requests would have to be sent again. Only the caller knows whether a second time does harm. It
    must say so, by the argument `again`.
    """)
    return


@app.function
async def route(self, endpoint, *args, again):
    """Send a request to the replica with the least ``load``. Returns its answer.

    Use ``await self.there()``, ``self.remove(replica)`` and
    ``await self.ask(replica, endpoint, *args)``. Where this raises ReplicaDied,
    always remove the replica. Then ask another; without ``again``, raise. Other
    exceptions are the endpoint's answer: let them through.

    >>> await pool.route("look_up", 7, again=True)
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: route,
        Solutions,
        level="stretch",
        minutes=10,
        lines=8,
        hints=(
            "Where does the loop begin again after a death: is there still somebody to ask?",
            "In `while True:` choose by `min(…, key=…)`; in a `try`, `return await self.ask(…)`; in `except ReplicaDied` remove it, and raise unless `again`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    my_delay, _whose = exercise.running(lambda: retry_delay, Solutions)
    my_keep_one, whose_keep_one = exercise.running(lambda: keep_one, Solutions)
    my_route, whose_route = exercise.running(lambda: route, Solutions)

    class Healing(Pool):
        keep_one, route, retry_delay = my_keep_one, my_route, staticmethod(my_delay)

    return Healing, my_delay, my_keep_one, my_route, whose_keep_one, whose_route


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Kill one, hang one

    Now the pool meets real faults, with each of your functions that passes its check. Callers send `look_up` with `again=True` and `charge` with `again=False`, in turns. One replica gets
    `kill -9`. In a second run one gets `SIGSTOP`, which freezes a process without ending it: it exists, but does not respond.
    """)
    return


@app.cell(hide_code=True)
def settings():
    config = SimpleNamespace(
        replicas=3,
        callers=15,
        seconds=0.2,  # for a call
        settle=1.5,  # seconds before the fault, and after all is well again
    )
    start_monarch()  # Monarch, with the package's settings
    return (config,)


@app.function(hide_code=True)
async def call_for_ever(pool, outcomes, over):
    """A caller. Writes down what became of each of its requests, by number."""
    while not over.is_set():
        await asyncio.sleep(random.uniform(0, 0.05))
        number = len(outcomes)
        outcomes.append("lost")
        kind = "look_up" if number % 2 else "charge"
        try:
            await pool.route(kind, number, again=kind == "look_up")
            outcomes[number] = "answered"
        except ReplicaDied:
            outcomes[number] = "failed"


@app.function(hide_code=True)
async def break_one(pool, fault):
    """Do ``fault`` to one replica, and wait until all places are filled again."""
    victim = pool.ready[0]
    os.kill(victim.pid, fault)
    while victim in pool.ready or len(pool.ready) < pool.replicas:
        await asyncio.sleep(0.01)


@app.cell(hide_code=True)
def _():
    ask_faults = lesson.predict(
        "After which fault does the pool notice sooner that its replica is gone?",
        "after `kill -9`",
        "after `SIGSTOP`",
        "about as soon",
    )
    start_faults = lesson.start_button("Kill one, then hang one", seconds=14)
    mo.vstack([ask_faults, start_faults])
    return ask_faults, start_faults


@app.cell(hide_code=True)
async def _(Healing, config, start_faults):
    lesson.wait_for(start_faults)
    run = partial(nb06.under_load, Healing, Tool, call_for_ever, break_one, config)
    with lesson.counting(None, "one is killed, then one hangs"):
        killed, killed_books = await run(signal.SIGKILL)
        hung, hung_books = await run(signal.SIGSTOP)
    return hung, hung_books, killed, killed_books


@app.cell(hide_code=True)
def _(ask_faults, hung, killed):
    _later = hung.noticed - killed.noticed
    lesson.reveal(
        ask_faults,
        right=0 if _later > 0.5 else 1 if _later < -0.5 else 2,
        why=f"""
        `kill -9` was noticed after {killed.noticed:.2f} s, `SIGSTOP` after {hung.noticed:.2f} s. A death is a fact that the operating system knows. Monarch looks once a second, so a caller
        hears of it within a second. Silence is no fact: the process may only be slow. So it is probed again and again, and counts as gone once it has not answered for `self.limit` seconds. All replicas were
        ready again after {killed.whole:.1f} and {hung.whole:.1f} s.

        Play it, and watch the dots, the requests, at the replica that fails. They stay there until the pool has noticed. Then each `look_up` goes to another replica,
        and each `charge` ends in an error.
        """,
        shows=[ServicePlayer([killed, hung])],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What became of every request

    A request is **idempotent** if doing it twice has the effect of doing it once. `look_up` is, since nothing
    depends on the line of our count. So the pool sent it again. `charge` is not, so its caller got an error.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_done = lesson.predict(
        "Some `charge` requests got an error. Had their lines been written into the ledger, as if the money were taken?",
        "from none of them",
        "from all of them",
        "from some of them",
    )
    ask_done
    return (ask_done,)


@app.cell(hide_code=True)
def _(ask_done, hung_books, killed_books):
    books = {
        name: {row: count + hung_books[name][row] for row, count in rows.items()}
        for name, rows in killed_books.items()
    }
    _failed, _done = (books["charge"][row] for row in ("failed", "failed, but done"))
    lesson.reveal(
        ask_done,
        right=[] if not _failed else 0 if not _done else 1 if _done == _failed else 2,
        why=f"""
        In {_done} of {_failed} cases. The process may die before its call writes the line, or after. The caller cannot tell.
        Number of `look_up` requests that were done twice, as *idempotent* allows: {books["look_up"]["done twice"]}.
        """,
        shows=[
            lesson.table(
                "What became of every request",
                [
                    {"outcome": row}
                    | {f"`{name}`": rows[row] for name, rows in books.items()}
                    for row in books["charge"]
                ],
            )
        ],
    )
    return (books,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Charge once

    To make `charge` idempotent, number the charges, and let the ledger remember the numbers. It is now
    a database of two tables: `seen(number)` and `charges(number, amount)`. What stands inside one `with database:` is a *transaction*: if the
    process dies in it, nothing of it has happened. The end of a transaction is its *commit*. Here are two rules that are wrong:
    """)
    return


@app.class_definition(hide_code=True)
class Till(Tool):
    def __init__(self, rule, path):
        self.rule = rule
        self.database = nb06.connect(path, nb06.DoomedConnection)

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
    ask_once = lesson.predict(
        "Ten charges go through your pool, which sends each until it is answered. Processes are killed at three of the charges: after the first statement, after the second, or after a commit. What does `charge_always` do wrong, and what `note_then_charge`?",
        "both charge twice",
        "the first charges twice, the second forgets a charge",
        "the first forgets a charge, the second charges twice",
    )
    ask_once
    return (ask_once,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 4: exactly once

    The pool sends a charge again whenever it has no answer. So the rule must bear to be called twice. Write the rule that charges once, wherever the process dies.
    """)
    return


@app.function
def charge_once(database, number, amount):
    """Charge ``amount`` once, however often it is sent, wherever the process dies.

    ``number`` is the key of ``seen``: ``INSERT OR IGNORE`` notes a new number,
    or does nothing. The ``rowcount`` of its result tells which.

    After two calls of charge_once(database, 7, 100), ``charges`` holds (7, 100) once.
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: charge_once,
        Solutions,
        level="core",
        minutes=4,
        lines=4,
        hints=(
            "`note_then_charge` dies between its two transactions. What does it find when the charge is sent again?",
            "The check and the effect must be one step. Put both statements into the same `with database:`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    start_charging = lesson.start_button("Charge under three kills", seconds=10)
    start_charging
    return (start_charging,)


@app.cell(hide_code=True)
async def _(Healing, start_charging):
    lesson.wait_for(start_charging)
    my_charge_once, whose_charge_once = exercise.running(lambda: charge_once, Solutions)
    charge = partial(nb06.charge_under_kills, Healing, Till)
    _rules = (charge_always, note_then_charge, my_charge_once)
    with lesson.counting(None, "three pools charge, and are killed"):
        always, noted, once = await asyncio.gather(*map(charge, _rules))
    return always, noted, once, whose_charge_once


@app.cell(hide_code=True)
def _(always, ask_once, noted, once, whose_charge_once):
    lesson.needs(lambda: noted)
    _found = [(max(made) > 1, min(made) < 1) for made in (always, noted)]
    lesson.reveal(
        ask_once,
        right=1 if _found == [(True, False), (False, True)] else [],
        why=f"""
        How often each of the three charges was made:

        | killed | `charge_always` | `note_then_charge` | {whose_charge_once} |
        |---|---|---|---|
        | after the first statement | {always[2]} | {noted[2]} | {once[2]} |
        | after the second statement | {"no such statement" if always[5] == 1 else always[5]} | {noted[5]} | {once[5]} |
        | after a commit | {always[8]} | {noted[8]} | {once[8]} |

        A transaction that is cut off has done nothing, so it may be sent again. After a commit the charge is made, but no answer comes: sent again, it is made again. `note_then_charge` has two transactions. Dead between them or in the second, it has noted the number and not charged.

        By {whose_charge_once}, {once.count(1)} of ten were made exactly once. So for exactly once, send *at least once* and remember. But check and effect must be *one atomic step*.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## By name

    So far the caller holds the pool object itself. But a trainer is an actor in another process: how does it find the tools? The
    addresses of the replicas are wrong after the first replacement. So the pool becomes an actor, too, and only *its* address is
    published. `Names` is one more actor, with a table from names to addresses. The trainer knows `Names` and a name, and nothing of replicas.
    """)
    return


@app.class_definition(hide_code=True)
class Names(Actor):
    def __init__(self):
        self.addresses = {}

    @concurrent_endpoint
    async def publish(self, name, address):
        self.addresses[name] = address

    @concurrent_endpoint
    async def find(self, name):
        return self.addresses[name]


@app.class_definition(hide_code=True)
class PoolActor(Actor):
    def __init__(self, pool):
        self.pool = pool

    @concurrent_endpoint
    async def open(self):
        await self.pool.__aenter__()

    @concurrent_endpoint
    async def route(self, endpoint, *args, again):
        return await self.pool.route(endpoint, *args, again=again)

    @concurrent_endpoint
    async def close(self):
        await self.pool.__aexit__()

    def __supervise__(self, failure):
        # A replica of mine has died: that is the pool's work, and no reason to end.
        return True


@app.class_definition
class Trainer(Actor):
    def __init__(self, names):
        self.names = names

    @concurrent_endpoint
    async def ask(self, name, endpoint, again):
        pool = await self.names.find.call_one(name)
        return await pool.route.call_one(endpoint, again=again)


@app.cell(hide_code=True)
def _():
    start_names = lesson.start_button("Ask by name, kill who answers, ask again", seconds=8)
    start_names
    return (start_names,)


@app.function(hide_code=True)
async def ask_by_name(Healing):
    """Ask twice, and kill the only replica in between. Returns who answered."""
    async with (
        keep_open.stopping(this_host().spawn_procs()) as procs,
        keep_open.stopping(this_host().spawn_procs()) as others,
    ):
        names = procs.spawn("names", Names)
        pool = procs.spawn("pool", PoolActor, Healing(Tool, 0.0, replicas=1))
        trainer = others.spawn("trainer", Trainer, names)
        await pool.open.call_one()
        await names.publish.call_one("tools", pool)
        first = await trainer.ask.call_one("tools", "ping", True)
        os.kill(first, signal.SIGKILL)
        second = await trainer.ask.call_one("tools", "ping", True)
        await pool.close.call_one()
    return first, second


@app.cell(hide_code=True)
async def _(Healing, start_names):
    lesson.wait_for(start_names)
    with lesson.counting(None, "three processes start, and one is killed"):
        answered_by = await ask_by_name(Healing)
    return (answered_by,)


@app.cell(hide_code=True)
def _(answered_by):
    _first, _second = answered_by
    lesson.md(
        f"""
    Names and pool share a process; the trainer has its own. The pool has one replica, process {_first}, which answered under the name `tools`. Then it was killed. Nothing was published again, and under the same name
    """
        + (
            f"process {_second} answered: the pool had noticed the death, started another replica, and sent it the request."
            if _first != _second
            else "the same process answered: it had not died yet."
        )
    )
    return


@app.cell(hide_code=True)
def _(my_delay, my_keep_one, my_route, whose_keep_one, whose_route):
    pool_py = nb06.pool_file(__file__, my_delay, my_keep_one, my_route)
    write_file = lesson.start_button("Write my_pool.py", seconds=float("nan"))
    mo.vstack(
        [
            lesson.md(
                f"""## Your pool, to keep

    The pool of this page, with {whose_keep_one} and {whose_route}, needs nothing but Monarch; `examples/pool.py` is a shorter one. The package's own adds a bounded queue, sessions and
    scaling: `.venv/bin/python examples/services.py` shows them, and `examples/service_step.py` a step of RL through services, with a death in it."""
            ),
            write_file,
            lesson.folded("`my_pool.py`", f"```python\n{pool_py}\n```"),
        ]
    )
    return pool_py, write_file


@app.cell(hide_code=True)
def _(pool_py, write_file):
    mo.stop(lesson.unattended() or not write_file.value)
    lesson.md(keep(pool_py, kept(__file__, "my_pool.py")))
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        3,
        "A pool heals: it probes, ends, replaces with back-off, and sends again what may be sent twice.",
        "A dead process is noticed quickly, a silent one only after a time limit.",
        "A request to a replica that died may have been carried out. Exactly once needs a memory, written in one step with the effect.",
        "Others find the pool by a name, which stays when replicas change.",
    )
    return


@app.cell(hide_code=True)
def _(books):
    lesson.headline(
        f"One replica was killed and another one hung: {books['look_up']['answered']} look-ups were answered, and {books['look_up']['failed']} failed."
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.class_definition(hide_code=True)
class Solutions:
    """Check the exercises of this page, and solve them."""

    def check_retry_delay(retry_delay):
        nb06_checks.check_retry_delay(retry_delay, Solutions.retry_delay)

    def retry_delay(failures, base, cap, draw):
        return draw * min(base * 2.0 ** min(failures - 1, 60), cap)

    def check_keep_one(keep_one):
        nb06_checks.check_keep_one(keep_one, Solutions.keep_one)

    async def keep_one(self):
        failures = 0
        while True:
            replica = await self.start()
            while await self.answers(replica):
                failures = 0
                await asyncio.sleep(self.every)
            self.end(replica)
            failures += 1
            await self.wait(failures)

    def check_route(route):
        nb06_checks.check_route(route, Solutions.route)

    async def route(self, endpoint, *args, again):
        while True:
            replica = min(await self.there(), key=lambda replica: replica.load)
            try:
                return await self.ask(replica, endpoint, *args)
            except ReplicaDied:
                self.remove(replica)
                if not again:
                    raise

    def check_charge_once(charge_once):
        nb06_checks.check_charge_once(charge_once)

    def charge_once(database, number, amount):
        with database:
            new = database.execute("INSERT OR IGNORE INTO seen VALUES (?)", [number])
            if new.rowcount:
                database.execute("INSERT INTO charges VALUES (?, ?)", [number, amount])


if __name__ == "__main__":
    app.run()
