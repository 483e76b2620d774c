"""Notebook 07: readers that let a torn copy through or never return, and counts of slots."""

from __future__ import annotations

import math
from fractions import Fraction

import torch


def newest(headers):
    return max(range(len(headers)), key=lambda slot: headers[slot][1])


def does_not_look_again(read_headers, read_slot):
    while True:
        whole = [(version, slot) for slot, (n, version) in enumerate(read_headers()) if n and n % 2 == 0]
        if whole:
            version, slot = max(whole)
            return version, read_slot(slot)


def reads_a_slot_that_is_being_written(read_headers, read_slot):
    while True:
        headers = read_headers()
        slot = newest(headers)
        weights = read_slot(slot)
        if read_headers()[slot] == headers[slot]:
            return headers[slot][1], weights


def compares_only_the_version(read_headers, read_slot):
    while True:
        headers = read_headers()
        whole = [slot for slot, (n, _) in enumerate(headers) if n and n % 2 == 0]
        if whole:
            slot = max(whole, key=lambda slot: headers[slot][1])
            weights = read_slot(slot)
            if read_headers()[slot][1] == headers[slot][1]:
                return headers[slot][1], weights


def looks_only_whether_it_is_even_afterwards(read_headers, read_slot):
    while True:
        headers = read_headers()
        whole = [slot for slot, (n, _) in enumerate(headers) if n and n % 2 == 0]
        if whole:
            slot = max(whole, key=lambda slot: headers[slot][1])
            weights = read_slot(slot)
            if read_headers()[slot][0] % 2 == 0:
                return headers[slot][1], weights


def takes_the_oldest(read_headers, read_slot):
    while True:
        headers = read_headers()
        whole = [slot for slot, (n, _) in enumerate(headers) if n and n % 2 == 0]
        if whole:
            slot = min(whole, key=lambda slot: headers[slot][1])
            weights = read_slot(slot)
            if read_headers()[slot] == headers[slot]:
                return headers[slot][1], weights


def takes_a_slot_that_was_never_written(read_headers, read_slot):
    while True:
        headers = read_headers()
        whole = [slot for slot, (n, _) in enumerate(headers) if n % 2 == 0]
        slot = max(whole, key=lambda slot: headers[slot][1])
        weights = read_slot(slot)
        if read_headers()[slot] == headers[slot]:
            return headers[slot][1], weights


def gives_up_after_one_attempt(read_headers, read_slot):
    headers = read_headers()
    whole = [slot for slot, (n, _) in enumerate(headers) if n and n % 2 == 0]
    slot = max(whole, key=lambda slot: headers[slot][1], default=0)
    weights = read_slot(slot)
    return (headers[slot][1], weights) if read_headers()[slot] == headers[slot] else (headers[slot][1], None)


def keeps_the_first_headers(read_headers, read_slot):
    headers = read_headers()
    slot = newest(headers)
    while True:
        weights = read_slot(slot)
        if read_headers()[slot] == headers[slot] and headers[slot][0] % 2 == 0:
            return headers[slot][1], weights


def always_slot_0(read_headers, read_slot):
    while True:
        before = read_headers()[0]
        weights = read_slot(0)
        if before[0] and before[0] % 2 == 0 and read_headers()[0] == before:
            return before[1], weights


def returns_the_weights_first(read_headers, read_slot):
    version, weights = compares_only_the_sequence(read_headers, read_slot)
    return weights, version


def compares_only_the_sequence(read_headers, read_slot):
    while True:
        headers = read_headers()
        slot = max(range(len(headers)), key=lambda slot: (headers[slot][0] % 2 == 0, headers[slot][0]))
        if headers[slot][0] == 0 or headers[slot][0] % 2:
            continue
        weights = read_slot(slot)
        if read_headers()[slot][0] == headers[slot][0]:
            return headers[slot][1], weights


def waits_until_nobody_writes(read_headers, read_slot):
    """Strict: all headers unchanged. It needs more attempts, and ends when the writer rests."""
    while True:
        before = read_headers()
        if any(n % 2 for n, _ in before) or not any(n for n, _ in before):
            continue
        slot = newest(before)
        weights = read_slot(slot)
        if list(read_headers()) == list(before):
            return before[slot][1], weights


def calls_itself(read_headers, read_slot):
    headers = read_headers()
    whole = [slot for slot, (n, _) in enumerate(headers) if n and n % 2 == 0]
    if whole:
        slot = max(whole, key=lambda slot: headers[slot][1])
        weights = read_slot(slot)
        if tuple(read_headers()[slot]) == tuple(headers[slot]):
            return torch.tensor(headers[slot][1]), torch.tensor(weights)
    return calls_itself(read_headers, read_slot)


def without_the_newest_time(read, write, period):
    return max(2, math.ceil((read + write) / period))


def without_write(read, write, period):
    return max(2, 1 + math.ceil(read / period))


def without_period(read, write, period):
    return max(2, 1 + math.ceil(read + write))


def rounded_down(read, write, period):
    return max(2, 1 + int((read + write) / period))


def fewer_than_two(read, write, period):
    return 1 + math.ceil((read + write) / period)


def one_too_many(read, write, period):
    return max(2, 2 + math.floor((read + write) / period))


def always_three(read, write, period):
    return 3


def minus_write(read, write, period):
    return max(2, 1 + math.ceil((read - write) / period))


def by_counting(read, write, period):
    slots = 2
    while slots * period - write < period + read:
        slots += 1
    return slots


def as_a_fraction(read, write, period):
    total = (Fraction(read) + Fraction(write)) / Fraction(period)
    return Fraction(max(2, 1 - (-total.numerator // total.denominator)))


def as_a_tensor(read, write, period):
    return torch.tensor(max(2.0, 1 + math.ceil((read + write) / period)))


WRONG = {
    "read": [
        does_not_look_again,
        reads_a_slot_that_is_being_written,
        compares_only_the_version,
        looks_only_whether_it_is_even_afterwards,
        takes_the_oldest,
        takes_a_slot_that_was_never_written,
        gives_up_after_one_attempt,
        keeps_the_first_headers,
        always_slot_0,
        returns_the_weights_first,
    ],
    "slots_needed": [
        without_the_newest_time,
        without_write,
        without_period,
        rounded_down,
        fewer_than_two,
        one_too_many,
        always_three,
        minus_write,
    ],
}
RIGHT = {
    "read": [compares_only_the_sequence, waits_until_nobody_writes, calls_itself],
    "slots_needed": [by_counting, as_a_fraction, as_a_tensor],
}
