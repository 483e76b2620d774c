"""Evaluation: intervals cover what they say, also where trials repeat each other."""

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy import stats

from zorplex_rl.policy.evaluate import clustered_interval, exact_interval, summarise
from zorplex_rl.task.episode import Episode, Task, Turn
from zorplex_rl.task.rewards import score

pytestmark = pytest.mark.slow

SIMULATED = 500
SHARES = (0.02, 0.1, 0.5, 0.9, 0.98, 1.0)
CORRELATIONS = (0.0, 0.05, 0.3, 0.8, 1.0)


def sizes_of(clusters: int) -> dict[str, tuple[int, ...]]:
    """Clusters of one size, of many, and a few large ones among many small ones."""
    mixed = np.random.default_rng(clusters).integers(1, 17, clusters).tolist()
    large = max(1, clusters // 10)
    skewed = (16,) * large + (1,) * (clusters - large)
    return {
        "one": (1,) * clusters,
        "sixteen": (16,) * clusters,
        "mixed": tuple(mixed),
        "skewed": skewed,
    }


def successes(
    rng: np.random.Generator, sizes: np.ndarray, share: float, correlation: float, alike: bool
) -> np.ndarray:
    """Successes [SIMULATED] of all trials. In a cluster with its own, beta-distributed share they
    correlate; or some clusters are all alike."""
    shape = (SIMULATED, len(sizes))
    same = (rng.random(shape) < share) * sizes
    if correlation == 1:
        return same.sum(1)
    if correlation == 0 or share == 1:
        return rng.binomial(sizes, share, shape).sum(1)
    if alike:
        return np.where(
            rng.random(shape) < correlation, same, rng.binomial(sizes, share, shape)
        ).sum(1)
    spread = (1 - correlation) / correlation
    return rng.binomial(sizes, rng.beta(share * spread, (1 - share) * spread, shape)).sum(1)


@pytest.mark.parametrize("clusters", [1, 3, 16, 60])
def test_an_interval_of_95_percent_covers_the_share_in_more_than_90_of_100_cases_everywhere(
    clusters,
):
    for name, sizes in sizes_of(clusters).items():
        rng, trials, names = (
            np.random.default_rng([clusters, len(name)]),
            sum(sizes),
            np.repeat(range(clusters), sizes),
        )

        @cache
        def interval(
            right: int, trials: int = trials, names: tuple[int, ...] = tuple(names.tolist())
        ) -> tuple[float, float]:
            # Which of the trials succeeded plays no part.
            return clustered_interval([index < right for index in range(trials)], names)

        for share, correlation, alike in itertools.product(SHARES, CORRELATIONS, (False, True)):
            right = successes(rng, np.array(sizes), share, correlation, alike)
            low, high = np.array([interval(count) for count in right.tolist()]).T
            covered = np.mean((low <= share) & (share <= high))
            assert covered > 0.9, (name, share, correlation, alike)


@pytest.mark.parametrize(("right", "trials"), [(0, 7), (3, 7), (7, 7), (150, 200)])
def test_trials_of_clusters_of_their_own_have_the_exact_interval(right, trials):
    outcomes = [index < right for index in range(trials)]
    found = stats.binomtest(right, trials).proportion_ci(0.95, method="exact")
    assert clustered_interval(outcomes, range(trials)) == pytest.approx(
        (found.low, found.high), abs=1e-12
    )


def test_a_cluster_counts_as_one_trial_and_a_few_large_ones_are_not_taken_for_many():
    outcomes = [True] * 100 + [False] * 100
    assert clustered_interval(outcomes, [i // 10 for i in range(200)]) == pytest.approx(
        exact_interval(10, 20)
    )
    assert clustered_interval(outcomes, ["one"] * 200) == pytest.approx(exact_interval(0.5, 1))
    few = clustered_interval(outcomes, [max(0, i - 100) for i in range(200)])
    assert few[1] - few[0] > 0.85


def episode(word: str, right: bool) -> Episode:
    task = Task("simple", f"What is {word}?", 17, 0, "", (word,))
    made = Episode(
        task, [1], [2], [True], [-1.0], [Turn(f"[ANSWER] {17 if right else 18}", 0, 1)], "eos"
    )
    made.score = score(made)
    return made


def test_the_same_words_are_one_cluster_however_they_are_asked_for():
    pairs = list(itertools.combinations("abcdefg", 2))
    asked = [
        ("What is {} + {}?", False),
        ("{} - {} = ?", False),
        ("Tell the value of {} + {}.", True),
    ]
    episodes = []
    for index, pair in enumerate(pairs):
        for phrasing, turned in asked:
            words = pair[::-1] if turned else pair
            one = episode("", right=index % 2 == 0)
            one.task = replace(one.task, question=phrasing.format(*words), words=words)
            episodes.append(one)
    report = summarise("compositional", episodes)
    outcomes = [one.scored.outcome == "success" for one in episodes]
    assert report.interval == clustered_interval(outcomes, [pair for pair in pairs for _ in asked])
    assert report.interval != clustered_interval(outcomes, range(len(episodes)))
