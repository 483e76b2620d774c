"""Let the reader's own function drive a running system, also while it is still wrong.

average, whose = plug_in(average_gradient, average_gradient_solution, usable)
… the processes run ``average`` …        "averaged by your function"
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from zorplex_rl.course.lesson.time_limit import run_within

Attempt = TypeVar("Attempt", bound=Callable[..., object])


def plug_in(
    attempt: Attempt, solution: Attempt, usable: Callable[[Attempt], bool], seconds: float = 2.0
) -> tuple[Attempt, str]:
    """Return the function to use, and whose it is: ``attempt``, if ``usable(attempt)`` returns True within ``seconds``, and ``solution`` otherwise.

    ``usable`` says whether the system can run with it at all; an answer that is wrong but harmless is usable, so that its effect can be seen.
    """
    found: list[bool] = []
    run_within(seconds, lambda: found.append(bool(usable(attempt))))
    return (attempt, "your function") if found == [True] else (solution, "the course's solution, until yours runs")
