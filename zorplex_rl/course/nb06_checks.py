"""Check what a learner writes in notebook 06: play stories to it, and say what went otherwise.

story ──► ScriptedPool ──► keep_one, route of the learner ──► what they did, on a clock that jumps
"""

import asyncio
import math
import random
import sqlite3
import tempfile
from collections.abc import Coroutine, Iterable
from contextlib import closing, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from zorplex_rl.course.lesson import exercise
from zorplex_rl.course.lesson.checks import Attempt
from zorplex_rl.course.nb06 import MODIFIES, connect
from zorplex_rl.services.runtime import ReplicaDied


def check_retry_delay(retry_delay: Attempt, solution: Attempt) -> None:
    """Compare waits for few and many failures, near and far caps, with ``solution``."""

    def some(draw: random.Random) -> tuple[int, float, float, float]:
        failures = draw.choice(
            [1, 2, 3, draw.randint(4, 16), draw.randint(50, 60), draw.randint(1100, 9000)]
        )
        base = draw.uniform(0.01, 2.0)
        return (
            failures,
            base,
            base * draw.choice([1.5, draw.uniform(3, 50), 2.0 ** draw.randint(8, 14)]),
            draw.random(),
        )

    exercise.agree(
        retry_delay,
        solution,
        some,
        times=60,
        examples=[
            (1, 1.0, 8.0, 1.0),
            (3, 1.0, 8.0, 0.5),
            (9, 1.0, 8.0, 0.5),
            (5000, 1.0, 8.0, 1.0),
            (4, 0.25, 60.0, 0.0),
        ],
        mistakes={
            "it doubles once too often: after failure 1 the wait is `base`": lambda *given: (
                solution(given[0] + 1, *given[1:])
            ),
            "there is no cap": lambda failures, base, cap, draw: solution(
                failures, base, 1e99, draw
            ),
            "the cap is for the wait, before it is multiplied by `draw`": lambda failures, base, cap, draw: (
                min(cap, solution(failures, base, 1e99, draw))
            ),
            "`draw` is not used": lambda failures, base, cap, draw: solution(
                failures, base, cap, 1
            ),
        },
    )


class JumpingLoop(asyncio.SelectorEventLoop):
    """Jump to the next timer instead of waiting for it: a story of minutes is told at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        select = self._selector.select  # type: ignore[attr-defined]

        def jump(timeout: float | None) -> Any:
            self.now += max(timeout or 0.0, 1e-4)
            return select(0)

        self._selector.select = jump  # type: ignore[attr-defined]

    def time(self) -> float:
        return self.now


def tell(story: Coroutine[Any, Any, Any]) -> Any:
    """Run ``story`` on a clock that jumps. Returns what it returns."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(story)


class ScriptedPool:
    """Stand in for a pool: note what is done to its replicas, which follow a script."""

    def __init__(self, **script: Any) -> None:
        self.script = script
        self.every = script.get("every", 0.5)
        self.ready: list[Any] = []
        self.lives: list[Any] = []
        self.done: list[tuple[Any, ...]] = []
        self.told = asyncio.Event()
        self.route: Attempt

    def note(self, *what: Any) -> None:
        self.done.append((*what, asyncio.get_running_loop().time()))

    async def start(self) -> Any:
        """Start the next replica of ``answers``, which answers so many probes."""
        number = len(self.lives)
        if number == len(self.script["answers"]):
            self.told.set()
            await asyncio.sleep(math.inf)
        left = self.script["answers"][number]
        self.lives.append(
            SimpleNamespace(number=number, left=left or 0, pid=0 if left is None else 100 + number)
        )
        self.note("start", number)
        await asyncio.sleep(0.2)
        if left is not None:
            self.ready.append(self.lives[-1])
        return self.lives[-1]

    async def answers(self, replica: Any) -> bool:
        replica.left -= 1
        self.note("probe", replica.number)
        return replica in self.ready and replica.left >= 0

    async def there(self) -> list[Any]:
        while not self.ready:
            await asyncio.sleep(0.01)
        return self.ready

    def remove(self, replica: Any) -> None:
        if replica in self.ready:
            self.ready.remove(replica)

    def end(self, replica: Any) -> None:
        self.remove(replica)
        self.note("end", replica.number)

    async def wait(self, failures: int) -> None:
        self.note("wait", failures)
        await asyncio.sleep(min(failures, 9))

    async def ask(self, replica: Any, endpoint: str, *args: Any) -> Any:
        self.note("ask", replica.name, endpoint, *args)
        await asyncio.sleep(0.1)
        if replica.says == "dies":
            if replica.removed:  # by its keeper, which has noticed it first
                self.remove(replica)
            raise ReplicaDied(f"{replica.name} is gone")
        if replica.says == "raises":
            raise ArithmeticError(f"{replica.name} has counted wrongly")
        return f"{replica.name} has answered"


