"""The command line.

    zorplex-rl train [--task …] [--resume RUN]    train a policy through Monarch actors
    zorplex-rl eval [--policy …]                  benchmark a policy on all four kinds of task
    zorplex-rl bench [NAME]                       run the benchmarks of this repository
    zorplex-rl policy build | show                make the embedded policy again, or say what a policy is

Whatever is wrong with what was asked for is said in one sentence, with exit code 2, before anything is started or written.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import tyro

from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError

INTERRUPTED = 130


@dataclass(frozen=True)
class Train:
    """Train a policy with reinforcement learning, every role in a process of its own."""

    config: tyro.conf.OmitArgPrefixes[Config] = field(default_factory=Config)
    out: Path | None = None
    """The run's folder; runs/<date>-<time> if left out."""
    resume: Path | None = None
    """Continue the run in this folder from its newest checkpoint."""


@dataclass(frozen=True)
class Eval:
    """Benchmark a policy on held-out tasks of all four kinds."""

    policy: str = "embedded"
    """embedded, the folder of a model, or a hub id."""
    tasks: int = 200
    """Held-out tasks of each kind."""
    temperature: float = 0.0
    """0 is greedy."""
    difficulty: str = "easy"
    """Of the compositional tasks: easy, medium or hard."""
    hints: bool = False
    """Show a worked example in the system prompt."""
    max_tokens: int = 96
    """Longest response in tokens."""
    max_turns: int = 6
    """Most stretches of sampled text in an episode."""
    seed: int = 0
    """Of the tasks with their tables, and of the sampling."""
    device: str = "auto"
    """auto, cpu or cuda."""
    dtype: str = "float32"
    """float32 or bfloat16."""
    json: Path | None = None
    """Also write the result to this file."""


@dataclass(frozen=True)
class Bench:
    """Run the benchmarks of this repository and append what they measure to benchmarks/LOG.md."""

    name: Annotated[str, tyro.conf.Positional] = "all"
    """One benchmark's name, or all."""


@dataclass(frozen=True)
class Build:
    """Make the embedded policy again from nothing: tokenizer, model, supervised warm start."""

    out: Path = Path("embedded-policy")
    """The folder to write."""
    seed: int = 0
    """Of the demonstrations and the initial weights."""
    steps: int | None = None
    """Training steps; the recipe's own number if left out."""


