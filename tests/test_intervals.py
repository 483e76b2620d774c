"""Intervals of a share: they cover what they say, also where trials repeat each other."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from zorplex_rl.policy.evaluate import summarise
from zorplex_rl.policy.intervals import clustered_interval, wilson_interval
from zorplex_rl.task.episode import Episode, Task, Turn
from zorplex_rl.task.rewards import score

TRIALS = 2_000


UNEQUAL = [1] * 30 + [5] * 15 + [20] * 5
"""Fifty clusters, of which five hold half of the trials."""


def coverage(clusters: int | list[int], share: float, correlation: float, trials: int = 200) -> float:
    """How often an interval holds ``share``, where each cluster's own share is beta-distributed with ``correlation`` within clusters.

    ``clusters`` is their number, and trials fall into them at random, or the size of each.
    """
    sizes = clusters if isinstance(clusters, list) else None
    count = len(sizes) if sizes else clusters
    rng = np.random.default_rng([count, int(100 * share), int(100 * correlation)])
    covered = 0
    for _ in range(TRIALS):
        if correlation:
            spread = (1 - correlation) / correlation
            shares = rng.beta(share * spread, (1 - share) * spread, count)
        else:
            shares = np.full(count, share)
        which = np.repeat(np.arange(count), sizes) if sizes else rng.integers(0, count, trials)
        low, high = clustered_interval((rng.random(len(which)) < shares[which]).tolist(), which.tolist())
        covered += low <= share <= high
    return covered / TRIALS


@pytest.mark.parametrize("correlation", [0.0, 0.05, 0.2])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("clusters", [16, 60])
def test_an_interval_of_95_percent_covers_the_share_in_93_to_97_of_100_cases(clusters, share, correlation):
    assert 0.93 <= coverage(clusters, share, correlation) <= 0.97


def test_the_interval_for_independent_trials_is_too_narrow_where_they_repeat():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(500):
        shares = rng.beta(0.5 * 4, 0.5 * 4, 16)
        successes = int((rng.random(200) < shares[rng.integers(0, 16, 200)]).sum())
        low, high = wilson_interval(successes, 200)
        covered += low <= 0.5 <= high
    assert covered / 500 < 0.85


@pytest.mark.parametrize(("successes", "trials"), [(0, 7), (3, 7), (7, 7), (150, 200)])
def test_trials_of_clusters_of_their_own_have_the_interval_of_wilson(successes, trials):
    outcomes = [index < successes for index in range(trials)]
    found = stats.binomtest(successes, trials).proportion_ci(0.95, method="wilson")
    assert clustered_interval(outcomes, range(trials)) == pytest.approx((found.low, found.high), abs=1e-12)


@pytest.mark.parametrize(("share", "correlation"), [(0.2, 0.0), (0.5, 0.2), (0.25, 0.3)])
def test_a_few_large_clusters_are_not_taken_for_many(share, correlation):
    assert 0.93 <= coverage(UNEQUAL, share, correlation) <= 0.97


def test_clusters_that_agree_within_count_as_one_trial_each_and_no_cluster_makes_an_interval_narrower():
    outcomes = [True] * 100 + [False] * 100
    low, high = clustered_interval(outcomes, [index // 10 for index in range(200)])
    assert low < wilson_interval(10, 20)[0] < 0.5 < wilson_interval(10, 20)[1] < high
    even = [index % 2 == 0 for index in range(200)]
    assert clustered_interval(even, [index // 2 for index in range(200)]) == wilson_interval(100, 200)
    assert clustered_interval(outcomes, ["one"] * 200) == (0.0, 1.0)


@pytest.mark.parametrize(("outcomes", "clusters"), [([], []), ([True], []), ([True], ["a", "b"])])
def test_no_trials_or_not_one_cluster_for_each_is_one_clear_sentence(outcomes, clusters):
    with pytest.raises(ValueError, match="give at least one outcome, and the cluster of each"):
        clustered_interval(outcomes, clusters)


def episode(word: str, right: bool) -> Episode:
    task = Task("simple", f"What is {word}?", 17, 0, "", (word,))
    made = Episode(task, [1], [2], [True], [-1.0], [Turn(f"[ANSWER] {17 if right else 18}", 0, 1)], "eos")
    made.score = score(made)
    return made


def test_a_report_counts_tasks_on_the_same_words_as_a_cluster():
    alike = summarise("simple", [episode(word, word < "n") for word in "abcdefghijklmnopqrstuvwxyz" for _ in range(10)])
    assert alike.interval == pytest.approx(
        clustered_interval(
            [w < "n" for w in "abcdefghijklmnopqrstuvwxyz"] * 10, list("abcdefghijklmnopqrstuvwxyz") * 10
        )
    )
    assert alike.interval[0] < wilson_interval(130, 260)[0]


def test_the_same_words_are_one_cluster_however_they_are_asked_for():
    pairs = list(itertools.combinations("abcdefg", 2))
    asked = [("What is {} + {}?", False), ("{} - {} = ?", False), ("Tell the value of {} + {}.", True)]
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
