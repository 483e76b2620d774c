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

import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from types import FunctionType, ModuleType

import marimo as mo

from zorplex_rl.course.lesson import lesson
from zorplex_rl.course.lesson.checks import UNWRITTEN, Attempt, Check
from zorplex_rl.course.lesson.checks import agree as agree
from zorplex_rl.course.lesson.checks import case as case
from zorplex_rl.course.lesson.checks import complaint as complaint
from zorplex_rl.course.lesson.checks import expect as expect
from zorplex_rl.course.lesson.checks import gradients_of as gradients_of
from zorplex_rl.course.lesson.checks import shortest as shortest
from zorplex_rl.course.lesson.compare import same as same
from zorplex_rl.course.lesson.compare import shown as shown
from zorplex_rl.course.lesson.markup import block, inline, quote

Stub = FunctionType
"""``lambda: name``"""


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

    ``level`` is warm-up, core or stretch; ``hints`` (Markdown) are a question and a sketch, and the solution
    is folded in the last; ``lines`` are to be written.
    """
    plain_name, attempt, check, solution = _parts(stub, solutions)
    name = quote(plain_name)
    no_cell = f"{name} does not exist, because its cell has an error; marimo shows it there"
    wrong = no_cell if attempt is None else complaint(check, attempt, seconds)
    state, said = (
        ("open", f"Not yet: {wrong}.") if wrong else ("solved", f"Solved: {name} passes its check.")
    )
    if wrong and UNWRITTEN in wrong and lesson.unattended():
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


def solution_source(name: str, solution: Attempt) -> str:
    """Return the source of ``solution`` as ``name``, to be pasted over the stub."""
    source = textwrap.dedent(inspect.getsource(solution)).strip()
    begin = re.search(r"^(async )?(def|class) ", source, re.MULTILINE)
    source = source[begin.start() if begin else 0 :]
    return re.sub(rf"\b(Solutions\.)?{solution.__name__}\b", name, source)


def exercises(notebook: ModuleType) -> Iterator[tuple[str, Attempt, Check, Attempt]]:
    """Yield (name, stub, check, solution) for every exercise of an imported notebook."""
    solutions = notebook.Solutions
    for name in [
        name.removeprefix("check_") for name in vars(solutions) if name.startswith("check_")
    ]:
        yield (
            name,
            getattr(notebook, name),
            getattr(solutions, f"check_{name}"),
            getattr(solutions, name),
        )
