"""Read what two policies wrote after each step of a recorded training: cards show it before a reader's own run has.

benchmarks/recorded_steps.py ──► recorded_steps.json ──► recorded_steps("small") ──► the cards of 05, 05b, 05d, the contents page
"""

import json
from functools import cache
from typing import Any

from zorplex_rl.course import FILES

RECORDED = FILES / "benchmarks" / "recorded_steps.json"
SOURCE = "Recorded on {date} with python {command}."


@cache
def recorded_steps(name: str) -> dict[str, Any]:
    """Return the run of the ``small`` policy or of ``smollm2``: ``steps``, what it wrote for a few tasks after each step;
    ``asked``, these tasks; ``right``, the shares of right answers before and after; and a ``source`` for the page."""
    study = json.loads(RECORDED.read_text(encoding="utf-8"))
    run: dict[str, Any] = study[name]
    return run | {"source": SOURCE.format(**run)}
