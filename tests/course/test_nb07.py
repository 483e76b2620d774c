"""The parts of notebook 07 that are not on its page: verdicts, and the played writer."""

from __future__ import annotations

import random

import pytest
import torch

from zorplex_rl.course.nb07_torn import PlayedRing, verdict


def test_a_verdict_says_what_a_copy_is():
    whole, torn = torch.full((4,), 7.0), torch.tensor([7.0, 7.0, 8.0, 8.0])
    found = [verdict(whole, 7), verdict(whole, 6), verdict(torn, 7), verdict(torn, None)]
    assert found == ["whole", "another version", "torn", "given up"]


@pytest.mark.parametrize("seed", range(20))
def test_a_played_ring_never_calls_a_torn_slot_even_and_comes_to_rest(seed):
    ring = PlayedRing(random.Random(seed), slots=2, version_first=bool(seed % 2))
    for _ in range(100):
        headers = ring.read_headers()
        for (sequence, version), weights in zip(headers, ring.slots, strict=True):
            assert sequence % 2 or weights == [version] * 4
    assert ring.read_headers() == headers and all(sequence % 2 == 0 for sequence, _ in headers)
