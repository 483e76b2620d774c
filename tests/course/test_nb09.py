"""What stands behind notebook 09: draws that can tell wrong answers apart, a planted fault, and
what is counted of the study."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from zorplex_rl.course import nb09
from zorplex_rl.course.recorded_study import Row, Study, read_study


def study_of(accuracies: dict[tuple[str, int, float], list[float]]) -> Study:
    rows = [
        Row(loss, lag, rate, seed, accuracy, None, "2026-01-02", [3], [accuracy], [1.0] * 3)
        for (loss, lag, rate), found in accuracies.items()
        for seed, accuracy in enumerate(found)
    ]
    return Study("benchmarks/staleness.py", "2 cores", {"steps": 3}, tuple(rows))


def test_a_push_is_the_factor_of_the_token_s_gradient():
    def weighted(logp, start_logp, behaviour_logp, advantage, mask, tokens):
        return -((logp - behaviour_logp).exp() * advantage[:, None] * mask).sum() / tokens

    assert nb09.push(weighted, -1.0, moved=1.5, stale=2.0) == pytest.approx(3.0)
    assert nb09.push(lambda *given: torch.zeros(()), 1.0, 3.0) is None


def test_no_push_of_the_figure_lies_on_a_bound():
    """At a bound both sides of a minimum are equal, and torch takes half of each gradient."""
    at_bounds = nb09.pushes({"clipped": nb09.packaged("grpo")}, [0.795, 0.805, 1.195, 1.205])
    good, bad = at_bounds["clipped"]
    assert good == pytest.approx([0.795, 0.805, 1.195, 0.0], abs=1e-5)
    assert bad == pytest.approx([0.0, 0.805, 1.195, 1.205], abs=1e-5)


def test_one_task_more_is_no_clear_difference():
    assert nb09.compared(13 / 40, 12 / 40, 40) == 0
    assert nb09.compared(0.1, 0.3, 200) == -1


def test_wrong_records_are_a_share_of_the_tokens_and_the_same_each_time():
    def fault(step: int) -> torch.Tensor:
        batch = SimpleNamespace(behaviour_logp=torch.zeros(100, 100))
        nb09.other_engine(batch, step, 0.05, 5.0)
        return batch.behaviour_logp

    assert (fault(1) != 0).float().mean().item() == pytest.approx(0.05, abs=0.01)
    assert torch.equal(fault(1), fault(1))
    assert not torch.equal(fault(1), fault(2))


def test_losses_stand_with_the_mean_and_the_range_of_their_seeds():
    study = study_of(
        {
            (loss, lag, 4e-4): [share, share - 0.2]
            for loss in ("grpo", "gspo", "reinforce")
            for lag, share in ((0, 0.9), (8, 0.5))
        }
    )
    first, second = nb09.by_lag(study, 4e-4, (0, 8))
    assert (first["loss"], second["loss"]) == ("plain", "clipped")
    assert first["lag 0"] == "80% (70% to 90%)" and first["lag 8"] == "40% (30% to 50%)"


def test_recorded_lines_are_those_of_the_seeds():
    study = read_study(Path(__file__).parents[2] / "benchmarks" / "staleness.jsonl")
    lines = nb09.recorded(study, {"plain": ("reinforce", 8, 4e-4)})["plain"]
    assert len(lines) == 3
    assert [step for step, _ in lines[0]] == list(range(3, 61, 3))
