"""Measure a policy on held-out tasks: ``zorplex-rl eval`` and ``zorplex-rl policy show``."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from zorplex_rl.cli.flags import Command
from zorplex_rl.cli.output import plain_console
from zorplex_rl.config import MOST_EPISODES, Config, Device, Difficulty, Dtype, TaskName, check_range, check_temperature
from zorplex_rl.errors import ConfigError

if TYPE_CHECKING:
    from zorplex_rl.policy.evaluate import Report
    from zorplex_rl.policy.load import Policy
    from zorplex_rl.policy.tool_loop import Sampling
    from zorplex_rl.task.environment import Environment


@dataclass(frozen=True)
class Eval(Command):
    """Benchmark a policy on held-out tasks: of all kinds, of one, or of a task of your own."""

    policy: str = "embedded"
    """embedded, the folder of a model, or a hub id."""
    tasks: int = 200
    """Held-out tasks of each kind."""
    task: TaskName | str = "mix"
    """Kind of task; mix is each of them. Or a task of your own, as in train."""
    task_data: str | None = None
    """A text file for a task of your own."""
    tool_timeout: float = Config.tool_timeout
    """Seconds after which a tool of it has answered that it timed out, as in train."""
    temperature: float = 0.0
    """0 is greedy."""
    difficulty: Difficulty = "easy"
    """Difficulty of the compositional tasks."""
    hints: bool = False
    """Show a worked example in the system prompt."""
    max_tokens: int = Config.max_tokens
    """Longest response in tokens."""
    max_turns: int = Config.max_turns
    """Most stretches of sampled text in an episode."""
    seed: int = 0
    """Seed of the tasks, their tables and the sampling."""
    device: Device = "auto"
    """auto is CUDA where there is one."""
    dtype: Dtype = "float32"
    """Number type of the model."""
    json: Path | None = None
    """Also write the result to this file."""


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


def evaluate(command: Eval) -> int:
    from zorplex_rl.policy.tool_loop import Sampling
    from zorplex_rl.task.own_task import EnvironmentSource
    from zorplex_rl.training.devices import assign_devices

    check_range("tasks", command.tasks, 1, MOST_EPISODES)
    check_temperature(command.temperature, greedy=True)
    config = Config(
        task=command.task, task_data=command.task_data, tool_timeout=command.tool_timeout, difficulty=command.difficulty,
        hints=command.hints, max_tokens=command.max_tokens, max_turns=command.max_turns, seed=command.seed,
        device=command.device, dtype=command.dtype,
    )  # fmt: skip
    config.check()
    source = EnvironmentSource.of(config)
    if command.json:
        check_writable("--json", command.json)
    # A mistake above is said at once; this imports torch, which takes seconds.
    from zorplex_rl.policy.load import load_policy

    environments = {kind: replace(source, kinds=(kind,)).make() for kind in source.kinds}
    policy = load_policy(command.policy, assign_devices(command.device, ["policy"])["policy"], command.dtype)
    sampling = Sampling(command.temperature, command.max_tokens, command.max_turns)
    title = f"{command.policy}, temperature {command.temperature:g}"
    reports = show_accuracy(title, policy, environments, command.tasks, sampling, command.seed)
    if command.json:
        found = {"settings": vars(command), "tasks": [asdict(report) for report in reports]}
        command.json.write_text(json.dumps(found, indent=2, default=str) + "\n")
    return 0


def show_accuracy(
    title: str,
    policy: "Policy",
    environments: "Mapping[str, Environment]",
    tasks: int,
    sampling: "Sampling",
    seed: int = 0,
) -> "list[Report]":
    """Print a table with a column for each of ``environments``, on ``tasks`` held-out tasks of each.
    Returns the reports."""
    from rich.table import Table
    from rich.text import Text

    from zorplex_rl.policy.evaluate import evaluate as measure

    console, reports = plain_console(), []
    table = Table("", title=f"{title}, {tasks} held-out tasks each", title_justify="left")
    for name, environment in environments.items():
        with console.status(Text(f"{name} …")):
            held_out = [environment.task(index, "held_out") for index in range(tasks)]
            reports.append(measure(policy, name, held_out, environment.execute, sampling, seed, environment)[0])
        table.add_column(name.removesuffix(":easy"), justify="right")
    for name, row in ROWS.items():
        table.add_row(name, *map(row, reports))
    console.print(table)
    return reports


def check_writable(flag: str, file: Path) -> None:
    """Raise ConfigError, before the work begins, if there is no folder for ``file``."""
    if not file.parent.is_dir() or file.is_dir():
        raise ConfigError(f"{flag} {str(file)!r} cannot be written; give a file in a folder that exists")
