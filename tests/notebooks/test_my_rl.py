"""``my_rl.py``, the file that a learner keeps: short, on its own, it learns; and the notebook's
button writes it."""

from __future__ import annotations

import importlib.util
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
notebook = Later(ROOT / "notebooks" / "05b_write_the_loop.py")


def solutions():
    return {
        "sample_episode": notebook.Solutions.sample_episode,
        "policy_gradient": notebook.Solutions.policy_gradient,
    }


def loaded(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_short_and_needs_torch_transformers_and_the_standard_library_alone():
    source = MINE.read_text()
    assert len(source.splitlines()) <= 147
    assert packages_of(source) == {"torch", "transformers"}
    task = source[source.index("TRAINING = ") : source.index("def sample_episode")]
    assert len(task.strip().splitlines()) <= 44


def formatted(source: str) -> str:
    """The program with its lines broken as everywhere: on the page they are shorter."""
    command = [sys.executable, "-m", "ruff", "format", "--config", str(ROOT / "pyproject.toml"), "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


def test_the_button_writes_exactly_this_file_when_the_course_s_solutions_are_filled_in():
    assert formatted(fill_in(MINE, solutions())) == MINE.read_text()


def test_a_learner_s_own_functions_stand_in_their_file_word_by_word():
    def policy_gradient(policy, episodes, advantages):
        """My own words."""
        return sum(torch.zeros(1) for _ in episodes)  # no loss at all

    written = fill_in(MINE, solutions() | {"policy_gradient": policy_gradient})
    assert '    """My own words."""\n    return sum(torch.zeros(1) for _ in episodes)  # no loss at all\n' in written
    assert "gather" not in written and "def train(" in written
    compile(written, "my_rl.py", "exec")


def test_what_needs_a_name_that_the_file_lacks_is_refused_with_a_sentence():
    def sample_episode(policy, task, execute, sampling, seed):
        return helper_of_another_cell(policy, task)  # noqa: F821

    with pytest.raises(ValueError, match=r"sample_episode uses helper_of_another_cell, which my_rl.py does not have"):
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


def test_what_readers_keep_lies_in_the_folder_of_their_course_whatever_page_they_have_made_it_on(tmp_path):
    """Also where the package is installed elsewhere: notebook 08 takes up what 05b has written."""
    assert kept(str(tmp_path / "notebooks" / "08_rl_e2e.py"), "my_rl.py") == tmp_path / "my_rl.py"
    text = "".join(page.read_text() for page in (ROOT / "notebooks").glob("[0-9]*.py"))
    calls = re.findall(r"\b(?:keep|functions_of)\(.*", text)
    named = [re.search(r'kept\(__file__, "(\w+)\.py"\)', call) for call in calls]
    assert {found and found[1] for found in named} == {"my_rl", "my_async_rl", "my_pool"}


def test_its_tasks_are_those_of_the_course_and_held_out_words_stay_out(embedded):
    mine = loaded(MINE)
    assert not set(mine.TRAINING) & set(mine.HELD_OUT)
    for number in range(50):
        task = mine.draw_task(mine.TRAINING, number)
        one, sign, other = (
            task.question.removeprefix("What is ").removeprefix("Tell the value of ").rstrip(".?= ").split()
        )
        assert task.answer == eval(f"{task.table[one]} {sign} {task.table[other]}")
        assert len(set(task.table.values())) == len(task.table)
        assert mine.draw_task(mine.TRAINING, number, mine.EXAMPLES).answer in task.table.values()
    theirs = Zorplex(seed=0, kinds=("compositional",)).task(0)
    prompt = mine.encode_prompt(embedded.tokenizer, mine.Record(question=theirs.question, examples=()))
    assert prompt == encode_prompt(embedded.tokenizer, theirs)


def new_policy(mine):
    model = mine.AutoModelForCausalLM.from_pretrained("zorplex_rl/policy/embedded").eval()
    tokenizer = mine.AutoTokenizer.from_pretrained("zorplex_rl/policy/embedded")
    return mine.Record(model=model, tokenizer=tokenizer, eos_ids=(tokenizer.eos_token_id,))


def test_its_reader_draws_the_model_s_tokens_and_has_its_gradient(monkeypatch):
    """After a step, too: what was read with other weights is read again."""
    monkeypatch.chdir(ROOT)
    mine = loaded(MINE)
    plain = new_policy(mine)
    reads = mine.Record(**vars(plain) | {"model": mine.Reader(plain.model)})
    tasks = [mine.draw_task(mine.TRAINING, number // 2) for number in range(6)]
    parameters = list(plain.model.parameters())
    for _ in range(2):
        episodes, same = (mine.play(policy, tasks, mine.SAMPLED, seed=0) for policy in (reads, plain))
        assert [e.token_ids for e in episodes] == [e.token_ids for e in same]
        losses = [mine.policy_gradient(policy, episodes, [1.0, -1.0] * 3) for policy in (reads, plain)]
        gradients = [torch.autograd.grad(loss, parameters) for loss in losses]
        torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients[0], strict=True):
                parameter.sub_(gradient)


@pytest.mark.long
@pytest.mark.parametrize(("options", "at_first", "at_last"), [([], 60, 90), (["--policy", "smollm2"], 65, 70)])
def test_the_program_says_what_it_has_learned(options, at_first, at_last):
    if options and not cached().is_dir():
        pytest.skip("needs SmolLM2: zorplex-rl policy get smollm2")
    said = subprocess.run([sys.executable, MINE, *options], cwd=ROOT, capture_output=True, text=True, timeout=3600)
    assert said.returncode == 0, said.stderr
    before, after = map(int, re.findall(r"^held out: (\d+)%", said.stdout, re.MULTILINE))
    assert before < at_first
    assert after >= at_last


@pytest.mark.long
def test_in_the_median_of_three_seeds_it_is_right_nine_times_in_ten(monkeypatch):
    monkeypatch.chdir(ROOT)
    mine, found = loaded(MINE), []
    held_out = [mine.draw_task(mine.HELD_OUT, number) for number in range(60)]
    for seed in range(3):
        policy = new_policy(mine)
        mine.train(policy, seed=seed)
        episodes = mine.play(policy, held_out, mine.GREEDY, seed=0)
        found.append(sum(episode.right for episode in episodes) / len(episodes))
    assert median(found) >= 0.90
