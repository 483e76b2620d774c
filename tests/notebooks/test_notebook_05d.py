"""Notebook 05d: it trains with the reader's own functions; what it says of SmolLM2 follows from the answers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from test_notebooks import Later

from zorplex_rl.course.kept_file import functions_of, load_notebook
from zorplex_rl.course.nb05b import as_episode
from zorplex_rl.course.nb05d import (
    LAYERS,
    SAMPLED,
    SMOLLM2,
    invents,
    learned,
    narrow_learned,
    readers_functions,
)
from zorplex_rl.course.recorded_steps import recorded_steps
from zorplex_rl.course.widgets.live_curve import LiveCurve
from zorplex_rl.policy.tokenizer import encode_text
from zorplex_rl.task.environment import Zorplex

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
notebook = Later(ROOT / "notebooks" / "05d_a_language_model.py")
ENV = Zorplex(seed=0)


@pytest.fixture(scope="module")
def loop():
    return load_notebook(ROOT / "notebooks" / "05b_write_the_loop.py")


def test_it_trains_with_the_functions_of_the_readers_file(tmp_path, loop):
    mine = tmp_path / "my_rl.py"
    mine.write_text(
        "def sample_episode(policy, task, execute, sampling, seed):\n"
        "    return encode_text(policy, random.Random(seed).choice('a')), [True]\n\n\n"
        "def policy_gradient(policy, episodes, advantages):\n"
        "    return 'my loss'\n"
    )
    sources = functions_of(mine, "sample_episode", "policy_gradient")

    sampler, loss_of, whose = readers_functions(loop, sources)

    def tokenizer(text, **options):
        return {"input_ids": [text]}

    assert sampler(tokenizer, None, None, None, 0) == (["a"], [True])
    assert loss_of(None, [], []) == "my loss"
    assert "yours" in whose


def test_without_the_readers_file_the_functions_are_the_courses(loop):
    sampler, loss_of, whose = readers_functions(loop, {})
    assert sampler is loop.Solutions.sample_episode
    assert loss_of is loop.Solutions.policy_gradient
    assert "the course's" in whose


@pytest.mark.parametrize(
    ("looks_up", "adds", "option"),
    [(16, 4, 0), (4, 16, 1), (16, 16, 2), (4, 4, 3), (7, 4, 3), (0, 0, 3)],
)
def test_the_real_model_is_better_where_more_answers_turned_right_than_chance_turns(
    embedded, looks_up, adds, option
):
    """Before, 4 of 16 are right; afterwards as many as given."""

    def exam(kind, right):
        tasks = ENV.tasks((kind,), 16, "held_out")
        answers = [task.answer if number < right else 0 for number, task in enumerate(tasks)]
        ids = [encode_text(embedded.tokenizer, f"[ANSWER] {answer}\n") for answer in answers]
        return [
            as_episode(embedded, task, said, [True] * len(said))
            for task, said in zip(tasks, ids, strict=True)
        ]

    marks = [
        [exam("simple", one), exam("compositional", two)] for one, two in ((4, 4), (looks_up, adds))
    ]
    found, why, _ = learned(marks)
    assert found == option and "nothing to pay for" not in why


def test_where_no_answer_was_ever_right_the_page_says_why_it_stays_so(embedded):
    task = ENV.tasks(("compositional",), 1, "held_out")[0]
    ids = encode_text(embedded.tokenizer, f"[ANSWER] {task.answer + 1}\n")
    exam = [as_episode(embedded, task, ids, [True] * len(ids))]
    assert "not in the training" in learned([[exam, exam], [exam, exam]])[1]


@pytest.mark.parametrize(
    ("narrow", "option"), [((0.8, 0.3), 0), ((0.5, 0.75), 1), ((0.44, 0.81), 2)]
)
def test_the_first_and_the_last_batch_say_whether_narrow_paths_learn(narrow, option):
    curve = LiveCurve(2)
    for step, share in enumerate((0.9, 0.8), 1):
        curve.add(SAMPLED, step, share)

    right, why = narrow_learned(curve, narrow, 16)

    assert right == option
    assert "from 90% to 80%" in why and "16 answers may differ by 35 points" in why


def test_one_step_is_a_run_too():
    curve = LiveCurve(1)
    curve.add(SAMPLED, 1, 0.5)
    assert narrow_learned(curve, [0.5], 16)[0] == 1


def test_without_smollm2_no_option_is_right():
    assert narrow_learned(LiveCurve(2), [], 16)[0] == []


def test_the_paths_are_counted_as_the_package_counts_them():
    for rank in (1, 16):
        assert notebook.Solutions.path_size(LAYERS, rank) == SMOLLM2.trained(rank)


def test_before_training_the_second_text_of_the_card_is_the_one_that_the_page_points_at():
    """Step 0 of the recording is the same as that of a run on the page: the model is not trained yet."""
    before, *_ = recorded_steps("smollm2")["steps"]
    own = "".join(text for text, drawn in before[1]["tokens"] if drawn)
    assert own.startswith("EXPM[") and invents(before[1])


@pytest.mark.long
def test_it_runs_from_its_first_cell_to_its_last():
    config = SimpleNamespace(
        seed=0,
        kind="simple",
        prompts=1,
        samples=4,
        steps=1,
        learning_rate=5e-5,
        max_tokens=26,
        exam=2,
    )
    _, values = notebook.app.run(defs={"config": config})
    assert "the course's" in values["whose"]
    assert values["path"] < values["whole"] / 20
