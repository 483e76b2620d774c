"""Tasks of the user: what is wrong with one, what its tools answer, what ``env check`` finds, and
real runs on the two in ``examples/``."""

from __future__ import annotations

import pickle
import random
import re
import time
from pathlib import Path

import pytest
from runs import SMALL, command, rows, train_here

from zorplex_rl.cli.commands import main
from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError, TaskError
from zorplex_rl.policy.load import load_policy
from zorplex_rl.policy.requests import Sampling
from zorplex_rl.policy.tokenizer import encode_text
from zorplex_rl.policy.tool_loop import PartialEpisode, ToolLoop
from zorplex_rl.simulation.what_if import read_recording, replay
from zorplex_rl.task.episode import Episode
from zorplex_rl.task.own_task import EnvironmentSource
from zorplex_rl.task.parser import ToolCall, find_answer, find_call

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LOCKERS, WORDS, PROBLEMS = (
    str(ROOT / "examples" / name)
    for name in ("lockers.py", "word_problems.py", "word_problems.jsonl")
)
(GOOD,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "OWN_TASK.md").read_text(), re.DOTALL)
"""The task of the documentation."""


def source(code: str, name: str = "tasks.py", **settings) -> EnvironmentSource:
    return EnvironmentSource((name,), code=code, **settings)


def changed(*changes: tuple[str, str]) -> str:
    """``GOOD`` with parts of it replaced."""
    code = GOOD
    for old, new in changes:
        assert old in code
        code = code.replace(old, new)
    return code


NUMBER, RESULT = "number = 2 * random", "return str("


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
    ends = [
        loop.extend(row, token, 0.0)
        for token in encode_text(policy.tokenizer, "LOOKUP[blip]\n12*7=84\n#### 84\n")
    ]
    assert ends[-1] == "answer" and not any(ends[:-1]) and calls == []


def test_a_byte_order_mark_in_the_files_is_read_over(tmp_path):
    task, data = tmp_path / "tasks.py", tmp_path / "data.txt"
    task.write_text(GOOD, encoding="utf-8-sig")
    data.write_text("17", encoding="utf-8-sig")
    found = EnvironmentSource.of(Config(task=str(task), task_data=str(data)))
    assert found.data == "17" and found.make().task(0, "train").answer


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("class Sums(:\n", r"SyntaxError: .*tasks.py, line 1"),
        ("x = 1\n\n1 / 0\n", "ZeroDivisionError: division by zero, in line 3 of tasks.py"),
        ("x = 1\n", "tasks.py has none"),
        (changed(("def task(", "def draw(")), "tasks.py has none"),
        (GOOD + "\nclass Other(Doubling): pass\n", "tasks.py has Doubling, Other"),
        (GOOD + "\n    def __init__(self): pass\n", r"Doubling\(0, data\): TypeError"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(code, named):
    with pytest.raises(TaskError, match=named):
        source(code).make()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (("return Task(", "return ("), r"^task\(7, 'train'\) of 'tasks.py' returned \('doubling'"),
        (
            ("2 * number, 1", "2.0 * number, 1"),
            r"^task\(7, 'train'\) of 'tasks.py' returned Task.* an int or a str$",
        ),
        (
            (NUMBER, "number = self.no.such"),
            r"^task\(7, 'train'\): AttributeError: .*, in line \d+ of tasks.py$",
        ),
        ((NUMBER, "next(iter([])); " + NUMBER), r"^task\(7, 'train'\): StopIteration"),
    ],
)
def test_what_is_wrong_with_a_task_ends_the_run_and_is_named(change, named):
    with pytest.raises(TaskError, match=named):
        source(changed(change)).make().task(7, "train")


@pytest.mark.parametrize("error", ["SystemExit", "asyncio.CancelledError", "GeneratorExit"])
def test_what_ends_a_program_ends_no_process_of_a_run_but_is_named(error):
    """At import, in the class, and in each of its methods."""
    raising, named = f"raise {error}('over')", f"{error.rpartition('.')[2]}: over, in line"

    def in_method(name: str) -> EnvironmentSource:
        return source(f"import asyncio\n{GOOD}\n    def {name}(self, *rest):\n        {raising}\n")

    for broken in (
        source(f"import asyncio\n{raising}\n"),
        in_method("__init__"),
        in_method("examples"),
    ):
        with pytest.raises(TaskError, match=named):
            broken.make()
    for name, arguments in {
        "task": (0, "train"),
        "find_answer": ("4",),
        "reference": (None,),
    }.items():
        own = in_method(name).make()
        with pytest.raises(TaskError, match=rf"^{name}\(.*\): {named}"):
            getattr(own, name)(*arguments)


def test_ctrl_c_in_a_user_s_code_is_still_ctrl_c():
    with pytest.raises(KeyboardInterrupt):
        source("raise KeyboardInterrupt\n").make()


def test_a_score_that_raises_ends_the_run_and_is_named():
    own = source(
        GOOD + "\n    def score(self, *rest):\n        raise ValueError('no score')\n"
    ).make()
    with pytest.raises(
        TaskError,
        match=r"^score\('Double \d+\?', \['4'\], 0, 'eos'\): ValueError: no score, in line",
    ):
        own.score(own.task(0, "train"), ["4"], 0, "eos")


