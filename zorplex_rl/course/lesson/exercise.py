"""Check what the learner writes. An exercise is a stub on the page, and two entries of ``Solutions``, the page's last cell:

    def idle_share(seconds): ...                                  the stub that the learner completes

    exercise.feedback(lambda: idle_share, Solutions, level="core", minutes=6, hints=("…", "…"))     in the cell below it
    share, whose = exercise.running(lambda: idle_share, Solutions)                                  where the page goes on

    class Solutions:                                              one cell, with hidden code
        def check_idle_share(idle_share):                         raises AssertionError with one sentence
            exercise.expect(idle_share, [1.0, 3.0], result=1 / 3)
            exercise.agree(idle_share, Solutions.idle_share, lambda draw: ([draw.random() for _ in range(5)],))
        def idle_share(seconds):                                  the solution, which the page shows on request
            return 1 - sum(seconds) / (len(seconds) * max(seconds))

``feedback`` shows the result of the check, in its own cell below the stub: marimo runs it again
on every edit. ``running`` returns what the page goes on with. The ``lambda`` is for a stub whose cell
has a syntax error: its name does not exist then. Tests run each check on the stub, the solution and
the answers of ``tests/notebooks/answers``. A check runs in a thread that is stopped in time, so that
hints and solution stay at hand whatever the learner's code does.
"""

from __future__ import annotations

import copy
import dis
import functools
import inspect
import math
import random
import re
import reprlib
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from decimal import Decimal
from numbers import Real
from types import FunctionType, ModuleType
from typing import Any

import marimo as mo

from zorplex_rl.course.lesson import lesson
from zorplex_rl.course.lesson.markup import block, inline, quote
from zorplex_rl.course.lesson.time_limit import OutOfTime, StillRunning, run_within

LEVELS = ("warm-up", "core", "stretch")
# The whole of what a check passes, and the two ends of what is too long for a sentence.
_SHORTENED = reprlib.Repr()
_SHORTENED.maxlist = _SHORTENED.maxtuple = _SHORTENED.maxset = 24
_SHORTENED.maxstring = _SHORTENED.maxother = 120
_SHORTENED.maxdict, _SHORTENED.maxlong = 12, 60

Attempt = Callable[..., Any]
Check = Callable[[Attempt], None]
Stub = FunctionType
"""``lambda: name``"""
_UNWRITTEN = "is still to be written"
_CASES = ContextVar[list[str]]("the case that a check tries")


def case(said: str) -> str:
    """Name the next call of a check (Markdown), for what it may raise. Returns ``said``."""
    _CASES.get([]).append(said)
    return said


def expect(attempt: Attempt, *arguments: Any, result: Any, tolerance: float = 1e-6) -> None:
    """Compare ``attempt(*arguments)`` with ``result``, as ``same`` does.

    Raises AssertionError with a sentence for the learner.
    """
    called = case(quote(_call(attempt.__name__, arguments)))
    found = attempt(*arguments)
    assert same(found, result, tolerance), _unlike(called, found, result)


def agree(
    attempt: Attempt,
    solution: Attempt,
    draw: Callable[[random.Random], tuple[Any, ...]],
    times: int = 20,
    gradients: bool = False,
    tolerance: float = 1e-5,
    whole: bool = False,
    values: bool = True,
) -> None:
    """Compare ``attempt`` with ``solution`` on arguments that ``draw`` makes, ``times`` times.

    Vary every argument in ``draw``, or an answer that ignores one passes. With ``gradients``, the
    gradients of the result's sum are compared too, for every argument that requires one. ``whole``
    refuses 2.0 for a count; without ``values``, only gradients are compared. Raises AssertionError with a sentence that shows the failing call.
    """
    for seed in range(times):
        arguments = draw(random.Random(seed))
        called = case(quote(_call(attempt.__name__, arguments)))
        ours, theirs = copy.deepcopy(arguments), copy.deepcopy(arguments)
        right, found = solution(*ours), attempt(*theirs)
        assert not values or same(found, right, tolerance), _unlike(called, found, right)
        assert not whole or isinstance(_plain(found), int), _unlike(called, found, right)
        if gradients:
            said = f"the result of {called} is right, but" if values else f"for {called}"
            _compare_gradients(said, (found, theirs), (right, ours), tolerance)


