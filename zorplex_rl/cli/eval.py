"""Measure a policy on held-out tasks: ``zorplex-rl eval`` and ``zorplex-rl policy show``."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from zorplex_rl.cli.flags import Command
from zorplex_rl.cli.output import plain_console
from zorplex_rl.config import (
    MOST_EPISODES,
    Config,
    Device,
    Difficulty,
    Dtype,
    TaskName,
    check_range,
    check_seed,
    check_temperature,
)
from zorplex_rl.errors import ConfigError


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


def evaluate(command: Eval) -> int:
    from zorplex_rl.policy.tool_loop import Sampling
    from zorplex_rl.task.own_task import EnvironmentSource
    from zorplex_rl.training.devices import assign_devices

    for name in ("tasks", "max_tokens", "max_turns"):
        check_range(name, getattr(command, name), 1, MOST_EPISODES)
    check_temperature(command.temperature, greedy=True)
    check_seed(command.seed)
    config = Config(
        task=command.task, task_data=command.task_data, tool_timeout=command.tool_timeout,
        difficulty=command.difficulty, hints=command.hints, seed=command.seed, device=command.device, dtype=command.dtype,
    )  # fmt: skip
    config.check()
    source = EnvironmentSource.of(config)
    if command.json:
        check_writable("--json", command.json)
    # A mistake above is said at once; this imports torch, which takes seconds.
    from zorplex_rl.policy.load import load_policy

    environments = {kind: replace(source, kinds=(kind,)).make() for kind in source.kinds}
    device = assign_devices(command.device, ["policy"])["policy"]
    policy = load_policy(command.policy, device, command.dtype)
    sampling = Sampling(command.temperature, command.max_tokens, command.max_turns)
    console = plain_console()
    reports = accuracy_of(console, policy, environments, command.tasks, sampling, command.seed)
    title = f"{command.policy}, temperature {command.temperature:g}, {command.tasks} held-out tasks each"
    console.print(accuracy_table(title, reports))
    if command.json:
        found = {"settings": vars(command), "tasks": [asdict(report) for report in reports]}
        command.json.write_text(json.dumps(found, indent=2, default=str) + "\n")
    return 0


def accuracy_of(
    console: Any, policy: Any, environments: dict[str, Any], tasks: int, sampling: Any, seed: int = 0
) -> list[Any]:
    """Return a report on ``tasks`` held-out tasks of each of ``environments``."""
    from rich.text import Text

    from zorplex_rl.policy.evaluate import evaluate as measure

    reports = []
    for name, environment in environments.items():
        with console.status(Text(f"{name} …")):
            held_out = [environment.task(index, "held_out") for index in range(tasks)]
            report, _ = measure(policy, name, held_out, environment.execute, sampling, seed, environment)
            reports.append(report)
    return reports


def accuracy_table(title: str, reports: list[Any]) -> Any:
    """Return a table with one column for each kind of task, so that it fits a narrow terminal."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column()
    for report in reports:
        table.add_column(report.name.removesuffix(":easy"), justify="right")
    rows: dict[str, Callable[[Any], str]] = {
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
    for name, show in rows.items():
        table.add_row(name, *map(show, reports))
    return table


def check_writable(flag: str, file: Path) -> None:
    """Raise ConfigError, before the work begins, if there is no folder for ``file``."""
    if not file.parent.is_dir() or file.is_dir():
        raise ConfigError(f"{flag} {str(file)!r} cannot be written; give a file in a folder that exists")
