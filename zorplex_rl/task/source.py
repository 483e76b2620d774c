"""Where a run's environment comes from: Zorplex, a file of the user, or what is installed.

    --task compositional          Zorplex
    --task path/tasks.py:Sums     the class Sums in that file; its name may be left out where the file has only one
    --task sums                   what an installed package calls so in its entry points, in the group ``zorplex_rl.environments``
    --task reasoning-gym:NAME     an environment of a public library, by the file that adapts it (``LIBRARIES``)

The processes of a run may be on machines that do not have the file. So the controller reads it
once, and an ``EnvironmentSource`` with its text goes to every actor that needs the environment; the
run folder keeps a copy. The file must stand alone: it may import what is installed there, and gets
other data as the text of ``--task-data``.
"""

import contextlib
import hashlib
import json
import linecache
import math
import os
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib.metadata import EntryPoint, distribution, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Self, get_args

from zorplex_rl.config import Config, TaskName
from zorplex_rl.errors import TaskError
from zorplex_rl.task.call_limit import MARK_BYTES, call_limit, mark_of
from zorplex_rl.task.environment import Environment, Zorplex, kinds_of
from zorplex_rl.task.episode import OUTCOMES, Finish, Score, Task
from zorplex_rl.task.parser import Answer, ToolCall
from zorplex_rl.task.specs import Split

GROUP = "zorplex_rl.environments"
LIBRARIES = {"reasoning-gym": "zorplex_rl.task.reasoning_gym"}
"""Libraries whose environments run as they are, by the name of their package and of the extra that
installs it; and the file that adapts them."""
METHODS = ("task", "execute", "find_answer", "score")
"""What an environment's class must have; ``Environment`` brings all but ``task``."""
MOST_TOOL_CALLS = 1000
"""More calls than any episode makes; ``env check`` writes a text with as many turns."""
MOST_CHARACTERS = 100_000
"""Of a prompt's part, and of a result: a tokenizer takes half a second for as many, and minutes for
a hundred times as many."""
MOST_DIGITS = 4_000
"""Of an answer: Python writes out no more than 4,300."""