def _compare_gradients(said: str, found: tuple[Any, Any], right: tuple[Any, Any], tolerance: float) -> None:
    """Compare what flows back to the arguments of two calls, each given as (result, arguments)."""
    flows = [_gradients(result, arguments) for result, arguments in (found, right)]
    for number, (theirs, ours) in enumerate(zip(*flows, strict=True), 1):
        nothing = f"{said} no gradient flows back to argument {number}: is it detached?"
        assert ours is None or theirs is not None, nothing
        assert ours is None or same(theirs, ours, tolerance), (
            f"{said} its gradient with respect to argument {number} is {quote(_short(theirs))}, and should be {quote(_short(ours))}"
        )


def _gradients(result: Any, arguments: Sequence[Any]) -> list[Any]:
    """Return the gradient of the sum of ``result`` for each argument, or None."""
    total = result[0] if isinstance(result, tuple) else result
    if getattr(total, "requires_grad", False):
        total.sum().backward()
    wanted = [argument if getattr(argument, "requires_grad", False) else None for argument in arguments]
    return [None if argument is None else argument.grad for argument in wanted]


def same(found: Any, expected: Any, tolerance: float = 1e-6) -> bool:
    """Return True if both are equal as a learner means it: numbers, sequences of any kind.

    >>> import torch
    >>> same(torch.tensor([0.5, 2.0]), (0.5, 2)), same([1.0], 1.0), same(None, 0)
    (True, False, False)

    A mask may be written with ones and zeros, a single truth value may not.

    >>> same([1, 0], [True, False]), same(1, True), same([True, 2], [1, 2])
    (True, False, False)
    """
    found, expected = _plain(found), _plain(expected)
    if isinstance(expected, bool) or isinstance(found, bool):
        return found is expected
    if isinstance(expected, Real) and isinstance(found, Real | Decimal):
        found = float(found) if isinstance(found, Decimal) else found
        if math.isnan(expected) or math.isnan(found):
            return math.isnan(expected) and math.isnan(found)
        # An integer is exact: a count of 10,000,001 is not 10,000,000.
        exact = isinstance(expected, int) and isinstance(found, int)
        return found == expected or (
            not exact and math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance / 1000)
        )
    if isinstance(expected, list | tuple):
        alike = isinstance(found, list | tuple) and len(found) == len(expected)
        if alike and all(isinstance(one, bool) for one in expected):
            return all(isinstance(one, Real) and one == other for one, other in zip(found, expected, strict=True))
        return alike and all(same(one, other, tolerance) for one, other in zip(found, expected, strict=True))
    if isinstance(expected, Mapping):
        alike = isinstance(found, Mapping) and found.keys() == expected.keys()
        return alike and all(same(found[key], expected[key], tolerance) for key in expected)
    return type(found) is type(expected) and bool(found == expected)


def _plain(value: Any) -> Any:
    """Return a tensor or an array as nested lists or one number, and other values as they are."""
    if callable(getattr(value, "detach", None)):
        value = value.detach().cpu()
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    return list(value) if isinstance(value, range) else value


