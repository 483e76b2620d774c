"""What learners write in notebook 11: plausible wrong answers, each named by what is wrong with it,
and unusual right ones."""

import math

import numpy as np
import torch

# The share of tokens that are far off.


def far_off_takes_logarithms_for_ratios(log_ratios):
    return sum(not 0.8 <= log <= 1.2 for log in log_ratios) / len(log_ratios)


def far_off_bounds_the_logarithm(log_ratios):
    return sum(abs(log) > 0.2 for log in log_ratios) / len(log_ratios)


def far_off_counts_only_large_ratios(log_ratios):
    return sum(math.exp(log) > 1.2 for log in log_ratios) / len(log_ratios)


def far_off_is_no_share(log_ratios):
    return sum(not 0.8 <= math.exp(log) <= 1.2 for log in log_ratios)


def far_off_is_the_share_of_the_others(log_ratios):
    return sum(0.8 <= math.exp(log) <= 1.2 for log in log_ratios) / len(log_ratios)


def far_off_is_a_mean_distance(log_ratios):
    return sum(abs(math.exp(log) - 1) for log in log_ratios) / len(log_ratios)


def far_off_with_tensors(log_ratios):
    return ((torch.tensor(log_ratios).exp() - 1).abs() > 0.2).double().mean()


def far_off_in_logarithms(log_ratios):
    low, high = math.log(0.8), math.log(1.2)
    return np.mean([log < low or log > high for log in log_ratios])


# From two measurements to a cure.


def ill(run, other):
    return run[-1] < max([*run, *other]) / 2


def by_the_table(is_ill, is_far, control_is_ill):
    if not is_ill:
        return "leave it"
    if is_far:
        return "mask"
    return "lower the rate" if control_is_ill else "clip"


def advise_ignores_the_control(accuracies, control, far):
    return by_the_table(ill(accuracies, control), far > 0.01, False)


def advise_ignores_the_numerics(accuracies, control, far):
    return by_the_table(ill(accuracies, control), False, ill(control, accuracies))


def advise_asks_for_the_numerics_before_the_symptom(accuracies, control, far):
    return "mask" if far > 0.01 else advise_ignores_the_numerics(accuracies, control, far)


def advise_asks_for_the_control_before_the_numerics(accuracies, control, far):
    if ill(accuracies, control) and ill(control, accuracies):
        return "lower the rate"
    return advise_ignores_the_control(accuracies, control, far)


def advise_takes_a_percentage(accuracies, control, far):
    return by_the_table(ill(accuracies, control), far > 1, ill(control, accuracies))


def advise_compares_each_run_with_its_own_best(accuracies, control, far):
    return by_the_table(ill(accuracies, []), far > 0.01, ill(control, []))


def advise_compares_with_the_end_of_the_control(accuracies, control, far):
    is_ill = accuracies[-1] < control[-1] / 2
    return by_the_table(is_ill, far > 0.01, ill(control, accuracies))


def advise_has_the_answers_of_the_control_swapped(accuracies, control, far):
    return by_the_table(ill(accuracies, control), far > 0.01, not ill(control, accuracies))


def advise_with_arrays(accuracies, control, far):
    best = np.concatenate([accuracies, control]).max()
    return by_the_table(2 * accuracies[-1] < best, far > 0.01, 2 * np.array(control)[-1] < best)


def advise_by_a_dictionary(accuracies, control, far):
    answers = {True: {True: "mask", False: "lower the rate"}, False: {True: "mask", False: "clip"}}
    return answers[ill(control, accuracies)][far > 0.01] if ill(accuracies, control) else "leave it"


# IcePop with two ratios.


def bounded(ratio, advantage):
    weight = advantage[:, None]
    return torch.minimum(ratio * weight, ratio.clamp(0.8, 1.2) * weight)


