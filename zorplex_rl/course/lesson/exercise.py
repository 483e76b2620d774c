"""Check the exercises of a notebook. Each exercise is three functions with matching names:

    @app.function
    def idle_share(seconds):                          the stub that the reader completes
        raise NotImplementedError

    @app.function(hide_code=True)
    def check_idle_share(idle_share):                 raises AssertionError with one sentence if it is wrong
        exercise.expect(idle_share, [1.0, 3.0], result=1 / 3)

    @app.function(hide_code=True)
    def idle_share_solution(seconds):                 the page shows its source, folded
        return 1 - sum(seconds) / (len(seconds) * max(seconds))

    exercise.feedback(lambda: idle_share, check_idle_share, idle_share_solution, level="core", minutes=6, hints=("…", "…"))

Put the last line into its own cell below the stub: marimo runs it again whenever the reader edits the stub. The ``lambda`` is for the moments
in which the stub's cell has a syntax error: its name does not exist then, and without the ``lambda`` this cell would not run at all.

A test imports every notebook and runs each check on the stub, which must fail, and on the solution, which must pass.

Whatever the reader's code does, the cell says it in one sentence, and hints and solution stay at hand: a check runs in a thread of its own,
which is stopped when it takes too long.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import reprlib
import textwrap
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import marimo as mo

from zorplex_rl.course.lesson import lesson
from zorplex_rl.course.lesson.markup import block, inline, quote
from zorplex_rl.course.lesson.time_limit import OutOfTime, StillRunning, run_within

LEVELS = ("warm-up", "core", "stretch")
# The whole of what a check passes, and the two ends of what is too long for a sentence.
_SHORTENED = reprlib.Repr()
_SHORTENED.maxlist = _SHORTENED.maxtuple = _SHORTENED.maxset = 24
_SHORTENED.maxdict = 12
_SHORTENED.maxstring = _SHORTENED.maxother = 120
_SHORTENED.maxlong = 60

Attempt = Callable[..., Any]
Check = Callable[[Attempt], None]


def expect(attempt: Attempt, *arguments: Any, result: Any) -> None:
    """Compare ``attempt(*arguments)`` with ``result`` (floats: to six digits). Raises AssertionError with a sentence for the reader."""
    called = quote(_call(attempt.__name__, arguments))
    found = attempt(*arguments)
    assert _equal(found, result), f"{called} gives {quote(_short(found))}, and should give {quote(_shown(result))}"


def complaint(check: Check, attempt: Attempt, seconds: float = 10.0) -> str | None:
    """Run the check for at most ``seconds``. Returns one sentence (Markdown) that says what is wrong with ``attempt``, or None if it passes."""
    name = quote(getattr(attempt, "__name__", "your code"))
    last_call: list[str] = []

    def failing() -> str:
        return quote(last_call[-1]) if last_call else name

    match run_within(seconds, lambda: check(_recorded(attempt, last_call))):
        case None:
            return None
        case NotImplementedError():
            return f"{name} is still to be written"
        case AssertionError() as error:
            return str(error) or f"{failing()} does not pass its check"
        case OutOfTime() as error:
            stuck = "; it does not stop either, so restart the notebook" if isinstance(error, StillRunning) else ""
            return f"{failing()} has not returned within {seconds:g} s{stuck}"
        case error:
            said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            return f"{failing()} raises {quote(said)}"


def feedback(
    attempt: Attempt,
    check: Check,
    solution: Attempt,
    level: str | None = None,
    minutes: int | None = None,
    hints: Sequence[str] = (),
    seconds: float = 10.0,
) -> mo.Html:
    """Run the check for at most ``seconds`` and show its result. Hints (Markdown) and the solution are folded below, each hint inside the one before.

    ``attempt`` is the stub, or better a ``lambda`` that returns it. ``level`` is one of ``LEVELS``; ``minutes`` is what a learner needs.
    Raises ValueError for another level.
    """
    if level is not None and level not in LEVELS:
        raise ValueError(f"level is {level!r}; expected one of {', '.join(LEVELS)}")
    wrong, plain_name = None, solution.__name__.removesuffix("_solution")
    if getattr(attempt, "__name__", "") == "<lambda>":
        try:
            attempt = attempt()
        except NameError:
            wrong = f"{quote(plain_name)} does not exist, because its cell has an error; marimo shows it there"
    wrong = wrong or complaint(check, attempt, seconds)
    name = quote(plain_name)
    state, said = ("open", f"Not yet: {wrong}.") if wrong else ("solved", f"Solved: {name} passes its check.")
    if wrong and lesson.unattended():
        said += " Edit the cell above in marimo: the check runs at once."
    facts = [*([level] if level else []), *([f"{minutes} minutes"] if minutes else [])]
    top = f'<p class="lesson-level">{" · ".join(facts)}</p>' if facts else ""
    source = f"```python\n{solution_source(plain_name, solution)}\n```"
    return mo.Html(
        f'<div class="lesson-check" data-state="{state}">{top}<p role="status">{inline(said)}</p>'
        f"{_folded_hints(hints)}<details><summary>A solution</summary>{block(source)}</details></div>"
    )


def _folded_hints(hints: Sequence[str], number: int = 1) -> str:
    """Return the first hint, folded, with the others folded inside it."""
    if not hints:
        return ""
    summary = "A hint" if number == 1 else "Another hint"
    return f"<details><summary>{summary}</summary>{block(hints[0])}{_folded_hints(hints[1:], number + 1)}</details>"


def _call(name: str, arguments: Sequence[Any], named: dict[str, Any] | None = None) -> str:
    """Return the call as a reader would write it; long arguments are cut."""
    parts = [*map(_short, arguments), *(f"{key}={_short(value)}" for key, value in (named or {}).items())]
    return f"{name}({', '.join(parts)})"


def _short(value: Any) -> str:
    try:
        return " ".join(_SHORTENED.repr(value).split())
    except Exception:
        return f"<{type(value).__name__}>"


def _recorded(attempt: Attempt, last_call: list[str]) -> Attempt:
    """Return ``attempt``, noting each call in ``last_call`` before it is made. Leaves alone what is no plain function."""
    if not inspect.isfunction(attempt) or inspect.isgeneratorfunction(attempt) or inspect.isasyncgenfunction(attempt):
        return attempt

    def note(arguments: Sequence[Any], named: dict[str, Any]) -> None:
        last_call[:] = [_call(attempt.__name__, arguments, named)]

    if inspect.iscoroutinefunction(attempt):

        @functools.wraps(attempt)
        async def waits(*arguments: Any, **named: Any) -> Any:
            note(arguments, named)
            return await attempt(*arguments, **named)

        return waits

    @functools.wraps(attempt)
    def calls(*arguments: Any, **named: Any) -> Any:
        note(arguments, named)
        return attempt(*arguments, **named)

    return calls


def solution_source(name: str, solution: Attempt) -> str:
    """Return the source of ``solution`` as a function ``name``, so that a reader can paste it over the stub."""
    source = textwrap.dedent(inspect.getsource(solution)).strip()
    source = source[source.index("def ") :]
    return re.sub(rf"\b{solution.__name__}\b", name, source)


def exercises(notebook: ModuleType) -> Iterator[tuple[str, Attempt, Check, Attempt]]:
    """Yield (name, stub, check, solution) for every exercise of an imported notebook."""
    for name in [name.removeprefix("check_") for name in vars(notebook) if name.startswith("check_")]:
        yield name, *(getattr(notebook, found) for found in (name, f"check_{name}", f"{name}_solution"))


def _equal(found: Any, expected: Any) -> bool:
    if isinstance(expected, float):
        return isinstance(found, int | float) and math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-9)
    if isinstance(expected, list | tuple):
        same_kind = isinstance(found, list | tuple) and len(found) == len(expected)
        return same_kind and all(map(_equal, found, expected))
    return type(found) is type(expected) and found == expected


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else repr(value)
