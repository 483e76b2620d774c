"""Planted answers for the exercises of notebook 05."""

import heapq

RULES = {"turns": "tool_spam", "tokens": "truncated"}


def sort(answer, expected, finish, rules=RULES):
    if answer is None:
        return rules.get(finish, "wrong_format")
    return "success" if answer == expected else "wrong_answer"


def pay(outcome, calls, right=1.0, form=("success", "wrong_answer"), call=0.1):
    return right * (outcome == "success") + 0.2 * (outcome in form) - call * calls


def plan(seconds, slots, choose=min, moves=True, last=False):
    free, found = [0.0] * slots, []
    for took in seconds:
        slot = free.index(choose(free))
        slot = max(n for n in range(slots) if free[n] == free[slot]) if last else slot
        found.append((slot, free[slot]))
        free[slot] += took if moves else 1.0
    return found


def with_a_heap(seconds, slots):
    free, found = [(0.0, slot) for slot in range(slots)], []
    for took in seconds:
        start, slot = heapq.heappop(free)
        found.append([slot, start])
        heapq.heappush(free, (start + took, slot))
    return found


def named(**functions):
    for name, function in functions.items():
        function.__name__ = name
    return list(functions.values())


WRONG = {
    "outcome": named(
        takes_zero_for_no_answer=lambda a, e, f: sort(a or None, e, f),
        asks_for_the_limit_first=lambda a, e, f: RULES.get(f) or sort(a, e, f),
        takes_one_limit_for_the_other=lambda a, e, f: sort(
            a, e, {"turns": "tokens", "tokens": "turns"}.get(f, f)
        ),
        calls_the_right_one_wrong=lambda a, e, f: sort(a, e + 1 if a == e else a, f),
        forgets_the_cut=lambda a, e, f: sort(a, e, f, {"turns": "tool_spam"}),
        forgets_wrong_answers=lambda a, e, f: sort(a if a == e else None, e, f),
    ),
    "reward": named(
        forgets_the_form=lambda o, n: pay(o, n, form=()),
        pays_the_form_for_the_right_value_only=lambda o, n: pay(o, n, form=("success",)),
        pays_the_form_for_all_that_ended=lambda o, n: pay(
            o, n, form=("success", "wrong_answer", "wrong_format")
        ),
        calls_cost_nothing=lambda o, n: pay(o, n, call=0.0),
        the_form_is_in_the_one=lambda o, n: pay(o, n, right=0.8),
        nothing_below_zero=lambda o, n: max(0.0, pay(o, n)),
        the_first_needless_call_is_free=lambda o, n: pay(o, max(0, n - 1)),
    ),
    "schedule": named(
        takes_the_slot_that_is_busy_longest=lambda s, n: plan(s, n, choose=max),
        takes_all_for_equally_long=lambda s, n: plan(s, n, moves=False),
        begins_with_the_longest=lambda s, n: plan(sorted(s, reverse=True), n),
        turns_the_pair_round=lambda s, n: [pair[::-1] for pair in plan(s, n)],
        says_when_each_ends=lambda s, n: [
            (slot, at + took) for (slot, at), took in zip(plan(s, n), s, strict=True)
        ],
        takes_the_highest_slot=lambda s, n: plan(s, n, last=True),
        goes_round_and_round=lambda s, n: [(i % n, sum(s[i % n : i : n])) for i in range(len(s))],
    ),
}
RIGHT = {
    "outcome": named(as_the_course=lambda a, e, f: sort(a, e, f)),
    "reward": named(
        with_a_table=lambda o, n: {"success": 1.2, "wrong_answer": 0.2}.get(o, 0) - n / 10
    ),
    "schedule": [with_a_heap],
}
