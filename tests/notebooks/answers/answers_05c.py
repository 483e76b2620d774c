"""Answers to the exercises of notebook 05c: wrong ones that learners give, and right ones that look
unusual."""

from __future__ import annotations

import math
from fractions import Fraction
from statistics import fmean, pstdev, stdev, variance

import numpy as np
import torch


def differences(before, after):
    return [new - old for old, new in zip(before, after, strict=True)]


def compares_the_means_alone(before, after):
    noise = math.sqrt((variance(before) + variance(after)) / len(before))
    return fmean(after) - fmean(before), 2 * noise


def gives_one_standard_error(before, after):
    apart = differences(before, after)
    return fmean(apart), stdev(apart) / math.sqrt(len(apart))


def gives_two_deviations_of_a_task(before, after):
    apart = differences(before, after)
    return fmean(apart), 2 * stdev(apart)


def divides_by_n_instead_of_its_root(before, after):
    apart = differences(before, after)
    return fmean(apart), 2 * stdev(apart) / len(apart)


def takes_the_deviation_of_a_population(before, after):
    apart = differences(before, after)
    return fmean(apart), 2 * pstdev(apart) / math.sqrt(len(apart))


def has_the_wrong_sign(before, after):
    apart = differences(after, before)
    return fmean(apart), 2 * stdev(apart) / math.sqrt(len(apart))


def subtracts_tensors(before, after):
    apart = torch.tensor(after, dtype=torch.float64) - torch.tensor(before, dtype=torch.float64)
    return torch.stack([apart.mean(), 2 * apart.std() / len(apart) ** 0.5])


def computes_with_numpy(before, after):
    apart = np.subtract(after, before)
    return [apart.mean(), 2 * apart.std(ddof=1) / np.sqrt(apart.size)]


def puts_attempts_back(samples, correct, k):
    return 1 - (1 - correct / samples) ** k


def gives_the_chance_that_all_are_wrong(samples, correct, k):
    return math.comb(samples - correct, k) / math.comb(samples, k)


def wants_all_to_be_right(samples, correct, k):
    return math.comb(correct, k) / math.comb(samples, k)


def ignores_k(samples, correct, k):
    return correct / samples


def counts_drawing_order_in_one_of_them(samples, correct, k):
    return 1 - math.comb(samples - correct, k) / math.perm(samples, k)


def has_64_samples_hard_wired(samples, correct, k):
    return 1 - math.comb(max(64 - correct, 0), k) / max(1, math.comb(64, k))


def is_zero_where_fewer_than_k_are_wrong(samples, correct, k):
    if samples - correct < k:
        return 0.0
    return 1 - math.comb(samples - correct, k) / math.comb(samples, k)


def gives_a_fraction(samples, correct, k):
    return 1 - Fraction(math.comb(samples - correct, k), math.comb(samples, k))


def multiplies_as_the_paper_does(samples, correct, k):
    if samples - correct < k:
        return 1.0
    return 1.0 - float(np.prod(1.0 - k / np.arange(samples - correct + 1, samples + 1)))


def estimates(now, before):
    d = now - before
    return (-d).exp() - 1 + d


def counts_the_tools_tokens(now, before, sampled):
    return estimates(now, before).mean()


def divides_by_all_tokens(now, before, sampled):
    return (estimates(now, before) * sampled).sum() / len(now)


def gives_the_mean_difference(now, before, sampled):
    return (now - before)[sampled].mean()


def gives_half_the_mean_square(now, before, sampled):
    return (now - before)[sampled].square().mean() / 2


def measures_the_other_direction(now, before, sampled):
    return estimates(before, now)[sampled].mean()


def adds_up(now, before, sampled):
    return estimates(now, before)[sampled].sum()


def forgets_the_minus_one(now, before, sampled):
    return (estimates(now, before) + 1)[sampled].mean()


def weighs_by_both_policies(now, before, sampled):
    return ((now - before).exp() * estimates(now, before))[sampled].mean()


def computes_without_tensors(now, before, sampled):
    apart = (now - before)[sampled].tolist()
    return fmean(math.exp(-d) - 1 + d for d in apart)


def masks_with_numbers(now, before, sampled):
    own = sampled.double()
    return estimates(now, before) @ own / own.sum()


def keeps_the_gradient_of_kl(now, before, sampled):
    drawn = (now - now.detach()).exp()
    return (drawn * estimates(now, before))[sampled].mean()


WRONG = {
    "change": [
        compares_the_means_alone,
        gives_one_standard_error,
        gives_two_deviations_of_a_task,
        divides_by_n_instead_of_its_root,
        takes_the_deviation_of_a_population,
        has_the_wrong_sign,
    ],
    "pass_at_k": [
        puts_attempts_back,
        gives_the_chance_that_all_are_wrong,
        wants_all_to_be_right,
        ignores_k,
        counts_drawing_order_in_one_of_them,
        has_64_samples_hard_wired,
        is_zero_where_fewer_than_k_are_wrong,
    ],
    "kl": [
        counts_the_tools_tokens,
        divides_by_all_tokens,
        gives_the_mean_difference,
        gives_half_the_mean_square,
        measures_the_other_direction,
        adds_up,
        forgets_the_minus_one,
        weighs_by_both_policies,
    ],
}
RIGHT = {
    "change": [subtracts_tensors, computes_with_numpy],
    "pass_at_k": [gives_a_fraction, multiplies_as_the_paper_does],
    "kl": [masks_with_numbers, computes_without_tensors, keeps_the_gradient_of_kl],
}
