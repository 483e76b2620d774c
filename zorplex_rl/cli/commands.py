"""The command line. A command is a dataclass; tyro reads it (``flags.py``).

    zorplex-rl train [--task …] [--resume RUN]    train a policy through Monarch actors
    zorplex-rl eval [--policy …] [--task …]       benchmark a policy on all four kinds of task, or on one
    zorplex-rl worker --listen tls://HOST:PORT    let a run on another machine use this one
    zorplex-rl certificates --to FOLDER HOST…     make what the machines of a run know each other by
    zorplex-rl bench [NAME]                       run the benchmarks of this repository
    zorplex-rl size [--policy … | --preset …]     what a run takes in memory and time, before it is started
    zorplex-rl policy build | show                build the embedded policy, or describe a policy
    zorplex-rl env check FILE                     check a task of your own before you train on it
    zorplex-rl export RUN --to FOLDER             write a trained policy as a folder for transformers
    zorplex-rl status RUN                         look into a run that is going on (train --telemetry)
    zorplex-rl check                              is this machine ready, and how long will the notebooks take here?
    zorplex-rl --version                          print the version

Bad input gets one sentence and exit code 2, before anything is started or written. Whatever fails later gets one sentence and exit code 1;
with --debug, its traceback, too.
"""

import contextlib
import importlib.util
import logging
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from zorplex_rl import __version__
from zorplex_rl.cli.check import Check, check
from zorplex_rl.cli.env import Env, check_environment, try_apart
from zorplex_rl.cli.eval import FAILED, Eval, Show, check_limits_of, evaluate, show
from zorplex_rl.cli.export import Export, export
from zorplex_rl.cli.failures import sentence_of
from zorplex_rl.cli.flags import Command, parse_command
from zorplex_rl.cli.output import Output
from zorplex_rl.cli.size import Size, expect_fit, size
from zorplex_rl.cli.status import Status, status
from zorplex_rl.config import (
    MOST_EPISODES,
    Config,
    HostsConfig,
    check_range,
    check_seed,
)
from zorplex_rl.errors import ConfigError, HostError
from zorplex_rl.run_folder import ENVIRONMENT, RunFolder, step_of
from zorplex_rl.sizing.presets import PresetName, preset_config
from zorplex_rl.task.call_limit import call_limit

PROGRAM = "zorplex-rl"
DEBUG = "--debug"
DESCRIPTION = "Train language models by reinforcement learning, every role in a process of its own. --version says which version this is."


@dataclass(frozen=True)
class Train(Command):
    """Train a policy with reinforcement learning, every role in a process of its own."""

    config: Config = field(default_factory=Config)
    preset: PresetName | None = None
    """Settings for a policy of this size; explicit flags win. sizing/presets.py gives the reason for each."""
    out: Path | None = None
    """The run's folder; runs/<date>-<time> if left out."""
    resume: Path | None = None
    """Continue the run in this folder from its newest checkpoint. With another --steps the run becomes longer, or ends earlier: from here on the
    learning rate falls as it does in a run of that many steps."""
    from_checkpoint: int | None = None
    """With --resume: continue from the checkpoint of this step instead. What the run did after it is dropped."""
    trust_task: bool = False
    """With --resume: run the code of the task that the run's folder brings, although you have begun no run with it on this machine. It runs with your
    rights, so read it first: it is in the folder's environment.json."""
    plan: bool = False
    """Only say which process would live on which host of --hosts. Nothing is started, reached or written."""


@dataclass(frozen=True)
class Worker(Command):
    """Let runs on another machine start their processes here, one run after the other: `train --hosts attach:tls://HOST:PORT,…`. Ctrl-C ends it. What
    a run has started here ends with it, and within half a minute if its controller dies or can no longer be reached. Who has a certificate of this
    machine's authority (--tls) can run programs here as you."""

    listen: str
    """tls://HOST:PORT: an address of this machine that the controller can reach. Nothing else is listened at."""
    tls: str | None = None
    """The folder of this machine's files, made by `zorplex-rl certificates`. None is the environment variable ZORPLEX_TLS."""
    insecure: bool = False
    """Allow --listen tcp://HOST:PORT: nothing is encrypted then, and whoever reaches that port can run programs here as you. With the environment
    variable ZORPLEX_SECRET here and at the controller, whoever also knows it. For trusted networks only; at 127.0.0.1 it needs no permission."""


