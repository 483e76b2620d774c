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

Bad input gets one sentence and exit code 2, before anything is started or written; later failures
one sentence and exit code 1, and with --debug a traceback.
"""

import contextlib
import logging
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace

from zorplex_rl import __version__
from zorplex_rl.cli.bench import Bench, bench
from zorplex_rl.cli.certificates import Certificates, certify
from zorplex_rl.cli.check import Check, check
from zorplex_rl.cli.env import Env, check_environment
from zorplex_rl.cli.eval import Eval, evaluate
from zorplex_rl.cli.export import Export, export
from zorplex_rl.cli.failures import FAILED, sentence_of
from zorplex_rl.cli.flags import parse_command
from zorplex_rl.cli.output import Output
from zorplex_rl.cli.policy import Build, Policy, build, show
from zorplex_rl.cli.size import Size, size
from zorplex_rl.cli.status import Status, status
from zorplex_rl.cli.train import Train, cluster_of, train
from zorplex_rl.cli.worker import Worker, work
from zorplex_rl.errors import ConfigError
from zorplex_rl.run_folder import RunFolder
from zorplex_rl.sizing.presets import preset_config

PROGRAM = "zorplex-rl"
DEBUG = "--debug"
DESCRIPTION = "Train language models by reinforcement learning, every role in a process of its own. --version says which version this is."
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
                    resumed = Train(config=replace(earlier, cluster=cluster_of(earlier.cluster)))
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
