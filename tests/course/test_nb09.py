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
    def weighted(logp, behaviour_logp, advantage, mask, tokens):
        return -((logp - behaviour_logp).exp() * advantage[:, None] * mask).sum() / tokens

    assert nb09.push(weighted, 3.0, -1.0) == pytest.approx(3.0)
    assert nb09.push(lambda *given: torch.zeros(()), 3.0, 1.0) == 0.0


def test_wrong_records_are_a_share_of_the_tokens_and_the_same_each_time():
    def fault(step: int) -> torch.Tensor:
        batch = SimpleNamespace(behaviour_logp=torch.zeros(100, 100))
        nb09.other_engine(batch, step, 0.05, 5.0)
        return batch.behaviour_logp

    assert (fault(1) != 0).float().mean().item() == pytest.approx(0.05, abs=0.01)
    assert torch.equal(fault(1), fault(1))
    assert not torch.equal(fault(1), fault(2))


def test_accuracy_by_lag_is_a_phrase():
    study = study_of(
        {
            (loss, lag, 4e-4): [share]
            for loss in ("reinforce", "grpo")
            for lag, share in ((0, 0.9), (8, 0.5))
        }
    )
    assert nb09.accuracy_by_lag(study) == "0, 8 it was 90%, 50% with plain; 90%, 50% with clipped"


def test_recorded_lines_are_those_of_the_seeds():
    study = read_study(Path(__file__).parents[2] / "benchmarks" / "staleness.jsonl")
    lines = nb09.recorded(study, {"plain": ("reinforce", 8, 4e-4)})["plain"]
    assert len(lines) == 3
    assert [step for step, _ in lines[0]] == list(range(3, 61, 3))
