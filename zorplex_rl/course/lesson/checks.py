"""Check an attempt against a solution, and say in one sentence what is wrong: first what was misunderstood, then the smallest case.

    expect(attempt, 3, result=6)               one call, and its result
    agree(attempt, solution, draw, …)          the same results on drawn arguments
    shortest(check_one)                        a check of one drawn case, repeated; its shortest complaint
    case("the second row")                     names the next call, for what it may raise
    complaint(check, attempt)                  runs a check in limited time ──► a sentence, or None

A page has them from ``exercise``.
"""

import copy
import dis
import functools
import inspect
import random
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from zorplex_rl.course.lesson.compare import (
    bare,
    call,
    difference,
    negative,
    plain,
    same,
    size,
)
from zorplex_rl.course.lesson.markup import quote
from zorplex_rl.course.lesson.time_limit import OutOfTime, StillRunning, run_within

EXTRA, SEARCH_S = 200, 0.5
"""Once a drawn case has failed, so many more are drawn, for so many seconds: a smaller one may fail, too."""
LOOKED_AT = 60
"""Cases in which an attempt gives what a known mistake gives."""
UNWRITTEN = "is still to be written"

Attempt = Callable[..., Any]
Check = Callable[[Attempt], None]


@dataclass(slots=True)
class _Calls:
    """Hold what a check has called last, as a sentence names it."""

    last: str = ""
    named: bool = False
    """Whether ``case`` has named the next call."""


_CALLS = ContextVar[_Calls]("the calls of a check")


def case(said: str) -> str:
    """Name the next call of a check (Markdown), for what it may raise. Returns ``said``."""
    calls = _CALLS.get(_Calls())
    calls.last, calls.named = said, True
    return said


def expect(
    attempt: Attempt,
    *arguments: Any,
    result: Any,
    tolerance: float = 1e-6,
    mistakes: Mapping[str, Any] | None = None,
) -> None:
    """Compare ``attempt(*arguments)`` with ``result``, as ``same`` does. ``mistakes`` holds wrong
    results by the sentence that says what one has done then.

    Raises AssertionError with a sentence for the learner.
    """
    called = case(quote(call(attempt.__name__, arguments)))
    found = _settled(attempt(*arguments))
    if not same(found, result, tolerance):
        known = (said for said, wrong in (mistakes or {}).items() if same(found, wrong, tolerance))
        raise AssertionError(_with_cause(next(known, ""), difference(called, found, result)))


