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


def offsets_in_the_whole(source, destination, itemsize):
    first, end = max(source[0], destination[0]), min(sum(source), sum(destination))
    return (first * itemsize, first * itemsize, (end - first) * itemsize) if first < end else None


def in_elements(source, destination, itemsize):
    first, end = max(source[0], destination[0]), min(sum(source), sum(destination))
    return (first - source[0], first - destination[0], end - first) if first < end else None


def four_byte_elements(source, destination, itemsize):
    first, end = max(source[0], destination[0]), min(sum(source), sum(destination))
    return (
        (4 * (first - source[0]), 4 * (first - destination[0]), 4 * (end - first))
        if first < end
        else None
    )


def an_empty_overlap(source, destination, itemsize):
    first, end = max(source[0], destination[0]), min(sum(source), sum(destination))
    return tuple(
        itemsize * n for n in (first - source[0], first - destination[0], max(0, end - first))
    )


def touching_is_overlapping(source, destination, itemsize):
    first, end = max(source[0], destination[0]), min(sum(source), sum(destination))
    return (
        tuple(itemsize * n for n in (first - source[0], first - destination[0], end - first))
        if first <= end
        else None
    )


def sides_exchanged(source, destination, itemsize):
    first, end = max(source[0], destination[0]), min(sum(source), sum(destination))
    return (
        tuple(itemsize * n for n in (first - destination[0], first - source[0], end - first))
        if first < end
        else None
    )


def by_sets(source, destination, itemsize):
    both = sorted(set(range(source[0], sum(source))) & set(range(destination[0], sum(destination))))
    return (
        [itemsize * n for n in (both[0] - source[0], both[0] - destination[0], len(both))]
        if both
        else None
    )


def as_a_tensor(source, destination, itemsize):
    found = by_sets(source, destination, itemsize)
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


def element_by_element(held, wanted, sent):
    found = []
    for place in itertools.product(*(range(a, b) for a, b in wanted)):
        ranks = [
            r for r in held if all(a <= at < b for at, (a, b) in zip(place, held[r], strict=True))
        ]
        found.append([min(ranks, key=sent.get), tuple((at, at + 1) for at in place)])
    return found


def the_size_both_times(size, sources, destinations, whole):
    return size, 2 * size


def ignores_whole(size, sources, destinations, whole):
    return size, size - size // sources + size


def always_whole(size, sources, destinations, whole):
    return size * destinations, size - size // sources + size * destinations


def gathers_its_own_part_too(size, sources, destinations, whole):
    wanted = size * destinations if whole else size
    return wanted, size + wanted


def two_sources(size, sources, destinations, whole):
    wanted = size * destinations if whole else size
    return wanted, size // 2 + wanted


def gathers_one_part(size, sources, destinations, whole):
    wanted = size * destinations if whole else size
    return wanted, size // sources + wanted


def scatters_only(size, sources, destinations, whole):
    wanted = size * destinations if whole else size
    return wanted, wanted


def as_fractions(size, sources, destinations, whole):
    wanted = Fraction(size) * (destinations if whole else 1)
    return [wanted, wanted + Fraction(size) * (sources - 1) / sources]


def as_floats(size, sources, destinations, whole):
    wanted = float(size * destinations**whole)
    return wanted, wanted + size * (1 - 1 / sources)


WRONG = {
    "overlap": [
        offsets_in_the_whole,
        in_elements,
        four_byte_elements,
        an_empty_overlap,
        touching_is_overlapping,
        sides_exchanged,
    ],
    "pieces": [
        from_every_copy,
        from_the_first_copy,
        all_from_one_rank,
        only_from_rank_0,
        empty_parts_too,
        only_the_first_dimension,
        offsets_in_the_shard,
    ],
    "bytes_to_move": [
        the_size_both_times,
        ignores_whole,
        always_whole,
        gathers_its_own_part_too,
        two_sources,
        gathers_one_part,
        scatters_only,
    ],
}
RIGHT = {
    "overlap": [by_sets, as_a_tensor],
    "pieces": [in_order_of_sent, element_by_element],
    "bytes_to_move": [as_fractions, as_floats],
}