def complaint(check: Check, attempt: Attempt, seconds: float = 10.0) -> str | None:
    """Run the check within ``seconds``. Returns a sentence on what is wrong, or None."""
    name = quote(getattr(attempt, "__name__", "your code"))
    last_call, cases = list[str](), list[str]()
    _CASES.set(cases)

    def failing() -> str:
        return (last_call or cases or [name])[-1]

    if _unwritten(attempt):
        return f"{name} {_UNWRITTEN}"
    match run_within(seconds, lambda: check(_recorded(attempt, last_call))):
        case None:
            return None
        case NotImplementedError():
            return f"{name} {_UNWRITTEN}"
        case AssertionError() as error:
            return str(error) or f"{failing()} does not pass its check"
        case OutOfTime() as error:
            stuck = "; it does not stop either, so restart the notebook" if isinstance(error, StillRunning) else ""
            return f"{failing()} has not returned within {seconds:g} s{stuck}"
        case error:
            said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            return f"{failing()} raises {quote(said)}{_where(attempt, error)}"


def _where(attempt: Attempt, error: BaseException) -> str:
    """Return the last line of ``attempt`` on the way to ``error``, for a sentence; or nothing."""
    try:
        (lines, begin), file = inspect.getsourcelines(attempt), inspect.getfile(inspect.unwrap(attempt))
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
    return all(step.opname in ("RETURN_CONST", "LOAD_CONST") and step.argval is None for step in steps)


# What the compiler writes for a body that does nothing, of plain and of async functions.
_NOTHING = frozenset(
    "RESUME NOP RETURN_VALUE RETURN_GENERATOR POP_TOP COPY_FREE_VARS MAKE_CELL CALL_INTRINSIC_1 RERAISE".split()
)


def _parts(stub: Stub, solutions: type) -> tuple[str, Attempt | None, Check, Attempt]:
    """Return the name of the exercise, its stub (None if its cell has an error), its check and its solution."""
    (name,) = stub.__code__.co_names + stub.__code__.co_freevars
    try:
        attempt = stub()
    except NameError:
        attempt = None
    return name, attempt, getattr(solutions, f"check_{name}"), getattr(solutions, name)


def running(stub: Stub, solutions: type, seconds: float = 10.0) -> tuple[Attempt, str]:
    """Return the function that the page goes on with, and whose it is, for a sentence.

    It is the learner's once it passes its check within ``seconds``, and the solution until then.
    """
    name, attempt, check, solution = _parts(stub, solutions)
    if attempt is not None and complaint(check, attempt, seconds) is None:
        return attempt, f"your {quote(name)}"
    return solution, f"the course's {quote(name)}"


def feedback(
    stub: Stub,
    solutions: type,
    level: str | None = None,
    minutes: int | None = None,
    hints: Sequence[str] = (),
    seconds: float = 10.0,
    lines: int | None = None,
) -> mo.Html:
    """Run the check within ``seconds`` and show its result, above a ladder of folded hints.

    ``level`` is one of ``LEVELS``; ``hints`` (Markdown) are a question and a sketch, and the solution
    is folded in the last; ``lines`` are to be written. Raises ValueError for another level.
    """
    if level is not None and level not in LEVELS:
        raise ValueError(f"level is {level!r}; expected one of {', '.join(LEVELS)}")
    plain_name, attempt, check, solution = _parts(stub, solutions)
    name = quote(plain_name)
    no_cell = f"{name} does not exist, because its cell has an error; marimo shows it there"
    wrong = no_cell if attempt is None else complaint(check, attempt, seconds)
    state, said = ("open", f"Not yet: {wrong}.") if wrong else ("solved", f"Solved: {name} passes its check.")
    if wrong and _UNWRITTEN in wrong and lesson.unattended():
        # Nobody can write here.
        said = f"Write {name} in `marimo edit`: it checks what you write at once."
    facts = [
        level or "",
        f"{minutes} minutes" if minutes else "",
        f"about {lines} line{'s' * (lines > 1)}" if lines else "",
    ]
    top = f'<p class="lesson-level">{" · ".join(filter(None, facts))}</p>' if any(facts) else ""
    source = f"```python\n{solution_source(plain_name, solution)}\n```"
    return mo.Html(
        f'<div class="lesson-check" data-state="{state}">{top}<p role="status">{inline(said)}</p>'
        f"{_ladder([*hints, source])}</div>"
    )


