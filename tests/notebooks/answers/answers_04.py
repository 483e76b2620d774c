"""Answers that learners give to the exercises of notebook 04."""

from __future__ import annotations

from fractions import Fraction

FACTORS = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}


def ignores_the_collective(collective, size, ranks):
    return (ranks - 1) * size / ranks


def an_all_to_all_sends_its_whole_share(collective, size, ranks):
    return FACTORS.get(collective, 1) * (ranks - 1) * size / ranks


def sends_to_itself_too(collective, size, ranks):
    return FACTORS[collective] * size if collective in FACTORS else size / ranks


def two_ranks(collective, size, ranks):
    return FACTORS[collective] * size / 2 if collective in FACTORS else size / 4


def an_all_reduce_once(collective, size, ranks):
    return (ranks - 1) * size / ranks / (ranks if collective == "all_to_all" else 1)


def of_all_ranks(collective, size, ranks):
    return (ranks - 1) * size * FACTORS.get(collective, 1 / ranks)


def a_fraction(collective, size, ranks):
    return Fraction((ranks - 1) * size, ranks) * Fraction(
        FACTORS.get(collective, Fraction(1, ranks))
    )


def in_order_of_arrival(mine, rank, ranks, exchange):
    shares = [mine]
    for _ in range(ranks - 1):
        shares.append(exchange(shares[-1]))
    return shares


def sends_its_own_again(mine, rank, ranks, exchange):
    shares = [mine] * ranks
    for step in range(1, ranks):
        shares[(rank - step) % ranks] = exchange(mine)
    return shares


def counts_the_other_way(mine, rank, ranks, exchange):
    shares = [mine] * ranks
    for step in range(1, ranks):
        mine = exchange(mine)
        shares[(rank + step) % ranks] = mine
    return shares


def one_exchange_too_many(mine, rank, ranks, exchange):
    shares = [mine] * ranks
    for step in range(1, ranks + 1):
        mine = exchange(mine)
        shares[(rank - step) % ranks] = mine
    return shares


def two_ranks_only(mine, rank, ranks, exchange):
    shares = [mine] * ranks
    if ranks > 1:
        shares[rank - 1] = exchange(mine)
    return shares


def the_last_rank_only_receives(mine, rank, ranks, exchange):
    shares = [mine] * ranks
    for step in range(1, ranks if rank < ranks - 1 else 1):
        mine = exchange(mine)
        shares[(rank - step) % ranks] = mine
    return shares


def by_a_dictionary(mine, rank, ranks, exchange):
    found = {rank: mine}
    for _ in range(ranks - 1):
        mine = exchange(mine)
        rank = (rank - 1) % ranks
        found[rank] = mine
    return [found[place] for place in range(ranks)]


def begins_with_its_own(summands, rank, ranks, exchange):
    travelling = summands[rank]
    for step in range(1, ranks):
        travelling = exchange(travelling) + summands[(rank - step) % ranks]
    return travelling


def begins_with_the_next(summands, rank, ranks, exchange):
    travelling = summands[(rank + 1) % ranks]
    for step in range(1, ranks):
        travelling = exchange(travelling) + summands[(rank - 1 - step) % ranks]
    return travelling


def returns_nothing(summands, rank, ranks, exchange):
    sums_in_place(summands, rank, ranks, exchange)


def adds_nothing(summands, rank, ranks, exchange):
    travelling = summands[(rank - 1) % ranks]
    for _ in range(1, ranks):
        travelling = exchange(travelling)
    return travelling


def sends_the_whole_list(summands, rank, ranks, exchange):
    for _ in range(1, ranks):
        summands = exchange(summands)
    return summands[rank]


def the_mean(summands, rank, ranks, exchange):
    return sums_in_place(summands, rank, ranks, exchange) / ranks


def always_its_own_summand(summands, rank, ranks, exchange):
    travelling = summands[rank]
    for _ in range(1, ranks):
        travelling = exchange(travelling) + summands[rank]
    return travelling


def one_step_too_few(summands, rank, ranks, exchange):
    travelling = summands[(rank - 1) % ranks]
    for step in range(1, ranks - 1):
        travelling = exchange(travelling) + summands[(rank - 1 - step) % ranks]
    return travelling


def all_of_its_own(summands, rank, ranks, exchange):
    return sum(summands)


def sums_in_place(summands, rank, ranks, exchange):
    for step in range(1, ranks):
        arrived = exchange(summands[(rank - step) % ranks])
        summands[(rank - step - 1) % ranks] += arrived
    return summands[rank]


WRONG = {
    "bytes_sent": [
        ignores_the_collective, an_all_to_all_sends_its_whole_share, sends_to_itself_too, two_ranks, an_all_reduce_once,
        of_all_ranks,
    ],
    "ring_all_gather": [
        in_order_of_arrival, sends_its_own_again, counts_the_other_way, one_exchange_too_many, two_ranks_only,
        the_last_rank_only_receives,
    ],
    "ring_reduce_scatter": [
        begins_with_its_own, adds_nothing, the_mean, always_its_own_summand, one_step_too_few, all_of_its_own,
        begins_with_the_next, returns_nothing, sends_the_whole_list,
    ],
}  # fmt: skip
RIGHT = {
    "bytes_sent": [a_fraction],
    "ring_all_gather": [by_a_dictionary],
    "ring_reduce_scatter": [sums_in_place],
}
