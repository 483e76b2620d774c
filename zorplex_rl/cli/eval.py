"""Measure a policy on held-out tasks: ``zorplex-rl eval``."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from zorplex_rl.config import Config, Device, Difficulty, Dtype, TaskName, check_setting

if TYPE_CHECKING:
    from rich.table import Table

    from zorplex_rl.policy.evaluate import Report

FORMATS = {
    "accuracy": "{r.accuracy:.1%}",
    "95 % interval": "{r.interval[0]:.0%}–{r.interval[1]:.0%}",
    "wrong answer": "{r.outcomes[wrong_answer]:.1%}",
    "wrong format": "{r.outcomes[wrong_format]:.1%}",
    "tool spam": "{r.outcomes[tool_spam]:.1%}",
    "truncated": "{r.outcomes[truncated]:.1%}",
    "mean reward": "{r.reward:.2f}",
    "turns": "{r.turns:.1f}",
    "tool calls": "{r.tool_calls:.1f}",
    "tokens": "{r.tokens:.0f}",
    "latency p50": "{p50:.0f} ms",
    "latency p95": "{p95:.0f} ms",
}
"""The rows of the table. Each kind of task is a column, so that the table fits a narrow terminal."""


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
    """Maximum length of a response in tokens."""
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

        from zorplex_rl.devices import assign_devices, prepare
        from zorplex_rl.policy.auto import resolved
        from zorplex_rl.policy.evaluate import evaluate
        from zorplex_rl.policy.load import load_policy
        from zorplex_rl.policy.requests import Sampling
        from zorplex_rl.task.own_task import EnvironmentSource

        check_setting("tasks", self.tasks, int, least=1)
        # The settings that a run has as well are bounded alike, but only an evaluation may be greedy.
        settings = vars(self) | {"temperature": self.temperature or 1, "max_lag": 0}
        del settings["tasks"], settings["json"]
        config = Config(**settings)
        config.check()
        config = resolved(config)
        source = EnvironmentSource.of(config)
        environments = {kind: replace(source, kinds=(kind,)).make() for kind in source.kinds}
        device = assign_devices(self.device, ["policy"])["policy"]
        prepare(device, config.threads)
        policy = load_policy(self.policy, device, config.dtype)
        sampling = Sampling(self.temperature, self.max_tokens)
        if self.json:
            # Fails before the work if the file cannot be written.
            self.json.open("a").close()
        console = Console(highlight=False)
        reports = []
        for name, environment in environments.items():
            with console.status(f"{name} …"):
                tasks = [environment.task(index, "held_out") for index in range(self.tasks)]
                report, _ = evaluate(
                    policy, name, tasks, environment.execute, sampling, self.seed, environment
                )
                reports.append(report)
        title = f"{self.policy}, temperature {self.temperature:g}, {self.tasks} held-out tasks each"
        console.print(table_of(reports, title))
        if self.json:
            result = {
                "settings": vars(self) | {"dtype": config.dtype},
                "tasks": [asdict(report) for report in reports],
            }
            self.json.write_text(json.dumps(result, indent=2, default=str) + "\n")
        return 0


def table_of(reports: Sequence["Report"], title: str) -> "Table":
    """Return the table of ``reports``, a column each."""
    from rich.table import Table

    names = [report.name.removesuffix(":easy") for report in reports]
    table = Table("", *names, title=title, title_justify="left")
    for name, form in FORMATS.items():
        cells = []
        for report in reports:
            p50 = 1e3 * report.seconds_median
            p95 = 1e3 * report.seconds_p95
            cells.append(form.format(r=report, p50=p50, p95=p95))
        table.add_row(name, *cells)
    return table
