"""Check a user's task against what a run relies on. Each check looks at a sample of the tasks.

Sample(source)                    the first tasks of both splits
  .draw_again() … .score_garbage()    the checks: what each found, or Broken, with an example
findings_of(…)                    all of them, one finding for each
try_apart(source, seconds)        only draw the first tasks, in a process of their own: what every run does first
"""

import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from functools import partial
from io import BytesIO
from math import isfinite
from typing import Any, get_args

from zorplex_rl.errors import ConfigError, TaskError
from zorplex_rl.task.apart import Finding, findings_apart, report
from zorplex_rl.task.call_limit import call_limit
from zorplex_rl.task.environment import Environment
from zorplex_rl.task.episode import Finish, Task
from zorplex_rl.task.parser import ToolCall
from zorplex_rl.task.source import EnvironmentSource
from zorplex_rl.task.specs import Split

SAMPLE = 400
"""Tasks of each split that are looked at."""
FAR = 1_000_000
"""A long run has groups with numbers of this size."""
FIRST = 32
"""Tasks of each split that ``train`` draws before it starts."""
FEW = 25
"""Tasks of which calls and scores are tried."""
PROCESS_SECONDS = 120.0
ODD_ARGUMENTS = (
    "", "no such thing", "-1", "0", "1e999", "9" * 5000, "1/0", "None", "a" * 10_000, "'", '"', "\\", "\x00", "⁷", "٣", "<b>", "a,b", "2**9**9",
)  # fmt: skip
"""What a learning policy writes between the brackets: no bracket, no line break."""


class Broken(Exception):
    """What is wrong, with an example."""


def try_apart(source: EnvironmentSource, seconds: float) -> None:
    """Draw the first tasks of ``source`` in a process of their own, before this one does. Raises
    TaskError for what is wrong, also for one that ends its process or outlasts ``seconds``."""
    program = "from zorplex_rl.task.checks import report_first_tasks; report_first_tasks()"
    for finding in findings_apart(program, (source, seconds), seconds):
        raise TaskError(finding.said)


@contextmanager
def calling_here(source: EnvironmentSource, seconds: float, tool_seconds: float = 0.0) -> Iterator[None]:
    """Let this process call the code of ``source``, ``seconds`` a call and ``tool_seconds`` a tool,
    after ``try_apart``."""
    if source.is_own:
        try_apart(source, seconds)
    with call_limit.interrupting(seconds, tool_seconds):
        yield


def report_first_tasks() -> None:
    """Draw what the parent process asks for, in this one."""
    report(_wrong_with_first_tasks)


def _wrong_with_first_tasks(asked: tuple[EnvironmentSource, float], begin: Callable[[str], None]) -> Iterator[Finding]:
    source, seconds = asked
    try:
        with redirect_stdout(sys.stderr), call_limit.interrupting(seconds):
            environment = source.make()
            for split in get_args(Split):
                for index in range(FIRST):
                    environment.task(index, split)
    except TaskError as error:
        yield Finding("no", "contract", str(error))


def findings_of(
    source: EnvironmentSource,
    seconds: float,
    constant_limit: float,
    begin: Callable[[str], None],
    also: Mapping[str, Callable[["Sample"], str]],
    if_all_hold: Mapping[str, Callable[["Sample"], str]],
) -> Iterator[Finding]:
    """Yield a finding for each check, after ``begin(name)``. The user's prints go to stderr.
    ``also`` are further checks, ``if_all_hold`` those that say little about a task that is not in
    order. Nothing follows if no task can be drawn."""
    try:
        with redirect_stdout(sys.stderr), call_limit.interrupting(seconds):
            sample = Sample(source)
    except TaskError as error:
        yield Finding("no", "contract", str(error))
        return
    tools = f"tools {', '.join(sample.environment.tools)}" if sample.environment.tools else "no tools"
    yield Finding("ok", "contract", f"{tools}; {SAMPLE} tasks of each split, and task {FAR:,}")
    checks: dict[str, Callable[[Sample], str]] = {
        "same tasks": Sample.draw_again,
        "new process": Sample.draw_elsewhere,
        "pickling": Sample.send,
        "splits": Sample.compare_splits,
        "answers": lambda sample: sample.answer_constantly(constant_limit),
        "tools": Sample.call_tools,
        "right answers": Sample.score_reference,
        "wrong answers": Sample.score_garbage,
        **also,
    }
    found = []
    for name, check in checks.items():
        begin(name)
        found.append(_finding(name, partial(check, sample), seconds))
        yield found[-1]
    if all(finding.state == "ok" for finding in found):
        for name, check in if_all_hold.items():
            begin(name)
            yield _finding(name, partial(check, sample), seconds)


