"""Tasks of the user: what can be wrong with one, what ``env check`` finds, and real runs on the two
in ``examples/``."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from runs import SMALL, as_flags, command, rows, train_here

from zorplex_rl.cli.commands import main
from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError, TaskError
from zorplex_rl.policy.load import load_policy
from zorplex_rl.policy.tool_loop import PartialEpisode, Sampling, ToolLoop, encode_text
from zorplex_rl.run_folder import RunFolder
from zorplex_rl.task.call_limit import MARK_BYTES, call_limit
from zorplex_rl.task.episode import Episode
from zorplex_rl.task.parser import ToolCall, find_answer, find_call
from zorplex_rl.task.source import EnvironmentSource

EXAMPLES = Path(__file__).parents[2] / "examples"
LOCKERS, WORDS, PROBLEMS = (str(EXAMPLES / name) for name in ("lockers.py", "word_problems.py", "word_problems.jsonl"))
GOOD = """
import random
from zorplex_rl.task.environment import Environment
from zorplex_rl.task.episode import Task
from zorplex_rl.task.rewards import Score

class Doubling(Environment):
    tools = ("DOUBLE",)

    def task(self, index, split):
        number = random.Random(f"{self.seed}:{split}:{index}").randrange(10**6) * 2 + (split == "train")
        return Task("doubling", f"Double {number}?", 2 * number, 1, "DOUBLE[n] doubles. End with [ANSWER] and the integer.")

    def execute(self, task, call):
        return str(2 * int(call.argument)) if call.argument.isascii() and call.argument.isdecimal() and len(call.argument) < 99 else "ERROR"
