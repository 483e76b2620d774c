"""The training loops, on real Monarch processes: what is the same as what, and that what is sampled
is what is trained on.

That two synchronous runs with one seed end in the same weights is shown in ``test_faults.py``,
where the second one is killed on its way.
"""

from __future__ import annotations

import json

import pytest
from runs import LAGGING, SMALL, counters, final_weights, same_weights, train_here, undisturbed_weights

from zorplex_rl.errors import ConfigError
from zorplex_rl.policy.load import EMBEDDED_PATH
from zorplex_rl.run.folder import RunFolder

pytestmark = pytest.mark.slow


def test_training_changes_the_weights(sync_run):
    from safetensors.torch import load_file

    assert not same_weights(final_weights(sync_run.path), load_file(EMBEDDED_PATH / "model.safetensors"))


def test_async_at_lag_0_ends_in_the_same_weights_as_sync_however_fast_tools_answer_and_holds_its_folder_to_the_last_row(
    tmp_path,
):
    from zorplex_rl.training.loop import train_async

    config = SMALL.changed(task="multi_step", tool_latency=0.02, steps=3, eval_tasks=2)
    slow, found = train_here(config, tmp_path / "sync"), []

    def show(row):
        with pytest.raises(ConfigError, match="is under way in another process"), RunFolder(tmp_path / "run").locked():
            pass
        found.append((row["event"], row["step"]))

    folder = train_here(config.changed(tool_latency=0.002), tmp_path / "run", loop=train_async, show=show)
    assert found == [("eval", 0), *(("step", step) for step in range(1, config.steps + 1)), ("eval", config.steps)]
    with folder.locked():
        pass
    assert same_weights(final_weights(slow.path), final_weights(folder.path))


def test_a_run_in_processes_ends_in_the_weights_of_one_process(sync_run):
    assert same_weights(final_weights(sync_run.path), undisturbed_weights(SMALL))


def test_sampler_and_trainer_agree_on_the_log_probs_of_every_token(sync_run):
    steps = [row for row in sync_run.metrics() if row["event"] == "step"]
    assert len(steps) == SMALL.steps
    for row in steps:
        assert row["max_logp_difference"] < 1e-4
        assert row["lag_max"] == 0
        assert row["ratio_max"] == pytest.approx(1, abs=1e-4)


def test_nothing_older_than_max_lag_is_trained_on_and_every_group_is_trained_on_once(sync_run, lagging_run):
    ages = [row["lag_max"] for row in lagging_run.metrics() if row["event"] == "step"]
    assert len(ages) == LAGGING.steps
    assert max(ages) <= LAGGING.max_lag
    found = counters(lagging_run)
    assert found["trained"] == LAGGING.steps * LAGGING.prompts_per_step
    assert found["stale"] == found["refused"] == found["abandoned"] == 0
    assert not same_weights(final_weights(lagging_run.path), final_weights(sync_run.path))


def mixed_version_shares(run):
    return [row["mixed_version_share"] for row in run.metrics() if row["event"] == "step"]


def test_weights_change_between_decode_steps_if_asked_to(lagging_run):
    assert max(mixed_version_shares(lagging_run)) > 0


def test_slow_tools_and_the_reference_policy_have_processes_of_their_own_and_weights_change_between_groups(tmp_path):
    config = SMALL.changed(max_lag=3, steps=6, tool_latency=0.05, kl_coefficient=0.1)
    run = train_here(config.changed(checkpoint_every=100), tmp_path / "tools")
    events = json.loads(run.timeline.read_text())["traceEvents"]
    assert sum(event["name"] == "tool" for event in events) > 8
    steps = [row for row in run.metrics() if row["event"] == "step"]
    assert max(row["lag_max"] for row in steps) > 0
    assert max(mixed_version_shares(run)) == 0
    penalties = [row["reference_kl"] for row in steps]
    assert penalties[0] == pytest.approx(0, abs=1e-6)
    assert max(penalties) > 1e-6


def test_a_run_folder_holds_everything_that_is_promised(sync_run):
    names = {path.name for path in sync_run.path.iterdir()}
    assert names == {
        ".lock",
        "config.json",
        "metrics.jsonl",
        "episodes.jsonl",
        "journal.jsonl",
        "timeline.json",
        "curve.svg",
        "checkpoints",
        "policy",
    }
    evaluations = [row for row in sync_run.metrics() if row["event"] == "eval"]
    assert [row["step"] for row in evaluations] == [0, SMALL.steps]


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.long)])
def test_generators_may_compute_in_another_number_type_and_the_metrics_say_what_it_costs(tmp_path, sync_run, ranks):
    """The weights arrive, rounded: the second step trains on data of the first one's weights."""
    config = SMALL.changed(generator_dtype="bfloat16", steps=2, trainer_processes=ranks)
    rounded = [row for row in train_here(config, tmp_path / "run").metrics() if row["event"] == "step"]
    exact = [row for row in sync_run.metrics() if row["event"] == "step"]
    assert [row["lag_max"] for row in rounded] == [0, 0]
    for row, other in zip(rounded, exact, strict=False):
        assert 1e-3 < row["max_logp_difference"] < 1 and row["second_moment"] < 1e-2
        assert other["second_moment"] < 1e-8
