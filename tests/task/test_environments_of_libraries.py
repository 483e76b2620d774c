"""The examples that read environments of other libraries. Where a library is not installed, its tests are
skipped; OpenEnv's example asks of an environment only two methods, so it is tried without, too."""

import json
from pathlib import Path

import pytest

from zorplex_rl.errors import TaskError
from zorplex_rl.task.checks import CHECKS, Sample
from zorplex_rl.task.own_task import EnvironmentSource, OwnTask
from zorplex_rl.task.parser import ToolCall

EXAMPLES = Path(__file__).parents[2] / "examples"


def source(example: str, **settings) -> EnvironmentSource:
    code = (EXAMPLES / example).read_text()
    return EnvironmentSource((example,), code=code, data=json.dumps(settings) if settings else "")


def faults(found: EnvironmentSource) -> list[str]:
    """What ``env check`` says no to."""
    sample, said = Sample(found), []
    for name, check in CHECKS.items():
        try:
            check(sample)
        except TaskError as error:
            said.append(f"{name}: {error}")
    return said


def outcomes(environment: OwnTask, task, *texts: str) -> list[tuple[str, float]]:
    scores = [environment.score(task, [text], 0, "eos") for text in texts]
    return [(score.outcome, score.reward) for score in scores]


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A module that is installed for the test."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, code: str) -> str:
        (tmp_path / f"{name}.py").write_text(code)
        return name

    return write


OPENENV = """
import random

{bases}

class Product(Observation):
    question: str = ""
    right: int | None = None

class Say(Action):
    number: int

class Products(Environment):
    state = None

    def reset(self, seed=None, episode_id=None):
        rng = random.Random(seed)
        self.a, self.b = rng.randrange(10, 1000), rng.randrange(10, 1000)
        return Product(question=f"{{self.a}} * {{self.b}}?")

    def step(self, action: Say, timeout_s=None):
        right = self.a * self.b
        return Product(done={done}, reward=action.number == right, right=right)
"""
OF_OPENENV = "from openenv.core import Action, Environment, Observation"
LIKE_OPENENV = """
from pydantic import BaseModel

class Observation(BaseModel):
    done: bool = False
    reward: bool | int | float | None = None

Action = BaseModel

class Environment:
    def close(self): pass
"""


@pytest.fixture(params=["openenv", "pydantic"])
def products(request, written):
    """The name of an environment with one step, of OpenEnv and of the same form."""
    pytest.importorskip(request.param)
    bases = OF_OPENENV if request.param == "openenv" else LIKE_OPENENV

    def name(done: bool = True, change: tuple[str, str] = ("", "")) -> str:
        module = f"of_{request.param}_{abs(hash((done, change)))}"
        code = OPENENV.format(bases=bases, done=done).replace(*change)
        return written(module, code) + ":Products"

    return name


def openenv(name: str, **settings) -> EnvironmentSource:
    return source("openenv_tasks.py", environment=name, answer="{right}", **settings)


def test_an_environment_of_openenv_passes_every_check(products):
    assert faults(openenv(products())) == []


def test_the_reward_of_openenv_is_that_of_the_step(products):
    environment = openenv(products()).make()
    task = environment.task(0, "train")
    assert outcomes(
        environment,
        task,
        f"So:\n[ANSWER] {task.answer}\n",
        "[ANSWER] 17",
        "[ANSWER] no number",
        task.answer,
    ) == [("success", 1), ("wrong_answer", 0), ("wrong_answer", 0), ("wrong_format", 0)]


@pytest.mark.parametrize(
    ("done", "change", "named"),
    [
        (False, ("", ""), "has several steps; name one of one step"),
        (True, ("seed=None, ", "seeds=None, "), "its reset takes no seed"),
        (True, ("number: int", "number: int = 0"), "takes calls of MCP tools"),
    ],
)
def test_what_openenv_s_example_cannot_run_is_refused_in_a_sentence(products, done, change, named):
    with pytest.raises(TaskError, match=named):
        openenv(products(done, change)).make().task(0, "train")


def test_openenv_s_example_asks_for_a_name():
    with pytest.raises(TaskError, match="--task-data must name a class"):
        source("openenv_tasks.py").make()


