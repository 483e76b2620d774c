"""Answers that learners give to the exercises of notebook 10b."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction


def below_zero(silence, lease, drift):
    return lease * (1 + drift) - silence


def as_if_clocks_agreed(silence, lease, drift):
    return max(0.0, lease - silence)


def a_fast_host(silence, lease, drift):
    return max(0.0, lease / (1 + drift) - silence)


def a_slow_controller(silence, lease, drift):
    return max(0.0, (lease - silence) * (1 + drift))


def the_whole_lease(silence, lease, drift):
    return lease * (1 + drift)


def by_an_if(silence, lease, drift):
    ends = lease + lease * drift
    if silence >= ends:
        return 0
    return ends - silence


def as_a_fraction(silence, lease, drift):
    return max(Fraction(0), Fraction(lease) * (1 + Fraction(drift)) - Fraction(silence))


def at_once(now, heard, lease, drift, margin):
    return True


def ignores_the_drift(now, heard, lease, drift, margin):
    return now >= heard + lease + margin


def ignores_the_margin(now, heard, lease, drift, margin):
    return now >= heard + lease * (1 + drift)


def the_margin_on_the_wrong_side(now, heard, lease, drift, margin):
    return now + margin >= heard + lease * (1 + drift)


def a_fast_clock(now, heard, lease, drift, margin):
    return now >= heard + lease / (1 + drift) + margin


def the_margin_in_the_lease(now, heard, lease, drift, margin):
    return now >= heard + (lease + margin) * (1 + drift)


def ten_seconds(now, heard, lease, drift, margin):
    return now >= heard + 10 * (1 + drift) + margin


def by_the_seconds_that_are_left(now, heard, lease, drift, margin):
    return not Decimal(now) - Decimal(heard) - Decimal(margin) < Decimal(lease) * (
        1 + Decimal(drift)
    )


def by_fractions(now, heard, lease, drift, margin):
    return Fraction(now - margin - heard) / (1 + Fraction(drift)) >= lease


def the_drift_once(silences, drift, margin):
    return max(silences), max(silences) * (1 + drift) + margin


def by_the_mean(silences, drift, margin):
    lease = sum(silences) / len(silences) * (1 + drift)
    return lease, lease * (1 + drift) + margin


def no_margin(silences, drift, margin):
    lease = max(silences) * (1 + drift)
    return lease, lease * (1 + drift)


def by_the_last(silences, drift, margin):
    lease = silences[-1] * (1 + drift)
    return lease, lease * (1 + drift) + margin


def the_wait_by_a_good_clock(silences, drift, margin):
    lease = max(silences) * (1 + drift)
    return lease, lease + margin


def the_margin_in_the_shortest_lease(silences, drift, margin):
    lease = max(silences) * (1 + drift) + margin
    return lease, lease * (1 + drift)


def both_divided(silences, drift, margin):
    lease = max(silences) / (1 + drift)
    return lease, lease / (1 + drift) + margin


def by_sorting(silences, drift, margin):
    longest = sorted(silences)[-1]
    return [longest + longest * drift, longest * (1 + drift) ** 2 + margin]


def as_fractions(silences, drift, margin):
    lease = max(map(Fraction, silences)) * (1 + Fraction(drift))
    return lease, lease * (1 + Fraction(drift)) + Fraction(margin)


WRONG = {
    "two_trainers": [
        below_zero,
        as_if_clocks_agreed,
        a_fast_host,
        a_slow_controller,
        the_whole_lease,
    ],
    "lease_is_over": [
        at_once,
        ignores_the_drift,
        ignores_the_margin,
        the_margin_on_the_wrong_side,
        a_fast_clock,
        the_margin_in_the_lease,
        ten_seconds,
    ],
    "shortest_lease": [
        the_drift_once,
        by_the_mean,
        no_margin,
        by_the_last,
        the_wait_by_a_good_clock,
        the_margin_in_the_shortest_lease,
        both_divided,
    ],
}
RIGHT = {
    "two_trainers": [by_an_if, as_a_fraction],
    "lease_is_over": [by_the_seconds_that_are_left, by_fractions],
    "shortest_lease": [by_sorting, as_fractions],
}
