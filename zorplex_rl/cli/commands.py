"""The command line. A command is a dataclass; tyro reads it (``flags.py``).

    zorplex-rl train [--task …] [--resume RUN]    train a policy through Monarch actors
    zorplex-rl eval [--policy …] [--task …]       benchmark a policy on all kinds of task, or on one
    zorplex-rl worker --listen tls://HOST:PORT    let a run on another machine use this one
    zorplex-rl certificates --to FOLDER HOST…     make what the machines of a run know each other by
    zorplex-rl bench [NAME]                       run the benchmarks of this repository
    zorplex-rl size [--policy … | --preset …]     what a run takes in memory and time, before it is started
    zorplex-rl policy show                        describe a policy
    zorplex-rl env check FILE                     check a task of your own before you train on it
    zorplex-rl export RUN --to FOLDER             write a trained policy as a folder for transformers
    zorplex-rl status RUN                         look into a run that is going on (train --telemetry)
    zorplex-rl replay RUN [--loss …]              execute a run again; the same, or with one thing changed
    zorplex-rl speedrun ENTRY.py                  run a speedrun's entry on secret seeds, and judge it
    zorplex-rl check                              is this machine ready, and how long will the notebooks take here?
    zorplex-rl open 05                            open a notebook of the course; in a copy of yours, from a wheel
    zorplex-rl course --to FOLDER                 write the course's notebooks, examples and workshop kit
    zorplex-rl --version                          print the version

Bad input gets one sentence and exit code 2, before anything is started or written; later failures
one sentence and exit code 1, and with --debug a traceback.
"""

import contextlib
import logging
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import tyro

from zorplex_rl import __version__
from zorplex_rl.cli.bench import Bench, bench
from zorplex_rl.cli.certificates import Certificates, certify
from zorplex_rl.cli.check import Check, check
from zorplex_rl.cli.course import Course, Open, copy, open_notebook
from zorplex_rl.cli.env import Env, check_environment
from zorplex_rl.cli.eval import Eval, evaluate
from zorplex_rl.cli.export import Export, export
from zorplex_rl.cli.failures import FAILED, sentence_of
from zorplex_rl.cli.flags import parse_command
from zorplex_rl.cli.output import Output, one_line
from zorplex_rl.cli.policy import Policy, show_policy
from zorplex_rl.cli.replay import Replay, defaults_of, replay
from zorplex_rl.cli.size import Size, size
from zorplex_rl.cli.speedrun import Speedrun, speedrun
from zorplex_rl.cli.status import Status, status
from zorplex_rl.cli.train import Train, cluster_of, train
from zorplex_rl.cli.worker import Worker, work
from zorplex_rl.errors import ConfigError
from zorplex_rl.run_folder import RunFolder
from zorplex_rl.sizing.presets import preset_config

PROGRAM = "zorplex-rl"
DEBUG = "--debug"
DESCRIPTION = "Train language models by reinforcement learning, every role in a process of its own. --version says which version this is."
Commands = (
    Train | Eval | Worker | Certificates | Bench | Policy | Env | Export | Status | Replay | Check | Size
    | Course | Open | Speedrun
)  # fmt: skip


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
            print(f"zorplex-rl: {one_line(sentence_of(error))}{more}", file=sys.stderr)
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
        parsed = _parse(given or ["--help"])
        match parsed:
            case Train() | Size() if parsed.preset:
                if isinstance(parsed, Train) and parsed.resume:
                    raise ConfigError("--preset and --resume exclude each other; a resumed run keeps its settings")
                parsed = _parse(given, type(parsed)(config=preset_config(parsed.preset)))
            case Train() if parsed.resume:
                # What the command line leaves out is as in the run.
                earlier = RunFolder.reopen(parsed.resume)[1]
                default = replace(earlier, cluster=cluster_of(earlier.cluster))
                if earlier.is_own_task:
                    default = default.changed(task="", task_data=None)
                parsed = _parse(given, Train(config=default))
                if not parsed.config.cluster.hosts:
                    raise ConfigError(
                        f"the run in {str(parsed.resume)!r} was on other machines; say where it goes on: there, with "
                        f"{earlier.cluster.flags}, or here, with --hosts this"
                    )
            case Replay():
                parsed = _parse(given, defaults_of(parsed))
        programs: dict[type, Callable[[Any], int]] = {
            Train: train, Eval: evaluate, Worker: work, Certificates: certify, Bench: bench, Policy: show_policy,
            Env: check_environment, Export: export, Status: status,
            Replay: partial(replay, given=given), Check: check, Size: size, Course: copy, Open: open_notebook,
            Speedrun: speedrun,
        }  # fmt: skip
        return programs[type(parsed)](parsed)
    except ConfigError as error:
        print(f"zorplex-rl: {one_line(str(error))}", file=sys.stderr)
        return 2


def _parse(given: list[str], default: Any = tyro.MISSING_NONPROP) -> Any:
    return parse_command(Commands, given, PROGRAM, default, DESCRIPTION)
