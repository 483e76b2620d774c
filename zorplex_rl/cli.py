"""The command line. A command is a dataclass; tyro reads it (``flags.py``).

    zorplex-rl train [--task …] [--resume RUN]    train a policy through Monarch actors
    zorplex-rl eval [--policy …] [--task …]       benchmark a policy on all four kinds of task, or on one
    zorplex-rl worker --listen tcp://HOST:PORT    let a run on another machine use this one
    zorplex-rl bench [NAME]                       run the benchmarks of this repository
    zorplex-rl size [--policy … | --preset …]     what a run takes in memory and time, before it is started
    zorplex-rl policy build | show                build the embedded policy, or describe a policy
    zorplex-rl env check FILE                     check a task of your own before you train on it
    zorplex-rl export RUN --to FOLDER             write a trained policy as a folder for transformers
    zorplex-rl status RUN                         look into a run that is going on (train --telemetry)
    zorplex-rl check                              is this machine ready, and how long will the notebooks take here?
    zorplex-rl --version                          print the version

Bad input gets one sentence and exit code 2, before anything is started or written.
"""

import contextlib
import importlib.util
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from zorplex_rl import __version__
from zorplex_rl.analysis.presets import PresetName, preset_config
from zorplex_rl.check_command import Check, check
from zorplex_rl.config import (
    MOST_EPISODES,
    Config,
    check_range,
    check_seed,
)
from zorplex_rl.env_command import Env, check_environment
from zorplex_rl.errors import ConfigError, HostError
from zorplex_rl.eval_command import FAILED, Eval, Show, check_limits_of, evaluate, show
from zorplex_rl.export_command import Export, export
from zorplex_rl.flags import parse_command
from zorplex_rl.output import Output
from zorplex_rl.run_folder import RunFolder, step_of
from zorplex_rl.size_command import Size, expect_fit, size
from zorplex_rl.status_command import Status, status

PROGRAM = "zorplex-rl"
DESCRIPTION = "Train language models by reinforcement learning, every role in a process of its own. --version says which version this is."
INTERRUPTED = 130


@dataclass(frozen=True)
class Train:
    """Train a policy with reinforcement learning, every role in a process of its own."""

    config: Config = field(default_factory=Config)
    preset: PresetName | None = None
    """Settings for a policy of this size; explicit flags win. analysis/presets.py gives the reason for each."""
    out: Path | None = None
    """The run's folder; runs/<date>-<time> if left out."""
    resume: Path | None = None
    """Continue the run in this folder from its newest checkpoint. With another --steps the run becomes longer, or ends earlier: from here on the
    learning rate falls as it does in a run of that many steps."""
    from_checkpoint: int | None = None
    """With --resume: continue from the checkpoint of this step instead. What the run did after it is dropped."""
    plan: bool = False
    """Only say which process would live on which host of --hosts. Nothing is started, reached or written."""


@dataclass(frozen=True)
class Worker:
    """Let a run on another machine start its processes here: `train --hosts attach:tcp://HOST:PORT,…`. Ends when that run ends, and within half a
    minute if the run's controller dies or can no longer be reached. Trusted networks only: nothing is encrypted, and whoever reaches HOST:PORT can
    run programs here as you. With the environment variable ZORPLEX_SECRET here and at the controller, whoever also knows it."""

    listen: str
    """tcp://HOST:PORT: an address of this machine that the controller can reach. Nothing else is listened at."""


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
class Policy:
    """Build the embedded policy, or describe a policy."""

    action: Build | Show


