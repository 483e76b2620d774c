"""The training loops, on real Monarch processes: what is the same as what, and that what is sampled
is what is trained on."""

from __future__ import annotations

import asyncio
import json

import pytest
from runs import (
    LAGGING,
    SMALL,
    counters,
    final_weights,
    same_weights,
    train_here,
    undisturbed_weights,
)
from safetensors.torch import load_file

from zorplex_rl.errors import ConfigError
from zorplex_rl.policy.load import EMBEDDED_PATH
from zorplex_rl.run.folder import RunFolder
from zorplex_rl.services.spawn import spawn
from zorplex_rl.training.actors import Admission, ReplayBufferActor

pytestmark = pytest.mark.slow


def steps_of(run) -> list[dict]:
    return [row for row in run.metrics() if row["event"] == "step"]


def test_async_at_lag_0_ends_in_the_same_weights_as_sync_however_fast_tools_answer_and_holds_its_folder_to_the_last_row_which_has_its_policy(
    tmp_path,
):
    from zorplex_rl.training.loop import train_async

    config = SMALL.changed(task="multi_step", tool_latency=0.02, steps=3)
    slow, found = train_here(config, tmp_path / "sync"), []

    def show(row):
        with (
            pytest.raises(ConfigError, match="in another process"),
            RunFolder(tmp_path / "run").locked(),
        ):
            pass
        found.append((row["event"], row["step"]))
        assert (tmp_path / "run" / "policy").exists() == bool(row.get("final"))

    folder = train_here(
        config.changed(tool_latency=0.002), tmp_path / "run", loop=train_async, show=show
    )
    assert found == [
        ("started", 0),
        ("eval", 0),
        *(("step", step) for step in (1, 2, 3)),
        ("eval", 3),
    ]
    with folder.locked():
        pass
    assert same_weights(final_weights(slow.path), final_weights(folder.path))


def test_a_run_in_processes_ends_in_the_weights_of_one_process(sync_run):
    assert same_weights(final_weights(sync_run.path), undisturbed_weights(SMALL))
    assert not same_weights(
        final_weights(sync_run.path), load_file(EMBEDDED_PATH / "model.safetensors")
    )


def test_sampler_and_trainer_agree_on_the_log_probs_of_every_token(sync_run):
    assert len(steps_of(sync_run)) == SMALL.steps
    for row in steps_of(sync_run):
        assert row["max_logp_difference"] < 1e-4
        assert row["lag_max"] == 0
        assert row["ratio_max"] == pytest.approx(1, abs=1e-4)


def test_nothing_older_than_max_lag_is_trained_on_and_every_group_is_trained_on_once(lagging_run):
    ages = [row["lag_max"] for row in steps_of(lagging_run)]
    assert len(ages) == LAGGING.steps
    assert 0 < max(ages) <= LAGGING.max_lag
    found = counters(lagging_run)
    assert found["trained"] == LAGGING.steps * LAGGING.prompts_per_step
    assert found["stale"] == found["refused"] == found["abandoned"] == 0
    # Weights change between decode steps, as this run has asked for.
    assert max(row["mixed_version_share"] for row in steps_of(lagging_run)) > 0


def test_slow_tools_and_the_reference_policy_have_their_processes_and_weights_change_between_groups(
    tmp_path,
):
    config = SMALL.changed(max_lag=3, steps=6, tool_latency=0.05, kl_coefficient=0.1)
    run = train_here(config.changed(checkpoint_every=100), tmp_path / "tools")
    events = json.loads(run.timeline.read_text())["traceEvents"]
    assert sum(event["name"] == "tool" for event in events) > 8
    steps = steps_of(run)
    assert max(row["lag_max"] for row in steps) > 0
    assert max(row["mixed_version_share"] for row in steps) == 0
    penalties = [row["reference_kl"] for row in steps]
    assert penalties[0] == pytest.approx(0, abs=1e-6)
    assert max(penalties) > 1e-6


def test_a_run_folder_holds_everything_that_is_promised(sync_run):
    files = "config.json metrics.jsonl episodes.jsonl journal.jsonl timeline.json curve.svg checkpoints policy .lock"
    assert {path.name for path in sync_run.path.iterdir()} == set(files.split())
    assert [row["step"] for row in sync_run.evaluations()] == [0, SMALL.steps]


def test_a_generator_starts_what_its_weights_may_be_used_for_then_pulls_and_in_the_end_stops():
    async def scenario():
        replica = await spawn("buffer", ReplayBufferActor, SMALL.changed(steps=2))
        buffer = replica.actor
        try:
            assert await buffer.admit.call_one(0, 8) == Admission("start", (0, 1))
            waiting = asyncio.ensure_future(buffer.admit.call_one(0, 8).as_asyncio())
            await asyncio.sleep(0.2)
            assert not waiting.done(), (
                "nothing can be started with version 0, and there is nothing newer yet"
            )
            await buffer.published.call_one(1)
            assert await waiting == Admission("pull")
            await buffer.end.call_one()
            assert await buffer.admit.call_one(1, 8) == Admission("over")
        finally:
            await replica.stop()

    asyncio.run(scenario())