def agree(
    attempt: Attempt,
    solution: Attempt,
    draw: Callable[[random.Random], tuple[Any, ...]],
    times: int = 20,
    examples: Sequence[tuple[Any, ...]] = (),
    mistakes: Mapping[str, Attempt] | None = None,
    gradients: bool = False,
    tolerance: float = 1e-5,
    whole: bool = False,
) -> None:
    """Compare ``attempt`` with ``solution``: on ``examples``, small cases written by hand, and on arguments
    that ``draw`` makes, ``times`` times.

    The first example that fails is told, or of the drawn cases the smallest. Vary every argument in
    ``draw``, or an answer that ignores one passes. ``mistakes`` holds wrong functions, each under the
    sentence that says what one has done. If the attempt always gives what such a function gives, the
    sentence comes first:

        exercise.agree(
            mean_loss, Solutions.mean_loss, draw_episodes, examples=[([[1.0], [3.0, 5.0]],)],
            mistakes={"you averaged each episode by itself": lambda losses: fmean(map(fmean, losses))},
        )

    With ``gradients``, the gradients of the result's sum are compared too, for every argument that
    requires one. ``whole`` refuses 2.0 for a count. Raises AssertionError
    with a sentence.
    """
    names = list(inspect.signature(solution).parameters)

    def wrong(called: str, found: _Outcome, right: _Outcome) -> str:
        """Return what is wrong with ``found``, as a sentence; or nothing."""
        if found.error is not None or right.error is not None:
            raised = quote(type(found.error).__name__)
            return "" if type(found.error) is type(right.error) else f"{called} raises {raised}"
        is_whole = not whole or isinstance(plain(found.value), int)
        if not (same(found.value, right.value, tolerance) and is_whole):
            return difference(called, found.value, right.value)
        said = f"the result of {called} is right, but"
        return _gradient_difference(said, names, found.gradients, right.gradients, tolerance)

    tried: list[tuple[tuple[Any, ...], _Outcome]] = []
    failed: list[tuple[tuple[bool, int, int], str, str, _Outcome]] = []
    for arguments in chain(examples, map(draw, _draws(times, EXTRA, failed))):
        called = case(quote(call(attempt.__name__, arguments)))
        found, right = (
            _outcome(function, arguments, gradients) for function in (attempt, solution)
        )
        if right.error is not None:
            raise right.error
        tried.append((arguments, found))
        if said := wrong(called, found, right):
            # The first example comes before all drawn cases, and of these the smallest.
            drawn = len(tried) > len(examples)
            rank = (drawn, size(arguments) if drawn else len(tried), len(called))
            failed.append((rank, called, said, found))
    if not failed:
        return
    _, called, said, found = min(failed, key=lambda one: one[0])
    case(called)
    known = {
        **(mistakes or {}),
        "the sign is the other one": lambda *given: negative(solution(*given)),
    }
    for sentence, mistake in known.items():
        if not any(
            wrong("", found, _outcome(mistake, arguments, gradients))
            for arguments, found in tried[:LOOKED_AT]
        ):
            raise AssertionError(_with_cause(sentence, said))
    raise found.error or AssertionError(said)


def shortest(check_one: Callable[[random.Random], None], times: int = 20) -> None:
    """Run a check of one drawn case ``times`` times. Of the AssertionErrors the one with the shortest sentence is
    raised: its case is the smallest."""
    failed: list[AssertionError] = []
    for draw in _draws(times, 0, failed):
        try:
            check_one(draw)
        except AssertionError as error:
            failed.append(error)
    if failed:
        raise min(failed, key=lambda error: len(str(error)))


def _with_cause(cause: str, said: str) -> str:
    return f"{cause}. {said[:1].upper()}{said[1:]}" if cause else said


def _draws(times: int, extra: int, failed: Sequence[Any]) -> Iterator[random.Random]:
    """Yield dice: ``times``, and ``extra`` more once something has failed, but not for long then."""
    end = None
    for seed in range(times + extra):
        if failed and end is None:
            end = time.monotonic() + SEARCH_S
        if (seed >= times and not failed) or (end is not None and time.monotonic() > end):
            return
        yield random.Random(seed)


@dataclass(slots=True)
class _Outcome:
    """Hold what a call gave: a value and the gradients of its arguments, or an error."""

    value: Any = None
    gradients: list[Any] = field(default_factory=list)
    error: Exception | None = None


def _outcome(function: Attempt, arguments: tuple[Any, ...], gradients: bool) -> _Outcome:
    """Call ``function`` with arguments of its own."""
    own = copy.deepcopy(arguments)
    try:
        value = _settled(function(*own))
        return _Outcome(value, gradients_of(value, own) if gradients else [])
    except NotImplementedError:
        raise
    except Exception as error:
        return _Outcome(error=error)


def _settled(value: Any) -> Any:
    """Return what a generator yields as a list, which can be looked at more than once."""
    return list(value) if isinstance(value, Iterator) else value


def _gradient_difference(
    said: str, names: Sequence[str], found: Sequence[Any], right: Sequence[Any], tolerance: float
) -> str:
    """Return in what the gradients of the arguments differ, as a sentence; or nothing."""
    for name, theirs, ours in zip(names, found, right, strict=False):
        if ours is not None and theirs is None:
            return f"{said} no gradient flows back to {quote(name)}: is it detached?"
        if ours is not None and not same(theirs, ours, tolerance):
            return difference(
                f"{said} its gradient with respect to {quote(name)}", theirs, ours, ("is", "be")
            )
    return ""


