"""Notebooks 04 and 04b: what their checks say of a mistake."""

from __future__ import annotations

import pytest
from test_answers import answers, refusals

pytestmark = pytest.mark.slow

SAID = [
    ("04", "ring_all_gather", "counts_the_other_way", "from k ranks *back*"),
    ("04", "ring_all_gather", "one_exchange_too_many", "more often than `ranks - 1` times"),
    ("04", "ring_reduce_scatter", "begins_with_its_own", "ends at another rank"),
    ("04", "ring_reduce_scatter", "begins_with_the_next", "summands of different shares"),
    ("04", "ring_reduce_scatter", "always_its_own_summand", "summands of different shares"),
    ("04", "ring_reduce_scatter", "adds_nothing", "not the sum of all ranks' summands"),
    ("04", "ring_reduce_scatter", "returns_nothing", "is a `return` missing?"),
    ("04", "ring_reduce_scatter", "sends_the_whole_list", "it takes one tensor"),
    ("04b", "two_layers", "the_bias_on_every_rank", "Add it behind the sum"),
    ("04b", "two_layers", "a_part_of_the_bias_on_every_rank", "Add it behind the sum"),
    ("04b", "two_layers", "the_bias_on_the_last_rank", "Add it behind the sum"),
    ("04b", "two_layers", "sizes_rounded_down", "round up"),
    ("04b", "two_layers", "without_relu", "there is no ReLU"),
    ("04b", "way_back", "adds_up_everywhere", "compute the *same* loss"),
    ("04b", "way_back", "adds_up_and_throws_it_away", "`add_up` is not needed"),
    ("04b", "way_back", "passes_everything_on", "only its own part of dL/dx"),
    ("04b", "way_back", "forgets_a_place", "is a `return` missing?"),
    ("04b", "fsdp_step", "its_own_gradient_alone", "its own gradient only"),
    ("04b", "fsdp_step", "a_part_of_its_own_gradient", "its own gradient only"),
    ("04b", "fsdp_step", "scatters_weights", "gets the gradient"),
    ("04b", "fsdp_step", "forgets_to_gather", "call `all_gather` first"),
    ("04b", "fsdp_step", "returns_nothing", "is a `return` missing?"),
]


@pytest.mark.parametrize(("number", "name", "wrong", "words"), SAID)
def test_a_likely_mistake_is_told_in_words(number, name, wrong, words):
    (said,) = refusals(number, name, [getattr(answers(number), wrong)]).values()
    assert words in said