@dataclass(frozen=True)
class Show:
    """Say what a policy is: architecture, parameters, vocabulary, accuracy for each kind of task."""

    policy: str = "embedded"
    """embedded, the folder of a model, or a hub id."""
    tasks: int = 200
    """Held-out tasks of each kind to measure accuracy on."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    commands = {"train": (Train, train), "eval": (Eval, evaluate), "bench": (Bench, bench)}
    policy_commands = {"build": (Build, build), "show": (Show, show)}
    name, rest = " ".join(given[:1]), given[1:]
    if name == "policy":
        commands, name, rest = policy_commands, " ".join(rest[:1]), rest[1:]
    if name not in commands:
        asked_for_help = name in ("", "-h", "--help")
        print(
            __doc__ if asked_for_help else f"zorplex-rl: no command {name!r}; try --help",
            file=sys.stdout if asked_for_help else sys.stderr,
        )
        return 0 if asked_for_help and given else 2
    arguments_class, run = commands[name]
    try:
        default = _resumed(rest) if arguments_class is Train else arguments_class()
        return run(tyro.cli(arguments_class, args=rest, default=default, prog=f"zorplex-rl {name}"))
    except ConfigError as error:
        print(f"zorplex-rl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED


def train(command: Train) -> int:
    from zorplex_rl.policy.load import check_policy, weight_bytes
    from zorplex_rl.run_folder import RunFolder
    from zorplex_rl.system.devices import assign_devices, count_cuda_devices

    config = command.config
    if command.resume:
        if command.out:
            raise ConfigError("--out and --resume exclude each other; a resumed run goes on in its own folder")
        folder, earlier = RunFolder.reopen(command.resume)
        if difference := earlier.difference(config):
            raise ConfigError(
                f"--resume {str(command.resume)!r} was begun with another configuration ({difference}); leave the flag out, or start anew"
            )
    config.check()
    if config.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ConfigError("--tensorboard needs the package tensorboard; install it, or leave the flag out")
    source = check_policy(config.policy)
    assign_devices(config.device, ["trainer"], count_cuda_devices() if config.device != "cpu" else 0)
    if not command.resume:
        out = command.out or Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
        # Weights and two moments in float32, for each checkpoint that is kept and the one being written, and the policy itself.
        folder = RunFolder.create(
            out, config, bytes_needed=10 * weight_bytes(source) * (1 if config.dtype == "float32" else 2)
        )
    from zorplex_rl.train_command import run

    return run(config, folder, resume=command.resume is not None)


def evaluate(command: Eval) -> int:
    from rich.console import Console

    from zorplex_rl.policy.evaluate import evaluate as measure
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.policy.rollout import Sampling
    from zorplex_rl.system.devices import assign_devices, count_cuda_devices
    from zorplex_rl.task.curriculum import Zorplex, tier_of

    _check_positive(tasks=command.tasks, max_tokens=command.max_tokens, max_turns=command.max_turns)
    if not command.temperature >= 0:
        raise ConfigError(f"--temperature is {command.temperature}; it must be 0 or more")
    Config(difficulty=command.difficulty, device=command.device, dtype=command.dtype).check()
    if command.json and (not command.json.parent.is_dir() or not os.access(command.json.parent, os.W_OK)):
        raise ConfigError(f"--json {str(command.json)!r} cannot be written; give a file in an existing folder")
    device = assign_devices(command.device, ["policy"], count_cuda_devices())["policy"]
    policy = load_policy(command.policy, device, command.dtype)
    zorplex = Zorplex(command.seed, command.hints)
    sampling = Sampling(command.temperature, command.max_tokens, command.max_turns)
    console, reports = Console(), []
    for name in tier_of("mix", command.difficulty):
        with console.status(f"{name} …"):
            tasks = zorplex.tasks((name,), command.tasks, "held_out")
            reports.append(measure(policy, name, tasks, zorplex.execute, sampling, command.seed)[0])
    console.print(
        _table(f"{command.policy}, temperature {command.temperature:g}, {command.tasks} held-out tasks each", reports)
    )
    if command.json:
        settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(command).items()}
        command.json.write_text(
            json.dumps({"settings": settings, "tasks": [r.to_dict() for r in reports]}, indent=2) + "\n"
        )
    return 0


def bench(command: Bench) -> int:
    import subprocess

    folder = Path(__file__).resolve().parent.parent / "benchmarks"
    programs = {p.stem: p for p in sorted(folder.glob("*.py")) if "tyro.cli" in p.read_text()}
    if not programs:
        raise ConfigError("the benchmarks are in the repository, not in the installed package; run this from a clone")
    if command.name not in ("all", *programs):
        raise ConfigError(f"no benchmark {command.name!r}; expected all or one of {', '.join(programs)}")
    chosen = programs.values() if command.name == "all" else [programs[command.name]]
    return max(subprocess.run([sys.executable, str(program)], check=False).returncode for program in chosen)


def build(command: Build) -> int:
    from rich.progress import Progress

    from zorplex_rl.policy.warmstart import WarmStart, save_policy, warm_start

    if command.out.exists():
        raise ConfigError(f"--out {str(command.out)!r} exists already; choose another folder")
    recipe = WarmStart(seed=command.seed)
    if command.steps is not None:
        _check_positive(steps=command.steps)
        recipe = recipe.shortened(command.steps)
    with Progress() as progress:
        bar = progress.add_task("warm start", total=recipe.steps)
        policy = warm_start(
            recipe, lambda step, loss: progress.update(bar, completed=step, description=f"loss {loss:.3f}")
        )
    save_policy(policy, command.out, recipe)
    print(f"wrote {command.out}; use it with --policy {command.out}")
    return 0


def show(command: Show) -> int:
    from rich.console import Console
    from rich.progress import track

    from zorplex_rl.policy.evaluate import evaluate as measure
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.policy.rollout import Sampling
    from zorplex_rl.task.curriculum import Zorplex, tier_of

    _check_positive(tasks=command.tasks)
    policy, zorplex = load_policy(command.policy), Zorplex()
    config = policy.model.config
    console = Console(highlight=False)
    console.print(f"policy        {policy.name}")
    console.print(
        f"architecture  {type(policy.model).__name__}: {config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
        f"{config.num_attention_heads} heads, {getattr(config, 'num_key_value_heads', config.num_attention_heads)} key-value heads"
    )
    console.print(f"parameters    {policy.parameter_count:,}")
    console.print(f"vocabulary    {len(policy.tokenizer):,} entries ({type(policy.tokenizer).__name__})")
    for title, temperature in (("sampled at temperature 1", 1.0), ("greedy", 0.0)):
        sampling = Sampling(temperature)
        reports = [
            measure(policy, name, zorplex.tasks((name,), command.tasks, "held_out"), zorplex.execute, sampling)[0]
            for name in track(tier_of("mix"), f"measuring accuracy, {title}", console=console, transient=True)
        ]
        console.print(_table(f"accuracy, {title}, {command.tasks} held-out tasks each", reports))
    return 0


def _table(title: str, reports: list[Any]) -> Any:
    """One column for each kind of task, so that it fits a narrow terminal."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column()
    for report in reports:
        table.add_column(report.name.partition(":")[0], justify="right")
    lines: dict[str, Callable[[Any], str]] = {
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
    for name, show in lines.items():
        table.add_row(name, *map(show, reports))
    return table


def _resumed(arguments: list[str]) -> Train:
    """The defaults of ``train``: those of the run to be resumed, if one is named."""
    from zorplex_rl.run_folder import RunFolder

    for position, argument in enumerate(arguments):
        if argument == "--resume" and position + 1 < len(arguments):
            return Train(config=RunFolder.reopen(Path(arguments[position + 1]))[1])
        if argument.startswith("--resume="):
            return Train(config=RunFolder.reopen(Path(argument.partition("=")[2]))[1])
    return Train()


def _check_positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ConfigError(f"--{name.replace('_', '-')} is {size}; it must be 1 or more")
