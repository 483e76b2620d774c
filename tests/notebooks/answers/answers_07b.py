"""Notebook 07b: overlaps, planners and byte counts that are plausible and wrong, and some that are
unusual and right."""

from __future__ import annotations

import itertools
from fractions import Fraction

import torch


def parts(held, wanted):
    for rank, box in held.items():
        part = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, wanted, strict=True))
        if all(first < end for first, end in part):
            yield rank, box, part


def ranges(held, wanted):
    return [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(held, wanted, strict=True)]


def what_either_has(held, wanted):
    return tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(held, wanted, strict=True))


def an_empty_overlap(held, wanted):
    return tuple(ranges(held, wanted))


def touching_is_overlapping(held, wanted):
    found = ranges(held, wanted)
    return tuple(found) if all(a <= b for a, b in found) else None


def the_first_dimension_alone(held, wanted):
    ((first, end), *_) = ranges(held, wanted)
    return ((first, end), *wanted[1:]) if first < end else None


def first_and_count(held, wanted):
    found = ranges(held, wanted)
    return tuple((a, b - a) for a, b in found) if all(a < b for a, b in found) else None


def inside_the_shard(held, wanted):
    found = ranges(held, wanted)
    if any(a >= b for a, b in found):
        return None
    return tuple((a - first, b - first) for (a, b), (first, _) in zip(found, held, strict=True))


def by_sets(held, wanted):
    found = []
    for (a, b), (c, d) in zip(held, wanted, strict=True):
        both = set(range(a, b)) & set(range(c, d))
        if not both:
            return None
        found.append([min(both), max(both) + 1])
    return found


def as_a_tensor(held, wanted):
    found = by_sets(held, wanted)
    return None if found is None else torch.tensor(found)


def from_every_copy(held, wanted, sent):
    return [(rank, part) for rank, _, part in parts(held, wanted)]


def from_the_first_copy(held, wanted, sent):
    found = {}
    for rank, box, part in parts(held, wanted):
        found.setdefault(box, (rank, part))
    return list(found.values())


def all_from_one_rank(held, wanted, sent):
    return [(min(sent, key=sent.get), wanted)]


def only_from_rank_0(held, wanted, sent):
    return [(rank, part) for rank, _, part in parts(held, wanted) if rank == 0]


def empty_parts_too(held, wanted, sent):
    found = {}
    for rank in sorted(held, key=sent.get):
        part = tuple(
            (max(a, c), min(b, d)) for (a, b), (c, d) in zip(held[rank], wanted, strict=True)
        )
        found.setdefault(held[rank], (rank, part))
    return list(found.values())


def keeps_what_is_none(held, wanted, sent):
    found = {}
    for rank in sorted(held, key=sent.get):
        part = by_sets(held[rank], wanted)
        found.setdefault(held[rank], (rank, part and tuple(map(tuple, part))))
    return list(found.values())


def only_the_first_dimension(held, wanted, sent):
    found = {}
    for rank, box, part in sorted(parts(held, wanted), key=lambda piece: sent[piece[0]]):
        found.setdefault(box, (rank, (part[0], *wanted[1:])))
    return list(found.values())


def offsets_in_the_shard(held, wanted, sent):
    return [
        (rank, tuple((a - low, b - low) for (a, b), (low, _) in zip(part, held[rank], strict=True)))
        for rank, part in in_order_of_sent(held, wanted, sent)
    ]


def in_order_of_sent(held, wanted, sent):
    taken, found = set(), []
    for rank, box, part in sorted(parts(held, wanted), key=lambda piece: sent[piece[0]]):
        if box not in taken:
            taken.add(box)
            found.append((rank, part))
    return found


def keeps_the_account(held, wanted, sent):
    found = in_order_of_sent(held, wanted, sent)
    for rank, part in found:
        sent[rank] += sum(b - a for a, b in part)
    return found


def element_by_element(held, wanted, sent):
    found = []
    for place in itertools.product(*(range(a, b) for a, b in wanted)):
        ranks = [
            r for r in held if all(a <= at < b for at, (a, b) in zip(place, held[r], strict=True))
        ]
        found.append([min(ranks, key=sent.get), tuple((at, at + 1) for at in place)])
    return found


def wanted_of(size, destinations, whole):
    return size * destinations if whole else size


def ignores_whole(size, sources, destinations, whole):
    return size / sources, size


def always_whole(size, sources, destinations, whole):
    return size * destinations / sources, size * destinations


def in_all(size, sources, destinations, whole):
    return (wanted_of(size, destinations, whole),) * 2


def shared_by_the_generators(size, sources, destinations, whole):
    wanted = wanted_of(size, destinations, whole)
    return wanted / destinations, wanted


def gathers_on_the_same_link(size, sources, destinations, whole):
    wanted = wanted_of(size, destinations, whole)
    return wanted / sources, wanted + size - size / sources


def the_other_way_round(size, sources, destinations, whole):
    wanted = wanted_of(size, destinations, whole)
    return wanted, wanted / sources


def as_fractions(size, sources, destinations, whole):
    wanted = Fraction(wanted_of(size, destinations, whole))
    return [wanted / sources, wanted]


def as_whole_numbers(size, sources, destinations, whole):
    wanted = size * destinations**whole
    return wanted // sources, wanted


WRONG = {
    "overlap": [
        what_either_has,
        an_empty_overlap,
        touching_is_overlapping,
        the_first_dimension_alone,
        first_and_count,
        inside_the_shard,
    ],
    "pieces": [
        from_every_copy,
        from_the_first_copy,
        all_from_one_rank,
        only_from_rank_0,
        empty_parts_too,
        keeps_what_is_none,
        only_the_first_dimension,
        offsets_in_the_shard,
        keeps_the_account,
    ],
    "busiest_sends": [
        ignores_whole,
        always_whole,
        in_all,
        shared_by_the_generators,
        gathers_on_the_same_link,
        the_other_way_round,
    ],
}
RIGHT = {
    "overlap": [by_sets, as_a_tensor],
    "pieces": [in_order_of_sent, element_by_element],
    "busiest_sends": [as_fractions, as_whole_numbers],
}
