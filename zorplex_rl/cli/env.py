"""``zorplex-rl env check``: run a task of the user against what a run relies on, one line for each check.

    ok     splits         none of 400 held-out tasks is among 400 training tasks
    no     tools          LOOKUP['']: failed in execute(…): ValueError: invalid literal for int() with base 10: '', in line 21

A *no* names an example. Each check looks at a sample of the tasks, so an *ok* means that nothing was found.
"""

import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import BytesIO
from math import isfinite
from typing import Annotated, Any, Literal, get_args

import tyro

from zorplex_rl.cli.check import Finding
from zorplex_rl.cli.flags import Command
from zorplex_rl.config import Config, check_range
from zorplex_rl.errors import ConfigError, TaskError
from zorplex_rl.task.apart import findings_apart, report
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
TRIED = 8
"""Tasks that the policy answers, and how often it answers each: a training step of a run with the default settings."""
FEW = 25
"""Tasks of which calls and scores are tried."""
PROCESS_SECONDS = 120.0
ODD_ARGUMENTS = (
    "", "no such thing", "-1", "0", "1e999", "9" * 5000, "1/0", "None", "a" * 10_000, "'", '"', "\\", "\x00", "⁷", "٣", "<b>", "a,b", "2**9**9",
)  # fmt: skip
"""What a policy that is still learning writes between the brackets. Brackets and line breaks cannot occur."""


@dataclass(frozen=True)
class Env(Command):
    """Check a task of your own before you train on it: zorplex-rl env check FILE.py:CLASS. Exit code 1 if something is wrong."""

    action: Annotated[Literal["check"], tyro.conf.Positional]
    """What to do; there is only check."""
    task: Annotated[str, tyro.conf.Positional]
    """FILE.py:CLASS, or FILE.py if it has one such class."""
    task_data: str | None = None
    """The text file that the task reads."""
    task_timeout: float = Config.task_timeout
    """Longest time in seconds that one call of the task may take."""
    seed: int = 0
    """Seed that the class is made with."""
    policy: str = "embedded"
    """The policy that is to learn it: embedded, the folder of a model, or a hub id. Its tokenizer measures the prompts, and it answers some
    tasks."""
    max_tokens: int = Config.max_tokens
    """Longest response in tokens."""
    constant_limit: float = 0.25
    """Largest share of held-out tasks for which one constant answer may be right."""


class Broken(Exception):
    """What is wrong, with an example."""


def check_environment(command: Env) -> int:
    """Print a line for each check. Returns the exit code: 1 if one failed."""
    config = Config(
        task=command.task, task_data=command.task_data, task_timeout=command.task_timeout, seed=command.seed,
        max_tokens=command.max_tokens,
    )  # fmt: skip
    config.check()
    if not config.is_own_task:
        raise ConfigError(f"{command.task!r} comes with the package; give the file of a task of your own")
    check_range("constant_limit", command.constant_limit, 0, 1)
    findings = []
    program = "from zorplex_rl.cli.env import report_findings; report_findings()"
    for finding in findings_apart(program, (EnvironmentSource.of(config), command), command.task_timeout):
        findings.append(finding)
        print(f"{finding.state:<5}  {finding.about:<14}  {finding.said}", flush=True)
    wrong = [finding.about for finding in findings if finding.state == "no"]
    chosen = f" --policy {command.policy}" if command.policy != Env.policy else ""
    print(f"\nNot ready: {', '.join(wrong)}." if wrong else f"\nReady: zorplex-rl train --task {command.task}{chosen}")
    return 1 if wrong else 0


def try_apart(source: EnvironmentSource, seconds: float) -> None:
    """Draw the first tasks of ``source`` in a process of their own, before this one does.

    Raises TaskError for what is wrong with one, and if one ends its process, or takes longer than ``seconds`` and cannot be interrupted.
    """
    program = "from zorplex_rl.cli.env import report_first_tasks; report_first_tasks()"
    for finding in findings_apart(program, (source, seconds), seconds):
        raise TaskError(finding.said)


@contextmanager
def calling_here(source: EnvironmentSource, seconds: float) -> Iterator[None]:
    """Let this process call the code of ``source``, each call for ``seconds`` at most. Raises TaskError like ``try_apart``, which comes first."""
    if source.is_own:
        try_apart(source, seconds)
    with call_limit.interrupting(seconds):
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


def report_findings() -> None:
    """Check what the parent process asks for, in this one."""
    report(findings_of)


