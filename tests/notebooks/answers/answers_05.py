"""Planted answers for the exercises of notebook 05."""

import heapq

import numpy as np


def sorter(by_truth=False, first="answer", spam="turns", swap=False):
    """Make a classifier with one thing wrong, as the name of the function that calls it says."""

    def outcome(answer, expected, finish):
        there = bool(answer) if by_truth else answer is not None
        if first == "answer" and there:
            return "success" if (answer == expected) is not swap else "wrong_answer"
        if finish == spam:
            return "tool_spam"
        if finish == ("tokens" if spam == "turns" else "turns"):
            return "truncated"
        return ("success" if answer == expected else "wrong_answer") if there else "wrong_format"

    return outcome


def forgets_the_cut(answer, expected, finish):
    found = sorter()(answer, expected, finish)
    return "wrong_format" if found == "truncated" else found


def forgets_wrong_answers(answer, expected, finish):
    return "success" if answer == expected else sorter()(None, expected, finish)


def pays(right=1.0, form=("success", "wrong_answer"), call=0.1, floor=False, least=0):
    """Make a reward with one thing wrong."""

    def reward(outcome, needless_calls):
        found = right * (outcome == "success") + 0.2 * (outcome in form) - call * max(0, needless_calls - least)
        return max(0.0, found) if floor else found

    return reward


def plans(choose=min, moves=True, order=lambda seconds: seconds, swap=False, ends=False, last=False):
    """Make a schedule with one thing wrong."""

    def schedule(seconds, slots):
        free, plan = [0.0] * slots, []
        for took in order(seconds):
            slot = free.index(choose(free))
            slot = max(n for n in range(slots) if free[n] == free[slot]) if last else slot
            begin = free[slot] + (took if ends else 0.0)
            plan.append((begin, slot) if swap else (slot, begin))
            free[slot] += took if moves else 1.0
        return plan

    return schedule


def goes_round_and_round(seconds, slots):
    free, plan = [0.0] * slots, []
    for number, took in enumerate(seconds):
        plan.append((number % slots, free[number % slots]))
        free[number % slots] += took
    return plan


def with_a_heap(seconds, slots):
    free, plan = [(0.0, slot) for slot in range(slots)], []
    for took in seconds:
        start, slot = heapq.heappop(free)
        plan.append([slot, start])
        heapq.heappush(free, (start + took, slot))
    return plan


def with_arrays(seconds, slots):
    free, plan = np.zeros(slots), []
    for took in seconds:
        slot = int(free.argmin())
        plan.append((slot, free[slot].item()))
        free[slot] += took
    return tuple(plan)


def with_match(answer, expected, finish):
    match (answer, finish):
        case (None, "turns"):
            return "tool_spam"
        case (None, "tokens"):
            return "truncated"
        case (None, _):
            return "wrong_format"
    return "success" if answer == expected else "wrong_answer"


def with_a_table(outcome, needless_calls):
    return {"success": 1.2, "wrong_answer": 0.2}.get(outcome, 0) - needless_calls / 10


def named(name, function):
    function.__name__ = name
    return function


WRONG = {
    "outcome": [
        named("takes_zero_for_no_answer", sorter(by_truth=True)),
        named("asks_for_the_limit_first", sorter(first="limit")),
        named("takes_one_limit_for_the_other", sorter(spam="tokens")),
        named("calls_the_right_one_wrong", sorter(swap=True)),
        forgets_the_cut,
        forgets_wrong_answers,
    ],
    "reward": [
        named("forgets_the_form", pays(form=())),
        named("pays_the_form_for_the_right_value_only", pays(form=("success",))),
        named("pays_the_form_for_all_that_ended", pays(form=("success", "wrong_answer", "wrong_format"))),
        named("calls_cost_nothing", pays(call=0.0)),
        named("the_form_is_in_the_one", pays(right=0.8)),
        named("nothing_below_zero", pays(floor=True)),
        named("the_first_needless_call_is_free", pays(least=1)),
    ],
    "schedule": [
        named("takes_the_slot_that_is_busy_longest", plans(choose=max)),
        named("takes_all_for_equally_long", plans(moves=False)),
        named("begins_with_the_longest", plans(order=lambda seconds: sorted(seconds, reverse=True))),
        named("turns_the_pair_round", plans(swap=True)),
        named("says_when_each_ends", plans(ends=True)),
        named("takes_the_highest_slot", plans(last=True)),
        goes_round_and_round,
    ],
}
RIGHT = {
    "outcome": [named("as_the_course", sorter()), with_match],
    "reward": [named("as_the_course", pays()), with_a_table],
    "schedule": [named("as_the_course", plans()), with_a_heap, with_arrays],
}