@dataclass(frozen=True)
class Certificates(Command):
    """Make an authority, and certificates for the controller and for each host, so that hosts and controller know each other and all between them is
    encrypted (TLS 1.3). Copy FOLDER/HOST to that host, and nothing else. Run again, it adds hosts; nothing is overwritten."""

    hosts: Annotated[tuple[str, ...], tyro.conf.Positional]
    """For each host its names and addresses, separated by commas: gpu1,10.0.0.2. The first one names its folder."""
    to: Path
    """The folder to write. FOLDER/authority stays on this machine: whoever has its key can make certificates."""
    controller: str | None = None
    """Names and addresses of the machine that trains. None is this machine's host name, and its addresses on the networks that lead to the hosts."""
    days: float = 365.0
    """For how long the certificates are valid."""


@dataclass(frozen=True)
class Bench(Command):
    """Run the benchmarks of this repository and append what they measure to benchmarks/LOG.md."""

    name: Annotated[str, tyro.conf.Positional] = "all"
    """One benchmark's name, or all."""


@dataclass(frozen=True)
class Build(Command):
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


Commands = Train | Eval | Worker | Certificates | Bench | Policy | Env | Export | Status | Check | Size


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    output, errors = Output.of(sys.stdout), Output.of(sys.stderr)
    debug = DEBUG in given
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        logging.captureWarnings(not debug)
        try:
            code = _run(given)
        except Exception as error:
            code = FAILED
            if debug:
                traceback.print_exception(error)
            more = "" if debug else f"; {DEBUG} shows the traceback"
            print(f"zorplex-rl: {sentence_of(error)}{more}", file=sys.stderr)
        finally:
            logging.captureWarnings(False)
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
                    earlier = RunFolder.reopen(command.resume)[1]
                    resumed = Train(config=replace(earlier, cluster=_cluster_of(earlier.cluster)))
                    command = parse_command(Commands, given, PROGRAM, default=resumed)
                    if not command.config.cluster.hosts:
                        raise ConfigError(
                            f"the run in {str(command.resume)!r} was on other machines; say where it goes on: there, with "
                            f"{earlier.cluster.flags}, or here, with --hosts this"
                        )
                return train(command)
            case Eval() as command:
                return evaluate(command)
            case Worker() as command:
                return work(command)
            case Certificates() as command:
                return certify(command)
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


def _cluster_of(earlier: HostsConfig) -> HostsConfig:
    """Return the hosts on which a run goes on if the command line names none: those of ``earlier`` on this machine, else "".

    Others have to be named again. Who made the folder could have named a machine of his own there, and a host is trusted.
    """
    if earlier.is_elsewhere:
        return HostsConfig(hosts="")
    return HostsConfig(
        earlier.hosts, trainer_host=earlier.trainer_host, generators_on=earlier.generators_on, lease=earlier.lease
    )


def train(command: Train) -> int:
    if command.plan:
        return show_plan(command.config)
    if command.resume:
        if command.out:
            raise ConfigError("--out and --resume exclude each other; a resumed run goes on in its own folder")
        return _continue(command, command.resume)
    if command.from_checkpoint is not None:
        raise ConfigError("--from-checkpoint needs a run to continue; name its folder with --resume")
    if command.trust_task:
        raise ConfigError("--trust-task needs a run to continue; name its folder with --resume")
    return _begin(command)