def findings_of(asked: tuple[EnvironmentSource, Env], begin: Callable[[str], None]) -> Iterator[Finding]:
    """Yield one finding for each check, after ``begin(name)``. What the user's code prints goes to standard error.

    Nothing follows if no task can be drawn.
    """
    source, command = asked
    try:
        with redirect_stdout(sys.stderr), call_limit.interrupting(command.task_timeout):
            sample = Sample(source)
    except TaskError as error:
        yield Finding("no", "contract", str(error))
        return
    tools = f"tools {', '.join(sample.environment.tools)}" if sample.environment.tools else "no tools"
    yield Finding("ok", "contract", f"{tools}; {SAMPLE} tasks of each split, and task {FAR:,}")
    checks: dict[str, Callable[[], str]] = {
        "same tasks": sample.draw_again,
        "new process": sample.draw_elsewhere,
        "pickling": sample.send,
        "splits": sample.compare_splits,
        "answers": lambda: sample.answer_constantly(command.constant_limit),
        "tools": sample.call_tools,
        "right answers": sample.score_reference,
        "wrong answers": sample.score_garbage,
        "prompts": lambda: sample.measure_prompts(command.policy, command.max_tokens),
    }
    found = []
    for name, check in checks.items():
        begin(name)
        found.append(_finding(name, check, command.task_timeout))
        yield found[-1]
    if all(finding.state == "ok" for finding in found):
        # What a policy does with a task that is not in order says little.
        begin("policy")
        yield _finding("policy", lambda: sample.try_policy(command.policy, command.max_tokens), command.task_timeout)


def _finding(name: str, check: Callable[[], str], seconds: float) -> Finding:
    try:
        with redirect_stdout(sys.stderr), call_limit.interrupting(seconds):
            return Finding("ok", name, check())
    except (Broken, ConfigError) as found:
        return Finding("no", name, str(found))


class Sample:
    """The first tasks of both splits, and the checks on them. Each check returns what it found, or raises Broken or TaskError."""

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
        """Draw the tasks in another process, whose sets and dictionaries have another order of hashes."""
        try:
            ended = subprocess.run(
                [sys.executable, "-c", "from zorplex_rl.cli.env import draw; draw()"],
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
            said = ended.stderr.decode(errors="replace").splitlines()[-1:] or [
                f"it ended with exit code {ended.returncode}"
            ]
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
        found = [
            (i, training[key]) for i, t in enumerate(self.tasks["held_out"]) if (key := repr(t.key[1:])) in training
        ]
        if found:
            (held_out, train), question = found[0], self.tasks["held_out"][found[0][0]].question
            raise Broken(
                f"{len(found)} of {SAMPLE} held-out tasks are in training: held-out {held_out} is training {train}, {question!r:.60}"
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
        """Call every tool with odd arguments and with words of the question, here and in an environment that has drawn no task."""
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

    def measure_prompts(self, policy: str, max_tokens: int) -> str:
        """Count the tokens of the prompts with the tokenizer of ``policy``."""
        from zorplex_rl.policy.load import check_policy, fast_tokenizer, positions_of

        folder = check_policy(policy)
        tokenizer, positions = fast_tokenizer(folder), positions_of(folder)
        if tokenizer is None or positions is None:
            return f"not measured: the policy {policy!r} has no tokenizer.json, or does not say how much it reads"
        tasks = [task for tasks in self.tasks.values() for task in tasks]
        longest, task = max(
            ((len(tokenizer.encode(task.system + task.question).ids), task) for task in tasks), key=lambda pair: pair[0]
        )
        if longest + max_tokens > positions:
            raise Broken(
                f"{task.question!r:.40} takes {longest} tokens, and with --max-tokens {max_tokens} that is more than the {positions} that {policy!r} "
                f"reads; shorten the prompts or the responses"
            )
        return f"the longest takes {longest} tokens; with --max-tokens {max_tokens} that fits the {positions} that {policy!r} reads"

    def try_policy(self, name: str, max_tokens: int) -> str:
        """Have the policy answer training tasks, several times each, and compare the rewards as a run does."""
        from zorplex_rl.learning.learning_signal import why_no_reward_varies
        from zorplex_rl.policy.load import load_policy
        from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout

        requests = [
            RolloutRequest(task, seed, group)
            for group, task in enumerate(self.tasks["train"][:TRIED])
            for seed in range(group * TRIED, (group + 1) * TRIED)
        ]
        sampling = Sampling(max_tokens=max_tokens, slots=len(requests))
        episodes = rollout(
            load_policy(name), requests, self.environment.execute, sampling, environment=self.environment
        )
        rewards: dict[int, set[float]] = {}
        for episode in episodes:
            episode.score = self.environment.score(*episode.attempt)
            rewards.setdefault(episode.group, set()).add(episode.score.reward)
        if varied := sum(len(found) > 1 for found in rewards.values()):
            calling, right = (
                sum(e.tool_calls > 0 for e in episodes),
                sum(e.scored.outcome == "success" for e in episodes),
            )
            answered = sum(e.scored.answer is not None for e in episodes)
            return (
                f"{name!r} calls a tool in {calling} of {len(episodes)} episodes, answers in the format in {answered}, and is right in {right}; "
                f"rewards vary within {varied} of {TRIED} groups"
            )
        raise Broken(
            f"{name!r} cannot learn it: no reward varies within {TRIED} groups of {TRIED} episodes, as {why_no_reward_varies(episodes)}; "
            f"try another one with --policy"
        )


def draw() -> None:
    """Read an EnvironmentSource from standard input, and write the keys of its first tasks to standard output, pickled."""
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
