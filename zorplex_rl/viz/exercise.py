"""Exercises that check themselves. Each is three functions of a notebook, named after each other:

    @app.function
    def idle_share(seconds):                          the stub, which the reader completes
        raise NotImplementedError

    @app.function(hide_code=True)
    def check_idle_share(idle_share):                 says in a sentence what is wrong with it
        exercise.expect(idle_share, [1.0, 3.0], result=1 / 3)

    @app.function(hide_code=True)
    def idle_share_solution(seconds):                 its own source is what the page shows, folded
        return 1 - sum(seconds) / (len(seconds) * max(seconds))

    exercise.feedback(idle_share, check_idle_share, idle_share_solution)

The last line is a cell of its own below the stub: marimo runs it again as soon as the reader has edited the stub. A test imports the notebook
and runs every check on its stub, which must fail, and on its solution, which must pass.
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
    """Raise AssertionError, in a sentence for the reader, unless ``attempt(*arguments)`` is ``result`` (floats: to six digits)."""
    found = attempt(*arguments)
    called = f"{attempt.__name__}({', '.join(map(repr, arguments))})"
    assert _equal(found, result), f"{called} gives {found!r}, and should give {_shown(result)}"


def complaint(check: Check, attempt: Attempt) -> str | None:
    """What is wrong with ``attempt``, or None if it passes its check."""
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
    """What the check says about ``attempt`` as it stands, and the solution, folded."""
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
    """The source of ``solution`` under the name of ``attempt``: what a reader may paste over the stub."""
    source = textwrap.dedent(inspect.getsource(solution)).strip()
    source = source[source.index("def ") :]
    return re.sub(rf"\b{solution.__name__}\b", attempt.__name__, source)


def exercises(notebook: ModuleType) -> Iterator[tuple[str, Attempt, Check, Attempt]]:
    """(name, stub, check, solution) of every exercise in an imported notebook."""
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
