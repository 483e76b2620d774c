"""``my_rl.py``, the file that a learner keeps: on its own, it learns; the notebook's button writes it. And
``my_rl_smollm2.py``, which imports it and teaches a real model."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest
import torch
from test_notebooks import Later, packages_of

from zorplex_rl.course.kept_file import fill_in, keep, kept
from zorplex_rl.policy.smollm2 import cached
from zorplex_rl.policy.tokenizer import encode_prompt
from zorplex_rl.task.environment import Zorplex

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MINE = ROOT / "examples" / "my_rl.py"
SMOLLM2 = ROOT / "examples" / "my_rl_smollm2.py"
notebook = Later(ROOT / "notebooks" / "05b_write_the_loop.py")


def solutions():
    return {
        "sample_episode": notebook.Solutions.sample_episode,
        "policy_gradient": notebook.Solutions.policy_gradient,
    }


@pytest.fixture
def load(monkeypatch):
    """``load(file)``: a program as a module. The course's folder is the current one."""
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(MINE.parent))

    def load_it(file: Path):
        monkeypatch.delitem(sys.modules, file.stem, raising=False)
        return importlib.import_module(file.stem)

    return load_it


def test_it_needs_torch_transformers_and_the_standard_library_alone():
    assert packages_of(MINE.read_text()) == {"torch", "transformers"}
    assert packages_of(SMOLLM2.read_text()) == {"torch", "transformers", "my_rl"}


def formatted(source: str) -> str:
    """The program with its lines broken as everywhere: on the page they are shorter."""
    command = [
        sys.executable,
        "-m",
        "ruff",
        "format",
        "--config",
        str(ROOT / "pyproject.toml"),
        "-",
    ]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


def test_the_button_writes_exactly_this_file_when_the_course_s_solutions_are_filled_in():
    assert formatted(fill_in(MINE, solutions())) == MINE.read_text()


def test_a_learner_s_own_functions_stand_in_their_file_word_by_word():
    def policy_gradient(policy, episodes, advantages):
        """My own words."""
        return sum(torch.zeros(1) for _ in episodes)  # no loss at all

    written = fill_in(MINE, solutions() | {"policy_gradient": policy_gradient})
    assert (
        '    """My own words."""\n    return sum(torch.zeros(1) for _ in episodes)  # no loss at all\n'
        in written
    )
    assert "gather" not in written and "def train(" in written
    compile(written, "my_rl.py", "exec")


def test_what_needs_a_name_that_the_file_lacks_is_refused_with_a_sentence():
    def sample_episode(policy, task, execute, sampling, seed):
        return helper_of_another_cell(policy, task)  # noqa: F821

    with pytest.raises(
        ValueError,
        match=r"sample_episode uses helper_of_another_cell, which my_rl.py does not have",
    ):
        fill_in(MINE, solutions() | {"sample_episode": sample_episode})


def test_an_older_text_is_kept_beside_the_new_one(tmp_path):
    file = tmp_path / "my_rl.py"
    assert "my_rl.py" in keep("first\n", file)
    keep("first\n", file)
    assert [path.name for path in tmp_path.iterdir()] == ["my_rl.py"]
    keep("second\n", file)
    assert (file.read_text(), (tmp_path / "my_rl_before.py").read_text()) == ("second\n", "first\n")


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    assert "cannot be written" in keep("program\n", tmp_path / "file" / "my_rl.py")


def test_what_readers_keep_lies_in_the_folder_of_their_course_whatever_page_they_have_made_it_on(
    tmp_path,
):
    """Also where the package is installed elsewhere: notebook 08 takes up what 05b has written."""
    assert kept(str(tmp_path / "notebooks" / "08_rl_e2e.py"), "my_rl.py") == tmp_path / "my_rl.py"
    text = "".join(page.read_text() for page in (ROOT / "notebooks").glob("[0-9]*.py"))
    calls = re.findall(r"\b(?:keep|functions_of)\(.*", text)
    named = [re.search(r'kept\(__file__, "(\w+)\.py"\)', call) for call in calls]
    assert {found and found[1] for found in named} == {
        "my_rl",
        "my_rl_smollm2",
        "my_async_rl",
        "my_pool",
    }


def test_its_tasks_are_those_of_the_course_and_held_out_words_stay_out(embedded, load):
    mine = load(MINE)
    assert not set(mine.TRAINING) & set(mine.HELD_OUT)
    for number in range(50):
        task = mine.draw_task(mine.TRAINING, number)
        question = task.messages[-1]["content"]
        one, sign, other = (
            question.removeprefix("What is ")
            .removeprefix("Tell the value of ")
            .rstrip(".?= ")
            .split()
        )
        assert task.answer == eval(f"{task.table[one]} {sign} {task.table[other]}")
        assert len(set(task.table.values())) == len(task.table)
    theirs = Zorplex(seed=0, kinds=("compositional",)).task(0)
    task.messages[-1]["content"] = theirs.question
    assert mine.encode_prompt(embedded.tokenizer, task) == encode_prompt(embedded.tokenizer, theirs)


