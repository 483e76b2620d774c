"""Drive notebook 06: a pool under load, a ledger whose process dies.

pool ──► watched(pool) ──► Recording ──► ServicePlayer
                      └──► account ──► a table

``nb06_checks.py`` holds the checks of its exercises.
"""

import ast
import asyncio
import os
import signal
import sqlite3
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from zorplex_rl.course.lesson import exercise
from zorplex_rl.course.lesson.checks import Attempt
from zorplex_rl.course.widgets.service_player import Life, Recording
from zorplex_rl.services.runtime import ReplicaDied

MODIFIES = ("INSERT", "UPDATE", "DELETE", "REPLAC")


def watched(pool_class: type, recording: Recording) -> Any:
    """Return a ``pool_class`` that records its replicas' lives and their requests."""

    class Watched(pool_class):
        async def start(self) -> Any:
            taken = {life.place for life in recording.lives if life.left is None}
            place = next(place for place in range(self.replicas + 1) if place not in taken)
            life = Life(place, f"tool_{len(recording.lives)}", time.monotonic())
            recording.lives.append(life)
            replica = await super().start()
            replica.life, life.pid = life, replica.pid
            life.ready = time.monotonic() if replica.pid else None
            return replica

        async def ask(self, replica: Any, endpoint: str, *args: Any) -> Any:
            if endpoint == "ping":
                return await super().ask(replica, endpoint, *args)
            leg = [endpoint, time.monotonic(), replica.life.place, None, False]
            recording.legs.append(leg)
            try:
                return await super().ask(replica, endpoint, *args)
            except ReplicaDied:
                leg[4] = True
                replica.life.left = replica.life.left or time.monotonic()
                raise
            finally:
                leg[3] = time.monotonic()

        def end(self, replica: Any) -> None:
            if hasattr(replica, "life"):
                replica.life.left = replica.life.left or time.monotonic()
            super().end(replica)

    return Watched


async def under_load(
    pool_class: type,
    tool: type,
    caller: Attempt,
    break_one: Attempt,
    config: Any,
    fault: signal.Signals,
) -> tuple[Recording, dict[str, dict[str, int]]]:
    """Let ``break_one`` do ``fault`` to a replica at work. Returns film and account."""
    film, over = Recording("kill -9" if fault is signal.SIGKILL else fault.name), asyncio.Event()
    outcomes: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder) / "ledger"
        recipe = (tool, config.seconds, str(ledger))
        async with watched(pool_class, film)(*recipe, replicas=config.replicas) as pool:
            callers = asyncio.gather(*(caller(pool, outcomes, over) for _ in range(config.callers)))
            begin = time.monotonic()
            await asyncio.sleep(config.settle)
            film.victim, film.at = pool.ready[0].pid, time.monotonic()
            await break_one(pool, fault)
            await asyncio.sleep(config.settle)
            film.span = begin, time.monotonic()
            over.set()
            await callers
        return film, account(outcomes, Counter(ledger.read_text().splitlines()))


def account(outcomes: Sequence[str], ledger: Counter[str]) -> dict[str, dict[str, int]]:
    """Count what became of every request, by endpoint, beside what the ledger says was done."""
    books: dict[str, dict[str, int]] = {}
    for name, odd in (("look_up", 1), ("charge", 0)):
        pairs = [(fate, ledger[f"{name} {n}"]) for n, fate in enumerate(outcomes) if n % 2 == odd]
        books[name] = {
            "answered": sum(fate == "answered" for fate, _ in pairs),
            "failed": sum(fate == "failed" for fate, _ in pairs),
            "without any outcome": sum(fate == "lost" for fate, _ in pairs),
            "answered, but not done": sum(fate == "answered" and not done for fate, done in pairs),
            "failed, but done": sum(fate == "failed" and done > 0 for fate, done in pairs),
            "done twice": sum(done > 1 for _, done in pairs),
        }
    return books


def connect(path: str, factory: type = sqlite3.Connection, timeout: float = 10.0) -> Any:
    """Open the ledger at ``path``, made anew if it is not there."""
    database: Any = sqlite3.connect(path, timeout, factory=factory, check_same_thread=False)
    database.executescript(
        "CREATE TABLE IF NOT EXISTS seen (number INTEGER PRIMARY KEY);"
        "CREATE TABLE IF NOT EXISTS charges (number INTEGER, amount INTEGER)"
    )
    return database


class DoomedConnection(sqlite3.Connection):
    """End its process by ``kill -9`` at each of three (number of the charge, after what)."""

    moments = ((2, "write 1"), (5, "write 2"), (8, "commit"))
    number, writes = None, 0

    def execute(self, statement: str, values: Any = ()) -> Any:
        found = super().execute(statement, values)
        if statement.lstrip()[:6].upper() in MODIFIES:
            self.writes = self.writes + 1 if values[0] == self.number else 1
            self.number = values[0]
            self.now(f"write {self.writes}")
        return found

    def commit(self) -> None:
        super().commit()
        self.now("commit")

    def __exit__(self, *exception: Any) -> Any:
        super().__exit__(*exception)
        self.now("commit")

    def now(self, what: str) -> None:
        if (self.number, what) in self.moments:
            ((_, _, path),) = super().execute("PRAGMA database_list")
            with suppress(FileExistsError):
                os.close(os.open(f"{path}.{self.number}", os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)


async def charge_under_kills(
    pool_class: type, till: type, rule: Attempt, charges: int = 10
) -> list[int]:
    """Send each charge once to tills that are killed. Returns how often each was made."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "ledger")
        connect(path).close()
        async with pool_class(till, rule, path, replicas=2) as pool:
            await asyncio.gather(
                *(pool.route("charge", number, 100, again=True) for number in range(charges))
            )
        with closing(connect(path)) as database:
            made = Counter(number for (number,) in database.execute("SELECT number FROM charges"))
    return [made[number] for number in range(charges)]


HEADER = '''"""A pool of processes that heals: notebook 06 writes this file. Its actors need an endpoint `ping`
that returns os.getpid()."""

import asyncio
import os
import random
import signal
from contextlib import suppress
from types import SimpleNamespace

os.environ.setdefault("HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY", "1s")  # to notice a death
import monarch.actor
from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError as ReplicaDied
from monarch.actor import this_host

monarch.actor.unhandled_fault_hook = lambda failure: None  # its caller gets an exception, which is enough

'''


def pool_file(notebook: str, retry_delay: Attempt, *others: Attempt) -> str:
    """Return the text of ``my_pool.py``: ``Pool`` of the notebook, with the learner's functions."""

    def own(function: Attempt) -> str:
        return exercise.solution_source(function.__name__, function) + "\n"

    source = Path(notebook).read_text(encoding="utf-8")
    pool = next(node for node in ast.parse(source).body if getattr(node, "name", "") == "Pool")
    methods = ("@staticmethod\n" + own(retry_delay), *map(own, others))
    parts = [
        ast.get_source_segment(source, pool) or "",
        *(textwrap.indent(one, "    ") for one in methods),
    ]
    return "\n".join([HEADER, parts[0] + "\n", *parts[1:]])
