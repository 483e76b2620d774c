"""Three environments of reasoning-gym, by the file in ``examples/``, with a policy that writes answers
at random. ``.ci/run`` installs the library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import babbler

from zorplex_rl.cli.commands import main
from zorplex_rl.errors import TaskError
from zorplex_rl.policy.load import save_model
from zorplex_rl.task.own_task import EnvironmentSource

pytestmark = pytest.mark.slow

reasoning_gym = pytest.importorskip("reasoning_gym")
EXAMPLE = Path(__file__).parents[2] / "examples" / "reasoning_gym_tasks.py"
# <answer>4</answer>, and what comes of it when the dice fall otherwise.
HABITS: dict[str, dict[str, float]] = {
    "Ċ": {"<": 9}, "<": {"a": 3, "/": 3}, "/": {"a": 9}, "a": {"n": 9}, "n": {"s": 9}, "s": {"w": 9}, "w": {"e": 9}, "e": {"r": 9}, "r": {">": 9},
    ">": {"1": 2, "2": 2, "4": 2, "<|im_end|>": 3}, "1": {"<": 9}, "2": {"<": 9}, "4": {"<": 9},
}  # fmt: skip
every_name = pytest.mark.parametrize("name", ["chain_sum", "count_bits", "lcm"])


def environment_of(name: str, **settings):
    data = json.dumps({"environment": name, **settings})
    return EnvironmentSource((str(EXAMPLE),), code=EXAMPLE.read_text(), data=data).make()


@pytest.fixture(scope="module")
def writer(tokenizer, tmp_path_factory) -> str:
    policy = babbler(tokenizer, habits=HABITS)
    save_model(policy.model, policy.tokenizer, found := tmp_path_factory.mktemp("writer"))
    return str(found)


@every_name
def test_an_environment_of_the_library_passes_every_check_and_a_policy_is_measured_on_it(
    name, writer, tmp_path, capsys
):
    (tmp_path / "data.json").write_text(json.dumps({"environment": name}))
    flags = ["--task-data", str(tmp_path / "data.json"), "--policy", writer]
    assert main(["env", "check", str(EXAMPLE), *flags]) == 0, capsys.readouterr().out
    report = tmp_path / "report.json"
    flags += ["--tasks", "40", "--temperature", "1", "--json", str(report)]
    assert main(["eval", "--task", str(EXAMPLE), *flags]) == 0
    (found,) = json.loads(report.read_text())["tasks"]
    assert found["outcomes"]["wrong_answer"] > 0, found


@every_name
def test_a_task_is_the_librarys_entry_and_its_score_the_librarys(name):
    environment, dataset = environment_of(name), reasoning_gym.create_dataset(name, seed=0)
    tasks = [environment.task(index, split) for split in ("train", "held_out") for index in range(30)]
    assert len({task.question for task in tasks}) > 20
    for task in tasks:
        for said in (task.answer, f"{task.answer} or so", "no", ""):
            scored = environment.score(task, [f"So <answer> {said} </answer>"], 0, "eos")
            assert scored.correct == dataset.score_answer(said, task.table)
            assert (scored.outcome == "success") == (said == task.answer)


def test_settings_reach_the_library_and_a_question_is_in_one_split_only():
    environment = environment_of("chain_sum", min_terms=2, max_terms=2, min_digits=1, max_digits=1)
    train, held_out = (
        {environment.task(index, split).question for index in range(300)} for split in ("train", "held_out")
    )
    assert 20 < len(train) < 200 and 20 < len(held_out) < 200 and not train & held_out


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("chain_sums", {}, "chain_sums"),
        ("chain_sum", {"terms": 2}, "unexpected keyword argument 'terms'"),
        ("count_bits", {"min_n": 5, "max_n": 5}, "count_bits has too few questions"),
    ],
)
def test_what_cannot_be_learned_is_named(name, settings, said):
    with pytest.raises(TaskError, match=said):
        environment = environment_of(name, **settings)
        [environment.task(0, split) for split in ("train", "held_out")]
