"""What learners write in notebook 11: plausible wrong answers, each named by what is wrong with it,
and unusual right ones."""

import math

import numpy as np
import torch

# From a symptom to a correction.


def ill(run, other):
    return run[-1] < max([*run, *other]) / 2


def far(numerics, low=0.8, high=1.2):
    return sum(not low <= math.exp(log) <= high for log in numerics) / len(numerics)


def by_the_tree(is_ill, is_far, control_is_ill):
    return "leave it" if not is_ill else "mask" if is_far else "lower the rate" if control_is_ill else "clip"


def advise_ignores_the_control(accuracies, control, numerics):
    return by_the_tree(ill(accuracies, control), far(numerics) > 0.01, False)


def advise_ignores_the_numerics(accuracies, control, numerics):
    return by_the_tree(ill(accuracies, control), False, ill(control, accuracies))


def advise_asks_for_the_numerics_before_the_symptom(accuracies, control, numerics):
    return "mask" if far(numerics) > 0.01 else advise_ignores_the_numerics(accuracies, control, numerics)


def advise_asks_for_the_control_before_the_numerics(accuracies, control, numerics):
    if ill(accuracies, control) and ill(control, accuracies):
        return "lower the rate"
    return advise_ignores_the_control(accuracies, control, numerics)


def advise_takes_logarithms_for_ratios(accuracies, control, numerics):
    off = sum(not 0.8 <= log <= 1.2 for log in numerics) / len(numerics)
    return by_the_tree(ill(accuracies, control), off > 0.01, ill(control, accuracies))


def advise_counts_only_large_ratios(accuracies, control, numerics):
    return by_the_tree(ill(accuracies, control), far(numerics, low=0.0) > 0.01, ill(control, accuracies))


def advise_compares_each_run_with_its_own_best(accuracies, control, numerics):
    return by_the_tree(ill(accuracies, []), far(numerics) > 0.01, ill(control, []))


def advise_compares_with_the_end_of_the_control(accuracies, control, numerics):
    return by_the_tree(accuracies[-1] < control[-1] / 2, far(numerics) > 0.01, ill(control, accuracies))


def advise_has_the_answers_of_the_control_swapped(accuracies, control, numerics):
    return by_the_tree(ill(accuracies, control), far(numerics) > 0.01, not ill(control, accuracies))


def advise_with_arrays(accuracies, control, numerics):
    best, ratios = np.concatenate([accuracies, control]).max(), np.exp(np.array(numerics))
    off = ((ratios < 0.8) | (ratios > 1.2)).mean() > 0.01
    return by_the_tree(2 * accuracies[-1] < best, off, 2 * np.array(control)[-1] < best)


def advise_by_a_table(accuracies, control, numerics):
    low, high = math.log(0.8), math.log(1.2)
    off = 100 * sum(log < low or log > high for log in numerics) > len(numerics)
    answers = {True: {True: "mask", False: "lower the rate"}, False: {True: "mask", False: "clip"}}
    return answers[ill(control, accuracies)][off] if ill(accuracies, control) else "leave it"


# The bytes of a change.


def bytes_of_change_without_the_values(changed, weights):
    return min(4 * changed, weights / 8)


def bytes_of_change_by_indices_only(changed, weights):
    return 6 * changed


def bytes_of_change_by_the_mask_only(changed, weights):
    return 2 * changed + weights / 8


def bytes_of_change_with_the_larger(changed, weights):
    return 2 * changed + max(4 * changed, weights / 8)


def bytes_of_change_with_a_byte_for_each_weight(changed, weights):
    return 2 * changed + min(4 * changed, weights)


def bytes_of_change_in_float32(changed, weights):
    return 4 * changed + min(4 * changed, weights / 8)


def bytes_of_change_by_cases(changed, weights):
    if 32 * changed < weights:
        return 6 * changed
    return torch.tensor(2.0 * changed) + weights // 8


def bytes_of_change_in_bits(changed, weights):
    return (16 * changed + min(32 * changed, weights)) / 8


# The distillation loss.


def distill_is_not_weighted(logp, teacher_logp, mask, tokens):
    return ((logp - teacher_logp) * mask).sum() / tokens


def distill_without_detaching(logp, teacher_logp, mask, tokens):
    return ((logp - teacher_logp) * logp * mask).sum() / tokens


def distill_with_the_other_sign(logp, teacher_logp, mask, tokens):
    return ((teacher_logp - logp).detach() * logp * mask).sum() / tokens


def distill_forgets_the_mask(logp, teacher_logp, mask, tokens):
    return ((logp - teacher_logp).detach() * logp).sum() / tokens


def distill_divides_by_the_mask(logp, teacher_logp, mask, tokens):
    return ((logp - teacher_logp).detach() * logp * mask).sum() / mask.sum()


def distill_is_detached(logp, teacher_logp, mask, tokens):
    return ((logp - teacher_logp) * logp * mask).sum().detach() / tokens


def distill_copies_the_teacher_s_weights(logp, teacher_logp, mask, tokens):
    return -(teacher_logp.exp() * logp * mask).sum() / tokens


def distill_by_a_ratio(logp, teacher_logp, mask, tokens):
    ratio = (logp - logp.detach()).exp()
    return ((logp.detach() - teacher_logp) * ratio * mask / tokens).sum()


def distill_by_half_a_square(logp, teacher_logp, mask, tokens):
    """Its gradient is the same."""
    return 0.5 * ((logp - teacher_logp) ** 2 * mask).sum() / tokens


def _wrong(name, right):
    return [
        found
        for key, found in globals().items()
        if key.startswith(f"{name}_") and callable(found) and found not in right
    ]


RIGHT = {
    "advise": [advise_with_arrays, advise_by_a_table],
    "bytes_of_change": [bytes_of_change_by_cases, bytes_of_change_in_bits],
    "distill": [distill_by_a_ratio, distill_by_half_a_square],
}
WRONG = {name: _wrong(name, right) for name, right in RIGHT.items()}
