"""Answers that learners give to the exercises of notebook 03."""

from __future__ import annotations

import math
from fractions import Fraction

import torch


def _decide(
    gone,
    silent,
    busy,
    limits,
    failed_at,
    now,
    *,
    dead=lambda gone, silent, limits: gone or silent > limits.silent,
    stuck=lambda busy, limits: busy > limits.busy,
    recent=lambda failed_at, now, limits: sum(
        now - moment <= limits.window for moment in failed_at
    ),
    too_many=lambda recent, limits: recent >= limits.restarts,
    calm=lambda silent, busy: "slow" if silent > 0 else "busy" if busy > 0 else "idle",
):
    """Decide as the course does, with one rule changed."""
    if not dead(gone, silent, limits) and not stuck(busy, limits):
        return calm(silent, busy), "wait"
    found = "dead" if dead(gone, silent, limits) else "stuck"
    return found, "give up" if too_many(recent(failed_at, now, limits), limits) else "replace"


def kills_the_slow(*situation):
    found, action = _decide(*situation)
    return found, "replace" if found == "slow" else action


def ignores_gone(*situation):
    return _decide(*situation, dead=lambda gone, silent, limits: silent > limits.silent)


def the_limit_of_silence_is_2_5(*situation):
    return _decide(*situation, dead=lambda gone, silent, limits: gone or silent > 2.5)


def never_stuck(*situation):
    return _decide(*situation, stuck=lambda busy, limits: False)


def stuck_before_dead(gone, silent, busy, limits, failed_at, now):
    found, action = _decide(gone, silent, busy, limits, failed_at, now)
    return "stuck" if busy > limits.busy else found, action


def busy_before_slow(*situation):
    return _decide(
        *situation,
        calm=lambda silent, busy: "busy" if busy > 0 else "slow" if silent > 0 else "idle",
    )


def counts_all_failures(*situation):
    return _decide(*situation, recent=lambda failed_at, now, limits: len(failed_at))


def a_failure_at_the_border_is_old(*situation):
    return _decide(
        *situation,
        recent=lambda failed_at, now, limits: sum(now - m < limits.window for m in failed_at),
    )


def the_limit_of_silence_is_death(*situation):
    return _decide(*situation, dead=lambda gone, silent, limits: gone or silent >= limits.silent)


def the_limit_of_a_call_is_stuck(*situation):
    return _decide(*situation, stuck=lambda busy, limits: busy >= limits.busy)


def gives_up_the_idle(gone, silent, busy, limits, failed_at, now):
    found, action = _decide(gone, silent, busy, limits, failed_at, now)
    recent = sum(now - moment <= limits.window for moment in failed_at)
    return found, "give up" if recent >= limits.restarts else action


def counts_the_present_failure(*situation):
    return _decide(*situation, too_many=lambda recent, limits: recent + 1 >= limits.restarts)


def gives_up_one_later(*situation):
    return _decide(*situation, too_many=lambda recent, limits: recent > limits.restarts)


def a_list(*situation):
    return list(_decide(*situation))


def without_the_two(save, mtbf):
    return math.sqrt(save * mtbf)


def half_of_it(save, mtbf):
    return math.sqrt(save * mtbf / 2)


def without_the_root(save, mtbf):
    return 2 * save * mtbf


def a_failure_an_hour(save, mtbf):
    return math.sqrt(2 * save * 3600)


def two_seconds_to_save(save, mtbf):
    return math.sqrt(4 * mtbf)


def in_whole_seconds(save, mtbf):
    return round(math.sqrt(2 * save * mtbf))


def by_search(save, mtbf):
    times = [0.1 * step for step in range(1, 20_000)]
    return min(times, key=lambda t: save / t + t / (2 * mtbf))


def a_tensor(save, mtbf):
    return torch.tensor(2 * save * mtbf, dtype=torch.float64).sqrt()


def a_fraction(save, mtbf):
    return Fraction(math.sqrt(2 * save * mtbf))


def all_count_alike(weights, changes):
    return weights + sum(change for change, _ in changes) / max(len(changes), 1)


def adds_them_up(weights, changes):
    return weights + sum(count * change for change, count in changes)


def replaces_the_weights(weights, changes):
    return (
        sum(count * change for change, count in changes) / sum(n for _, n in changes)
        if changes
        else weights
    )


def fails_when_nobody_came(weights, changes):
    return weights + sum(count * change for change, count in changes) / sum(
        count for _, count in changes
    )


def divides_by_three(weights, changes):
    return weights + sum(change for change, _ in changes) / 3


def in_place(weights, changes):
    for change, count in changes:
        weights += count * change / sum(n for _, n in changes)
    return weights


def changes_in_place(weights, changes):
    for change, count in changes:
        change *= count
    examples = sum(count for _, count in changes)
    return weights + sum(change for change, _ in changes) / max(examples, 1)


def the_first_only(weights, changes):
    return weights + changes[0][0] if changes else weights


def by_stacking(weights, changes):
    if not changes:
        return weights.clone()
    counts = torch.tensor([float(count) for _, count in changes])
    return weights + counts @ torch.stack([change for change, _ in changes]) / counts.sum()


def as_numbers(weights, changes):
    total = sum(count for _, count in changes) or 1
    columns = zip(weights.tolist(), *(change.tolist() for change, _ in changes), strict=True)
    return [
        w + sum(c * n for c, (_, n) in zip(row, changes, strict=True)) / total
        for w, *row in columns
    ]


WRONG = {
    "decide": [
        kills_the_slow, ignores_gone, the_limit_of_silence_is_2_5, never_stuck,
        stuck_before_dead, busy_before_slow, counts_all_failures,
        a_failure_at_the_border_is_old, the_limit_of_silence_is_death, the_limit_of_a_call_is_stuck,
        gives_up_the_idle, counts_the_present_failure, gives_up_one_later,
    ],
    "best_interval": [
        without_the_two, half_of_it, without_the_root, a_failure_an_hour, two_seconds_to_save, in_whole_seconds,
        by_search,
    ],
    "merge": [
        all_count_alike, adds_them_up, replaces_the_weights, fails_when_nobody_came, divides_by_three, in_place,
        changes_in_place,
        the_first_only,
    ],
}  # fmt: skip
RIGHT = {
    "decide": [_decide, a_list],
    "best_interval": [a_tensor, a_fraction],
    "merge": [by_stacking, as_numbers],
}