def scored(correct: str) -> EnvironmentSource:
    """A task with a score of its own."""
    given = f"Score('success', None, {correct}, 0.0, 0.0)"
    imports = "import numpy, torch\nfrom zorplex_rl.task.episode import Score\n"
    return source(f"{imports}{GOOD}\n    def score(self, *rest):\n        return {given}\n")


@pytest.mark.parametrize(
    "correct", ["numpy.float32(0.5)", "torch.tensor(0.5)", "numpy.int64(1) / 2"]
)
def test_a_reward_of_any_library_becomes_a_number(correct):
    own = scored(correct).make()
    reward = own.score(own.task(0, "train"), ["4"], 0, "eos").reward
    assert type(reward) is float and reward == 0.5


@pytest.mark.parametrize(
    "own",
    [
        *map(scored, ("None", "float('nan')", "torch.tensor([1.0, 2.0])", "numpy.inf", "'high'")),
        source(GOOD + "\n    def score(self, *rest):\n        return 0.5\n"),
    ],
)
def test_a_reward_that_is_no_finite_number_ends_the_run_and_the_file_is_named(own):
    own = own.make()
    with pytest.raises(
        TaskError,
        match=r"^score of 'tasks.py' returned .* for 'Double \d+\?'; expected a Score of finite",
    ):
        own.score(own.task(0, "train"), ["4"], 0, "eos")


EXAMPLES = """
    def examples(self, count):
        return [("Double 4?", "DOUBLE[4] -> 8 [ANSWER] 8"), ("Double 5?", "DOUBLE[5] -> 10 [ANSWER] 10")]
"""


def test_worked_examples_are_shown_as_many_as_asked_for_and_refused_where_there_are_fewer():
    for shots in (0, 1, 2):
        task = source(GOOD + EXAMPLES, shots=shots).make().task(0, "train")
        assert [question for question, _ in task.examples] == ["Double 4?", "Double 5?"][:shots]
    for code, there in ((GOOD + EXAMPLES, 2), (GOOD, 0)):
        with pytest.raises(
            TaskError, match=rf"^--shots is 3, but examples\(3\) of 'tasks.py' returns {there};"
        ):
            source(code, shots=3).make()


CALL = ToolCall("DOUBLE", "moon", 0)


@pytest.mark.parametrize("error", ["SystemExit", "asyncio.CancelledError", "KeyboardInterrupt"])
def test_a_tool_that_ends_a_program_has_answered_with_that_at_once(error):
    own = source(
        "import asyncio\n" + changed((RESULT, f"raise {error}('enough'); return str("))
    ).make()
    assert own.execute(own.task(0, "train"), CALL) == f"ERROR: {error.rpartition('.')[2]}: enough"


def test_a_tool_that_raises_has_answered_with_the_exception_in_one_line():
    own = source(changed((RESULT, "raise ValueError('no\\nmoon' * 100); return str("))).make()
    said = own.execute(own.task(0, "train"), CALL)
    assert said.startswith("ERROR: ValueError: no moon") and "\n" not in said and len(said) == 219


def test_a_tool_that_is_late_has_timed_out_and_does_not_hold_up_the_next_one():
    late = "if call.argument == 'moon': time.sleep(1000)\n        return str("
    own = source("import time\n" + changed((RESULT, late)), tool_timeout=0.3).make()
    task, began = own.task(0, "train"), time.monotonic()
    assert own.execute(task, CALL) == "ERROR: timed out after 0.3 s"
    assert own.execute(task, ToolCall("DOUBLE", "21", 0)) == "42"
    assert time.monotonic() - began < 10


