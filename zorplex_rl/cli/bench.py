"""Run the benchmarks of this repository: ``zorplex-rl bench``."""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from zorplex_rl.cli.flags import Command
from zorplex_rl.errors import ConfigError


@dataclass(frozen=True)
class Bench(Command):
    """Run the benchmarks of this repository and append what they measure to benchmarks/LOG.md."""

    name: Annotated[str, tyro.conf.Positional] = "all"
    """One benchmark's name, or all."""


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
    run = partial(subprocess.run, check=False, start_new_session=True)
    return max(run([sys.executable, str(program)]).returncode for program in chosen)
