"""``my_async_rl.py``, the second file that a learner keeps: on its own, two processes, data of bounded age, and it
learns."""

from __future__ import annotations

import ast
import asyncio
import importlib
import multiprocessing
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from test_my_rl import formatted
from test_notebooks import Later, packages_of

from zorplex_rl.course.kept_file import fill_in, functions_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MINE, BEFORE = ROOT / "examples" / "my_async_rl.py", ROOT / "examples" / "my_rl.py"
notebook = Later(ROOT / "notebooks" / "08_rl_e2e.py")


def solutions():
    return {"may_start": notebook.Solutions.may_start, "train": notebook.Solutions.train}


@pytest.fixture
def load_mine(monkeypatch):
    """``load_mine(file)``: the program as a module, which its processes import by name."""
    threads = torch.get_num_threads()
    monkeypatch.chdir(ROOT)

    def load_it(file: Path = MINE):
        monkeypatch.syspath_prepend(str(file.parent))
        monkeypatch.delitem(sys.modules, "my_async_rl", raising=False)
        return importlib.import_module("my_async_rl")

    yield load_it
    sys.modules.pop("my_async_rl", None)
    for process in multiprocessing.active_children():
        process.join(60)
    torch.set_num_threads(threads)


def parts_of(file: Path) -> dict[str, str]:
    """Return the source of the functions of a program."""
    return {
        node.name: ast.unparse(node)
        for node in ast.parse(file.read_text()).body
        if hasattr(node, "name")
    }


def test_it_needs_torch_transformers_and_the_standard_library_alone():
    assert packages_of(MINE.read_text()) == {"torch", "transformers"}


def test_task_sampler_reward_and_loss_are_those_of_my_rl_and_the_generator_s_half_is_the_page_s():
    ours, before = parts_of(MINE), parts_of(BEFORE)
    new_in_both = {"Episode", "train", "main"}
    assert before.keys() - ours.keys() == {"evaluate"}
    assert {
        name for name in before.keys() & ours.keys() - new_in_both if ours[name] != before[name]
    } == set()
    page = parts_of(ROOT / "notebooks" / "08_rl_e2e.py")
    assert [
        name for name in ("generate", "in_order") if f"@app.function\n{ours[name]}" != page[name]
    ] == []


def test_the_button_writes_exactly_this_file_when_the_course_s_solutions_are_filled_in():
    assert formatted(fill_in(MINE, solutions())) == MINE.read_text()


def test_a_learner_s_own_loop_stands_in_their_file_word_by_word():
    async def train(trainer, ready, newest, news, steps, per_step, on_step):
        """My own words."""
        await ready.get()  # nothing else

    written = fill_in(MINE, solutions() | {"train": train})
    assert '    """My own words."""\n    await ready.get()  # nothing else\n' in written
    assert "pstdev(rewards)" not in written
    compile(written, "my_async_rl.py", "exec")


def test_the_sampler_and_the_loss_of_an_existing_my_rl_go_into_it(tmp_path):
    kept = functions_of(tmp_path / "my_rl.py", "sample_episode", "policy_gradient")
    assert kept == {}, "without a file the course's stay"
    own = (
        "def sample_episode(policy, task, execute, sampling, seed):\n    return [], []  # my own\n"
    )
    (tmp_path / "my_rl.py").write_text(f"import torch\n\n\n{own}\n\ndef other():\n    pass\n")
    kept = functions_of(tmp_path / "my_rl.py", "sample_episode", "policy_gradient")
    written = fill_in(MINE, kept | solutions())
    assert own in written and "def other" not in written
    assert written.count("def sample_episode") == written.count("def policy_gradient") == 1


def test_a_generator_that_pulls_has_the_trainer_s_weights_and_marks_its_episodes_with_their_version(
    load_mine, monkeypatch
):
    mine = load_mine()
    monkeypatch.setattr(mine, "GROUP_SIZE", 2)
    numbers = mine.SPAWN.RawArray("f", mine.load_policy(mine.FOLDER).model.num_parameters())
    weights = mine.Weights(mine.SPAWN.Value("i", 0), numbers)
    trainer, generator = mine.Trainer(weights), mine.Generator(weights, 0)

    def parameters(owner):
        return mine.parameters_to_vector(owner.policy.model.parameters()).detach()

    ((rewards, group),) = generator.sample([0])
    assert len(rewards) == len(group) == mine.GROUP_SIZE and {
        episode.version for episode in group
    } == {0}
    trainer.step(group, [(-1.0) ** number for number in range(len(group))])
    assert not torch.equal(parameters(generator), parameters(trainer))
    assert (trainer.publish(), generator.pull()) == (1, 1)
    assert torch.equal(parameters(generator), parameters(trainer))
    assert {episode.version for episode in generator.sample([1])[0][1]} == {1}


def results(said: str) -> tuple[float, list[int]]:
    """Return what the program printed: the share of held-out tasks that are right afterwards, and the lag of each step."""
    shares = [
        int(line.split(":")[1].split("%")[0])
        for line in said.splitlines()
        if line.startswith("held out")
    ]
    assert len(shares) == 2 and shares[0] < 60
    return shares[1] / 100, [int(lag) for lag in re.findall(r"lag (\d+)", said)]


@pytest.mark.long
def test_it_learns_no_step_is_given_data_older_than_max_lag_and_a_call_to_an_ended_process_fails(
    load_mine, tmp_path, monkeypatch, capsys
):
    """With half the prompts of a step, and 20 held-out tasks of the 50: a quarter of a minute less."""
    shorter = (
        MINE.read_text().replace("PROMPTS = 4", "PROMPTS = 2").replace("range(50)", "range(20)")
    )
    (tmp_path / MINE.name).write_text(shorter)
    mine, processes = load_mine(tmp_path / MINE.name), []
    start = mine.Process
    monkeypatch.setattr(
        mine, "Process", lambda *given: processes.append(start(*given)) or processes[-1]
    )
    asyncio.run(mine.main(seed=0))
    right, lags = results(capsys.readouterr().out)
    assert right >= 0.90
    assert len(lags) == 8 and max(lags) == 1, "side by side, and within its bound"
    for process in processes:
        assert process.pipe.poll(60), "its end can be seen"
        with pytest.raises((EOFError, OSError)):
            asyncio.run(process.publish())


@pytest.mark.long
def test_with_each_of_three_seeds_it_is_right_nine_times_in_ten():
    found = []
    for seed in range(3):
        began = time.monotonic()
        path = f"import sys; sys.path.insert(0, {str(MINE.parent)!r})\n"
        code = f"{path}import asyncio, my_async_rl as mine\nasyncio.run(mine.main(seed={seed}))"
        said = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600
        )
        assert said.returncode == 0, said.stderr
        found.append(results(said.stdout)[0])
        print(f"{found[-1]:.0%}", f"{time.monotonic() - began:.0f} s")
    assert min(found) >= 0.90