def _finding(name: str, check: Callable[[], str], seconds: float) -> Finding:
    try:
        with redirect_stdout(sys.stderr), call_limit.interrupting(seconds):
            return Finding("ok", name, check())
    except (Broken, ConfigError) as found:
        return Finding("no", name, str(found))


class Sample:
    """The first tasks of both splits, and their checks, which raise Broken or TaskError."""

    def __init__(self, source: EnvironmentSource) -> None:
        self.source, self.environment = source, source.make()
        self.tasks = {split: [self.environment.task(i, split) for i in range(SAMPLE)] for split in get_args(Split)}
        for split in get_args(Split):
            self.environment.task(FAR, split)
        self.few = self.tasks["held_out"][:FEW]

    def draw_again(self) -> str:
        """Draw the tasks in another order, from the same environment and from new ones."""
        again, fresh = self.environment, self.source.make()
        for split in reversed(get_args(Split)):
            for index in reversed(range(SAMPLE)):
                _same(self.tasks[split][index], again.task(index, split), index, split, "when it is drawn again")
                _same(self.tasks[split][index], fresh.task(index, split), index, split, "when others come first")
        return "the same when drawn again, in the reverse order, and from a new environment"

    def draw_elsewhere(self) -> str:
        """Draw the tasks in another process, where sets and dictionaries hash differently."""
        try:
            ended = subprocess.run(
                [sys.executable, "-c", "from zorplex_rl.task.checks import draw; draw()"],
                input=pickle.dumps(self.source),
                capture_output=True,
                env=os.environ | {"PYTHONHASHSEED": "4711"},
                timeout=PROCESS_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Broken(
                f"drawing {2 * SAMPLE} tasks took more than {PROCESS_SECONDS:.0f} s in another process"
            ) from error
        if ended.returncode:
            said = ended.stderr.decode(errors="replace").splitlines()[-1:] or [f"exit code {ended.returncode}"]
            raise Broken(f"the tasks cannot be drawn there: {said[0]}")
        drawn = pickle.loads(ended.stdout)
        for split, keys in drawn.items():
            for index, key in enumerate(keys):
                if key != repr(self.tasks[split][index].key):
                    raise Broken(
                        f"task({index}, {split!r}) is another one in another process; use random.Random(text), not hash, sets or the time"
                    )
        return "the same tasks in a process with another PYTHONHASHSEED"

    def send(self) -> str:
        """Pickle the tasks as if for a process that knows the package and not the user's file."""
        for split, tasks in self.tasks.items():
            for index, task in enumerate(tasks):
                try:
                    _Elsewhere(BytesIO(pickle.dumps(task))).load()
                except Exception as error:  # Whatever a user's own class raises.
                    raise Broken(
                        f"task({index}, {split!r}) cannot be sent to another process ({error}); put only numbers, texts, lists and dicts into it"
                    ) from error
        longest = max(len(pickle.dumps(task)) for tasks in self.tasks.values() for task in tasks)
        return f"every task can be sent; the largest has {longest:,} bytes"

    def compare_splits(self) -> str:
        """Look for held-out tasks that training draws, too."""
        training = {repr(task.key[1:]): index for index, task in enumerate(self.tasks["train"])}
        keys = enumerate(repr(task.key[1:]) for task in self.tasks["held_out"])
        found = [(index, training[key]) for index, key in keys if key in training]
        if found:
            (held_out, train), question = found[0], self.tasks["held_out"][found[0][0]].question
            raise Broken(
                f"{len(found)} of {SAMPLE} held-out tasks are in training: held-out {held_out} is training {train}, {question!r:.60}; "
                "let each split draw what the other never does"
            )
        return f"none of {SAMPLE} held-out tasks is among {SAMPLE} training tasks"

    def answer_constantly(self, limit: float) -> str:
        """Count how often the most frequent answer is right."""
        ((answer, count),) = Counter(task.answer for task in self.tasks["held_out"]).most_common(1)
        share = count / SAMPLE
        if share > limit:
            raise Broken(
                f"{answer!r:.40} is right in {share:.0%} of the held-out tasks, so a policy may say only that; the limit is {limit:.0%}"
            )
        return f"the best constant answer, {answer!r:.40}, is right in {share:.1%}"

    def call_tools(self) -> str:
        """Call tools with odd arguments and the question's words, also in a new environment."""
        for index, task in enumerate(self.few):
            arguments = (*ODD_ARGUMENTS, *task.question.split())
            for name in self.environment.tools:
                for argument in arguments if index < 3 else arguments[len(ODD_ARGUMENTS) :]:
                    self._call(task, ToolCall(name, argument, 0))
        if not self.environment.tools:
            return "none"
        return f"text for every one of {len(ODD_ARGUMENTS)} odd arguments, and the same from an environment that drew no task"

    def _call(self, task: Task, call: ToolCall) -> None:
        shown = f"{call.name}[{call.argument!r:.30}]"
        try:
            said, fresh = self.environment.execute(task, call), self.source.make().execute(task, call)
        except TaskError as error:
            raise Broken(f"{shown}: {error}") from error
        if said != fresh:
            raise Broken(
                f"{shown} on {task.question!r:.40} gives {said!r:.40}, and {fresh!r:.40} in an environment that drew no task; "
                f"put what the tool has to know into the task's table"
            )

    def score_reference(self) -> str:
        """Score the text of a perfect solver."""
        for index, task in enumerate(self.few):
            text = self.environment.reference(task)
            scored = self._score(task, [""] * task.min_tool_calls + [text], task.min_tool_calls)
            if scored.outcome != "success" or scored.correct != 1:
                raise Broken(
                    f"{text!r:.60} answers held-out task {index}, {task.question!r:.40}, but scores {scored.outcome}, correct {scored.correct:g}; "
                    f"expected success, 1 (has the environment a reference for its format?)"
                )
        return f"{self.environment.reference(self.few[0])!r:.40} and {len(self.few) - 1} more score 1"

    def score_garbage(self) -> str:
        """Score what is no right answer, with every way to end."""
        references = {task.answer: self.environment.reference(task) for task in self.few}
        tried = 0
        for index, task in enumerate(self.few):
            right = references[task.answer]
            best = max(1.0, self._score(task, [right], task.min_tool_calls).reward)
            others = [text for answer, text in references.items() if answer != task.answer]
            every = " ".join(map(str, [*(a for a in references if a != task.answer), task.answer, *range(30)]))
            garbage = [
                "", " ", "\n", "\x00", self.environment.tools[0] + "[" if self.environment.tools else "?", task.question, "9" * 5000, "-", "+-+",
                right.replace(str(task.answer), ""), right.replace(str(task.answer), "9" * 5000), every,
                f"The answer is one of {every}, but I do not say which.", *others[:3],
            ]  # fmt: skip
            if isinstance(task.answer, int):
                garbage += [right.replace(str(task.answer), str(task.answer + near)) for near in (-1, 1, 10**30)]
                garbage += [right.replace(str(task.answer), f"{task.answer}{tail}") for tail in ("1", ".5")]
            for text in garbage:
                for turns in ([text], [text, text], []) if index < 3 else ([text],):
                    for finish in get_args(Finish):
                        tried += 1
                        scored = self._score(task, list(turns), 0, finish)
                        if scored.outcome == "success" or scored.correct >= 1 or scored.reward >= best:
                            raise Broken(
                                f"{''.join(turns)!r:.60} is no answer to {task.question!r:.40} (right is {task.answer!r:.20}), but scores "
                                f"{scored.outcome}, reward {scored.reward:g}"
                            )
        return f"{tried:,} wrong or meaningless texts score less, and none makes it fail"

    def _score(self, task: Task, turns: list[str], calls: int, finish: Finish = "eos") -> Any:
        self.environment.find_answer("".join(turns))
        scored = self.environment.score(task, list(turns), calls, finish)
        if scored != self.source.make().score(task, list(turns), calls, finish):
            raise Broken(f"{''.join(turns)!r:.60} has another score in an environment that drew no task")
        if scored.outcome == "success" and not isfinite(scored.reward):
            raise Broken(f"the reward of {''.join(turns)!r:.60} is {scored.reward}")
        return scored


def draw() -> None:
    """Read an EnvironmentSource from stdin, and write its first tasks' keys to stdout, pickled."""
    source: EnvironmentSource = pickle.load(sys.stdin.buffer)
    with redirect_stdout(sys.stderr):
        environment: Environment = source.make()
        drawn = {
            split: [repr(environment.task(index, split).key) for index in range(SAMPLE)] for split in get_args(Split)
        }
    sys.stdout.buffer.write(pickle.dumps(drawn))


class _Elsewhere(pickle.Unpickler):
    """Unpickles as a process does that never ran the user's file."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("zorplex_task_"):
            raise pickle.UnpicklingError(f"the class {name} is defined in the task's own file")
        return super().find_class(module, name)


def _same(first: Task, second: Task, index: int, split: str, when: str) -> None:
    if repr(first.key) != repr(second.key):
        raise Broken(
            f"task({index}, {split!r}) is {first.question!r:.40}, and {second.question!r:.40} {when}; draw it from its index alone"
        )
