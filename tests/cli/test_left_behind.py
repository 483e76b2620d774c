"""A program ends what the code of a task has left behind."""

import os
import subprocess
import sys
import time

import pytest
from runs import eventually
from zorplex_rl.services.processes import kill_marked

FORKS = "import os, time; os.fork(); time.sleep(1000)"
HIDES = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", "1000"], {"LEFT_BEHIND_TEST": os.environ["LEFT_BEHIND_TEST"]})
"""
PROGRAM = """
import os, subprocess, sys, time
from zorplex_rl.__main__ import program
from zorplex_rl.cli import commands
from zorplex_rl.services import orphans
"""
LEAVES = (
    PROGRAM
    + """
def main():
    subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
    time.sleep(1)
    return 3

commands.main = main
program()
"""
)
GATHERS = (
    PROGRAM
    + """
def main():
    own = subprocess.Popen("exit 3", shell=True)
    left = [int(subprocess.check_output("sleep 0.1 >/dev/null & echo $!", shell=True)) for _ in range(5)]
    code = own.wait()
    while any(os.path.exists(f"/proc/{pid}") for pid in left):
        time.sleep(0.1)
    return code

orphans.REAP_SECONDS = 0.5
commands.main = main
program()
"""
)


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
@pytest.mark.parametrize("code", [FORKS, HIDES])
def test_copies_and_programs_that_a_command_leaves_behind_end_with_it_whatever_they_have_done_to_hide(code):
    environment = os.environ | {"LEFT_BEHIND_TEST": str(os.getpid())}
    mark = f"LEFT_BEHIND_TEST={os.getpid()}"
    program = subprocess.Popen([sys.executable, "-c", LEAVES, code], env=environment, stdout=subprocess.DEVNULL)
    assert eventually(lambda: len(started_with(mark)) > 1)
    assert program.wait(60) == 3
    assert eventually(lambda: not started_with(mark))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has orphans adopted")
def test_orphans_that_have_ended_do_not_gather_below_a_program():
    assert subprocess.run([sys.executable, "-c", GATHERS], timeout=30).returncode == 3


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