def test_the_real_model_is_asked_for_one_word_behind_worked_examples_of_other_words(load):
    mine, real = load(MINE), load(SMOLLM2)
    for number in range(50):
        task = real.draw_task(mine.TRAINING, number)
        *earlier, question = (message["content"] for message in task.messages)
        (asked,) = [
            word for word in mine.TRAINING if word in question.lower().rstrip(".?= ").split()
        ]
        assert task.answer == task.table[asked]
        assert not any(f"LOOKUP[{asked}]" in text for text in earlier)


def test_its_reader_draws_the_model_s_tokens_and_has_its_gradient(load):
    """After a step, too: what was read with other weights is read again."""
    mine, real = load(MINE), load(SMOLLM2)
    plain = mine.load_policy("zorplex_rl/policy/embedded")
    reads = mine.Policy(real.Reader(plain.model), plain.tokenizer, plain.eos_ids)
    tasks = [mine.draw_task(mine.TRAINING, number // 2) for number in range(6)]
    parameters = list(plain.model.parameters())
    for _ in range(2):
        episodes, same = (
            mine.play(policy, tasks, mine.SAMPLED, seed=0) for policy in (reads, plain)
        )
        assert [e.token_ids for e in episodes] == [e.token_ids for e in same]
        losses = [
            mine.policy_gradient(policy, episodes, [1.0, -1.0] * 3) for policy in (reads, plain)
        ]
        gradients = [torch.autograd.grad(loss, parameters) for loss in losses]
        torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients[0], strict=True):
                parameter.sub_(gradient)


def test_texts_that_part_and_end_at_different_times_are_read_side_by_side_as_alone(load):
    mine, real = load(MINE), load(SMOLLM2)
    model = mine.load_policy("zorplex_rl/policy/embedded").model
    reads = real.Reader(model)
    # They begin alike, part at different places, and end at different times.
    growing = ([3, 4, 5, 6, 7], [3, 4, 5, 8, 9], [3, 4, 8, 8], [3, 4])

    @torch.no_grad()
    def ask(text):
        found = [reads(torch.tensor([text[:length]])).logits for length in range(2, len(text) + 1)]
        return [*found, reads(torch.tensor([text])).logits]  # once more: it is known

    for text, found in zip(growing, reads.map(ask, growing), strict=True):
        (expected,) = model(torch.tensor([text])).logits.detach()
        expected = [*expected[1:], expected[-1]]
        torch.testing.assert_close(torch.stack(found)[:, 0, 0], torch.stack(expected))


def test_a_text_that_fails_stops_no_other(load):
    mine, real = load(MINE), load(SMOLLM2)
    reads = real.Reader(mine.load_policy("zorplex_rl/policy/embedded").model)
    answered = []

    @torch.no_grad()
    def ask(text):
        if len(text) == 1:
            raise ValueError("this one fails")
        answered.append(reads(torch.tensor([text])).logits.shape)

    with pytest.raises(ValueError, match="this one fails"):
        reads.map(ask, [[3, 4], [5], [6, 7]])
    assert len(answered) == 2


@pytest.mark.long
@pytest.mark.parametrize(("program", "at_first", "at_last"), [(MINE, 60, 90), (SMOLLM2, 65, 70)])
def test_the_program_says_what_it_has_learned(program, at_first, at_last):
    if program == SMOLLM2 and not cached().is_dir():
        pytest.skip("needs SmolLM2: zorplex-rl policy get smollm2")
    done = subprocess.run(
        [sys.executable, program], cwd=ROOT, capture_output=True, text=True, timeout=3600
    )
    assert done.returncode == 0, done.stderr
    before, after = map(int, re.findall(r"^held out: (\d+)%", done.stdout, re.MULTILINE))
    assert before < at_first
    assert after >= at_last


@pytest.mark.long
def test_in_the_median_of_three_seeds_it_is_right_nine_times_in_ten(load):
    mine = load(MINE)
    held_out = [mine.draw_task(mine.HELD_OUT, number) for number in range(60)]
    shares = []
    for seed in range(3):
        policy = mine.load_policy("zorplex_rl/policy/embedded")
        mine.train(policy, seed=seed)
        episodes = mine.play(policy, held_out, mine.GREEDY, seed=0)
        shares.append(sum(episode.right for episode in episodes) / len(episodes))
    assert median(shares) >= 0.90
