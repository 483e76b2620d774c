"""Notebook 07: readers that let a torn copy through or never return, and counts of slots."""

from __future__ import annotations

import math

import torch


def newest(headers):
    return max(range(len(headers)), key=lambda slot: headers[slot][1])


def not_only_even_ones(headers):
    whole = [slot for slot, (n, _) in enumerate(headers) if n]
    return max(whole, key=lambda slot: headers[slot][1], default=None)


def only_odd_ones(headers):
    whole = [slot for slot, (n, _) in enumerate(headers) if n % 2]
    return max(whole, key=lambda slot: headers[slot][1], default=None)


def raises_without_a_slot(headers):
    return max(
        (slot for slot, (n, _) in enumerate(headers) if n and n % 2 == 0),
        key=lambda slot: headers[slot][1],
    )


def the_version_itself(headers):
    return max((version for n, version in headers if n and n % 2 == 0), default=None)


def place_among_the_complete_ones(headers):
    whole = [header for header in headers if header[0] and header[0] % 2 == 0]
    return whole.index(max(whole, key=lambda header: header[1])) if whole else None


def the_oldest_slot(headers):
    whole = [slot for slot, (n, _) in enumerate(headers) if n and n % 2 == 0]
    return min(whole, key=lambda slot: headers[slot][1], default=None)


def by_a_loop(headers):
    best = None
    for slot, (n, version) in enumerate(headers):
        if n > 0 and not n & 1 and (best is None or version > headers[best][1]):
            best = slot
    return best


def by_the_sequence(headers):
    return max(
        (slot for slot, (n, _) in enumerate(headers) if n and n % 2 == 0),
        key=lambda slot: headers[slot][0],
        default=None,
    )


def by_tensors(headers):
    found = torch.tensor(headers)
    complete = (found[:, 0] > 0) & (found[:, 0] % 2 == 0)
    return torch.where(complete, found[:, 1], -1).argmax() if complete.any() else None


def does_not_look_again(read_headers, read_slot):
    while True:
        whole = [
            (version, slot) for slot, (n, version) in enumerate(read_headers()) if n and n % 2 == 0
        ]
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
    return (
        (headers[slot][1], weights)
        if read_headers()[slot] == headers[slot]
        else (headers[slot][1], None)
    )


def skips_slot_0(read_headers, read_slot):
    while True:
        headers = read_headers()
        slot = by_a_loop(headers)
        if not slot:
            continue
        weights = read_slot(slot)
        if read_headers()[slot] == headers[slot]:
            return headers[slot][1], weights


def accepts_no_copy(read_headers, read_slot):
    while True:
        before = read_headers()
        slot = by_a_loop(before)
        if slot is not None:
            weights = read_slot(slot)
            if read_headers() is before:
                return before[slot][1], weights


def returns_the_oldest(read_headers, read_slot):
    while True:
        headers = read_headers()
        slot = the_oldest_slot(headers)
        if slot is not None:
            weights = read_slot(slot)
            if read_headers()[slot] == headers[slot]:
                return headers[slot][1], weights


def compares_only_the_sequence(read_headers, read_slot):
    while True:
        headers = read_headers()
        slot = max(
            range(len(headers)), key=lambda slot: (headers[slot][0] % 2 == 0, headers[slot][0])
        )
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


def by_counting(read, write, period):
    slots = 2
    while slots * period - write < period + read:
        slots += 1
    return slots


def as_a_tensor(read, write, period):
    return torch.tensor(max(2.0, 1 + math.ceil((read + write) / period)))


WRONG = {
    "newest_slot": [
        not_only_even_ones,
        only_odd_ones,
        raises_without_a_slot,
        the_version_itself,
        place_among_the_complete_ones,
        the_oldest_slot,
    ],
    "read": [
        does_not_look_again,
        reads_a_slot_that_is_being_written,
        compares_only_the_version,
        looks_only_whether_it_is_even_afterwards,
        takes_a_slot_that_was_never_written,
        gives_up_after_one_attempt,
        skips_slot_0,
        accepts_no_copy,
        returns_the_oldest,
    ],
    "slots_needed": [
        without_the_newest_time,
        without_write,
        without_period,
        rounded_down,
        fewer_than_two,
        one_too_many,
    ],
}
RIGHT = {
    "newest_slot": [by_a_loop, by_the_sequence, by_tensors],
    "read": [compares_only_the_sequence, waits_until_nobody_writes],
    "slots_needed": [by_counting, as_a_tensor],
}
