"""The parts of notebook 07 that are not on its page: verdicts, the played writer, and what a run's
spans say."""

from __future__ import annotations

import random

import pytest
import torch

from zorplex_rl.course.nb07_push import summary
from zorplex_rl.course.nb07_torn import PlayedRing, verdict
from zorplex_rl.run.timeline import Span


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


def spans(pushed: bool) -> tuple[list[Span], list[list[Span]]]:
    own = [
        Span("trainer", "train", 0.0, 1.0, {"version": 1}),
        Span("trainer", "train", 2.0, 3.0, {"version": 2}),
    ]
    pull = [Span("slow", "pull", 3.5, 4.0)] if pushed else []
    return own, [[Span("slow", "generate", 0.5, 3.5, {"version": 0}), *pull]]


def test_a_batch_is_as_old_as_the_versions_that_were_trained_meanwhile():
    found = summary(*spans(pushed=False), True, range(1, 3))
    assert found.ages == [[2]] and found.seconds == 3.0 and found.step == 1.5
    assert found.timeline.busy_share("trainer", (0.0, 3.0)) == pytest.approx(2 / 3)


def test_when_pushing_the_last_hand_over_counts():
    assert summary(*spans(pushed=True), False, range(1, 3)).seconds == 4.0
