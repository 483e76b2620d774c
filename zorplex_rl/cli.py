"""The command line. A command is a dataclass; tyro reads it (``flags.py``).

    zorplex-rl train [--task …] [--resume RUN]    train a policy through Monarch actors
    zorplex-rl eval [--policy …]                  benchmark a policy on all four kinds of task
    zorplex-rl bench [NAME]                       run the benchmarks of this repository
    zorplex-rl policy build | show                build the embedded policy, or describe a policy
    zorplex-rl check                              is this machine ready, and how long will the notebooks take here?
    zorplex-rl --version                          print the version

Bad input gets one sentence and exit code 2, before anything is started or written.
"""

import contextlib
import importlib.util
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import tyro

from zorplex_rl import __version__
from zorplex_rl.check_command import Check, check
from zorplex_rl.config import (
    MOST_EPISODES,
    Config,
    Device,
    Difficulty,
    Dtype,
    check_range,
    check_seed,
    check_temperature,
)
from zorplex_rl.errors import ConfigError
from zorplex_rl.flags import parse_command
from zorplex_rl.output import Output
from zorplex_rl.run_folder import RunFolder, step_of

PROGRAM = "zorplex-rl"
DESCRIPTION = "Train language models by reinforcement learning, every role in a process of its own. --version says which version this is."
FAILED, INTERRUPTED = 1, 130


@dataclass(frozen=True)
class Train:
    """Train a policy with reinforcement learning, every role in a process of its own."""

    config: Config = field(default_factory=Config)
    out: Path | None = None
    """The run's folder; runs/<date>-<time> if left out."""
    resume: Path | None = None
    """Continue the run in this folder from its newest checkpoint. With another --steps the run becomes longer, or ends earlier: from here on the
    learning rate falls as it does in a run of that many steps."""
    from_checkpoint: int | None = None
    """With --resume: continue from the checkpoint of this step instead. What the run did after it is dropped."""


@dataclass(frozen=True)
class Eval:
    """Benchmark a policy on held-out tasks of all four kinds."""

    policy: str = "embedded"
    """embedded, the folder of a model, or a hub id."""
    tasks: int = 200
    """Held-out tasks of each kind."""
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


@dataclass(frozen=True)
class Bench:
    """Run the benchmarks of this repository and append what they measure to benchmarks/LOG.md."""

    name: Annotated[str, tyro.conf.Positional] = "all"
    """One benchmark's name, or all."""


@dataclass(frozen=True)
class Build:
    """Build the embedded policy from scratch: tokenizer, model, supervised warm start."""

    out: Path = Path("embedded-policy")
    """The folder to write."""
    seed: int = 0
    """Seed of the demonstrations and the initial weights."""
    steps: int | None = None
    """Training steps; the recipe's own number if left out."""


@dataclass(frozen=True)
class Show:
    """Describe a policy: architecture, parameters, vocabulary, accuracy for each kind of task."""

    policy: str = "embedded"
    """embedded, the folder of a model, or a hub id."""
    tasks: int = 200
    """Held-out tasks of each kind to measure accuracy on."""


@dataclass(frozen=True)
class Policy:
    """Build the embedded policy, or describe a policy."""

    action: Build | Show


Commands = Train | Eval | Bench | Policy | Check


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    output, errors = Output.of(sys.stdout), Output.of(sys.stderr)
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            code = _run(given)
        finally:
            output.flush()
            if output.failure:
                print(f"zorplex-rl: the output could not be written ({output.failure.strerror})", file=sys.stderr)
            errors.flush()
    return code or (FAILED if output.failure else 0)


