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

    exercise.feedback(idle_share, check_idle_share, idle_share_solution)

Put the last line into its own cell below the stub: marimo runs it again whenever the reader edits the stub. A test imports every notebook and
runs each check on the stub, which must fail, and on the solution, which must pass.
"""

from __future__ import annotations

import html
import inspect
import math
import re
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import marimo as mo

from zorplex_rl.viz import lesson

Attempt = Callable[..., Any]
Check = Callable[[Attempt], None]


def expect(attempt: Attempt, *arguments: Any, result: Any) -> None:
    """Compare ``attempt(*arguments)`` with ``result`` (floats: to six digits). Raises AssertionError with a sentence for the reader."""
    found = attempt(*arguments)
    called = f"{attempt.__name__}({', '.join(map(repr, arguments))})"
    assert _equal(found, result), f"{called} gives {found!r}, and should give {_shown(result)}"


def complaint(check: Check, attempt: Attempt) -> str | None:
    """Run the check. Returns one sentence that says what is wrong with ``attempt``, or None if it passes."""
    try:
        check(attempt)
    except NotImplementedError:
        return f"{attempt.__name__} is still to be written"
    except AssertionError as error:
        return str(error) or f"{attempt.__name__} does not pass its check"
    except Exception as error:
        return f"{attempt.__name__} raises {type(error).__name__}: {error}"
    return None


def feedback(attempt: Attempt, check: Check, solution: Attempt) -> mo.Html:
    """Run the check and show its result, with the solution folded below."""
    wrong = complaint(check, attempt)
    state, said = (
        ("open", f"Not yet: {wrong}.") if wrong else ("solved", f"Solved: {attempt.__name__} passes its check.")
    )
    if wrong and lesson.unattended():
        said += " Edit the cell above in marimo: the check runs at once."
    source = f"```python\n{solution_source(attempt, solution)}\n```"
    return mo.Html(
        f'<div class="lesson-check" data-state="{state}"><p role="status">{html.escape(said)}</p>'
        f"<details><summary>A solution</summary>{lesson.block(source)}</details></div>"
    )


def solution_source(attempt: Attempt, solution: Attempt) -> str:
    """Return the source of ``solution``, renamed to ``attempt``, so that a reader can paste it over the stub."""
    source = textwrap.dedent(inspect.getsource(solution)).strip()
    source = source[source.index("def ") :]
    return re.sub(rf"\b{solution.__name__}\b", attempt.__name__, source)


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
