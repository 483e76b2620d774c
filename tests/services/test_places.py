"""A process starts wherever its user stands: what lies in the current folder is not Python's own, and a
temporary folder may have a long name."""

from __future__ import annotations

import subprocess
import sys

import pytest
from runs import SMALL, as_flags, command

pytestmark = pytest.mark.slow
PROGRAM = """
import asyncio
from zorplex_rl.services.replica import spawn
from {module} import Greeter

async def greet():
    replica = await spawn("greeter", Greeter)
    print(await replica.actor.greet.call_one())
    await replica.stop()

asyncio.run(greet())
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


def test_an_actor_s_module_is_found_beside_the_program_wherever_that_is_started(shadowed, tmp_path):
    """A file that is nowhere on the path of a new process, but on its parent's."""
    (tmp_path / "greeters.py").write_text(GREETER)
    (tmp_path / "program.py").write_text(PROGRAM.format(module="greeters"))
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"], cwd=shadowed, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "hello\n", done.stderr