def _run(given: list[str]) -> int:
    if given[:1] == ["--version"]:
        print(f"zorplex-rl {__version__}")
        return 0
    try:
        parsed: Commands = parse_command(Commands, given or ["--help"], PROGRAM, description=DESCRIPTION)
        match parsed:
            case Train() as command:
                if command.resume:
                    # What the command line leaves out is as in the run.
                    resumed = Train(config=RunFolder.reopen(command.resume)[1])
                    command = parse_command(Commands, given, PROGRAM, default=resumed)
                return train(command)
            case Eval() as command:
                return evaluate(command)
            case Bench() as command:
                return bench(command)
            case Policy() as command:
                return build(command.action) if isinstance(command.action, Build) else show(command.action)
            case Check():
                return check()
    except ConfigError as error:
        print(f"zorplex-rl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED


def train(command: Train) -> int:
    if command.resume:
        if command.out:
            raise ConfigError("--out and --resume exclude each other; a resumed run goes on in its own folder")
        return _continue(command, command.resume)
    if command.from_checkpoint is not None:
        raise ConfigError("--from-checkpoint needs a run to continue; name its folder with --resume")
    return _begin(command)


def _begin(command: Train) -> int:
    """Train in a new folder."""
    from zorplex_rl.policy.load import weight_bytes

    config = command.config
    # Weights and two moments in float32, for each checkpoint that is kept and the one being written, and the policy itself.
    bytes_needed = 10 * weight_bytes(_check(config)) * (1 if config.dtype == "float32" else 2)
    if command.out:
        folder = RunFolder.create(command.out, config, bytes_needed)
    else:
        folder = RunFolder.create_beside(Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S"), config, bytes_needed)
    from zorplex_rl.train_command import run

    with folder.locked():
        return run(config, folder)


def _continue(command: Train, path: Path) -> int:
    """Train on in the folder ``path``, unless the run there is finished."""
    folder, earlier = RunFolder.reopen(path)
    config = command.config
    if difference := replace(earlier, steps=config.steps).difference(config):
        raise ConfigError(
            f"--resume {str(path)!r} was begun with another configuration ({difference}); leave the flag out, or start anew"
        )
    with folder.locked():
        if command.from_checkpoint is None and config.steps == earlier.steps and folder.is_finished(config.steps):
            print(
                f"the run in {path} is already finished: {config.steps} of {config.steps} steps; to go on, give it more: "
                f"zorplex-rl train --resume {shlex.quote(str(path))} --steps {2 * config.steps}"
            )
            return 0
        checkpoint = folder.intact_checkpoint(command.from_checkpoint)
        if config.steps < step_of(checkpoint):
            raise ConfigError(
                f"--steps is {config.steps}, but the run in {str(path)!r} has done {step_of(checkpoint)} already; give at least as many"
            )
        _check(config)
        from zorplex_rl.train_command import run

        return run(config, folder, checkpoint)


def _check(config: Config) -> str:
    """Check everything that a run of ``config`` needs. Returns the folder of its policy. Raises ConfigError for the first thing that is wrong."""
    from zorplex_rl.policy.load import check_policy, check_weights, fast_tokenizer, positions_of
    from zorplex_rl.task.curriculum import ladder_of, tier_of
    from zorplex_rl.task.environment import Zorplex
    from zorplex_rl.training.devices import assign_devices

    config.check()
    if config.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ConfigError("--tensorboard needs the package tensorboard; install it, or leave the flag out")
    source = check_policy(config.policy)
    if tokenizer := fast_tokenizer(source):
        tiers = ladder_of(config.task) if config.curriculum else (tier_of(config.task, config.difficulty),)
        _check_limits(
            Zorplex(config.seed, config.hints),
            [name for tier in tiers for name in tier],
            config,
            lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids),
            positions_of(source),
        )
    check_weights(config.policy, source)
    assign_devices(config.device, ["trainer"])
    return source


def evaluate(command: Eval) -> int:
    from rich.console import Console

    from zorplex_rl.policy.load import load_policy, positions_of
    from zorplex_rl.policy.rollout import Sampling
    from zorplex_rl.task.curriculum import tier_of
    from zorplex_rl.task.environment import Zorplex
    from zorplex_rl.training.devices import assign_devices

    for name in ("tasks", "max_tokens", "max_turns"):
        check_range(name, getattr(command, name), 1, MOST_EPISODES)
    check_temperature(command.temperature, greedy=True)
    check_seed(command.seed)
    Config(difficulty=command.difficulty, device=command.device, dtype=command.dtype).check()
    if command.json:
        _check_writable("--json", command.json)
    device = assign_devices(command.device, ["policy"])["policy"]
    policy = load_policy(command.policy, device, command.dtype)
    zorplex = Zorplex(command.seed, command.hints)
    names = tier_of("mix", command.difficulty)
    _check_limits(
        zorplex, names, command, lambda text: len(policy.encode_text(text)), positions_of(policy.model.config)
    )
    sampling = Sampling(command.temperature, command.max_tokens, command.max_turns)
    console = Console()
    reports = _measure(console, policy, zorplex, names, command.tasks, sampling, command.seed)
    console.print(
        _table(f"{command.policy}, temperature {command.temperature:g}, {command.tasks} held-out tasks each", reports)
    )
    if command.json:
        found = {"settings": vars(command), "tasks": [asdict(report) for report in reports]}
        text = json.dumps(found, indent=2, default=str) + "\n"
        try:
            command.json.write_text(text)
        except OSError as error:
            print(f"zorplex-rl: --json {str(command.json)!r} could not be written: {error.strerror}", file=sys.stderr)
            return FAILED
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
    check_seed(command.seed)
    recipe = WarmStart(seed=command.seed)
    if command.steps is not None:
        check_range("steps", command.steps, 1, MOST_EPISODES)
        recipe = recipe.shortened(command.steps)
    try:
        # Before the work, so that it is not done for nothing.
        command.out.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(
            f"--out {str(command.out)!r} cannot be written ({error.strerror}); choose another folder"
        ) from error
    try:
        with Progress() as progress:
            bar = progress.add_task("warm start", total=recipe.steps)
            policy = warm_start(
                recipe, lambda step, loss: progress.update(bar, completed=step, description=f"loss {loss:.3f}")
            )
        save_policy(policy, command.out, recipe)
    finally:
        with contextlib.suppress(OSError):
            # Only if it is empty: then the work was interrupted.
            command.out.rmdir()
    print(f"wrote {command.out}; use it with --policy {shlex.quote(str(command.out))}")
    return 0


def show(command: Show) -> int:
    from rich.console import Console

    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.policy.rollout import Sampling
    from zorplex_rl.task.curriculum import tier_of
    from zorplex_rl.task.environment import Zorplex

    check_range("tasks", command.tasks, 1, MOST_EPISODES)
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
        reports = _measure(console, policy, zorplex, tier_of("mix"), command.tasks, Sampling(temperature))
        console.print(_table(f"accuracy, {title}, {command.tasks} held-out tasks each", reports))
    return 0


def _measure(
    console: Any, policy: Any, zorplex: Any, names: Sequence[str], tasks: int, sampling: Any, seed: int = 0
) -> list[Any]:
    """Return a report on ``tasks`` held-out tasks of each of ``names``."""
    from zorplex_rl.policy.evaluate import evaluate as measure

    reports = []
    for name in names:
        with console.status(f"{name} …"):
            held_out = zorplex.tasks((name,), tasks, "held_out")
            reports.append(measure(policy, name, held_out, zorplex.execute, sampling, seed)[0])
    return reports


def _table(title: str, reports: list[Any]) -> Any:
    """Return a table with one column for each kind of task, so that it fits a narrow terminal."""
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


def _check_limits(zorplex: Any, names: Sequence[str], settings: Any, count_tokens: Any, positions: int | None) -> None:
    """Raise ConfigError for limits within which no task can be answered. Warn if only some tasks can."""
    from zorplex_rl.policy.limits import check_limits

    names = list(dict.fromkeys(names))
    for warning in check_limits(zorplex, names, settings.max_tokens, settings.max_turns, count_tokens, positions):
        print(f"zorplex-rl: warning: {warning}", file=sys.stderr)


def _check_writable(flag: str, file: Path) -> None:
    """Raise ConfigError, before the work begins, if ``file`` cannot be written. Leaves everything as it was."""
    try:
        target = Path(os.path.realpath(file))
        existed = target.exists()
        if not existed or target.is_file() or target.is_dir():
            # Trying it is the only test that also holds for root, network disks and /proc.
            with target.open("a"):
                pass
            if not existed:
                target.unlink()
    except OSError as error:
        raise ConfigError(
            f"{flag} {str(file)!r} cannot be written ({error.strerror}); give a file in a folder that exists and is yours"
        ) from error