VERIFIERS = """
import verifiers.v1 as vf

class AddingData(vf.TaskData):
    answer: int

class AddingTools(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "adding"

    async def setup_task(self, data):
        self.data = data

    @vf.tool
    async def total(self, first: int, second: int = 0) -> int:
        \"\"\"Add two numbers.\"\"\"
        return first + second

    @vf.tool
    def hint(self, word: str) -> str:
        return f"{word} has {len(str(self.data.answer))} digits"

class AddingTask(vf.Task[AddingData]):
    @classmethod
    def toolsets(cls, config):
        return [AddingTools(vf.ToolsetConfig())]

    @vf.reward(weight=0.75)
    async def exact(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == f"It is {self.data.answer}")

    @vf.reward(weight=0.25)
    async def polite(self, trace: vf.Trace) -> float:
        return float("It is" in trace.last_reply)

class AddingConfig(vf.TasksetConfig):
    count: int = 500

class Adding(vf.Taskset[AddingTask, AddingConfig]):
    def load(self):
        for i in range(self.config.count):
            prompt = f"What is {i} + {i * i}?"
            yield AddingTask(AddingData(prompt=prompt, answer=i + i * i), self.config.task)

__all__ = ["Adding"]
"""


@pytest.fixture
def adding(written):
    pytest.importorskip("verifiers.v1")
    changes = iter(range(9))

    def make(*changed: tuple[str, str], **settings) -> EnvironmentSource:
        code = VERIFIERS
        for change in changed:
            code = code.replace(*change)
        name = written(f"adding_{abs(hash(changed))}_{next(changes)}", code)
        settings = {"answer": "It is {answer}", **settings}
        return source("verifiers_tasks.py", taskset=name, **settings)

    return make


def test_a_taskset_of_verifiers_passes_every_check_with_its_tools(adding):
    assert faults(adding()) == []


def test_the_reward_of_verifiers_is_the_sum_of_the_taskset_s_own(adding):
    environment = adding().make()
    task = environment.task(0, "train")
    right, wrong = task.answer, f"{task.answer}7"
    assert outcomes(environment, task, right, wrong, "7", "") == [
        ("success", 1),
        ("wrong_answer", 0.25),
        ("wrong_answer", 0),
        ("wrong_format", 0),
    ]
    called = environment.score(task, ["adding_total[1]", right], 1, "eos")
    assert called.outcome == "success"


def test_tools_of_verifiers_take_texts_as_the_types_that_they_name_and_know_the_task(adding):
    environment = adding().make()
    task = environment.task(3, "train")
    assert "adding_total[first, second]" in task.system and "Add two numbers." in task.system

    def said(tool: str, argument: str) -> str:
        return environment.execute(task, ToolCall(tool, argument, 0))

    assert said("adding_total", "4, 5") == "9" and said("adding_total", "4") == "4"
    assert said("adding_total", "moon").startswith("ERROR: ValidationError")
    assert said("adding_hint", "it, too,") == f"it, too, has {len(task.answer) - 6} digits"


def test_tools_of_a_toolset_without_a_prefix_have_their_own_names(adding):
    environment = adding(('"adding"', "None")).make()
    assert environment.tools == ("hint", "total")


def test_a_short_taskset_comes_again_from_its_beginning(adding):
    environment = adding(count=10).make()
    drawn = [environment.task(index, "train").question for index in range(20)]
    period = len(set(drawn))
    assert 0 < period < 10 and drawn[period:] == drawn[:-period]


@pytest.mark.parametrize(
    ("changes", "settings", "named"),
    [
        ([('= ["Adding"]', '= ["Adding", "Own"]\nclass Own(vf.Env): pass')], {}, "an Env of its"),
        ([("trace: vf.Trace)", "trace: vf.Trace, runtime)")], {}, "is scored in a runtime"),
        ([], {"count": 1}, "too few tasks for two splits"),
    ],
)
def test_what_verifiers_example_cannot_run_is_refused_in_a_sentence(
    adding, changes, settings, named
):
    with pytest.raises(TaskError, match=named):
        environment = adding(*changes, **settings).make()
        for split in ("train", "held_out"):
            environment.score(environment.task(0, split), ["7"], 0, "eos")


def test_verifiers_example_asks_for_a_name():
    pytest.importorskip("verifiers.v1")
    with pytest.raises(TaskError, match="--task-data must name a taskset"):
        source("verifiers_tasks.py").make()