def _ladder(steps: Sequence[str], number: int = 1) -> str:
    """Return the first step, folded, with the others folded inside it; the last is the solution."""
    summary = "A solution" if len(steps) == 1 else "A hint" if number == 1 else "Another hint"
    inner = _ladder(steps[1:], number + 1) if len(steps) > 1 else ""
    return f"<details><summary>{summary}</summary>{block(steps[0])}{inner}</details>"


def _call(name: str, arguments: Sequence[Any], named: dict[str, Any] | None = None) -> str:
    """Return the call as a reader would write it; long arguments are cut."""
    parts = [*map(_short, arguments), *(f"{key}={_short(value)}" for key, value in (named or {}).items())]
    return f"{name}({', '.join(parts)})"


def _short(value: Any) -> str:
    try:
        if callable(getattr(value, "detach", None)):
            value = _rounded(_plain(value))
        return re.sub(r"\s*\n\s*", " ", _SHORTENED.repr(value))
    except Exception:
        return f"<{type(value).__name__}>"


def _recorded(attempt: Attempt, last_call: list[str]) -> Attempt:
    """Return ``attempt``, which then notes each call in ``last_call`` before it is made."""
    if not inspect.isfunction(attempt):
        return attempt

    @functools.wraps(attempt)
    def calls(*arguments: Any, **named: Any) -> Any:
        cases = _CASES.get([])
        last_call[:] = [cases.pop() if cases else quote(_call(attempt.__name__, arguments, named))]
        return attempt(*arguments, **named)

    return calls


def solution_source(name: str, solution: Attempt) -> str:
    """Return the source of ``solution`` as ``name``, to be pasted over the stub."""
    source = textwrap.dedent(inspect.getsource(solution)).strip()
    begin = re.search(r"^(async )?(def|class) ", source, re.MULTILINE)
    source = source[begin.start() if begin else 0 :]
    return re.sub(rf"\b(Solutions\.)?{solution.__name__}\b", name, source)


def exercises(notebook: ModuleType) -> Iterator[tuple[str, Attempt, Check, Attempt]]:
    """Yield (name, stub, check, solution) for every exercise of an imported notebook."""
    solutions = notebook.Solutions
    for name in [name.removeprefix("check_") for name in vars(solutions) if name.startswith("check_")]:
        yield name, getattr(notebook, name), getattr(solutions, f"check_{name}"), getattr(solutions, name)


def _unlike(called: str, found: Any, right: Any) -> str:
    """Return the sentence on two results that differ, and say how if they look alike."""
    ours, theirs = _shown(found), _shown(right)
    pair = (_plain(found), _plain(right))
    if ours == theirs:
        ours, theirs = (f"{_short(value)} ({type(value).__name__})" for value in (found, right))
    if all(isinstance(value, list | tuple) for value in pair):
        place = next((n for n, both in enumerate(zip(*pair, strict=False)) if not same(*both)), min(map(len, pair)))
        if ours == theirs:
            ours, theirs = (f"… {_short(value[place : place + 9])} from position {place} on" for value in pair)
        elif place < len(pair[0]) == len(pair[1]) > 3 and isinstance(pair[1][place], tuple):
            ours, theirs = (_short(_rounded(value[place])) for value in pair)
            return f"{called} gives {quote(ours)} at position {place}, and should give {quote(theirs)} there"
    return f"{called} gives {quote(ours)}, and should give {quote(theirs)}"


def _shown(value: Any) -> str:
    value = _plain(value)
    return f"{value:.6g}" if isinstance(value, float) else _short(_rounded(value))


def _rounded(value: Any) -> Any:
    """Return nested lists of floats with six digits, so that a sentence can be read."""
    if isinstance(value, list | tuple):
        return type(value)(map(_rounded, value)) if type(value) in (list, tuple) else value
    return float(f"{value:.6g}") if isinstance(value, float) else value
