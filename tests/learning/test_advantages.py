"""Credit for each token, and what a run says that learns nothing."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from zorplex_rl.learning.advantages import (
    ADVANTAGES,
    by_prefix,
    group_centred,
    group_relative,
    mean_relative,
    zero_variance_share,
)
from zorplex_rl.learning.signal import STEPS_WITHOUT_SIGNAL, LearningSignal
from zorplex_rl.task.episode import Episode, Task, Turn
from zorplex_rl.task.rewards import score
from zorplex_rl.task.specs import get_spec


def sample(tokens: list[int], group: int = 0, prompt: int = 1) -> Episode:
    task = get_spec("simple").task(0)
    return Episode(
        task, [prompt], tokens, [True] * len(tokens), [0.0] * len(tokens), [], "answer", group=group
    )


def by_definition(samples: list[list[int]], advantages: list[float]) -> list[list[float]]:
    """Token t of a sample is compared with the other samples whose first t tokens are the same: as
    long as there is one, then with the last there were."""
    found = []
    for own, sample in enumerate(samples):
        baseline, values = advantages[own], []
        for at in range(len(sample)):
            others = [
                n
                for n, other in enumerate(samples)
                if n != own and other[:at] == sample[:at] and len(other) >= at
            ]
            if others:
                baseline = fmean(advantages[n] for n in others)
            values.append(advantages[own] - baseline)
        found.append(values)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_each_token_is_compared_with_the_samples_that_are_the_same_up_to_it(seed):
    draw = random.Random(seed)
    samples = [
        [draw.randrange(2) for _ in range(draw.randrange(7))] for _ in range(draw.randrange(1, 9))
    ]
    advantages = [draw.choice([-1.0, 0.0, 0.3, 1.0]) for _ in samples]
    found, expected = (
        by_prefix([*map(sample, samples)], advantages),
        by_definition(samples, advantages),
    )
    assert [len(values) for values in found] == [len(sample) for sample in samples]
    for values, others in zip(found, expected, strict=True):
        assert values == pytest.approx(others)


def test_where_all_samples_are_alike_no_token_earns_anything_at_all():
    """Exactly 0, so that such an episode needs no gradient."""
    assert by_prefix([sample([4, 5])] * 3, [0.7, 0.7, 0.7]) == [[0.0, 0.0]] * 3
    assert by_prefix([sample([4, 5])], [0.7]) == [[0.0, 0.0]]


def test_groups_are_told_apart_by_number_and_prompt_wherever_they_stand():
    first, second, third = ([sample([5], *of), sample([6], *of)] for of in ((0, 1), (1, 1), (0, 2)))
    mixed = [first[0], second[0], third[0], first[1], second[1], third[1]]
    assert by_prefix(mixed, [1.0, 2.0, 3.0, 0.0, 0.0, 0.0]) == [
        [1.0],
        [2.0],
        [3.0],
        [-1.0],
        [-2.0],
        [-3.0],
    ]


def scored(text: str, finish: str = "eos", call: str | None = "DOUBLE[4]") -> Episode:
    made = Episode(
        Task("doubling", "Double 4?", 8, 1, ""),
        [1],
        [2],
        [True],
        [-1.0],
        [Turn(text, 0, 1, call)],
        finish,
    )
    made.score = score(made)
    return made


WRONG, RIGHT = scored("[ANSWER] 9"), scored("[ANSWER] 8")


def test_a_run_without_signal_says_so_once_after_some_steps_in_a_row_and_again_when_it_was_gone_meanwhile():
    signal = LearningSignal()
    for _ in range(2):
        said = [signal.note([WRONG] * 8, [0.0] * 8) for _ in range(3 * STEPS_WITHOUT_SIGNAL)]
        assert [bool(text) for text in said].index(True) == STEPS_WITHOUT_SIGNAL - 1
        assert sum(map(bool, said)) == 1
        assert signal.note([WRONG, RIGHT], [-0.5, 0.5]) is None


@pytest.mark.parametrize(
    ("episodes", "named"),
    [
        ([WRONG], "100% of the answers are wrong"),
        ([RIGHT], "harder tasks"),
        ([scored("blip", call=None)], "none of 8"),
        ([scored("blip")], "system prompt"),
        ([scored("blip blip", "tokens")], "--max-tokens"),
        ([WRONG, RIGHT], "50%"),
    ],
)
def test_the_likeliest_reasons_are_computed_from_the_episodes_of_the_last_step(episodes, named):
    signal = LearningSignal()
    *_, said = [signal.note((8 * episodes)[:8], [0.0] * 8) for _ in range(STEPS_WITHOUT_SIGNAL)]
    assert named in said


NOISE = 0.1 + 0.2 - 0.3


@pytest.mark.parametrize("estimate", [group_relative, group_centred, mean_relative])
def test_rewards_that_differ_by_rounding_alone_are_equal(estimate):
    assert 0 < NOISE < 1e-15
    assert estimate([[0.0] * 7 + [NOISE]]) == [[0.0] * 8]
    assert zero_variance_share([[0.0, NOISE], [0.0, 1.0]]) == 0.5
    assert by_prefix([sample([4, 5])] * 3, [0.7, 0.7, 0.7 + NOISE])[0] == [0.0, 0.0]


def test_undivided_a_group_of_guesses_weighs_less_than_one_with_a_right_answer():
    guesses, answers = ADVANTAGES["dr_grpo"]([[0.2, 0.0, 0.0, 0.0], [1.2, 0.0, 0.0, 0.0]])
    assert [6 * guess for guess in guesses] == pytest.approx(answers)
