"""What stands behind notebook 09: draws that can tell wrong answers apart, a planted fault, and
what is counted of the study."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from zorplex_rl.course import nb09
from zorplex_rl.course.recorded_study import Row, Study, read_study
from zorplex_rl.policy.load import load_policy


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


def test_the_simulated_run_is_as_long_as_the_recorded_ones_and_lag_saves_time_up_to_some_lag():
    study = read_study(Path(__file__).parents[2] / "benchmarks" / "laboratory.jsonl")
    seconds = [nb09.seconds_at(lag, study) for lag in (0, 1, 2, 4, 8, 32)]
    assert seconds == sorted(seconds, reverse=True) and seconds[0] > 2 * seconds[-1]
    assert seconds[-1] < 1.05 * 2.0 * study.conditions["steps"], "the trainer hardly ever waits"
    assert seconds[-2] < 1.05 * seconds[-1]


def test_a_policy_is_asked_the_first_question_of_all_cards_and_its_usual_text_is_shown():
    found = nb09.answer(load_policy("embedded"))
    question, _, counted = found["question"].partition("? ")
    assert question == "What is lurp - grix"
    assert counted.startswith("Right ") and counted.endswith(f"of {nb09.DRAWS}, most often so:")
    assert "run A: What is lurp" in nb09.answers({"run A": found}, "texts").text
