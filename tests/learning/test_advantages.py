"""Credit for each token: what it is compared with."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import fmean

import pytest

from zorplex_rl.learning.advantages import by_prefix, prefix_relative
from zorplex_rl.task.episode import Episode
from zorplex_rl.task.specs import get_spec


def by_definition(samples: list[list[int]], advantages: list[float]) -> list[list[float]]:
    """Token t of a sample is compared with the other samples whose first t tokens are the same: as
    long as there is one, then with the last there were."""
    found = []
    for own, sample in enumerate(samples):
        baseline, values = advantages[own], []
        for at in range(len(sample)):
            others = [
                n for n, other in enumerate(samples) if n != own and other[:at] == sample[:at] and len(other) >= at
            ]
            if others:
                baseline = fmean(advantages[n] for n in others)
            values.append(advantages[own] - baseline)
        found.append(values)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_each_token_is_compared_with_the_samples_that_are_the_same_up_to_it(seed):
    draw = random.Random(seed)
    samples = [[draw.randrange(2) for _ in range(draw.randrange(7))] for _ in range(draw.randrange(1, 9))]
    advantages = [draw.choice([-1.0, 0.0, 0.3, 1.0]) for _ in samples]
    found, expected = prefix_relative(samples, advantages), by_definition(samples, advantages)
    assert [len(values) for values in found] == [len(sample) for sample in samples]
    for values, others in zip(found, expected, strict=True):
        assert values == pytest.approx(others)


def test_where_all_samples_are_alike_no_token_earns_anything():
    assert prefix_relative([[4, 5], [4, 5], [4, 5]], [0.7, 0.7, 0.7]) == [[0.0, 0.0]] * 3
    assert prefix_relative([[4, 5]], [0.7]) == [[0.0, 0.0]]


def test_the_first_token_is_compared_with_all_others_and_a_choice_with_those_that_chose_too():
    right, wrong, other = [1, 2, 3], [1, 2, 4], [9, 9, 9]
    found = prefix_relative([right, right, wrong, other], [1.0, 1.0, 0.0, 0.0])
    assert found[0][0] == pytest.approx(1 - 1 / 3)
    # The good beginning was shared: 2 of 3 that began so were right, and only the last token decided.
    assert found[2] == pytest.approx([-2 / 3, -1.0, -1.0])
    assert found[3] == pytest.approx([-2 / 3] * 3)


def test_groups_are_told_apart_by_number_and_prompt_wherever_they_stand():
    def episode(group: int, prompt: int, tokens: list[int]) -> Episode:
        task = get_spec("simple").task(0)
        return Episode(task, [prompt], tokens, [True] * len(tokens), [0.0] * len(tokens), [], "answer", group=group)

    first, second = [episode(0, 1, [5]), episode(0, 1, [6])], [episode(1, 1, [5]), episode(1, 1, [6])]
    alike = [replace(e, prompt_ids=[2]) for e in first]
    mixed = [first[0], second[0], alike[0], first[1], second[1], alike[1]]
    assert by_prefix(mixed, [1.0, 2.0, 3.0, 0.0, 0.0, 0.0]) == [[1.0], [2.0], [3.0], [-1.0], [-2.0], [-3.0]]
