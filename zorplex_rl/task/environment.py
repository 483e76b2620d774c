"""The environment of a run: draws the tasks of a tier and runs the tools that they call.

>>> Zorplex(seed=0).task(("simple:easy", "recursive:easy"), index=1).kind
'recursive'
"""

from functools import cache

from zorplex_rl.task.curriculum import Tier
from zorplex_rl.task.episode import Task
from zorplex_rl.task.parser import ToolCall
from zorplex_rl.task.specs import Split, TaskSpec, get_spec, run_tool


class Zorplex:
    """Draws tasks and runs their tools. It keeps no state of a task, so calls of many episodes can be mixed."""

    def __init__(self, seed: int = 0, hints: bool = False) -> None:
        self.seed, self.hints = seed, hints
        self._spec = cache(lambda kind, difficulty: get_spec(kind, seed, difficulty, hints))

    def spec(self, name: str) -> TaskSpec:
        """Return the spec of ``kind:difficulty``, or of ``kind`` at its easiest."""
        kind, _, difficulty = name.partition(":")
        return self._spec(kind, difficulty or "easy")

    def task(self, tier: Tier, index: int, split: Split = "train") -> Task:
        """Return task number ``index`` of ``tier``. The names in the tier take turns."""
        return self.spec(tier[index % len(tier)]).task(index // len(tier), split)

    def tasks(self, tier: Tier, count: int, split: Split = "train", start: int = 0) -> list[Task]:
        """Return ``count`` tasks of ``tier``, from number ``start`` on."""
        return [self.task(tier, start + offset, split) for offset in range(count)]

    def execute(self, task: Task, call: ToolCall) -> str:
        """Run ``call`` with the tools and the table of ``task``. Returns the result as text."""
        return run_tool(task, call)