"""


def source(code: str, name: str = "tasks.py") -> EnvironmentSource:
    return EnvironmentSource(name, code=code)


def changed(*changes: tuple[str, str]) -> str:
    """``GOOD`` with parts of it replaced."""
    code = GOOD
    for old, new in changes:
        assert old in code
        code = code.replace(old, new)
    return code


def test_another_tool_and_another_tag_are_read_by_the_same_parser():
    assert find_call("DOUBLE[4]", ("DOUBLE",)) == ToolCall("DOUBLE", "4", 9)
    assert find_call("DOUBLE[4]") is None and find_call("LOOKUP[blip]", ()) is None
    texts = ("#### 12", "#### 1,200", "#### 12 or 13", "12", "#### 3 no, #### -4", "[ANSWER] 12")
    assert [find_answer(text, "####") for text in texts] == [12, None, None, None, -4, None]


def test_sampling_stops_at_the_answer_of_the_environment_and_calls_only_its_tools():
    policy, calls = load_policy(), []
    environment = EnvironmentSource.of(Config(task=WORDS, task_data=PROBLEMS)).make()
    loop = ToolLoop(policy, lambda task, call: calls.append(call) or "17", Sampling(), environment)
    episode = Episode(environment.task(0, "train"), [], [], [], [], [], "eos")
    row = PartialEpisode(0, episode, random.Random(0), 0.0)
    ends = [loop.extend(row, token, 0.0) for token in encode_text(policy.tokenizer, "LOOKUP[blip]\n12*7=84\n#### 84\n")]
    assert ends[-1] == "answer" and not any(ends[:-1]) and calls == []


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("class Sums(:\n", "'tasks.py' cannot be run: SyntaxError: .*, in line 1"),
        ("x = 1\n\n1 / 0\n", "cannot be run: ZeroDivisionError: division by zero, in line 3"),
        ("import no_such_package\n", "cannot be run: ModuleNotFoundError: No module named 'no_such_package', in line 1"),
        ("import sys; sys.exit(3)\n", "cannot be run: SystemExit: 3"),
        ("x = 1\n", "has 0 environments; define a class that has a method task"),
        (GOOD + "\nclass Other(Doubling): pass\n", "has 2 environments; name one of Doubling, Other after a colon"),
        ("class Sums:\n    def task(self, index, split): ...\n", "has no execute and no find_answer and no score; inherit from"),
        (changed(('("DOUBLE",)', '"DOUBLE"')), "the tools of 'tasks.py' are 'DOUBLE'; expected a tuple of names"),
        (GOOD + "\n    def __init__(self): pass\n", "cannot be made with .*TypeError: .*takes 1 positional argument"),
        (changed(("def task(", "def draw(")), "the class Doubling of 'tasks.py' has no task; inherit from"),
        (GOOD + "\n    answer_tag = None\n", "the answer_tag of 'tasks.py' is None; expected a text such as"),
        (GOOD + "\n    answer_tag = ' '\n", "the answer_tag of 'tasks.py' is ' '; expected a text such as"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said_in_one_sentence(code, expected):
    with pytest.raises(TaskError, match=expected) as error:
        source(code).make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (changed(("2 * number, 1", "number / 2, 1")), r"the answer of task\(7, 'train'\) is .*; expected int or str"),
        (
            changed(("2 * number, 1", "10**5000, 1")),
            r"the answer of task\(7, 'train'\) has about 5,000 digits; expected at most 4,000",
        ),
        (
            changed(("2 * number, 1", "[0] * 10**6, 1")),
            r"the answer of task\(7, 'train'\) is .{60}; expected int or str",
        ),
        (changed(('return Task("doubling", ', "return (")), r"task\(7, 'train'\) returned \(.*; expected Task"),
        (changed(("number = random", "number = self.no.such")), "failed in task.*AttributeError: .*, in line 11"),
        (
            changed(("2 * number, 1", "2 * number, -1")),
            r"the min_tool_calls of task\(7, 'train'\) is -1; expected 0 to 1000",
        ),
        (
            changed(("2 * number, 1", "2 * number, 10**9")),
            r"the min_tool_calls of .* is 1000000000; expected 0 to 1000",
        ),
        (
            changed(("Double {number}?", "\\ud800")),
            r"the question of task\(7, 'train'\) has the character '\\ud800', which UTF-8",
        ),
        (
            changed(("number = random", "raise ValueError; number = random")),
            r"failed in task\(7, 'train'\): ValueError, in line 11",
        ),
        (
            changed(("number = random", "raise ValueError('\\ud800'); number = random")),
            r"ValueError: \\ud800, in line 11",
        ),
        (
            changed(("number = random", "raise GeneratorExit; number = random")),
            "failed in task.*: GeneratorExit, in line 11",
        ),
        (
            changed(("number = random", "raise BaseExceptionGroup('x', [KeyboardInterrupt()]); n = random")),
            "failed in task.*, in line 11",
        ),
        (
            "class Odd(Exception):\n    __str__ = None\n" + changed(("number = random", "raise Odd; number = random")),
            "Odd: its text cannot be shown",
        ),
        (
            changed(("Double {number}?", "Double {number}?{' ' * 10**6}")),
            r"the question of task\(7, 'train'\) has 1,000,\d* characters; expected at most 100,000",
        ),
        (
            "class Odd:\n    __repr__ = None\n" + changed(('return Task("doubling", ', "return Odd() or (")),
            r"failed in task\(7, 'train'\): TypeError",
        ),
        (
            changed((", 2 * number, 1", ", Odd(), 1")) + "\nclass Odd:\n    def __repr__(self): raise SystemExit(4)\n",
            r"failed in task\(7, 'train'\): SystemExit: 4",
        ),
    ],
)
def test_what_is_wrong_with_a_task_is_said_in_one_sentence(code, expected):
    with pytest.raises(TaskError, match=expected):
        source(code).make().task(7, "train")


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ("Score('right', 0, 1.0, 0.0, 0.0)", "the outcome of .* is 'right'; expected one of success, wrong_answer"),
        ("Score('success', 0, '1', 0.0, 0.0)", "correct in the score of .* is '1'; expected int or float"),
        ("Score('success', 0, 1.0, None, 0.0)", "format in the score of .* is None; expected int or float"),
        (
            "Score('success', [4], 1.0, 0.0, 0.0)",
            r"answer in the score of .* is \[4\]; expected int or str or NoneType",
        ),
        ("Score('success', 10**5000, 1.0, 0.0, 0.0)", "the answer in the score of .* has about 5,000 digits; expected"),
        ("Score('success', 4, 1.0, 0.0, float('-inf'))", "the reward of .* is -inf; expected a finite number"),
    ],
)
def test_what_is_wrong_with_a_score_is_said_in_one_sentence(returned, expected):
    own = source(
        changed(("    def execute", f"    def score(self, *rest):\n        return {returned}\n\n    def execute"))
    )
    with pytest.raises(TaskError, match=expected):
        own.make().score(own.make().task(0, "train"), ["4"], 0, "eos")


@pytest.mark.parametrize(
    "change",
    [
        ("number = random", "raise Odd; number = random"),
        (", 2 * number, 1", ", Odd(), 1"),
    ],
)
def test_a_text_that_the_users_code_never_finishes_is_one_sentence(change):
    code = (
        "class Odd(Exception):\n    def __str__(self):\n        while True: pass\n    __repr__ = __str__\n"
        + changed(change)
    )
    with call_limit.interrupting(0.3), pytest.raises(TaskError, match=r"failed in task\(7, 'train'\)"):
        source(code).make().task(7, "train")


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ("'\\ud800' if", r"has the character '\\ud800'"),
        ("'x' * 10**8 if", "has 100,000,000 characters; expected at most 100,000"),
    ],
)
def test_a_result_that_no_tokenizer_takes_is_refused(result, why):
    own = source(changed((RESULT, result))).make()
    with pytest.raises(TaskError, match=rf"what execute\('Double .*', 'DOUBLE\[4\]'\) returned {why}"):
        own.execute(own.task(0, "train"), ToolCall("DOUBLE", "4", 0))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--task", "no_such.py:Sums"], "--task is 'no_such.py', which cannot be read (No such file or directory)"),
        (["--task", "."], "mix, or FILE.py:CLASS"),
        (["--task", f"{LOCKERS}:Sums"], "there is no class Sums; name one of Lockers after a colon"),
        (["--task", LOCKERS, "--difficulty", "hard"], "--difficulty is about Zorplex tasks, and --task is"),
        (["--task", LOCKERS, "--task-data", "no.jsonl"], "--task-data is 'no.jsonl', which cannot be read"),
        (["--task", LOCKERS, "--max-turns", "2"], "--max-turns is 2, but the shortest answer takes 3"),
        (["--task", LOCKERS, "--max-tokens", "1020"], "the policy reads at most 1024 tokens"),
        (["--task", WORDS], "there are 0 problems, and 5 are needed; give a file with --task-data"),
        (["--task-data", PROBLEMS], "--task-data is for a task of your own, and --task is compositional"),
    ],
)
def test_a_run_on_a_task_that_cannot_work_is_refused_before_it_begins(arguments, expected, tmp_path, capsys):
    assert main(["train", *arguments, "--out", str(tmp_path / "run")]) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


NUMBER, SYSTEM, RESULT = "number = random", 'and the integer.")', "str(2 * int(call.argument)) if"
SCORE = """    def score(self, task, turns, calls, finish):
        right = any(str(task.answer) in turn for turn in turns)
        return Score('success' if right else 'wrong_format', None, float(right), 0.0, 0.0)

    def execute"""
NAN = "    def score(self, *rest):\n        return Score('success', 0, float('nan'), 0.0, 0.0)\n\n    def execute"
BARE = "    def find_answer(self, text):\n        return int(text.split()[-1])\n\n    def execute"
SECRET = "class Secret:\n    def __repr__(self): return ''\n\nclass Doubling"
FAULTS = {
    "new process": [("{self.seed}:{split}:{index}", "{self.seed}:{split}:{index}:{hash('a')}")],
    "same tasks": [(NUMBER, "self.n = getattr(self, 'n', 0) + 1; number = 2 * (self.n > 1000) + random")],
    "pickling": [(SYSTEM, "and the integer.\", table={'f': Secret()})"), ("class Doubling", SECRET)],
    "splits": [("{self.seed}:{split}:{index}", "{self.seed}:{index}"), (' * 2 + (split == "train")', "")],
    "answers": [("2 * number, 1", "number % 2, 1")],
    "tools": [(RESULT, "str(2 * int(call.argument)) if True or")],
    "right answers": [("tools = (", "def find_answer(self, text): return None\n    tools = (")],
    "wrong answers": [("    def execute", SCORE)],
    "prompts": [("Double {number}?", "Double {number}?{'!?' * 2000}")],
}
"""For each check a fault that it, and no check before it, should find."""


@pytest.fixture
def env_check(tmp_path, capsys):
    """The exit code of ``env check`` on a text, and what it said to each check."""

    def run(code: str, *arguments: str) -> tuple[int, dict[str, str]]:
        (tmp_path / "tasks.py").write_text(code)
        exit_code = main(["env", "check", str(tmp_path / "tasks.py"), *arguments])
        lines = [line for line in capsys.readouterr().out.splitlines() if line[:2] in ("ok", "no")]
        return exit_code, {line[7:21].strip(): line for line in lines}

    return run


def test_a_good_environment_passes_every_check(env_check):
    code, found = env_check(GOOD, "--max-tokens", "32")
    # The embedded policy cannot write the name of its tool; that is no fault of the task.
    assert code == 1 and [name for name, line in found.items() if line.startswith("no")] == ["policy"]
    assert set(found) == {"contract", *FAULTS, "policy"}


@pytest.mark.parametrize("check", FAULTS)
def test_each_check_finds_its_fault_and_the_other_checks_do_not(check, env_check):
    code, found = env_check(changed(*FAULTS[check]))
    assert code == 1
    assert [name for name, line in found.items() if line.startswith("no")] == [check]


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ([("    def execute", BARE)], "wrong answers"),
        ([("return Task(", "self.last = number; return Task("), (RESULT, "str(getattr(self, 'last', 0)) if")], "tools"),
        ([(RESULT, "2 * int(call.argument) if")], "tools"),
        ([("    def execute", NAN)], "right answers"),
        ([(NUMBER, "assert index < 1000; number = random")], "contract"),
    ],
)
def test_more_faults(changes, check, env_check):
    code, found = env_check(changed(*changes))
    assert code == 1 and found[check].startswith("no")


@pytest.mark.parametrize(
    ("changes", "check", "line"),
    [
        ([("import random", "while True: pass\nimport random")], "contract", 2),
        ([(NUMBER, "while True: pass\n        number = random")], "contract", 11),
        ([("return str(2", "while True:\n            try: pass\n            except Exception: pass\n        return str(2")], "tools", 15),
    ],
)  # fmt: skip
def test_code_that_never_returns_is_interrupted_and_named(changes, check, line, env_check):
    code, found = env_check(changed(*changes), "--task-timeout", "0.5")
    assert code == 1 and found[check].startswith("no")
    assert f"TimeoutError: it has not returned within 0.5 s (--task-timeout), in line {line}" in found[check]


ENDS = "import os, signal, asyncio\n" + GOOD
SLOW_SCORE = """
    def score(self, task, turns, tool_calls, finish):
        while True: pass