Commands = Train | Eval | Worker | Bench | Policy | Env | Export | Status | Check | Size


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
                if command.preset:
                    if command.resume:
                        raise ConfigError("--preset and --resume exclude each other; a resumed run keeps its settings")
                    command = parse_command(
                        Commands, given, PROGRAM, default=Train(config=preset_config(command.preset))
                    )
                if command.resume:
                    # What the command line leaves out is as in the run.
                    resumed = Train(config=RunFolder.reopen(command.resume)[1])
                    command = parse_command(Commands, given, PROGRAM, default=resumed)
                return train(command)
            case Eval() as command:
                return evaluate(command)
            case Worker() as command:
                return work(command)
            case Bench() as command:
                return bench(command)
            case Policy() as command:
                return build(command.action) if isinstance(command.action, Build) else show(command.action)
            case Env() as command:
                return check_environment(command)
            case Export() as command:
                return export(command)
            case Status() as command:
                return status(command)
            case Check():
                return check()
            case Size() as command:
                if command.preset:
                    command = parse_command(
                        Commands, given, PROGRAM, default=Size(config=preset_config(command.preset))
                    )
                return size(command)
    except ConfigError as error:
        print(f"zorplex-rl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED


def train(command: Train) -> int:
    if command.plan:
        return show_plan(command.config)
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
        try:
            return run(config, folder)
        finally:
            # So that the same command can be given again.
            if folder.is_bare:
                folder.remove()


def _continue(command: Train, path: Path) -> int:
    """Train on in the folder ``path``, unless the run there is finished."""
    folder, earlier = RunFolder.reopen(path)
    config = command.config
    # On how many processes and which machines a run goes on changes nothing of it.
    free = {"steps": config.steps, "trainer_processes": config.services.trainer_processes, **asdict(config.cluster)}
    if difference := earlier.changed(**free).difference(config):
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
        _check(config, folder)
        from zorplex_rl.train_command import run

        return run(config, folder, checkpoint)


def _check(config: Config, folder: RunFolder | None = None) -> str:
    """Check everything that a run of ``config`` needs; a run that goes on has its ``folder``. Returns the folder of its policy.

    Raises ConfigError for the first thing that is wrong.
    """
    if config.telemetry and os.environ.get("MONARCH_FILE_LOG", "error") in ("error", "warn"):
        # Before Monarch is first imported: at these levels it records no spans, so there is no trace. They come from the program that has started
        # this one, if it has imported ``runtime.py``, which asks for errors alone.
        os.environ["MONARCH_FILE_LOG"] = "info"
    from zorplex_rl.policy.load import check_policy, check_weights, fast_tokenizer, positions_of, token_count
    from zorplex_rl.task.curriculum import ladder_of, tier_of
    from zorplex_rl.task.environment import Zorplex
    from zorplex_rl.task.source import EnvironmentSource
    from zorplex_rl.training.devices import assign_devices, names_of_ranks, one_each, roles_with_models
    from zorplex_rl.training.hosts import check_cluster, check_hosts

    config.check()
    check_hosts(config)
    check_cluster(config)
    environment = folder.environment(config) if folder else EnvironmentSource.of(config)
    environment.make()
    if config.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ConfigError("--tensorboard needs the package tensorboard; install it, or leave the flag out")
    source = check_policy(config.policy)
    tokenizer = fast_tokenizer(source)
    count_tokens = None
    if tokenizer:
        count_tokens = partial(token_count, tokenizer)
        tiers = ladder_of(config.task) if config.curriculum else (tier_of(config.task, config.difficulty),)
        check_limits_of(
            environment.make() if environment.is_own else Zorplex(config.seed, config.hints),
            [name for tier in tiers for name in tier],
            config,
            count_tokens,
            positions_of(source),
        )
    expect_fit(config, source, count_tokens, assign_devices(config.device, roles_with_models(config)), environment)
    check_weights(config.policy, source)
    if config.cluster.hosts == "this":
        ranks = names_of_ranks(config.services.trainer_processes)
        one_each(list(assign_devices(config.device, ranks).values()))
    return source


def show_plan(config: Config) -> int:
    from zorplex_rl.training.hosts import PlanRow, cluster_request

    config.check()
    rows = PlanRow.rows(config)
    width = max(len(row.host) for row in rows)
    for row in rows:
        print(f"{row.host:<{width}}  {', '.join(row.replicas) or '—'}")
    if request := cluster_request(config):
        print(f"\n{request}")
    return 0


def work(command: Worker) -> int:
    from zorplex_rl.training.hosts import check_address, check_listen

    check_address(command.listen, "--listen")
    check_listen(command.listen)
    from zorplex_rl.services.host import serve

    try:
        serve(command.listen)
    except HostError as error:
        print(f"zorplex-rl: {error}", file=sys.stderr)
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
