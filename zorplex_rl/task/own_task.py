"""A task of the user: a class in a file, ``--task FILE.py``, or ``FILE.py:CLASS`` if it has several.

    --task, --task-data ──of──► EnvironmentSource ──sent──► an actor ──make──► OwnTask(the user's class)

The hosts of a run do not have the file: the controller reads it, and sends its text to the actors.

    a tool raises, or is late       it has answered ``ERROR: …``: the policy reads that, the episode goes on
    anything else raises            TaskError, which ends the run: the call, the exception, the line

Whatever it raises: ``exit()`` in a user's code ends no process.
"""

import math
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Self, get_args

from zorplex_rl.config import Config, TaskName
from zorplex_rl.errors import TaskError
from zorplex_rl.task.environment import Environment, Zorplex, kinds_of
from zorplex_rl.task.episode import Finish, Score, Task
from zorplex_rl.task.parser import Answer, ToolCall
from zorplex_rl.task.specs import Split

MODULE = "own_task_file"
"""The name of the user's file as a module."""


@dataclass(frozen=True)
class EnvironmentSource:
    """What makes a run's environment, in any process. ``kinds`` are those of Zorplex, or the user's
    FILE:CLASS, with its text as ``code`` and that of ``--task-data`` as ``data``."""

    kinds: tuple[str, ...]
    seed: int = 0
    shots: int = 0
    code: str | None = None
    data: str = ""
    tool_timeout: float = Config.tool_timeout

    @classmethod
    def of(cls, config: Config) -> Self:
        """Read what ``config`` names. Raises TaskError if a file is not there."""
        if not config.is_own_task:
            return cls(kinds_of(config.task, config.difficulty), config.seed, config.shots)
        code = _read(split_name(config.task)[0])
        data = _read(config.task_data) if config.task_data else ""
        return cls((config.task,), config.seed, config.shots, code, data, config.tool_timeout)

    def make(self) -> Environment:
        """Make the environment. Raises TaskError."""
        return (
            OwnTask(self) if self.code is not None else Zorplex(self.seed, self.kinds, self.shots)
        )


class OwnTask(Environment):
    """The user's environment. One thread at a time runs its code, late tools aside."""

    def __init__(self, source: EnvironmentSource) -> None:
        super().__init__(source.seed, source.data)
        (task,) = source.kinds
        found, self._file = class_of(task, source.code or ""), split_name(task)[0]
        self._tool_timeout, self._in_turn = source.tool_timeout, threading.Lock()
        with _told(f"{found.__name__}({source.seed}, data)", self._file):
            self._own = found(source.seed, source.data)
            self.tools, self.answer_tag = tuple(self._own.tools), self._own.answer_tag
        with _told(f"examples({source.shots})", self._file):
            self._examples = tuple(self._own.examples(source.shots))[: source.shots]
        if (count := len(self._examples)) < source.shots:
            raise TaskError(
                f"--shots is {source.shots}, but examples({source.shots}) of {self._file!r} returns {count}; "
                "give the class more of them (docs/OWN_TASK.md), or lower --shots"
            )

    def task(self, index: int, split: Split) -> Task:
        found = self._call("task", index, split)
        if not (isinstance(found, Task) and isinstance(found.answer, int | str)):
            raise TaskError(
                f"task({index}, {split!r}) of {self._file!r} returned {found!r:.100}; "
                "expected a Task whose answer is an int or a str"
            )
        return replace(found, examples=self._examples)

    def execute(self, task: Task, call: ToolCall) -> str:
        """Return what the tool answers in time, else ``ERROR: …``. A late one cannot be stopped."""
        answers: list[str] = []

        def answer() -> None:
            try:
                answers.append(self._own.execute(task, call))
            except BaseException as error:
                answers.append(
                    f"ERROR: {type(error).__name__}: {' '.join(str(error).split()):.200}"
                )

        thread = threading.Thread(target=answer, daemon=True)
        with self._in_turn:
            thread.start()
            thread.join(self._tool_timeout)
        return answers[0] if answers else f"ERROR: timed out after {self._tool_timeout:g} s"

    def find_answer(self, text: str) -> Answer | None:
        return self._call("find_answer", text)

    def reference(self, task: Task) -> str:
        return self._call("reference", task)

    def score(self, task: Task, turns: list[str], tool_calls: int, finish: Finish) -> Score:
        """Return the score, with parts that are plain numbers: a user's may be NumPy's, or tensors."""
        found = self._call("score", task, turns, tool_calls, finish)
        with suppress(Exception):
            parts = {name: float(part) for name, part in found.parts.items()}
            if math.isfinite(sum(parts.values())):
                return replace(found, **parts)
        raise TaskError(
            f"score of {self._file!r} returned {found!r:.120} for {task.question!r:.40}; "
            "expected a Score of finite numbers"
        )

    def _call(self, method: str, *arguments: Any) -> Any:
        shown = ", ".join(
            f"{getattr(argument, 'question', argument)!r:.40}" for argument in arguments
        )
        with self._in_turn, _told(f"{method}({shown})", self._file):
            return getattr(self._own, method)(*arguments)


def split_name(task: str) -> tuple[str, str]:
    """Return FILE.py and CLASS, which may be "", of ``--task task``. Raises TaskError."""
    file, _, name = task.partition(":")
    if not file.endswith(".py"):
        kinds = ", ".join(get_args(TaskName))
        raise TaskError(f"the task is {task!r:.60}; expected one of {kinds}, or FILE.py:CLASS")
    return file, name


@cache
def class_of(task: str, code: str) -> type[Environment]:
    """Run the file with the text ``code``. Returns its class that ``task`` names. Raises TaskError."""
    file, name = split_name(task)
    module = ModuleType(MODULE)
    # Dataclasses look their module up.
    sys.modules[MODULE] = module
    with _told(f"{file!r} cannot be run", file):
        exec(compile(code, file, "exec"), module.__dict__)
    classes = [
        found
        for found in vars(module).values()
        if isinstance(found, type) and issubclass(found, Environment)
    ]
    own = [
        found
        for found in classes
        if found.__module__ == MODULE and found.task is not Environment.task
    ]
    chosen = [found for found in own if name in ("", found.__name__)]
    if len(chosen) != 1:
        raise TaskError(
            f"the task is {task!r}; expected one class that inherits from Environment and has a method task; {file} has "
            f"{', '.join(found.__name__ for found in own) or 'none'} (choose with FILE.py:CLASS)"
        )
    return chosen[0]


@contextmanager
def _told(what: str, file: str) -> Iterator[None]:
    """Turn what the user's code raises into a TaskError: ``what``, the exception, the line."""
    try:
        yield
    except KeyboardInterrupt:
        # Somebody has pressed Ctrl-C.
        raise
    except BaseException as error:
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == file
        ]
        where = f", in line {lines[-1]} of {file}" if lines else ""
        raise TaskError(f"{what}: {type(error).__name__}: {error}{where}") from error


def _read(file: str) -> str:
    try:
        return Path(file).expanduser().read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise TaskError(f"the task's file {file!r} cannot be read: {error}") from error
