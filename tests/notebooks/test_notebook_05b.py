"""Notebook 05b: what the learner writes is what the package does; the planted fault shows; the page
learns with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_notebooks import Later

from zorplex_rl.course.nb05b import (
    as_episode,
    chances_after,
    example,
    push,
    varied,
)
from zorplex_rl.course.recorded_steps import recorded_steps
from zorplex_rl.learning.train_simple import compare, policy_gradient
from zorplex_rl.policy.load import load_policy
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.rewards import score
from zorplex_rl.task.specs import TASK_SPECS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
notebook = Later(ROOT / "notebooks" / "05b_write_the_loop.py")
ENV, SAMPLING = Zorplex(seed=0), Sampling(max_tokens=96, max_turns=96, slots=64)


def small(**changes) -> SimpleNamespace:
    """Settings of the notebook that are small enough for a test."""
    settings = {
        "policy": "embedded",
        "seed": 0,
        "kind": "compositional",
        "prompts": 4,
        "samples": 4,
        "steps": 2,
        "learning_rate": 3e-4,
        "held_out": 24,
    }
    return SimpleNamespace(**settings | changes)


@pytest.fixture(scope="module")
def batch(embedded):
    tasks = [task for task in ENV.tasks(("compositional",), 8) for _ in range(4)]
    return rollout(
        embedded, [RolloutRequest(t, s) for s, t in enumerate(tasks)], ENV.execute, SAMPLING
    )


@pytest.mark.parametrize("kind", TASK_SPECS)
@pytest.mark.parametrize("most", [96, 19])
def test_the_tool_loop_gives_the_engines_episodes_whatever_ends_them(embedded, kind, most):
    tasks, sampling = ENV.tasks((kind,), 5), replace(SAMPLING, max_tokens=most)
    engine = rollout(
        embedded, [RolloutRequest(t, s) for s, t in enumerate(tasks)], ENV.execute, sampling
    )
    for seed, found in enumerate(engine):
        ids, sampled = notebook.Solutions.sample_episode(
            embedded, tasks[seed], ENV.execute, sampling, seed
        )
        assert (ids, sampled) == (found.token_ids, found.sampled)
        episode = as_episode(embedded, tasks[seed], ids, sampled)
        assert (episode.finish, episode.prompt_ids) == (found.finish, found.prompt_ids)
        assert [(turn.text, turn.call, turn.result) for turn in episode.turns] == [
            (turn.text, turn.call, turn.result) for turn in found.turns
        ]
        assert episode.score == score(found)


def test_the_loss_has_the_value_and_the_gradient_of_the_package(batch):
    policy, advantages = load_policy(), [0.5, -1.0, 0.0, 2.0] * 8
    losses, gradients = [], []
    for loss_of in (notebook.Solutions.policy_gradient, policy_gradient):
        policy.model.zero_grad()
        loss = loss_of(policy, batch, advantages)
        loss.backward()
        losses.append(loss.item())
        gradients.append([parameter.grad.clone() for parameter in policy.model.parameters()])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    for ours, package in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, package, rtol=1e-3, atol=1e-6)


def test_the_advantages_are_those_of_the_package():
    for rewards in ([1.2, 0.0, 0.2, 1.2], [1.0, 1.0], [0.0, 1.0, -0.4]):
        assert notebook.advantages_of(rewards) == pytest.approx(compare(rewards))


def test_a_push_moves_mass_as_the_softmax_says():
    chances = {"[ANSWER": 0.5, "So": 0.3, "5": 0.196, "7": 0.004}
    for advantage in (-2.0, 0.0, 1.0):
        after = {
            bar.name: bar.value for bar in push(chances, "So", advantage, rate=1.0).panels[1].bars
        }
        # The logits move by advantage · (1[token] − p).
        before = {"[ANSWER": 0.5, "So": 0.3, "5": 0.196, "all others": 0.004}
        moved = {n: p * 2.718281828 ** (advantage * ((n == "So") - p)) for n, p in before.items()}
        assert after == pytest.approx(
            {name: value / sum(moved.values()) for name, value in moved.items()}
        )
    assert "Nothing moves" in push(chances, "So", 0.0).said
    assert (
        "gained were taken from" in push(chances, "So", 1.0).said
        and "lost went to" in push(chances, "So", -1.0).said
    )


def test_where_an_answer_begins_the_policy_chooses_between_the_tag_and_talk(embedded):
    chances = chances_after(embedded, ENV, ENV.tasks(("compositional",), 8, "held_out"))
    assert set(list(chances)[:2]) == {"[ANSWER", "So"}
    assert 0.9 < sum(chances.values()) <= 1.0001


def test_the_card_begins_with_as_many_ways_to_end_as_there_are(batch):
    for episode in batch:
        episode.score = score(episode)
    shown = varied(batch, 4)
    endings = {episode.score.outcome for episode in batch}
    assert len({episode.score.outcome for episode in shown}) == min(4, len(endings))
    assert shown[0] is batch[0] and "success" in {episode.score.outcome for episode in shown}


def test_the_question_of_all_cards_is_looked_up_added_and_then_not_answered_in_the_form(embedded):
    first = example(embedded, Sampling(max_tokens=96))
    assert (first.score.outcome, first.turns[-1].text.strip()) == ("wrong_format", "20-17=3\nSo 3.")


def test_its_two_loops_both_learn_and_only_one_is_told_the_answer():
    torch.manual_seed(0)
    right = torch.tensor([1, 2, 0])
    policies = [torch.nn.Embedding(3, 3, _weight=torch.zeros(3, 3)) for _ in range(2)]
    optimizers = [torch.optim.SGD(policy.parameters(), lr=1.0) for policy in policies]
    questions, tried = torch.arange(3).repeat(40), []

    def reward(question, answer):
        tried.append(answer)
        return float(answer == right[question])

    notebook.supervised_loop(policies[0], optimizers[0], questions, right)
    notebook.rl_loop(policies[1], optimizers[1], questions, reward)
    for policy in policies:
        assert policy.weight.argmax(-1).equal(right)
    assert set(tried) == {0, 1, 2}


def test_the_learners_two_functions_are_what_trains():
    """A sampler of its own is asked for every episode, and a loss without gradient leaves the
    weights as they are."""
    asked, seen = [], []

    def sampler(*arguments):
        asked.append(arguments)
        return notebook.Solutions.sample_episode(*arguments)

    def weights_after(loss_of, **changes):
        policy, config = load_policy(), small(steps=1, **changes)
        notebook.train(
            policy, ENV, SAMPLING, config, sampler, loss_of, lambda *step: seen.append(step)
        )
        return torch.nn.utils.parameters_to_vector(policy.model.parameters())

    start = torch.nn.utils.parameters_to_vector(load_policy().model.parameters())
    assert torch.equal(
        weights_after(
            lambda policy, *batch: 0 * notebook.Solutions.policy_gradient(policy, *batch), prompts=1
        ),
        start,
    )
    assert not torch.equal(weights_after(notebook.Solutions.policy_gradient), start)
    assert len(asked) == 4 + 16 and [(step, len(episodes)) for step, episodes in seen] == [
        (1, 4),
        (1, 16),
    ]


def test_before_training_the_first_text_of_the_card_says_so_after_its_sum():
    """The page points at it before its widget, in which `So` is one of two tokens."""
    first = recorded_steps("small")["steps"][0][0]
    assert first["outcome"] == "wrong_format"
    assert "=3\nSo 3." in "".join(text for text, _ in first["tokens"])


@pytest.mark.long
def test_it_runs_from_its_first_cell_to_its_last_and_learns():
    config = small(steps=20, held_out=100)
    _, values = notebook.app.run(defs={"config": config})
    assert all(values["same_tokens"])
    assert "the course's" in values["whose_sampler"] and "the course's" in values["whose_loss"]
    assert values["foreseen"][False] < values["foreseen"][True]
    assert min(values["with_rewards"]) > values["with_labels"]
    assert values["was"].episodes == values["now"].episodes == config.held_out
    assert values["gain"] > 40
    assert len(values["history"]) == config.steps + 1
    assert values["history"][0]["[ANSWER"] < 0.6 and values["history"][-1]["[ANSWER"] > 0.9
    shown = [[episode.score.outcome for episode in step] for step in values["card"].recorded]
    assert len(shown) == config.steps + 1 and len(set(shown[0])) >= 3
    assert shown[-1].count("success") > shown[0].count("success")
    assert values["my_rl"] == (ROOT / "examples" / "my_rl.py").read_text()
    assert list(ROOT.glob("my_rl*.py")) == [], "an export writes nothing"