def gradients_of(result: Any, arguments: Sequence[Any]) -> list[Any]:
    """Return the gradient of the sum of ``result`` for each argument, or None."""
    total = result[0] if isinstance(result, tuple) else result
    if getattr(total, "requires_grad", False):
        total.sum().backward()
    wanted = [
        argument if getattr(argument, "requires_grad", False) else None for argument in arguments
    ]
    return [None if argument is None else argument.grad for argument in wanted]


def complaint(check: Check, attempt: Attempt, seconds: float = 10.0) -> str | None:
    """Run the check within ``seconds``. Returns a sentence on what is wrong, or None."""
    name = quote(getattr(attempt, "__name__", "your code"))
    calls = _Calls(name)
    _CALLS.set(calls)
    if _unwritten(attempt):
        return f"{name} {UNWRITTEN}"
    match run_within(seconds, lambda: check(_recorded(attempt, calls))):
        case None:
            return None
        case NotImplementedError():
            return f"{name} {UNWRITTEN}"
        case AssertionError() as error:
            return bare(str(error)) or f"{calls.last} does not pass its check"
        case OutOfTime() as error:
            stuck = (
                "; it does not stop either, so restart the notebook"
                if isinstance(error, StillRunning)
                else ""
            )
            return f"{calls.last} has not returned within {seconds:g} s{stuck}"
        case error:
            said = (
                f"{type(error).__name__}: {bare(str(error))}"
                if str(error)
                else type(error).__name__
            )
            return f"{calls.last} raises {quote(said)}{_where(attempt, error)}"


def _where(attempt: Attempt, error: BaseException) -> str:
    """Return the last line of ``attempt`` on the way to ``error``, for a sentence; or nothing."""
    try:
        (lines, begin), file = (
            inspect.getsourcelines(attempt),
            inspect.getfile(inspect.unwrap(attempt)),
        )
    except (OSError, TypeError):
        return ""
    for step in reversed(traceback.extract_tb(error.__traceback__)):
        if step.filename == file and begin <= (step.lineno or 0) < begin + len(lines):
            return f" in line {(step.lineno or 0) - begin + 1}, {quote(step.line)}"
    return ""


def _unwritten(attempt: Attempt) -> bool:
    """Return True for a function whose body is ``...``, and for a class that has such a one."""
    if inspect.isclass(attempt):
        # A decorator may have put a method into an object, as Monarch's endpoints do.
        found = (getattr(part, "_method", part) for part in vars(attempt).values())
        methods = [inspect.unwrap(part) for part in found if inspect.isfunction(part)]
        # An __init__ that does nothing is an answer, if there is something else.
        methods = [method for method in methods if method.__name__ != "__init__"] or methods
        public = [name for name in vars(attempt) if not name.startswith("_")]
        return any(map(_unwritten, methods)) or not (methods or public)
    if not inspect.isfunction(attempt):
        return False
    steps = [step for step in dis.get_instructions(attempt) if step.opname not in _NOTHING]
    return all(
        step.opname in ("RETURN_CONST", "LOAD_CONST") and step.argval is None for step in steps
    )


# What the compiler writes for a body that does nothing, of plain and of async functions.
_NOTHING = frozenset(
    "RESUME NOP RETURN_VALUE RETURN_GENERATOR POP_TOP COPY_FREE_VARS MAKE_CELL CALL_INTRINSIC_1 RERAISE".split()
)


def _recorded(attempt: Attempt, calls: _Calls) -> Attempt:
    """Return ``attempt``, which then notes each call in ``calls`` before it is made."""
    if not inspect.isfunction(attempt):
        return attempt

    @functools.wraps(attempt)
    def recorded(*arguments: Any, **named: Any) -> Any:
        if not calls.named:
            calls.last = quote(call(attempt.__name__, arguments, named))
        calls.named = False
        return attempt(*arguments, **named)

    return recorded
