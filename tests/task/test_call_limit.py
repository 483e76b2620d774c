"""The limit on a call of the user's code: real threads that do not return, and processes that end
within a call."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading

import pytest

from zorplex_rl.errors import TaskError
from zorplex_rl.task import call_limit as module
from zorplex_rl.task.call_limit import MARKS, CallLimit, ask, call_limit, in_thread, last_call
from zorplex_rl.task.source import EnvironmentSource, _told

CODE = """
from zorplex_rl.task.environment import Environment
from zorplex_rl.task.episode import Task

wait = True

class Endless(Environment):
    def task(self, index, split):
        while wait and index == 7:
            try:
                while wait: pass
            except BaseException:
                pass
        return Task("endless", f"Question {index}?", 1, 0, "Answer.")
"""


@pytest.fixture
def endless(monkeypatch):
    """An environment whose task 7 takes as long as its module's ``wait`` is True, and a limit of
    half a second."""
    monkeypatch.setattr(call_limit, "seconds", 0.5)
    environment = EnvironmentSource("endless.py", code=CODE).make()
    code = sys.modules[type(environment._own).__module__]
    code.wait = True
    yield environment
    code.wait = False
    # The thread comes back, and takes the clock with it.
    module._one_thread().submit(lambda: None).result(timeout=60)


def test_a_call_that_never_returns_is_named_to_all_who_wait_for_it_or_behind_it(endless):
    async def scenario():
        waiting = [ask(endless.task, 7, "train"), ask(endless.task, 8, "train")]
        return await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)

    said = r"'endless.py' failed in task(7, 'train'): it has not returned within 0.5 s (--task-timeout), in line 1"
    for error in asyncio.run(scenario()):
        assert isinstance(error, TaskError) and str(error).startswith(said)


def test_calls_within_the_limit_are_answered_in_order_and_stop_the_clock(endless):
    async def scenario():
        return await asyncio.gather(*(ask(endless.task, index, "train") for index in range(5)))

    assert [task.question for task in asyncio.run(scenario())] == [f"Question {index}?" for index in range(5)]
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    call_limit.check()


def test_a_stop_iteration_in_a_thread_reaches_who_waits():
    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(asyncio.wait_for(in_thread(next, iter([])), 60))


def test_a_call_that_lets_nothing_else_run_ends_its_process_and_leaves_its_mark(tmp_path, monkeypatch):
    program = (
        "from zorplex_rl.task import call_limit as c\nfrom zorplex_rl.task.source import EnvironmentSource, _told\n"
        "c.call_limit._grace = 0.1\nEnvironmentSource('endless.py', code='').limit_calls(0.5, 'dataset')\n"
        "with _told(\"'endless.py' failed in task(7, 'train')\"): sum(range(10**15))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], env=os.environ | {MARKS: str(tmp_path)}, check=False)
    assert ended.returncode == -signal.SIGALRM
    monkeypatch.setenv(MARKS, str(tmp_path))
    call = last_call("dataset")
    assert call is not None and call.place == "'endless.py', in task(7, 'train')"
    assert last_call("generator_0") is None


def test_a_tool_that_does_not_answer_has_timed_out_until_too_many_of_them_are_left(monkeypatch):
    monkeypatch.setattr(call_limit, "seconds", 60.0)
    monkeypatch.setattr(call_limit, "tool_seconds", 0.1)
    ended = threading.Event()

    def hanging() -> str:
        with _told("a tool", None):
            ended.wait()
        return "too late"

    answers = [call_limit.tool(hanging, "a tool") for _ in range(module.MOST_LEFT)]
    assert set(answers) == {"ERROR: timed out after 0.1 s"}
    # What it left behind counts as no call under way.
    assert call_limit.tool(lambda: "quick", "a tool") == "quick"
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    call_limit.check()
    with pytest.raises(TaskError, match=r"a tool: 9 tools have not answered yet, each after 0.1 s \(--tool-timeout\)"):
        call_limit.tool(hanging, "a tool")
    ended.set()
    with pytest.raises(ZeroDivisionError):
        call_limit.tool(lambda: str(1 / 0), "a tool")


def test_a_task_of_the_package_has_no_limit(monkeypatch, tmp_path):
    limit = CallLimit()
    monkeypatch.setattr("zorplex_rl.task.source.call_limit", limit)
    EnvironmentSource("mix").limit_calls(0.5, "dataset")
    assert limit.seconds == 0


FORKS = """
import os
from zorplex_rl.task.call_limit import call_limit
call_limit.seconds = 60
call_limit.tell_copy = lambda: os.write(1, b"copy ")
call_limit.start("a call", None)
os.fork()
call_limit.stop()
os.write(1, b"after ")
"""


def test_the_copy_of_a_process_that_a_call_makes_ends_with_the_call():
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60)
    assert sorted(done.stdout.split()) == ["after", "copy"]
