"""A process starts wherever its user stands: what lies in the current folder is not Python's own, and a
temporary folder may have a long name."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from runs import SMALL, as_flags, command

from zorplex_rl.services.runtime import LONGEST_FOLDER

pytestmark = pytest.mark.slow
PROGRAM = """
import asyncio, os
from zorplex_rl.services.spawn import spawn
from {module} import Greeter

async def greet():
    replica = await spawn("greeter", Greeter)
    print(await replica.actor.greet.call_one(), os.environ.get("PYTHONSAFEPATH"))
    await replica.stop()

asyncio.run(greet())
"""
HOST = """
import asyncio, tempfile
from zorplex_rl.config import Config
from zorplex_rl.hosts.hosts import open_hosts
from zorplex_rl.services.spawn import spawn
from zorplex_rl.training.actors import TimedActor

async def start():
    async with open_hosts(Config(hosts="processes:1")):
        replica = await spawn("here", TimedActor, "here")
        await replica.stop()
    print(tempfile.gettempdir())

asyncio.run(start())
"""
GREETER = """
from zorplex_rl.services.runtime import Actor, endpoint

class Greeter(Actor):
    @endpoint
    async def greet(self):
        return "hello"
"""


@pytest.fixture
def shadowed(tmp_path):
    """A folder in which a learner has tried two things, in files that are named as modules of Python are."""
    folder = tmp_path / "tries"
    folder.mkdir()
    for name in ("random", "queue"):
        (folder / f"{name}.py").write_text("raise RuntimeError('this is no module of Python')\n")
    return folder


def test_a_run_does_not_take_a_file_of_the_current_folder_for_a_module_of_python(shadowed):
    with command("train", *as_flags(SMALL.changed(steps=1)), "--out", "run", cwd=shadowed) as run:
        code, said = run.finish(120)
    assert code == 0, said


@pytest.mark.parametrize("length", [LONGEST_FOLDER, 3 * LONGEST_FOLDER])
def test_processes_start_here_and_on_a_host_however_long_the_name_of_the_temporary_folder(length):
    """Sockets are files in it, and a socket's name has at most 107 characters."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        folder = Path(f"{place}/".ljust(length, "+"))
        folder.mkdir(parents=True)
        done = subprocess.run(
            [sys.executable, "-c", HOST],
            env=os.environ | {"TMPDIR": str(folder)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == (str(folder) if length == LONGEST_FOLDER else "/tmp")


def test_an_actor_s_module_is_found_beside_the_program_wherever_that_is_started(shadowed, tmp_path):
    """A file that is nowhere on the path of a new process, but on its parent's."""
    (tmp_path / "greeters.py").write_text(GREETER)
    (tmp_path / "program.py").write_text(PROGRAM.format(module="greeters"))
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"],
        cwd=shadowed,
        capture_output=True,
        text=True,
        timeout=60,
    )
    # What the program itself starts is still started as its author means.
    assert done.stdout == "hello None\n", done.stderr