@dataclass(frozen=True)
class EnvironmentSource:
    """What makes a run's environment; ``code`` is the user's file as text, else None."""

    task: str
    seed: int = 0
    difficulty: str = "easy"
    hints: bool = False
    code: str | None = None
    data: str = ""

    @classmethod
    def of(cls, config: Config) -> Self:
        """Read what ``config`` names. Raises TaskError if it is not there, or is no text."""
        if not config.is_own_task:
            return cls(config.task, config.seed, config.difficulty, config.hints)
        file, _ = split_name(config.task)
        code = _read("--task", file) if file is not None else None
        if file is None:
            _entry_point(config.task)
        data = _read("--task-data", config.task_data) if config.task_data is not None else ""
        return cls(config.task, config.seed, code=code, data=data)

    @property
    def is_own(self) -> bool:
        """Whether the task is the user's."""
        return self.task not in get_args(TaskName)

    @property
    def digest(self) -> str:
        """The SHA-256 of the user's file and data, or of the package's name and version."""
        package = "" if self.code is not None else _version_of(_entry_point(self.task))
        return hashlib.sha256(json.dumps([self.task, self.code, self.data, package]).encode()).hexdigest()

    @property
    def kinds(self) -> tuple[str, ...]:
        """What the tasks are drawn from in turn; a user's task is one kind."""
        return (self.task,) if self.is_own else kinds_of(self.task, self.difficulty)

    def make(self, kinds: tuple[str, ...] = ()) -> Environment:
        """Make the environment, or the part of it that draws ``kinds``. Raises TaskError."""
        return OwnEnvironment(self) if self.is_own else Zorplex(self.seed, self.hints, kinds or self.kinds)

    def limit_calls(self, seconds: float, name: str, tool_seconds: float = 0.0) -> None:
        """Limit calls of the user's code, if any, from now on; leave marks as actor ``name``."""
        if not self.is_own:
            return
        call_limit.seconds, call_limit.tool_seconds = seconds, tool_seconds
        # Without a folder for them, as on another host.
        with contextlib.suppress(OSError):
            file = mark_of(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            os.ftruncate(file, MARK_BYTES)
            call_limit.leave_marks(file)

    def class_(self) -> type:
        """Return the user's class. Raises TaskError if there is none."""
        file, name = split_name(self.task)
        if file is None:
            point = _entry_point(self.task)
            with _told(f"the entry point {self.task!r} ({point.value}) cannot be loaded"):
                found = point.load()
        else:
            found = getattr(_module(file, self.code or ""), name, None) if name else self._only_class(file)
        if not isinstance(found, type):
            raise TaskError(
                f"--task is {self.task!r}, but there is no class {name or self.task}; {self._classes(file)}"
            )
        return found

    def _only_class(self, file: str) -> type:
        if len(own := self._own_classes(file)) == 1:
            return own[0]
        raise TaskError(f"--task is {self.task!r}, but {file} has {len(own)} environments; {self._classes(file)}")

    def _own_classes(self, file: str) -> list[type]:
        """Return the classes that the user's file defines and that draw tasks."""
        module = _module(file, self.code or "")
        of_file = (found for found in vars(module).values() if isinstance(found, type))
        return [found for found in of_file if found.__module__ == module.__name__ and hasattr(found, "task")]

    def _classes(self, file: str | None) -> str:
        names = [found.__name__ for found in self._own_classes(file)] if file else []
        return f"name one of {', '.join(names)} after a colon" if names else "define a class that has a method task"

    def to_json(self) -> str:
        """Return what a run folder keeps: all of this, and its digest."""
        return json.dumps({"sha256": self.digest, **asdict(self)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return what ``to_json`` wrote. Raises TaskError if code or package has changed."""
        try:
            values = json.loads(text)
            digest, source = values.pop("sha256"), cls(**values)
            texts = (source.task, source.data) if source.code is None else (source.task, source.data, source.code)
            if not all(isinstance(text, str) for text in texts) or type(source.seed) is not int:
                raise TypeError("its entries are of other types")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise TaskError(f"is no copy of a task ({error})") from error
        if source.digest != digest:
            what = "does not match its checksum" if source.code is not None else "is of another version of its package"
            raise TaskError(what)
        return source


class OwnEnvironment(Environment):
    """A user's environment. What its code raises or wrongly returns becomes a TaskError."""

    def __init__(self, source: EnvironmentSource) -> None:
        super().__init__(source.seed, source.data)
        self._name = source.task
        self._file = split_name(source.task)[0]
        found: Any = source.class_()
        # ``Environment.task`` only stands for what a subclass must have.
        if missing := [n for n in METHODS if getattr(found, n, None) is Environment.task or not _has(found, n)]:
            raise TaskError(
                f"the class {found.__name__} of {self._name!r} has no {' and no '.join(missing)}; "
                f"inherit from zorplex_rl.task.environment.Environment, and write task"
            )
        with _told(f"{self._name!r} cannot be made with ({source.seed}, data)", self._file):
            self._own = found(source.seed, source.data)
            tools, self.answer_tag = self._own.tools, getattr(self._own, "answer_tag", "")
        if not isinstance(tools, tuple | list) or not all(isinstance(t, str) and t.isidentifier() for t in tools):
            raise TaskError(
                f"the tools of {self._name!r} are {tools!r}; expected a tuple of names of letters and digits"
            )
        self.tools = tuple(tools)
        if not isinstance(self.answer_tag, str) or (
            found.find_answer is Environment.find_answer and not self.answer_tag.strip()
        ):
            raise TaskError(f"the answer_tag of {self._name!r} is {self.answer_tag!r}; expected a text such as '####'")

    def task(self, index: int, split: Split) -> Task:
        def check(found: Task) -> None:
            for name, kinds in _FIELDS.items():
                if not isinstance(value := getattr(found, name), kinds) or isinstance(value, bool):
                    raise TaskError(
                        f"{self._name!r}: the {name} of task({index}, {split!r}) is {value!r:.60}; expected {_names(kinds)}"
                    )
                self._expect_readable(value, f"the {name} of task({index}, {split!r})")
            if not 0 <= found.min_tool_calls <= MOST_TOOL_CALLS:
                raise TaskError(
                    f"{self._name!r}: the min_tool_calls of task({index}, {split!r}) is {found.min_tool_calls}; expected 0 to {MOST_TOOL_CALLS}"
                )

        return self._call(Task, check, "task", index, split)

    def execute(self, task: Task, call: ToolCall) -> str:
        what = f"execute({task.question!r:.40}, {str(call)!r:.40})"

        def run() -> str:
            check = partial(self._expect_readable, what=f"what {what} returned")
            return self._call(str, check, "execute", task, call)

        return call_limit.tool(run, f"{self._name!r} failed in {what}")

    def find_answer(self, text: str) -> Answer | None:
        return self._call((int, str, type(None)), None, "find_answer", text)

    def reference(self, task: Task) -> str:
        return self._call(str, None, "reference", task) if hasattr(self._own, "reference") else super().reference(task)

    def score(self, task: Task, turns: list[str], tool_calls: int, finish: Finish) -> Score:
        def check(found: Score) -> None:
            if found.outcome not in OUTCOMES:
                raise TaskError(
                    f"{self._name!r}: the outcome of {turns!r:.60} is {found.outcome!r:.40}; expected one of {', '.join(OUTCOMES)}"
                )
            for name, kinds in {"answer": (int, str, type(None)), **dict.fromkeys(found.parts, (int, float))}.items():
                if not isinstance(value := getattr(found, name), kinds):
                    raise TaskError(
                        f"{self._name!r}: {name} in the score of {turns!r:.60} is {value!r:.40}; expected {_names(kinds)}"
                    )
            self._expect_readable(found.answer, f"the answer in the score of {turns!r:.60}")
            if not math.isfinite(found.reward):
                raise TaskError(
                    f"{self._name!r}: the reward of {turns!r:.60} is {found.reward}; expected a finite number"
                )

        return self._call(Score, check, "score", task, turns, tool_calls, finish)

    def _call(self, expected: Any, check: Callable[[Any], None] | None, method: str, *arguments: Any) -> Any:
        """Return what ``method`` returns, if it passes ``check``: the user's code may be in that, too."""
        shown = ", ".join(f"{_shown(argument)!r:.40}" for argument in arguments)
        with _told(f"{self._name!r} failed in {method}({shown})", self._file):
            found = getattr(self._own, method)(*arguments)
            if not isinstance(found, expected):
                raise TaskError(
                    f"{self._name!r}: {method}({shown}) returned {found!r:.60}; expected {_names(expected)}"
                )
            if check:
                check(found)
        return found

    def _expect_readable(self, text: Any, what: str) -> None:
        """Raise TaskError for what a tokenizer does not take, half a surrogate pair or too much, and
        for a number that Python does not write out."""
        if isinstance(text, int) and (digits := text.bit_length() * math.log10(2)) > MOST_DIGITS:
            raise TaskError(f"{self._name!r}: {what} has about {digits:,.0f} digits; expected at most {MOST_DIGITS:,}")
        if not isinstance(text, str):
            return
        if len(text) > MOST_CHARACTERS:
            raise TaskError(
                f"{self._name!r}: {what} has {len(text):,} characters; expected at most {MOST_CHARACTERS:,}"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TaskError(
                f"{self._name!r}: {what} has the character {text[error.start]!r}, which UTF-8 cannot express; expected valid text"
            ) from None


_FIELDS: dict[str, Any] = {
    "kind": str, "question": str, "system": str, "answer": (int, str), "min_tool_calls": int, "words": (tuple, list),
}  # fmt: skip


def _has(found: type, method: str) -> bool:
    return callable(getattr(found, method, None))


def _shown(argument: Any) -> Any:
    """Return what stands for ``argument`` in a message: a task's question, a call's text."""
    if isinstance(argument, Task):
        return argument.question
    return str(argument) if isinstance(argument, ToolCall) else argument


def split_name(task: str) -> tuple[str | None, str]:
    """Return ``task``'s file (None: an entry point) and class, which may be empty.

    >>> split_name("tasks.py:Sums"), split_name("tasks.py"), split_name("sums"), split_name("reasoning-gym:gcd")
    (('tasks.py', 'Sums'), ('tasks.py', ''), (None, 'sums'), (None, 'reasoning-gym:gcd'))
    """
    file, colon, name = task.rpartition(":")
    if task.endswith(".py"):
        return task, ""
    return (file, name) if colon and file not in LIBRARIES else (None, task)


@cache
def _module(file: str, code: str) -> ModuleType:
    """Return the user's file as a module. Raises TaskError if its code fails."""
    module = ModuleType(f"zorplex_task_{hashlib.sha256(code.encode()).hexdigest()[:12]}")
    module.__file__ = file
    # Dataclasses look their module up, and tracebacks the lines of its file.
    sys.modules[module.__name__] = module
    linecache.cache[file] = (len(code), None, code.splitlines(True), file)
    with _told(f"{file!r} cannot be run", file):
        exec(compile(code, file, "exec"), module.__dict__)
    return module


def _entry_point(name: str) -> EntryPoint:
    library, _, environment = name.partition(":")
    if library in LIBRARIES:
        if not environment.isidentifier():
            raise TaskError(f"--task is {name!r:.60}; expected {library}:NAME, with the name of one environment of it")
        if find_spec(library.replace("-", "_")) is None:
            raise TaskError(f"--task is {name!r:.60}, but {library} is not there; pip install 'zorplex-rl[{library}]'")
        return EntryPoint(name, f"{LIBRARIES[library]}:{environment}", GROUP)
    points = {point.name: point for point in entry_points(group=GROUP)}
    if name not in points:
        installed = f", or {', '.join(sorted(points))} of the installed packages" if points else ""
        raise TaskError(
            f"--task is {name!r:.60}; expected one of {', '.join(get_args(TaskName))}, or FILE.py:CLASS{installed}"
        )
    return points[name]


def _version_of(point: EntryPoint) -> str:
    package = point.dist or distribution(point.name.partition(":")[0])
    return f"{point.value} {package.name} {package.version}"


def _read(flag: str, file: str) -> str:
    try:
        return Path(file).expanduser().read_text(encoding="utf-8")
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise TaskError(
            f"{flag} is {file!r:.200}, which cannot be read ({reason}); give a text file that you can read"
        ) from error


class _told:
    """Turn what the user's code raises into a TaskError: ``what``, the exception, where."""

    def __init__(self, what: str, file: str | None = None) -> None:
        self._what, self._file = what, file

    def __enter__(self) -> None:
        call_limit.start(self._what, self._file)

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        call_limit.stop()
        # SystemExit too: a file may call sys.exit. An interrupt is the user's wish, no fault.
        if (
            error is None
            or isinstance(error, TaskError)
            or (isinstance(error, KeyboardInterrupt) and _is_main_thread())
        ):
            return
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == self._file]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        try:
            # The user's code again.
            call_limit.start(self._what, self._file)
            said = error.msg if isinstance(error, SyntaxError) else str(error)
        except BaseException:  # Whatever a user's own exception raises.
            said = "its text cannot be shown"
        finally:
            call_limit.stop()
        said = " ".join(said.split())[:300].encode(errors="backslashreplace").decode()
        where = f", in line {line}" if line else ""
        raise TaskError(f"{self._what}: {type(error).__name__}{f': {said}' if said else ''}{where}") from error


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _names(kinds: Any) -> str:
    return " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
