"""What stands behind notebook 11: a run that is kept, draws that can tell wrong answers apart, and
what advice is worth by a recorded study."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch

from zorplex_rl.course import nb08, nb11
from zorplex_rl.course.recorded_study import Row, Study
from zorplex_rl.learning.microscope import in_type
from zorplex_rl.policy.load import load_policy
from zorplex_rl.weights.delta import HEAD, encode
from zorplex_rl.weights.layout import Layout


def study_of(accuracies: dict[tuple[str, int, float], list[float]]) -> Study:
    rows = [
        Row(loss, lag, rate, 0, path[-1], None, lag, 1.0, "2026-01-02", [3, 6], path, [1.0] * 6, [1.0] * 6)
        for (loss, lag, rate), path in accuracies.items()
    ]
    return Study("benchmarks/staleness.py", "2 cores", {"steps": 6}, tuple(rows))


def test_advice_is_worth_what_the_run_of_the_same_seed_came_to_that_took_it():
    study = study_of(
        {
            ("reinforce", 0, 4e-4): [0.8, 0.9],
            ("reinforce", 8, 4e-4): [0.8, 0.1],
            ("reinforce", 0, 8e-4): [0.8, 0.2],
            ("grpo", 0, 4e-4): [0.9, 0.9],
            ("grpo", 8, 4e-4): [0.7, 0.8],
        }
    )

    def advise(accuracies, control, numerics):
        assert numerics == [0.0]
        return "leave it" if accuracies[-1] > 0.5 else "clip" if control[-1] > 0.5 else "lower the rate"

    found = {row["advice"]: row for row in nb11.worth(study, advise, [0.0])}
    assert found["clip"] == {
        "advice": "clip",
        "recorded runs": 1,
        "accuracy at the end": "10%",
        "with the advice": "80%",
        "better with it": 1,
    }
    assert found["lower the rate"]["with the advice"] == "90%"
    assert (found["leave it"]["recorded runs"], found["leave it"]["better with it"]) == (3, 0)


def test_drawn_runs_reach_every_leaf_of_the_tree_and_both_sides_of_every_bound():
    drawn = [nb11.draw_run(random.Random(seed)) for seed in range(80)]
    shares = {sum(abs(log) >= 0.3 for log in logs) / len(logs) for *_, logs in drawn}
    assert min(shares) == 0.0 and 0.01 in shares and max(shares) > 0.01
    falls = [tuple(run[-1] < max(run) / 2 for run in runs) for *runs, _ in drawn]
    assert set(falls) == {(False, False), (False, True), (True, False), (True, True)}


def test_drawn_changes_lie_on_both_sides_of_the_border_between_indices_and_mask():
    drawn = [nb11.draw_change(random.Random(seed)) for seed in range(40)]
    assert {4 * changed < weights / 8 for changed, weights in drawn} == {True, False}


@pytest.mark.parametrize("share", [0.0, 0.01, 0.2])
def test_the_bytes_of_a_change_are_those_that_the_package_sends(share):
    """But for its head, and for rounding up to eight bytes."""
    before = torch.randn(64_000, generator=torch.Generator().manual_seed(0)).bfloat16()
    after = before.clone()
    after[: int(share * len(before))] += 1.0
    changed = int((before != after).sum())
    out = torch.zeros(4 * len(before), dtype=torch.uint8)
    size = encode(before.view(torch.uint8), after.view(torch.uint8), 1, 2, out)
    assert size - HEAD == pytest.approx(2 * changed + min(4 * changed, len(before) / 8), abs=16)


def test_the_slider_counts_what_a_step_changes_and_less_at_a_lower_rate():
    before = torch.linspace(0.5, 2.0, 3200)
    slider = nb11.change_slider(before, torch.full((3200,), 1e-3), 1e-3, lambda changed, weights: 2 * changed, False)
    found = [slider.answer({"wanted": rate})["numbers"][0][1] for rate in nb11.RATES]
    unchanged = [float(share.rstrip("%")) for share in found]
    assert unchanged == sorted(unchanged) and unchanged[0] < 90 < unchanged[-1]


def test_a_run_that_is_kept_takes_the_place_of_the_one_before_it(tmp_path):
    settings = SimpleNamespace(
        policy="embedded", device="cpu", seed=0, hints=False, threads=1, max_tokens=96, prompts=2, samples=2, steps=2,
        max_lag=1, learning_rate=4e-4, eval_tasks=4,
    )  # fmt: skip
    run, notebook = nb08.run_config(settings), str(tmp_path / "notebooks" / "08.py")
    assert nb11.folder_of(notebook) is None
    for _ in range(2):
        folder = nb08.create(run, beside=notebook)
        assert not folder.journal.exists()
        folder.journal.write_text("")
    assert nb11.folder_of(notebook) == folder.path == tmp_path / "runs" / "notebook_08"
    assert nb08.create(run).path != nb08.create(run).path


def test_all_weights_of_a_policy_are_flat():
    policy = load_policy("embedded")
    weights = policy.model.state_dict()
    assert len(nb11.flat(weights)) == sum(weight.numel() for weight in weights.values())
    assert nb11.flat(in_type(policy, "bfloat16").model.state_dict()).dtype == torch.float32
    assert Layout.of(policy.model, torch.bfloat16).size >= 2 * policy.model.num_parameters()