def icepop_ring_forgets_the_minus(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    k = (start_logp - behaviour_logp).exp()
    k = k * (k >= 0.5) * (k <= 5.0)
    return (k * bounded((logp - start_logp).exp(), advantage) * mask).sum() / tokens


def icepop_ring_cuts_and_does_not_mask(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    k = (start_logp - behaviour_logp).exp().clamp(0.5, 5.0)
    return -(k * bounded((logp - start_logp).exp(), advantage) * mask).sum() / tokens


def icepop_ring_without_the_weight(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    k = (start_logp - behaviour_logp).exp()
    trusted = mask * (k >= 0.5) * (k <= 5.0)
    return -(bounded((logp - start_logp).exp(), advantage) * trusted).sum() / tokens


def icepop_ring_with_one_ratio(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    ratio = (logp - behaviour_logp).exp()
    trusted = mask * (ratio >= 0.5) * (ratio <= 5.0)
    return -(ratio * advantage[:, None] * trusted).sum() / tokens


def icepop_ring_without_the_clip(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    k = (start_logp - behaviour_logp).exp()
    k = k * (k >= 0.5) * (k <= 5.0)
    return -(k * (logp - start_logp).exp() * advantage[:, None] * mask).sum() / tokens


def icepop_ring_does_not_bound_k(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    k = (start_logp - behaviour_logp).exp()
    return -(k * bounded((logp - start_logp).exp(), advantage) * mask).sum() / tokens


def icepop_ring_has_no_upper_bound(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    k = (start_logp - behaviour_logp).exp()
    k = k * (k >= 0.5)
    return -(k * bounded((logp - start_logp).exp(), advantage) * mask).sum() / tokens


def icepop_ring_takes_k_of_the_present_policy(
    logp, start_logp, behaviour_logp, advantage, mask, tokens
):
    k = (logp - behaviour_logp).exp()
    k = k * (k >= 0.5) * (k <= 5.0)
    return -(k * bounded((logp - start_logp).exp(), advantage) * mask).sum() / tokens


def icepop_ring_takes_a_constant_k_of_the_present_policy(
    logp, start_logp, behaviour_logp, advantage, mask, tokens
):
    k = (logp - behaviour_logp).detach().exp()
    k = k * (k >= 0.5) * (k <= 5.0)
    return -(k * bounded((logp - start_logp).exp(), advantage) * mask).sum() / tokens


def icepop_ring_clips_around_mu(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    k = (start_logp - behaviour_logp).exp()
    k = k * (k >= 0.5) * (k <= 5.0)
    return -(k * bounded((logp - behaviour_logp).exp(), advantage) * mask).sum() / tokens


def icepop_ring_divides_by_what_is_left(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    k = (start_logp - behaviour_logp).exp()
    trusted = mask * (k >= 0.5) * (k <= 5.0)
    found = k * bounded((logp - start_logp).exp(), advantage) * trusted
    return -found.sum() / trusted.sum().clamp(min=1)


def icepop_ring_by_where(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    k = torch.exp(start_logp - behaviour_logp)
    k = torch.where((k < 0.5) | (k > 5.0), torch.zeros_like(k), k)
    return (-k * bounded(torch.exp(logp - start_logp), advantage) * mask / tokens).sum()


def icepop_ring_by_indexing(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    k = (start_logp - behaviour_logp).exp()
    near = (mask == 1) & ((k - 2.75).abs() <= 2.25)
    return -(k * bounded((logp - start_logp).exp(), advantage))[near].sum() / tokens


def icepop_ring_in_place(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    k = (start_logp - behaviour_logp).exp()
    k[(k < 0.5) | (k > 5.0)] = 0
    return -(k * bounded((logp - start_logp).exp(), advantage) * mask).sum() / tokens


def _wrong(name, right):
    return [
        found
        for key, found in globals().items()
        if key.startswith(f"{name}_") and callable(found) and found not in right
    ]


RIGHT = {
    "far_off": [far_off_with_tensors, far_off_in_logarithms],
    "advise": [advise_with_arrays, advise_by_a_dictionary],
    "icepop_ring": [icepop_ring_by_where, icepop_ring_by_indexing, icepop_ring_in_place],
}
WRONG = {name: _wrong(name, right) for name, right in RIGHT.items()}
