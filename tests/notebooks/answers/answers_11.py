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
    return (
        "leave it"
        if not is_ill
        else "mask"
        if is_far
        else "lower the rate"
        if control_is_ill
        else "clip"
    )


def advise_ignores_the_control(accuracies, control, numerics):
    return by_the_tree(ill(accuracies, control), far(numerics) > 0.01, False)


def advise_ignores_the_numerics(accuracies, control, numerics):
    return by_the_tree(ill(accuracies, control), False, ill(control, accuracies))


def advise_asks_for_the_numerics_before_the_symptom(accuracies, control, numerics):
    return (
        "mask"
        if far(numerics) > 0.01
        else advise_ignores_the_numerics(accuracies, control, numerics)
    )


def advise_asks_for_the_control_before_the_numerics(accuracies, control, numerics):
    if ill(accuracies, control) and ill(control, accuracies):
        return "lower the rate"
    return advise_ignores_the_control(accuracies, control, numerics)


def advise_takes_logarithms_for_ratios(accuracies, control, numerics):
    off = sum(not 0.8 <= log <= 1.2 for log in numerics) / len(numerics)
    return by_the_tree(ill(accuracies, control), off > 0.01, ill(control, accuracies))


def advise_counts_only_large_ratios(accuracies, control, numerics):
    return by_the_tree(
        ill(accuracies, control), far(numerics, low=0.0) > 0.01, ill(control, accuracies)
    )


def advise_compares_each_run_with_its_own_best(accuracies, control, numerics):
    return by_the_tree(ill(accuracies, []), far(numerics) > 0.01, ill(control, []))


def advise_compares_with_the_end_of_the_control(accuracies, control, numerics):
    return by_the_tree(
        accuracies[-1] < control[-1] / 2, far(numerics) > 0.01, ill(control, accuracies)
    )


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


# The forecast.


def forecast_by_the_lag_alone(lag, rate, usual):
    return float(lag)


def forecast_without_the_cube(lag, rate, usual):
    return lag * rate / usual


def forecast_is_upside_down(lag, rate, usual):
    return lag * (usual / rate) ** 3


def forecast_cubes_the_lag(lag, rate, usual):
    return lag**3 * (rate / usual)


def forecast_forgets_the_usual_rate(lag, rate, usual):
    return lag * (rate / 4e-4) ** 3


def forecast_with_logarithms(lag, rate, usual):
    return lag * math.exp(3 * (math.log(rate) - math.log(usual)))


def forecast_with_a_tensor(lag, rate, usual):
    return torch.tensor(lag * rate**3 / usual**3, dtype=torch.float64)


# The judgement of an alarm.


def counted(runs, is_foretold, rings=lambda rang: rang is not None, fell=lambda at: at is not None):
    hits = [is_foretold(rang, at) for rang, at in runs if fell(at)]
    well = [rings(rang) for rang, at in runs if not fell(at)]
    return sum(hits), len(hits), sum(well), len(well)


def judge_takes_step_0_for_none(runs, ahead):
    return counted(runs, lambda rang, at: bool(rang) and at - rang >= ahead, bool)


def judge_wants_one_step_more(runs, ahead):
    return counted(runs, lambda rang, at: rang is not None and at - rang > ahead)


def judge_takes_any_alarm(runs, ahead):
    return counted(runs, lambda rang, at: rang is not None)


def judge_takes_late_alarms(runs, ahead):
    return counted(runs, lambda rang, at: rang is not None and rang <= at)


def judge_has_ten_hard_wired(runs, ahead):
    return counted(runs, lambda rang, at: rang is not None and at - rang >= 10)


def judge_counts_all_runs(runs, ahead):
    hits, _, vain, _ = counted(runs, lambda rang, at: rang is not None and at - rang >= ahead)
    return hits, len(runs), vain, len(runs)


def judge_by_cases(runs, ahead):
    found = [0, 0, 0, 0]
    for rang, at in runs:
        place = 0 if at is not None else 2
        found[place + 1] += 1
        found[place] += rang is not None and (at is None or at >= rang + ahead)
    return found


def judge_with_arrays(runs, ahead):
    rang, at = np.array([[np.nan if x is None else x for x in run] for run in runs], dtype=float).T
    fell = ~np.isnan(at)
    return (at - rang >= ahead).sum(), fell.sum(), (~fell & ~np.isnan(rang)).sum(), (~fell).sum()


def _wrong(name, right):
    return [
        found
        for key, found in globals().items()
        if key.startswith(f"{name}_") and callable(found) and found not in right
    ]


RIGHT = {
    "advise": [advise_with_arrays, advise_by_a_table],
    "forecast": [forecast_with_logarithms, forecast_with_a_tensor],
    "judge": [judge_by_cases, judge_with_arrays],
}
WRONG = {name: _wrong(name, right) for name, right in RIGHT.items()}
