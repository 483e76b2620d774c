"""Measure a policy on held-out tasks: ``zorplex-rl eval``."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from zorplex_rl.config import Config, Device, Difficulty, Dtype, TaskName, check_setting

if TYPE_CHECKING:
    from zorplex_rl.policy.evaluate import Report

ROWS: dict[str, Callable[["Report"], str]] = {
    "accuracy": lambda r: f"{r.accuracy:.1%}",
    "95 % interval": lambda r: f"{r.interval[0]:.0%}–{r.interval[1]:.0%}",
    "wrong answer": lambda r: f"{r.outcomes['wrong_answer']:.1%}",
    "wrong format": lambda r: f"{r.outcomes['wrong_format']:.1%}",
    "tool spam": lambda r: f"{r.outcomes['tool_spam']:.1%}",
    "truncated": lambda r: f"{r.outcomes['truncated']:.1%}",
    "mean reward": lambda r: f"{r.reward:.2f}",
    "turns": lambda r: f"{r.turns:.1f}",
    "tool calls": lambda r: f"{r.tool_calls:.1f}",
    "tokens": lambda r: f"{r.tokens:.0f}",
    "latency p50": lambda r: f"{1e3 * r.seconds_median:.0f} ms",
    "latency p95": lambda r: f"{1e3 * r.seconds_p95:.0f} ms",
}
"""What the table shows of each kind of task: a column each, so that it fits a narrow terminal."""


@dataclass(frozen=True)
class Eval:
    """Benchmark a policy on held-out tasks: of all kinds, of one, or of a task of your own."""

    policy: str = "embedded"
    """embedded, smollm2, the folder of a model, or a hub id."""
    tasks: int = 200
    """Held-out tasks of each kind."""
    task: TaskName | str = "mix"
    """Kind of task; mix is each of them. Or a task of your own, as in train."""
    task_data: str | None = None
    """A text file for a task of your own."""
    temperature: float = 0.0
    """0 is greedy."""
    difficulty: Difficulty = "easy"
    """Difficulty of the compositional tasks."""
    shots: int = Config.shots
    """Worked examples of the task, as turns of the chat before each question."""
    max_tokens: int = Config.max_tokens
    """Longest response in tokens."""
    seed: int = 0
    """Seed of the tasks, their tables and the sampling."""
    device: Device = "auto"
    """auto is CUDA where there is one."""
    dtype: Dtype = "auto"
    """Number type of the model; auto takes the faster one."""
    json: Path | None = None
    """Also write the result to this file."""

    def run(self) -> int:
        from rich.console import Console
        from rich.table import Table

        from zorplex_rl.devices import assign_devices, prepare
        from zorplex_rl.policy.auto import resolved
        from zorplex_rl.policy.evaluate import evaluate
        from zorplex_rl.policy.load import load_policy
        from zorplex_rl.policy.requests import Sampling
        from zorplex_rl.task.own_task import EnvironmentSource

        check_setting("tasks", self.tasks, int, least=1)
        # The settings that a run has as well are bounded alike; temperature 0 is one of an evaluation.
        config = Config(
            task=self.task, task_data=self.task_data, difficulty=self.difficulty, shots=self.shots, temperature=self.temperature or 1,
            max_tokens=self.max_tokens, seed=self.seed, device=self.device, policy=self.policy, dtype=self.dtype, max_lag=0,
        )  # fmt: skip
        config.check()
        source = EnvironmentSource.of(config)
        environments = {kind: replace(source, kinds=(kind,)).make() for kind in source.kinds}
        config, device = resolved(config), assign_devices(self.device, ["policy"])["policy"]
        prepare(device, config.threads)
        policy = load_policy(self.policy, device, config.dtype)
        sampling = Sampling(self.temperature, self.max_tokens)
        if self.json:
            # What cannot be written is known before the work.
            self.json.open("a").close()
        console, reports = Console(highlight=False), []
        for name, environment in environments.items():
            with console.status(f"{name} …"):
                tasks = [environment.task(index, "held_out") for index in range(self.tasks)]
                reports.append(
                    evaluate(
                        policy, name, tasks, environment.execute, sampling, self.seed, environment
                    )[0]
                )
        title = f"{self.policy}, temperature {self.temperature:g}, {self.tasks} held-out tasks each"
        table = Table(
            "", *(r.name.removesuffix(":easy") for r in reports), title=title, title_justify="left"
        )
        for name, show in ROWS.items():
            table.add_row(name, *map(show, reports))
        console.print(table)
        if self.json:
            found = {
                "settings": vars(self) | {"dtype": config.dtype},
                "tasks": [asdict(report) for report in reports],
            }
            self.json.write_text(json.dumps(found, indent=2, default=str) + "\n")
        return 0
