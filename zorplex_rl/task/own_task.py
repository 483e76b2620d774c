"""A task of the user: a class in a file, ``--task FILE.py``, or ``FILE.py:CLASS`` if it has several.

    --task, --task-data ──of──► EnvironmentSource ──sent──► an actor ──make──► OwnTask(the user's class)

The hosts of a run do not have the file: the controller reads it, and sends its text to the actors.

    a tool raises, or is late       its result is ``ERROR: …``: the policy reads that, and the episode goes on
    anything else raises            the run ends with a TaskError: the call, the exception, the line

This holds for every exception: ``exit()`` in a user's code ends no process.
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
    """What any process needs to make a run's environment."""

    kinds: tuple[str, ...]
    """Those of Zorplex, or the user's FILE:CLASS alone."""
    seed: int = 0
    shots: int = 0
    """Worked examples shown before each question."""
    code: str | None = None
    """The text of the user's file; None: a Zorplex task."""
    data: str = ""
    """The text of the file that ``--task-data`` names."""
    tool_timeout: float = Config.tool_timeout
    """Seconds that a user's tool may take."""

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
        if self.code is None:
            return Zorplex(self.seed, self.kinds, self.shots)
        return OwnTask(self)


class OwnTask(Environment):
    """The user's environment. One thread at a time runs its code, except for tools that are late."""

    def __init__(self, source: EnvironmentSource) -> None:
        super().__init__(source.seed, source.data)
        (task,) = source.kinds
        self._file, _ = split_name(task)
        self._tool_timeout = source.tool_timeout
        self._lock = threading.Lock()
        chosen = class_of(task, source.code or "")
        with _as_task_error(f"{chosen.__name__}({source.seed}, data)", self._file):
            self._environment = chosen(source.seed, source.data)
            self.tools = tuple(self._environment.tools)
            self.answer_tag = self._environment.answer_tag
        asked = source.shots
        with _as_task_error(f"examples({asked})", self._file):
            self._examples = tuple(self._environment.examples(asked))[:asked]
        if len(self._examples) < asked:
            raise TaskError(
                f"--shots is {asked}, but examples({asked}) of {self._file!r} returns {len(self._examples)}; "
                "give the class more of them (docs/OWN_TASK.md), or lower --shots"
            )

    def task(self, index: int, split: Split) -> Task:
        task = self._call("task", index, split)
        if not (isinstance(task, Task) and isinstance(task.answer, int | str)):
            raise TaskError(
                f"task({index}, {split!r}) of {self._file!r} returned {task!r:.100}; "
                "expected a Task whose answer is an int or a str"
            )
        return replace(task, examples=self._examples)

    def execute(self, task: Task, call: ToolCall) -> str:
        """Return the tool's result, or ``ERROR: …`` if it raises or is late. A late tool cannot be
        stopped."""
        results: list[str] = []

        def execute() -> None:
            try:
                results.append(self._environment.execute(task, call))
            except BaseException as error:
                message = " ".join(str(error).split())
                results.append(f"ERROR: {type(error).__name__}: {message:.200}")

        thread = threading.Thread(target=execute, daemon=True)
        with self._lock:
            thread.start()
            thread.join(self._tool_timeout)
        return results[0] if results else f"ERROR: timed out after {self._tool_timeout:g} s"

    def find_answer(self, text: str) -> Answer | None:
        return self._call("find_answer", text)

    def reference(self, task: Task) -> str:
        return self._call("reference", task)

    def score(
        self,
        task: Task,
        turns: list[str],
        tool_calls: int,
        finish: Finish,
    ) -> Score:
        """Return the score, its parts as plain numbers: the user's may be NumPy's, or tensors."""
        score = self._call("score", task, turns, tool_calls, finish)
        with suppress(Exception):
            parts = {name: float(part) for name, part in score.parts.items()}
            if math.isfinite(sum(parts.values())):
                return replace(score, **parts)
        raise TaskError(
            f"score of {self._file!r} returned {score!r:.120} for {task.question!r:.40}; "
            "expected a Score of finite numbers"
        )

    def _call(self, method: str, *arguments: Any) -> Any:
        shown = [f"{getattr(each, 'question', each)!r:.40}" for each in arguments]
        with self._lock, _as_task_error(f"{method}({', '.join(shown)})", self._file):
            return getattr(self._environment, method)(*arguments)


def split_name(task: str) -> tuple[str, str]:
    """Return FILE.py and CLASS, or "" without one, of ``--task task``. Raises TaskError."""
    file, _, name = task.partition(":")
    if not file.endswith(".py"):
        kinds = ", ".join(get_args(TaskName))
        raise TaskError(f"the task is {task!r:.60}; expected one of {kinds}, or FILE.py:CLASS")
    return file, name


@cache
def class_of(task: str, code: str) -> type[Environment]:
    """Run the file whose text is ``code``. Returns the class that ``task`` names. Raises TaskError."""
    file, name = split_name(task)
    module = ModuleType(MODULE)
    # Dataclasses look their module up.
    sys.modules[MODULE] = module
    with _as_task_error(f"{file!r} cannot be run", file):
        exec(compile(code, file, "exec"), module.__dict__)
    classes: dict[str, type[Environment]] = {}
    for value in vars(module).values():
        if not (isinstance(value, type) and issubclass(value, Environment)):
            continue
        if value.__module__ == MODULE and value.task is not Environment.task:
            classes[value.__name__] = value
    chosen = [classes[each] for each in classes if name in ("", each)]
    if len(chosen) != 1:
        raise TaskError(
            f"the task is {task!r}; expected one class that inherits from Environment and has a method "
            f"task; {file} has {', '.join(classes) or 'none'} (choose with FILE.py:CLASS)"
        )
    return chosen[0]


@contextmanager
def _as_task_error(what: str, file: str) -> Iterator[None]:
    """Turn what the user's code raises into a TaskError: ``what``, the exception, the line."""
    try:
        yield
    except KeyboardInterrupt:
        # Ctrl-C is the user's, not an error of the task.
        raise
    except BaseException as error:
        where = ""
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == file:
                where = f", in line {frame.lineno} of {file}"
        raise TaskError(f"{what}: {type(error).__name__}: {error}{where}") from error


def _read(file: str) -> str:
    try:
        return Path(file).expanduser().read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise TaskError(f"the task's file {file!r} cannot be read: {error}") from error
