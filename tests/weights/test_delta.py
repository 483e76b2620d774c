"""Changes of weights, in one process: what is applied is bit for bit what was published, and
whatever is broken on the way is noticed."""

import asyncio

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zorplex_rl.weights.delta import (
    HEAD,
    ChangeMismatch,
    apply,
    capacity,
    checksum,
    encode,
    expected_bytes,
    expected_share,
    read_head,
)
from zorplex_rl.weights.layout import Layout
from zorplex_rl.weights.ring import WeightRing, follow_changes, newest_slot

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def pair(seed, blocks, share, word):
    """A buffer of ``blocks`` · 64 random bytes, and one in which ``share`` of its words have
    changed."""
    chance = torch.Generator().manual_seed(seed)
    before = torch.randint(0, 256, (64 * blocks,), dtype=torch.uint8, generator=chance)
    after = before.clone()
    words = after.view(WORDS[word])
    words[torch.rand(len(words), generator=chance) < share] += 1
    return before, after


@given(
    st.integers(0, 2**32),
    st.integers(1, 200),
    st.sampled_from([0, 0.001, 0.02, 0.05, 0.5, 1]),
    st.sampled_from([1, 2, 4, 8]),
)
def test_a_change_leads_from_one_version_to_the_next_bit_for_bit(seed, blocks, share, word):
    before, after = pair(seed, blocks, share, word)
    change = torch.full((HEAD + 10 * len(before),), 255, dtype=torch.uint8)
    size = encode(before, after, 41, word, change)
    assert read_head(change[:HEAD]) == (41, size)
    for _ in range(2):  # a change holds values, so twice is as good as once
        assert apply(change[:size], before) == 41
        assert torch.equal(before, after)


@given(st.integers(0, 2**32), st.sampled_from([0.001, 0.02, 0.05, 0.2]), st.sampled_from([2, 4]))
def test_the_smaller_of_indices_and_mask_is_sent_and_its_size_is_as_computed(seed, share, word):
    before, after = pair(seed, 500, share, word)
    change = torch.zeros(HEAD + 10 * len(before), dtype=torch.uint8)
    words = len(before) // word
    changed = (before.view(WORDS[word]) != after.view(WORDS[word])).sum().item()
    size = encode(before, after, 0, word, change)
    assert abs(size - expected_bytes(changed / words, words, word)) <= 8
    assert size <= HEAD + 8 + changed * word + min(4 * changed, words / 8)