def test_a_source_goes_to_other_processes_with_its_text_and_needs_no_file():
    environment = pickle.loads(pickle.dumps(source(GOOD, "gone.py:Doubling"))).make()
    assert environment.execute(environment.task(0, "train"), ToolCall("DOUBLE", "21", 0)) == "42"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--task", "no_such.py:Sums"], "No such file or directory: 'no_such.py'"),
        (["--task", "sudoku"], "'sudoku'; expected one of simple"),
        (["--task", LOCKERS, "--difficulty", "hard"], "--difficulty"),
        (["--task", WORDS], "there are 0 problems"),
    ],
)
def test_a_run_on_a_task_that_cannot_work_is_refused_before_it_begins(
    arguments, named, tmp_path, capsys
):
    assert main(["train", *arguments, "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert named in said and said.count("\n") == 1
    assert not (tmp_path / "run").exists()


SCORE = """
    def score(self, task, turns, calls, finish):
        from zorplex_rl.task.rewards import Score
        right = any(str(task.answer) in turn for turn in turns)
        return Score('success' if right else 'wrong_format', None, float(right), 0.0, 0.0)
"""
COUNT = "self.n = getattr(self, 'n', 0) + 1; number = 2 * (self.n > 390) + 2 * random"
LAST = [
    ("return Task(", "self.last = number\n        return Task("),
    (RESULT, "return str(getattr(self, 'last', 0)) or str("),
]
NAN = SCORE.replace("float(right)", "float('nan')")
ECHO = "\n    def find_answer(self, text):\n        return int((text.split() or ['0'])[-1].strip('?') or 0)\n"
FAULTS = [
    ("same tasks", changed((NUMBER, COUNT))),
    (
        "same tasks",
        "class Secret: pass\n" + changed(("1, system", '1, system, table={"s": Secret}')),
    ),
    ("splits", changed(("{split}:", ""), ('split == "train"', "0"))),
    ("constant", changed(("2 * number, 1", "number % 2, 1"))),
    ("tools", changed(*LAST)),
    ("tools", changed((RESULT, "return len("))),
    ("tools", changed((RESULT, "self.no.such; return str("))),
    ("answers", GOOD + "\n    def find_answer(self, text):\n        return None\n"),
    ("answers", GOOD + SCORE),
    ("answers", GOOD + NAN),
    ("answers", GOOD + ECHO),
]
"""Faults, each with the only check that should find it."""


@pytest.fixture
def env_check(tmp_path, capsys):
    """The exit code of ``env check`` on a text, and its line of each check."""

    def run(code: str, *flags: str) -> tuple[int, dict[str, str]]:
        (tmp_path / "tasks.py").write_text(code)
        exit_code = main(["env", "check", str(tmp_path / "tasks.py"), *flags])
        lines = [line for line in capsys.readouterr().out.splitlines() if line[:2] in ("ok", "no")]
        return exit_code, {line[7:21].strip(): line for line in lines}

    return run


def test_the_task_of_the_documentation_passes_every_check_but_the_embedded_policy_cannot_call_its_tool(
    env_check,
):
    code, found = env_check(GOOD)
    assert set(found) == {*dict(FAULTS), "policy"}
    assert code == 1 and [name for name, line in found.items() if line.startswith("no")] == [
        "policy"
    ]
    assert "none of 64 episodes called a tool" in found["policy"]


@pytest.mark.parametrize(("check", "code"), FAULTS)
def test_each_check_finds_its_faults_and_the_other_checks_do_not(check, code, env_check):
    exit_code, found = env_check(code)
    assert exit_code == 1
    assert [name for name, line in found.items() if line.startswith("no")] == [check]


def test_the_policy_is_tried_as_it_will_be_trained_and_what_is_too_long_for_it_is_named_with_its_flags(
    env_check,
):
    long = changed(('and the integer."', 'and the integer." + " more" * 500')) + EXAMPLES
    _, found = env_check(long, "--shots", "2")
    assert "reads at most 1024 together; lower --shots, or take another policy" in found["policy"]
    _, found = env_check(GOOD, "--max-tokens", "1")
    assert "cut off; raise --max-tokens or --max-turns" in found["policy"]


def test_an_example_that_the_embedded_policy_can_learn_passes_every_check(capsys):
    code, said = main(["env", "check", LOCKERS]), capsys.readouterr().out
    assert code == 0 and f"Ready: zorplex-rl train --task {LOCKERS}" in said, said
    assert len(Path(LOCKERS).read_text().splitlines()) <= 80


def test_the_policy_is_tried_on_the_threads_that_a_run_would_have(monkeypatch):
    """In a container torch takes one for each core of the machine."""
    asked = []
    monkeypatch.setattr("torch.set_num_threads", asked.append)
    main(["env", "check", LOCKERS])
    assert asked == [1]


@pytest.mark.long
def test_no_code_runs_out_of_a_run_s_folder_its_file_is_named_again(tmp_path, capsys):
    file, data = tmp_path / "my tasks.py", tmp_path / "data.txt"
    file.write_text(GOOD)
    data.write_text("Größe 17", encoding="utf-8")
    config = SMALL.changed(task=str(file), task_data=str(data), max_tokens=32, steps=1)
    folder = train_here(config, tmp_path / "run")
    kept = [
        (folder.path / name).read_text(encoding="utf-8") for name in ("task.py", "task_data.txt")
    ]
    assert kept == [GOOD, "Größe 17"], "to read"
    for again in ("train --resume", "replay"):
        assert main([*again.split(), str(folder.path)]) == 2
        said = capsys.readouterr().err
        assert "--task" in said and str(file) in said
    with pytest.raises(ConfigError):
        read_recording(folder.path)
    assert replay(read_recording(folder.path, task=str(file))).first_difference is None
    file.write_text(GOOD + "# mended\n")
    with command(
        "train", "--resume", str(folder.path), "--task", str(file), "--steps", "2"
    ) as running:
        code, said = running.finish()
    assert code == 0, said
    assert (folder.path / "task.py").read_text() == GOOD + "# mended\n", "what it goes on with"
    assert [row["step"] for row in rows(folder.path, "step")] == [1, 2]


@pytest.mark.long
def test_the_policy_learns_a_tool_that_answers_differently_from_those_it_knows(tmp_path):
    """A short form of the run in benchmarks/LOG.md."""
    config = Config(task=LOCKERS, steps=20, eval_every=1000, device="cpu")
    before, after = train_here(config, tmp_path / "run").evaluations()
    assert after["sampled_accuracy"] >= before["sampled_accuracy"] + 0.2
