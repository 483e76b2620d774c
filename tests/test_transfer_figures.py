"""The figures of notebook 07 say what they draw, for equal data in equal bytes."""

from __future__ import annotations

from zorplex_rl.viz.transfer import copies_chart, ladder_chart, version_runs


def test_the_ladder_names_every_rung_with_its_rate():
    drawn = ladder_chart({"message": 0.27, "memcpy": 14.0}, {"a network card": 50.0})
    assert "message 0.27 GB/s; memcpy 14 GB/s; a network card 50 GB/s" in drawn
    assert drawn == ladder_chart({"message": 0.27, "memcpy": 14.0}, {"a network card": 50.0})


def test_a_copy_says_of_which_versions_it_is_made():
    drawn = copies_chart([[7, 7, 8, 9], [9, 9, 9, 9]])
    assert "copy 1: versions 7, 8, 9; copy 2: versions 9" in drawn


def test_a_copy_of_very_many_versions_can_be_drawn():
    assert "copy 1" in copies_chart([list(range(40))])


def test_runs_cover_the_copy_without_a_gap():
    copy = [1, 1, 2, 1, 3, 3]
    assert [version for version, _, length in version_runs(copy) for _ in range(length)] == copy