def test_what_does_not_fit_is_not_written():
    before, after = pair(0, 100, 0.5, 2)
    change = torch.zeros(len(before) // 4, dtype=torch.uint8)
    assert encode(before, after, 0, 2, change) is None
    assert not change.any()


@given(st.integers(0, 2**32), st.sampled_from([0.01, 0.1]), st.data())
def test_one_flipped_bit_after_the_head_is_noticed(seed, share, data):
    before, after = pair(seed, 100, share, 2)
    change = torch.zeros(10 * len(before), dtype=torch.uint8)
    size = encode(before, after, 0, 2, change)
    value_bytes = 2 * (before.view(torch.int16) != after.view(torch.int16)).sum().item()
    if not value_bytes:
        return
    at = size - 1 - data.draw(st.integers(0, value_bytes - 1))
    change[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ChangeMismatch, match="from version 0"):
        apply(change[:size], before)


def test_a_change_that_is_applied_to_another_version_is_noticed():
    before, after = pair(0, 100, 0.01, 2)
    change = torch.zeros(10 * len(before), dtype=torch.uint8)
    size = encode(before, after, 0, 2, change)
    other = before.clone()
    other[-1] += 1
    with pytest.raises(ChangeMismatch):
        apply(change[:size], other)


@given(st.integers(0, 2**32), st.integers(0, 799), st.integers(0, 799))
def test_two_words_that_have_changed_places_have_another_checksum(seed, one, other):
    words = torch.randint(0, 2**62, (800,), generator=torch.Generator().manual_seed(seed))
    swapped = words.clone()
    swapped[[one, other]] = words[[other, one]]
    same = torch.equal(words, swapped)
    assert (checksum(words.view(torch.uint8)) == checksum(swapped.view(torch.uint8))) is same


class Local:
    """Reads a ring of this process; counts what it reads."""

    def __init__(self, ring):
        self.ring, self.bytes = ring, 0

    async def read_headers(self):
        return self.ring.headers.clone()

    async def read_slot(self, slot, target):
        target.copy_(self.ring.slots[slot][: len(target)])
        self.bytes += len(target)


def publish_some(ring, weights, versions, share=0.02):
    for version in versions:
        chance = torch.Generator().manual_seed(version)
        changed = torch.rand(weights["w"].shape, generator=chance) < share
        weights["w"][changed] = torch.randn(int(changed.sum()), generator=chance).to(torch.bfloat16)
        ring.publish(weights, version)


def following(ring, staged, staging):
    """What ``follow_changes`` returns for a reader that has ``staged``, and the bytes that it has
    read."""
    reader = Local(ring)
    scratch = torch.zeros(capacity(ring.layout), dtype=torch.uint8)
    reached = asyncio.run(follow_changes(reader.read_headers, reader.read_slot, ring.whole, scratch, staging, staged))
    return reached, reader.bytes


def ring_of(full_every=100, slots=3):
    weights = {"w": torch.zeros(4096, dtype=torch.bfloat16)}
    return weights, WeightRing(weights, slots, full_every=full_every)


@pytest.mark.parametrize("behind", [1, 2, 4])
def test_a_reader_that_is_some_versions_behind_follows_their_changes(behind):
    weights, ring = ring_of()
    publish_some(ring, weights, range(1, 10))
    staging = ring.slots[newest_slot(ring.headers[:3]).slot].clone()
    publish_some(ring, weights, range(10, 10 + behind))
    reached, read = following(ring, 9, staging)
    assert reached == (9 + behind, 9 + behind)
    assert torch.equal(staging.view(torch.bfloat16), weights["w"])
    assert read < behind * ring.layout.size / 4


@pytest.mark.parametrize(("missed", "full_every", "share"), [(5, 100, 0.02), (1, 10, 0.02), (1, 100, 0.9)])
def test_a_reader_reads_whole_what_has_no_change(missed, full_every, share):
    """It was overwritten, is of a version that is always whole, or was too large."""
    weights, ring = ring_of(full_every)
    publish_some(ring, weights, range(1, 10))
    staging = ring.slots[newest_slot(ring.headers[:3]).slot].clone()
    before = staging.clone()
    publish_some(ring, weights, range(10, 10 + missed), share)
    (staged, newest), read = following(ring, 9, staging)
    assert (staged, newest, read) == (9, 9 + missed, 0)
    assert torch.equal(staging, before)


def test_a_change_that_was_overwritten_while_it_was_read_is_not_applied():
    weights, ring = ring_of()
    publish_some(ring, weights, range(1, 4))
    staging = ring.slots[newest_slot(ring.headers[:3]).slot].clone()
    publish_some(ring, weights, [4])
    before, reader = staging.clone(), Local(ring)

    async def lapped(slot, target):
        await reader.read_slot(slot, target)
        publish_some(ring, weights, range(5, 10))

    scratch = torch.zeros(capacity(ring.layout), dtype=torch.uint8)
    reached = asyncio.run(follow_changes(reader.read_headers, lapped, 3, scratch, staging, 3))
    assert reached == (3, 4)
    assert torch.equal(staging, before)


def test_a_publication_that_fails_leaves_no_change_behind():
    weights, ring = ring_of()
    publish_some(ring, weights, range(1, 4))
    staging = ring.slots[newest_slot(ring.headers[:3]).slot].clone()
    with pytest.raises(KeyError):
        ring.publish({}, 4)
    assert following(ring, 3, staging) == ((3, 3), 0)
    publish_some(ring, weights, [4])
    assert following(ring, 3, staging)[0] == (4, 4)
    assert torch.equal(staging.view(torch.bfloat16), weights["w"])


def test_a_ring_without_changes_takes_no_more_memory():
    weights = {"w": torch.zeros(4096, dtype=torch.bfloat16)}
    ring = WeightRing(weights, 3)
    assert len(ring.slots) == len(ring.headers) == 3


@pytest.mark.parametrize("rate", [3e-4, 3e-5, 3e-6])
def test_the_share_of_weights_that_a_step_changes_is_as_expected(rate):
    chance = torch.Generator().manual_seed(0)
    weights = 0.05 * torch.randn(200_000, generator=chance)
    step = rate * torch.randn(200_000, generator=chance)
    changed = (weights.bfloat16() != (weights + step).bfloat16()).double().mean().item()
    assert expected_share(weights, step) == pytest.approx(changed, rel=0.05)


def test_layouts_say_the_room_for_a_change():
    assert capacity(Layout.of({"w": torch.zeros(64)})) == HEAD + 64