def _begin(command: Train) -> int:
    """Train in a new folder."""
    from zorplex_rl.policy.load import weight_bytes

    config = command.config
    # Weights and two moments in float32, for each checkpoint that is kept and the one being written, and the policy itself.
    with call_limit.interrupting(config.task_timeout):
        source = _check(config)
    bytes_needed = 10 * weight_bytes(source) * (1 if config.dtype == "float32" else 2)
    if command.out:
        folder = RunFolder.create(command.out, config, bytes_needed)
    else:
        folder = RunFolder.create_beside(Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S"), config, bytes_needed)
    from zorplex_rl.cli.train import run

    with folder.locked():
        try:
            return run(config, folder, debug=command.debug)
        finally:
            # So that the same command can be given again.
            if folder.is_bare:
                folder.remove()


def _continue(command: Train, path: Path) -> int:
    """Train on in the folder ``path``, unless the run there is finished."""
    folder, earlier = RunFolder.reopen(path)
    folder.trusts_task, config = command.trust_task, command.config
    # On how many processes and which machines a run goes on, and for how long it waits, changes nothing of it.
    free = {name: getattr(config, name) for name in ("steps", "task_timeout")} | asdict(config.cluster)
    free["trainer_processes"] = config.services.trainer_processes
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
        folder.controller_state(checkpoint, config)
        with call_limit.interrupting(config.task_timeout):
            _check(config, folder)
        if config.is_own_task:
            print(f"the task is the copy in {folder.path / ENVIRONMENT}; its code runs in this run's processes")
        from zorplex_rl.cli.train import run

        return run(config, folder, checkpoint, command.debug)


def _check(config: Config, folder: RunFolder | None = None) -> str:
    """Check everything that a run of ``config`` needs; a run that goes on has its ``folder``. Returns the folder of its policy.

    Raises ConfigError for the first thing that is wrong.
    """
    if config.telemetry and os.environ.get("MONARCH_FILE_LOG", "error") in ("error", "warn"):
        # Before Monarch is first imported: at these levels it records no spans, so there is no trace. They come from the program that has started
        # this one, if it has imported ``runtime.py``, which asks for errors alone.
        os.environ["MONARCH_FILE_LOG"] = "info"
    from zorplex_rl.services.tls import TLS

    if config.cluster.tls:
        # Likewise.
        os.environ[TLS] = config.cluster.tls
    from zorplex_rl.policy.load import check_policy, check_weights, fast_tokenizer, positions_of, token_count
    from zorplex_rl.task.curriculum import tiers_of
    from zorplex_rl.task.environment import Zorplex
    from zorplex_rl.task.source import EnvironmentSource
    from zorplex_rl.training.devices import assign_devices, names_of_ranks, one_each, roles_with_models
    from zorplex_rl.training.hosts.checks import check_cluster
    from zorplex_rl.training.hosts.spec import check_hosts

    config.check()
    check_hosts(config)
    check_cluster(config)
    environment = folder.environment(config) if folder else EnvironmentSource.of(config)
    if environment.is_own:
        try_apart(environment, config.task_timeout)
    environment.make()
    if config.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ConfigError("--tensorboard needs the package tensorboard; install it, or leave the flag out")
    source = check_policy(config.policy)
    tokenizer = fast_tokenizer(source)
    count_tokens = None
    if tokenizer:
        count_tokens = partial(token_count, tokenizer)
        check_limits_of(
            environment.make() if environment.is_own else Zorplex(config.seed, config.hints),
            [name for tier in tiers_of(config) for name in tier],
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
    from zorplex_rl.training.hosts.checks import cluster_request
    from zorplex_rl.training.hosts.placement import PlanRow

    config.check()
    # First, so that what is refused gets its sentence and nothing else.
    rows, request = PlanRow.rows(config), cluster_request(config)
    width = max(len(row.host) for row in rows)
    for row in rows:
        print(f"{row.host:<{width}}  {', '.join(row.replicas) or '—'}")
    if request:
        print(f"\n{request}")
    return 0


def work(command: Worker) -> int:
    from zorplex_rl.services.tls import TLS, check_files

    if command.tls:
        os.environ[TLS] = command.tls
    from zorplex_rl.training.hosts.addresses import check_address, check_encryption, check_listen, tls_folder

    check_address(command.listen, "--listen")
    check_encryption("--listen", [command.listen], command.tls, command.insecure)
    check_listen(command.listen)
    if folder := tls_folder(command.listen, command.tls):
        check_files(folder, command.listen)
    from zorplex_rl.services.worker import serve

    try:
        serve(command.listen)
    except HostError as error:
        print(f"zorplex-rl: {error}", file=sys.stderr)
        return FAILED
    return 0


def certify(command: Certificates) -> int:
    from zorplex_rl.services.certificates import AUTHORITY_FOLDER, CONTROLLER, make_certificates

    if not command.hosts:
        raise ConfigError(
            "no host is named; expected one or more, as in: zorplex-rl certificates --to FOLDER gpu1,10.0.0.2"
        )
    check_range("days", command.days, 0.01, 36500)
    for folder in make_certificates(command.to, command.hosts, command.controller, command.days):
        if folder.name == CONTROLLER:
            print(f"{folder}    for the machine that trains: train --tls {shlex.quote(str(folder))}")
        else:
            print(f"{folder}    copy it to {folder.name}, and there: worker --tls FOLDER")
    print(
        f"{command.to / AUTHORITY_FOLDER}    keep it to yourself: its key makes certificates; no machine of a run needs it"
    )
    return 0


def bench(command: Bench) -> int:
    import subprocess

    folder = Path(__file__).resolve().parents[2] / "benchmarks"
    programs = {p.stem: p for p in sorted(folder.glob("*.py")) if "tyro.cli" in p.read_text()}
    if not programs:
        raise ConfigError("the benchmarks are in the repository, not in the installed package; run this from a clone")
    if command.name not in ("all", *programs):
        raise ConfigError(f"no benchmark {command.name!r}; expected all or one of {', '.join(programs)}")
    chosen = programs.values() if command.name == "all" else [programs[command.name]]
    # In a session of its own, Ctrl-C does not reach it; ``run`` ends it then.
    return max(
        subprocess.run([sys.executable, str(program)], check=False, start_new_session=True).returncode
        for program in chosen
    )


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