def story_of_a_place(draw: random.Random) -> dict[str, Any]:
    """Draw how many probes each replica of a place answers; None if it never starts."""
    answers = [draw.choice([None, 0, 1, 2, 5]) for _ in range(draw.randint(2, 5))]
    return {"answers": answers, "every": draw.choice([0.25, 0.5, 2.0])}


async def kept(keep_one: Attempt, script: dict[str, Any]) -> tuple[list[Any], bool]:
    """Return what ``keep_one`` did, and whether it ended when it was cancelled."""
    pool = ScriptedPool(**script)
    task = asyncio.ensure_future(keep_one(pool))
    told = asyncio.ensure_future(pool.told.wait())
    await asyncio.wait({task, told}, timeout=300, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()  # what it raises
    task.cancel()
    await asyncio.wait({task}, timeout=5)
    told.cancel()
    return pool.done, task.done()


def deeds(done: Iterable[tuple[Any, ...]]) -> list[str]:
    """Return what was done in words, without probes and times."""
    return [" ".join(map(str, what[:-1])) for what in done if what[0] != "probe"]


def check_keep_one(keep_one: Attempt, solution: Attempt) -> None:
    """Play stories, and compare what is done, in order and time, with ``solution``."""
    exercise.shortest(partial(_check_a_place, keep_one, solution))


def _check_a_place(keep_one: Any, solution: Any, draw: random.Random) -> None:
    script = story_of_a_place(draw)
    told = ", then ".join(
        "one that never starts"
        if left is None
        else f"one that answers {left} probe{'s' * (left != 1)}"
        for left in script["answers"]
    )
    called = exercise.case(f"`keep_one`, with replicas in this order: {told},")
    right, _ = tell(kept(solution, script))
    found, ended = tell(kept(keep_one, script))
    words, expected = deeds(found), deeds(right)
    if words != expected:
        did = [word.split()[0] for word in words]
        waits = [int(word.split()[1]) for word in words if word.startswith("wait")]
        causes = {
            "it stops after the first replica": did.count("start") < 2,
            "a replica that does not answer is never ended: it could wake up": "end" not in did,
            "nothing waits before the next start": "wait" not in did,
            "the first failure is number 1, and you count from 0": waits[:1] == [0],
            "an answered probe sets `failures` back to 0, and you count on": waits
            == [*range(1, len(waits) + 1)],
        }
        cause = next((f"{said}. " for said, holds in causes.items() if holds), "")
        raise AssertionError(
            f"{cause}{called} does `{', '.join(words[:9])}`, and should do `{', '.join(expected[:9])}`"
        )
    for number, answered in enumerate(script["answers"]):
        probes = [when for what, of, when in found if (what, of) == ("probe", number)]
        gone = next(when for what, of, when in found if (what, of) == ("end", number))
        assert answered is None or probes, (
            f"{called} never asks replica {number} whether it answers"
        )
        wait = (
            probes[0] - next(when for *what, when in right if what == ["probe", number])
            if probes
            else 0.0
        )
        assert wait < 0.1, (
            f"you sleep before the first probe. {called} asks replica {number} {wait:.2f} s after it has started"
        )
        for sooner, later in pairwise(probes):
            assert abs(later - sooner - script["every"]) <= 0.2 * script["every"], (
                f"{called} probes replica {number} again after {later - sooner:.2f} s, and `self.every` is {script['every']}"
            )
        late = gone - probes[-1] if probes else 0.0
        assert late < 0.1, (
            f"{called} ends replica {number} {late:.2f} s after it has failed to answer"
        )
    assert ended, f"{called} goes on when its task is cancelled: the pool could never close"


def story_of_a_request(draw: random.Random) -> dict[str, Any]:
    """Draw a request and replicas: load, what they do, who removes them, since when."""
    loads = draw.sample(range(20), draw.randint(1, 4))
    says = [draw.choice(["answers", "answers", "raises", "dies", "dies"]) for _ in loads]
    late = draw.random() < 0.4
    replicas = [
        (load, said, draw.random() < 0.5, draw.uniform(0.1, 2.0) if late else 0.0)
        for load, said in zip(loads, says, strict=True)
    ]
    replicas.append((30, "answers", False, 4.0 if late else 0.0))
    return {"replicas": replicas, "again": draw.random() < 0.7}


async def routed(
    route: Attempt, script: dict[str, Any], *request: Any
) -> tuple[str, list[Any], list[str]]:
    """Return what became of a request, who was asked when, and who is left in rotation."""
    pool = ScriptedPool(**script)
    pool.route = partial(route, pool)

    async def appear(number: int, load: int, says: str, removed: bool, when: float) -> None:
        await asyncio.sleep(when)
        pool.ready.append(
            SimpleNamespace(
                name=f"replica {number}",
                number=number,
                load=load,
                says=says,
                removed=removed,
                pid=number,
            )
        )

    coming = [
        asyncio.ensure_future(appear(number, *one)) for number, one in enumerate(script["replicas"])
    ]
    if not script["replicas"][-1][-1]:
        await asyncio.gather(*coming)
    random.Random(len(coming)).shuffle(pool.ready)
    try:
        fate = repr(await asyncio.wait_for(route(pool, *request, again=script["again"]), 60))
    except (ReplicaDied, ArithmeticError) as error:
        fate = f"{type(error).__name__}: {error}"
    except TimeoutError:
        fate = "no answer for a minute"
    return fate, pool.done, sorted(replica.name for replica in pool.ready)


def check_route(route: Attempt, solution: Attempt) -> None:
    """Compare whom forty requests ask, who stays, what the caller sees, with ``solution``."""
    first, second = (1, "dies", False, 0.0), (2, "answers", False, 0.0)
    for again in (True, False):
        _check_a_request(route, solution, {"replicas": [first, second], "again": again})
    exercise.shortest(
        lambda draw: _check_a_request(route, solution, story_of_a_request(draw)), times=40
    )


def _check_a_request(route: Any, solution: Any, script: dict[str, Any]) -> None:
    request = "look_up", 7
    replicas = "; ".join(
        f"replica {number} has load {load}{f' and is ready after {when:.1f} s' if when else ''}, and {says} when asked"
        for number, (load, says, _, when) in enumerate(script["replicas"])
    )
    called = exercise.case(
        f"`route(pool, {request[0]!r}, {request[1]}, again={script['again']})`, where {replicas},"
    )
    right, found = (tell(routed(one, script, *request)) for one in (solution, route))
    asked, expected = (
        [what[1] for what in done if what[0] == "ask"] for _, done, _ in (found, right)
    )
    causes = {
        "it is sent again, although `again` is False": not script["again"] and len(asked) > 1,
        "a dead replica is asked once more: remove it": len(set(asked)) < len(asked),
        "what an endpoint raises is its answer, and no death": "ArithmeticError" in right[0]
        and found[0] != right[0],
        "the first one asked does not have the least load": asked[:1] != expected[:1],
    }
    cause = next((f"{said}. " for said, holds in causes.items() if holds), "")
    assert not any(what[0] == "end" for what in found[1]), (
        f"`route` removes a replica; ending its process is the work of `keep_one`. {called} ends one"
    )
    told = [", ".join(names[:5]) or "nobody" for names in (asked, expected)]
    assert asked == expected, f"{cause}{called} asks `{told[0]}`, and should ask `{told[1]}`"
    assert found[0] == right[0], f"{cause}{called} gives `{found[0]}`, and should give `{right[0]}`"
    stays = (
        "a replica that died stays in the pool: remove it before you raise"
        if len(found[2]) > len(right[2])
        else "what an endpoint raises is its answer, and its replica lives: do not remove it"
    )
    assert found[2] == right[2], (
        f"{stays}. {called} leaves `{found[2]}` in the pool, and should leave `{right[2]}`"
    )
    late = [one[-1] - other[-1] for one, other in zip(found[1], right[1], strict=True)]
    assert max(late, default=0.0) < 1.0, f"{called} asks {max(late):.1f} s later than it could"


def check_charge_once(charge_once: Attempt) -> None:
    """Send charges, some twice, some to a process that dies after a write."""

    class Crash(Exception):
        pass

    class Breaking(sqlite3.Connection):
        left = math.inf

        def execute(self, statement: str, values: Any = ()) -> Any:
            modifies = statement.lstrip()[:6].upper() in MODIFIES
            if modifies and not (self.left or self.in_transaction):
                # Another process, between this one's look and its first write.
                with closing(connect(path)) as other:
                    charge_once(other, number, amount)
            found = super().execute(statement, values)
            if modifies:
                self.left -= 1
                if self.left == 0:
                    raise Crash
            return found

    draw = random.Random(0)
    for dies_after in (math.inf, 1, 2, 0):
        sent = [
            charge
            for number in draw.sample(range(1, 9), 2)
            for charge in [(number, 100 * draw.randint(1, 9))] * 2
        ]
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "ledger")
            for place, (number, amount) in enumerate(sent):
                with closing(connect(path, Breaking, timeout=1.0)) as database:
                    database.left = math.inf if place else dies_after
                    with suppress(Crash):
                        charge_once(database, number, amount)
                    database.rollback()  # what a dead process has not committed is not there
            with closing(connect(path)) as database:
                found = database.execute(
                    "SELECT number, amount FROM charges ORDER BY number"
                ).fetchall()
        dead = (
            f", and its process dies after write {dies_after} of the first"
            if 0 < dies_after < math.inf
            else ""
        )
        right = sorted(set(sent))
        cause = ""
        if not found:
            cause = "nothing is committed: use `with database:`. "
        elif len(found) < len(right):
            cause = "a charge is lost. "
        elif not dies_after:
            cause = "two processes looked, and both found nothing: the other one wrote before your first write. "
        elif len(found) > len(right):
            cause = "a charge is made twice. "
        assert found == right, (
            f"{cause}`charge_once` gets `{sent}`{dead}: it charges `{found}`, and should charge `{right}`"
        )