"""
FORK = "if os.fork() == 0: number = 1\n        number = random"


@pytest.mark.parametrize(
    ("code", "check", "said"),
    [
        ("import os\nos._exit(5)\n" + GOOD, "contract", "cannot be run: it has ended its process (exit code 5)"),
        (ENDS.replace(NUMBER, "os._exit(0); number = random"), "contract", ", in task(0, 'train'): it has ended its process (exit code 0)"),
        (ENDS.replace(RESULT, "os.abort() if True or"), "tools", "DOUBLE[]'): it has ended its process (killed by SIGABRT)"),
        (ENDS.replace(RESULT, "str(sum(range(10**15))) if True or"), "tools", "it has not returned within 0.5 s (--task-timeout), and cannot"),
        (ENDS.replace(RESULT, "'x' * 10**15 if True or"), "tools", "MemoryError"),
        (ENDS.replace(NUMBER, FORK), "contract", "its code forks"),
        (ENDS.replace(NUMBER, "raise asyncio.CancelledError; number = random"), "contract", "CancelledError, in line "),
    ],
)  # fmt: skip
def test_code_that_ends_its_process_or_lets_nothing_else_run_is_named_too(code, check, said, env_check):
    exit_code, found = env_check(code, "--task-timeout", "0.5")
    assert exit_code == 1 and found[check].startswith("no") and said in found[check]


def test_code_that_leaves_its_process_no_memory_is_named_without_a_traceback(tmp_path):
    limit = "setrlimit(RLIMIT_AS, (1, 1)) or 'x' if True or"
    (tmp_path / "tasks.py").write_text("from resource import *\n" + ENDS.replace(RESULT, limit))
    command = [sys.executable, "-m", "zorplex_rl", "env", "check", str(tmp_path / "tasks.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    print(done.stdout, done.stderr)
    assert done.returncode == 1 and "\nno" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_run_whose_task_ends_its_process_is_refused_in_one_sentence(tmp_path, capsys):
    (tmp_path / "tasks.py").write_text(ENDS.replace(NUMBER, "os._exit(5); number = random"))
    assert main(["train", "--task", str(tmp_path / "tasks.py"), "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "in task(0, 'train'): it has ended its process (exit code 5)" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("eval", ENDS.replace(NUMBER, "os._exit(5); number = random"), "in task(0, 'train'): it has ended its process (exit code 5)"),
        ("size", ENDS.replace(NUMBER, "os._exit(5); number = random"), "in task(0, 'train'): it has ended its process (exit code 5)"),
        ("eval", GOOD + SLOW_SCORE, "TimeoutError: it has not returned within 0.5 s (--task-timeout), in line"),
    ],
)  # fmt: skip
def test_other_commands_survive_the_code_of_a_task_too(command, code, said, tmp_path, capsys):
    (tmp_path / "tasks.py").write_text(code)
    more = ("--tasks", "2", "--max-tokens", "16") if command == "eval" else ()
    assert main([command, "--task", str(tmp_path / "tasks.py"), "--task-timeout", "0.5", *more]) == 2
    complaint = capsys.readouterr().err.splitlines()[-1]
    assert complaint.startswith("zorplex-rl: ") and said in complaint


def test_a_check_whose_command_was_killed_ends_without_a_word():
    program = "from zorplex_rl.task.apart import report; report(lambda asked, begin: iter([begin('contract')]))"
    reading, writing = os.pipe()
    os.close(reading)
    with tempfile.TemporaryFile() as mark:
        mark.truncate(MARK_BYTES)
        done = subprocess.run(
            [sys.executable, "-c", program, str(writing), str(mark.fileno())],
            input=pickle.dumps(None), pass_fds=(writing, mark.fileno()), capture_output=True,
        )  # fmt: skip
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_limit_of_constant_answers_can_be_set(env_check):
    code, found = env_check(changed(*FAULTS["answers"], *FAULTS["prompts"]), "--constant-limit", "1")
    assert code == 1 and "right in 100" in found["answers"] and found["answers"].startswith("ok")


def test_an_example_that_the_embedded_policy_can_learn_passes_every_check(capsys):
    code, said = main(["env", "check", LOCKERS]), capsys.readouterr().out
    assert code == 0 and "'embedded' calls a tool in 5" in said and "rewards vary within" in said, said


def test_an_example_that_the_embedded_policy_cannot_read_passes_every_other_check(capsys):
    code, said = main(["env", "check", WORDS, "--task-data", PROBLEMS, "--max-tokens", "64"]), capsys.readouterr().out
    assert code == 1 and said.endswith("Not ready: policy.\n"), said
    assert "'embedded' cannot learn it: no reward varies within 8 groups of 8 episodes" in said


def test_the_task_in_the_readme_passes_the_checks_except_that_the_embedded_policy_cannot_learn_it(env_check):
    readme = (EXAMPLES.parent / "README.md").read_text()
    (task,) = (block for block in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "(Environment)" in block)
    code, found = env_check(task, "--max-tokens", "64")
    assert [name for name, line in found.items() if line.startswith("no")] == ["policy"] and code == 1
    assert "none of 64 episodes called a tool; perhaps the policy cannot write" in found["policy"]


def test_the_example_with_a_tool_is_at_most_eighty_lines_long():
    assert len(Path(LOCKERS).read_text().splitlines()) <= 80


def test_a_source_goes_to_other_processes_with_its_text_and_needs_no_file():
    again = pickle.loads(pickle.dumps(source(GOOD, "gone.py:Doubling")))
    environment = again.make()
    assert environment.execute(environment.task(0, "train"), ToolCall("DOUBLE", "21", 0)) == "42"


def test_an_installed_package_names_its_environments_in_entry_points(tmp_path):
    (tmp_path / "doubling.py").write_text(GOOD)
    info = tmp_path / "doubling-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: doubling\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[zorplex_rl.environments]\ntwice = doubling:Doubling\n")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from zorplex_rl.config import Config\nfrom zorplex_rl.task.source import EnvironmentSource\n"
        "source = EnvironmentSource.of(Config(task='twice'))\n"
        "print(source.make().task(3, 'train').kind, EnvironmentSource.from_json(source.to_json()) == source)\n"
        "try:\n    EnvironmentSource.of(Config(task='thrice'))\nexcept ValueError as error:\n    print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.startswith("doubling True\n--task is 'thrice'; expected one of simple")
    assert "or twice of the installed packages" in said


def small_run(folder: Path, code: str = GOOD, **settings) -> Config:
    file = folder / "tasks.py"
    file.write_text(code)
    return SMALL.changed(task=str(file), **settings)


def test_a_run_keeps_the_text_of_its_task_and_a_resume_notices_a_change(tmp_path):
    config = small_run(tmp_path)
    folder = RunFolder.create(tmp_path / "run", config)
    kept = json.loads((folder.path / "environment.json").read_text())
    assert kept["code"] == GOOD and kept["task"] == config.task and len(kept["sha256"]) == 64
    original = folder.environment(config)
    (tmp_path / "tasks.py").unlink()
    assert folder.environment(config) == original
    (tmp_path / "tasks.py").write_text(GOOD + "# changed\n")
    with pytest.raises(ConfigError, match="have changed since this run began; restore it, or start anew"):
        folder.environment(config)
    (folder.path / "environment.json").write_text(json.dumps(kept | {"code": GOOD + "# changed\n"}))
    with pytest.raises(ConfigError, match="does not match its checksum"):
        folder.environment(config)
    (folder.path / "environment.json").unlink()
    assert folder.environment(config).code == GOOD + "# changed\n"


@pytest.mark.long
def test_a_run_goes_on_after_its_file_is_gone(tmp_path):
    config = small_run(tmp_path, Path(LOCKERS).read_text(), tool_latency=0.001)
    train_here(config, tmp_path / "run")
    (tmp_path / "tasks.py").unlink()
    with command("train", "--resume", str(tmp_path / "run"), "--steps", "6") as running:
        code, said = running.finish()
    assert code == 0, said
    assert [row["step"] for row in rows(tmp_path / "run", "step")] == [1, 2, 3, 4, 5, 6]
    assert rows(tmp_path / "run", "eval")[-1]["kinds"].keys() == {"lockers"}


@pytest.mark.long
def test_the_policy_learns_a_tool_that_answers_differently_from_those_it_knows(tmp_path):
    """A short form of the run in benchmarks/LOG.md."""
    config = Config(task=LOCKERS, steps=20, eval_every=1000, device="cpu")
    folder = train_here(config, tmp_path / "run")
    before, after = folder.evaluations()
    assert after["sampled_accuracy"] >= before["sampled_accuracy"] + 0.2


@pytest.mark.long
def test_word_problems_run_with_a_policy_that_cannot_read_them(tmp_path, capsys):
    config = SMALL.changed(task=WORDS, task_data=PROBLEMS, steps=2, max_tokens=32)
    train_here(config, tmp_path / "run")
    final = rows(tmp_path / "run", "eval")[-1]
    assert final["kinds"].keys() == {"word_problem"} and final["greedy_accuracy"] == 0
    flags = shlex.split(
        f"--tasks 8 --task {WORDS} --task-data {PROBLEMS} --max-tokens 16 --json {tmp_path / 'report.json'}"
    )
    assert main(["eval", "--policy", str(tmp_path / "run" / "policy"), *flags]) == 0
    (report,) = json.loads((tmp_path / "report.json").read_text())["tasks"]
    assert report["name"] == WORDS and report["episodes"] == 8 and report["accuracy"] == 0
    assert "WordProblems" in capsys.readouterr().out or "word_problems" in report["name"]


def test_a_run_ends_when_a_task_that_is_drawn_twice_is_another_one(tmp_path):
    code = changed((NUMBER, "self.n = getattr(self, 'n', 0) + 1; number = self.n // 3 + random"))
    (tmp_path / "tasks.py").write_text(code)
    arguments = as_flags(SMALL.changed(task=str(tmp_path / "tasks.py"), steps=2))
    with command("train", *arguments, "--out", str(tmp_path / "run")) as running:
        exit_code, said = running.finish()
    assert exit_code == 1 and "Traceback" not in said
    assert "task(0, 'train') was drawn twice and is not the same: 'Double " in " ".join(said.split())
