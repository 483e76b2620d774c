"""The command line: a command is a dataclass that tyro reads, with a method ``run``.

    zorplex-rl train [--task …] [--resume RUN]    train a policy through Monarch actors
    zorplex-rl eval [--policy …] [--task …]       benchmark a policy on all kinds of task, or on one
    zorplex-rl export RUN --to FOLDER             write a trained policy as a folder for transformers
    zorplex-rl size [--policy … | --preset …]     what a run takes in memory, before it is started
    zorplex-rl replay RUN [--loss …]              execute a run again; the same, or with one thing changed
    zorplex-rl status RUN                         how far a run is, and which of its processes live
    zorplex-rl check                              is this machine ready, and how long will the notebooks take here?
    zorplex-rl open 05                            open a notebook of the course; in a copy of yours, from a wheel
    zorplex-rl policy show | get smollm2          describe a policy; get a real language model
    zorplex-rl env check FILE                     check a task of your own before you train on it
    zorplex-rl worker --listen tls://HOST:PORT    let a run on another machine use this one

An expected failure prints one sentence. Its exit code is 2 if nothing was started, or if a file cannot
be read or written, else 1. Any other exception is a defect and prints its traceback.
"""

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from zorplex_rl import __version__
from zorplex_rl.cli.env import Env
from zorplex_rl.cli.eval import Eval
from zorplex_rl.cli.export import Export
from zorplex_rl.cli.policy import PolicyCommand
from zorplex_rl.cli.replay import Replay
from zorplex_rl.cli.size import Size
from zorplex_rl.cli.status import Status
from zorplex_rl.cli.train import Train
from zorplex_rl.cli.worker import Worker
from zorplex_rl.course.check import Check
from zorplex_rl.course.open import Open
from zorplex_rl.errors import ConfigError, ZorplexError

ShowPolicy = Annotated[PolicyCommand, tyro.conf.subcommand("policy")]  # policy/load.py has a Policy
Commands = Train | Eval | Export | Size | Replay | Status | Check | Open | ShowPolicy | Env | Worker
FAILED = 1
BAD_INPUT = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        print(f"zorplex-rl {__version__}")
        return 0
    try:
        command = parse(given or ["--help"])
        # A preset or an earlier run gives what the command line leaves out.
        defaults = command.defaults() if hasattr(command, "defaults") else None
        if defaults:
            command = parse(given, defaults)
        return command.run()
    except ZorplexError as error:
        print(f"zorplex-rl: {error}", file=sys.stderr)
        return BAD_INPUT if isinstance(error, ConfigError) else FAILED
    except OSError as error:
        if not error.filename:
            raise
        problem = f"{error.filename} cannot be read or written ({error.strerror})"
        advice = "give another, or change what you may do there"
        print(f"zorplex-rl: {problem}; {advice}", file=sys.stderr)
        return BAD_INPUT


def parse(given: Sequence[str], default: Any = tyro.MISSING_NONPROP) -> Any:
    """Return the command that ``given`` asks for; ``default`` has what it leaves out."""
    # A dataclass within another adds no prefix: --steps, not --config.steps.
    flat = (tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes)
    return tyro.cli(Commands, args=given, default=default, prog="zorplex-rl", config=flat)
