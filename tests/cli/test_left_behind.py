"""A program ends what the code of a task has left behind."""

import os
import subprocess
import sys
import time

import pytest
from runs import eventually

from zorplex_rl.services.processes import kill_marked

LEAVES = """
import os, subprocess, sys, time
from zorplex_rl.__main__ import program
from zorplex_rl.cli import commands
import zorplex_rl.services.processes

def main():
    forks = "import os, time; os.fork(); time.sleep(1000)"
    subprocess.Popen([sys.executable, "-c", forks], start_new_session=True)
    time.sleep(1)
    return 3

commands.main = main
program()
"""


def started_with(mark):
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if mark.encode() in file.read().split(b"\0"):
                    found.append(int(name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the environment of a process")
def test_copies_and_programs_that_a_command_leaves_behind_end_with_it():
    environment = os.environ | {"LEFT_BEHIND_TEST": "1"}
    done = subprocess.run([sys.executable, "-c", LEAVES], env=environment, stdout=subprocess.DEVNULL, timeout=60)
    assert done.returncode == 3
    assert eventually(lambda: not started_with("LEFT_BEHIND_TEST=1"))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the environment of a process")
def test_only_what_has_the_mark_is_killed():
    one, other = (
        subprocess.Popen(["sleep", "100"], env=os.environ | {"MARKED": value}) for value in ("yes", "yes and more")
    )
    try:
        time.sleep(0.2)
        kill_marked("MARKED=yes")
        assert one.wait(10) == -9 and other.poll() is None
    finally:
        other.kill()
        other.wait()
