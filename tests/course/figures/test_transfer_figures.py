"""What the figures of notebook 07 are drawn from."""

from __future__ import annotations

from zorplex_rl.course.figures.transfer import version_runs


def test_runs_cover_the_copy_without_a_gap():
    copy = [1, 1, 2, 1, 3, 3]
    assert [version for version, _, length in version_runs(copy) for _ in range(length)] == copy
