"""Pack texts into rows, and rows into batches, so that few tokens run twice and few are padding.

    [7 1 4]  [7 1 5]  [7 2]  [8 1]      sorted, texts with the same beginning are neighbours
    ╰───── row: 7 1 4 5 2 ─────╯        a row is a tree (decoder.py): each distinct beginning once

Arithmetic only, no torch: sampler, trainer and ``sizing/`` divide their texts by it.
"""

from collections.abc import Sequence

PADDING = 1.35
"""Padding may make a row this many times as long. Beyond that, another batch is cheaper."""


def row_length(hidden: int, intermediate: int) -> int:
    """Return how many tokens to pack into a row of a model with these sizes: with them attention
    takes half as long as the rest of a layer."""
    return hidden + 3 * intermediate // 4


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many leading tokens two texts share."""
    length, step = 0, 1024
    while step:
        # Comparing slices is a hundred times as fast as comparing tokens one by one.
        part = one[length : length + step]
        if len(part) == step and part == other[length : length + step]:
            length += step
        else:
            step //= 2
    return length


def rows_of(texts: Sequence[list[int]], most: int) -> list[tuple[list[int], int]]:
    """Divide ``texts`` into rows. Returns the indices of each row's texts, sorted, and its number of
    distinct tokens, at most ``most`` if it has more than one text.

    >>> rows_of([[7, 1, 4], [7, 2], [7, 1, 5], [8, 1]], most=5)
    [([0, 2, 1], 5), ([3], 2)]
    """
    rows: list[tuple[list[int], int]] = []
    before: Sequence[int] = ()
    for index in sorted(range(len(texts)), key=lambda i: texts[i]):
        text = texts[index]
        indices, size = rows[-1] if rows else ([], most)
        longer = size + len(text) - common_length(before, text)
        if longer <= most:
            indices.append(index)
            rows[-1] = (indices, longer)
        else:
            rows.append(([index], len(text)))
        before = text
    return rows


def split_by_tokens(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Split ``lengths`` into batches of similar lengths. Returns the indices of each: at least one,
    and at most ``token_budget`` padded tokens if there are more.

    >>> split_by_tokens([10, 30, 9, 10, 8], token_budget=30)
    [[4, 2, 0], [3], [1]]
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        longest = lengths[index]
        is_full = not batches or (len(batches[-1]) + 1) * longest > token_budget
        if is_full or longest > PADDING * lengths[batches[-1][0]]:
            batches.append([])
        batches[-1].append(index)
    return batches
