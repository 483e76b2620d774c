"""What a run survives: killed processes of every role, a killed process tree, Ctrl-C. All with real
processes and real signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
from itertools import pairwise
from pathlib import Path

import pytest
from runs import (
    SMALL,
    as_flags,
    command,
    counters,
    eventually,
    final_weights,
    is_alive,
    rows,
    same_weights,
    train_here,
    train_on,
    undisturbed_weights,
)

from zorplex_rl.errors import TrainingDiverged
from zorplex_rl.policy.smollm2 import cached
from zorplex_rl.run.folder import RunFolder
from zorplex_rl.run.journal import read_journal
from zorplex_rl.run.timeline import Timeline
from zorplex_rl.simulation.what_if import read_recording, replay

pytestmark = pytest.mark.slow


def train_with(blows, config, path):
    """A run in which, after step n, a process of the role ``blows[n]`` is killed. Returns it, and the
    killed processes."""
    controllers, struck = [], []

    def show(row):
        if row["event"] == "step" and (role := blows.get(row["step"])):
            (controller,) = controllers
            service = (
                controller.roles.trainer.service
                if role == "trainer"
                else controller.roles.services[role]
            )
            struck.append(next(replica.pid for replica in service.replicas if replica.pid))
            os.kill(struck[-1], signal.SIGKILL)

    run = train_here(config, path, show=show, on_start=controllers.append)
    assert sorted(row["role"] for row in rows(run.path, "restart")) == sorted(blows.values())
    assert not any(map(is_alive, struck))
    return run


def check_that_every_group_was_trained_on_once(run, config):
    assert [row["step"] for row in rows(run.path, "step")] == list(range(1, config.steps + 1))
    (session,) = read_journal(run.journal)
    trained = sorted(group for batch in session.batches.values() for group in batch.groups)
    assert trained == list(range(config.steps * config.prompts_per_step))
    found = counters(run)
    assert found["trained"] == len(trained) and found["stale"] == 0
    assert found["started"] == found["trained"] + found["abandoned"]


def test_a_run_survives_the_loss_of_every_role_and_loses_no_group(tmp_path):
    config = SMALL.changed(
        max_lag=1, steps=8, checkpoint_every=4, tool_latency=0.01, kl_coefficient=0.1, spares=1
    )
    roles = {1: "tools", 2: "reward", 3: "reference", 5: "generator", 6: "trainer"}
    run = train_with(roles, config, tmp_path / "run")
    check_that_every_group_was_trained_on_once(run, config)
    took = {row["role"]: row["recovery_seconds"] for row in rows(run.path, "restart")}
    # A spare generator is ready to take over.
    assert took["generator"] < 5
    trace = json.loads(run.timeline.read_text())["traceEvents"]
    assert sum(event["name"] == "restart" for event in trace) == len(roles)


@pytest.mark.long
def test_one_of_two_generators_killed_in_mid_run_is_replaced_without_a_spare_and_no_group_is_lost(
    tmp_path,
):
    config = SMALL.changed(max_lag=1, steps=8, prompts_per_step=4, generators=2, checkpoint_every=8)
    run = train_with({2: "generator"}, config, tmp_path / "run")
    check_that_every_group_was_trained_on_once(run, config)
    found = replay(read_recording(run.path))
    assert found.is_equal, found.first_difference


@pytest.mark.long
@pytest.mark.skipif(not cached().exists(), reason="needs SmolLM2: zorplex-rl policy get smollm2")
def test_a_language_model_loses_generator_and_trainer_and_no_group(tmp_path):
    config = SMALL.changed(
        policy=str(cached()), shots=2, max_lag=1, steps=3, prompts_per_step=1, max_tokens=24
    )
    run = train_with({1: "generator", 2: "trainer"}, config, tmp_path / "run")
    check_that_every_group_was_trained_on_once(run, config)
    assert replay(read_recording(run.path)).is_equal


@pytest.mark.long
def test_a_trainer_that_dies_comes_back_with_the_very_weights_that_it_had(tmp_path, sync_run):
    """Before the first checkpoint it starts from the policy, later from the newest one; either way
    it takes the lost steps again."""
    run = train_with({1: "trainer", 3: "trainer"}, SMALL, tmp_path / "run")
    check_that_every_group_was_trained_on_once(run, SMALL)
    assert same_weights(final_weights(run.path), final_weights(sync_run.path))


LONGER = SMALL.changed(steps=12)


@pytest.mark.parametrize(
    ("blow", "config"),
    [(signal.SIGKILL, SMALL), pytest.param(signal.SIGINT, LONGER, marks=pytest.mark.long)],
)
def test_a_run_that_is_killed_or_stopped_ends_with_all_its_processes_and_is_resumed_bit_for_bit(
    blow, config, tmp_path, sync_run
):
    path = tmp_path / "run"
    with command("train", *as_flags(config), "--out", str(path)) as running:
        assert eventually(lambda: (path / "checkpoints" / "step_000002").exists())
        # What computes is elsewhere: the controller is up without loading torch, which takes a second.
        assert "libtorch" not in Path(f"/proc/{running.process.pid}/maps").read_text()
        running.process.send_signal(blow)
        code, output = running.finish()
        assert running.all_gone()
    done = rows(path, "step")[-1]["step"]
    if blow != signal.SIGKILL:
        assert code == 130 and f"--resume {path}" in output and "Traceback" not in output
        assert RunFolder(path).newest_checkpoint().name == f"step_{done:06d}"
    assert not (path / "policy").exists()
    with command("train", "--resume", str(path)) as running:
        code, output = running.finish()
        assert code == 0, output
        assert running.all_gone()
    assert same_weights(final_weights(path), undisturbed_weights(config))
    if config is SMALL:
        check_that_rows_and_timeline_go_on(RunFolder(path), sync_run)
        found = replay(read_recording(path))
        assert found.is_equal, found.first_difference
        assert found.compared["steps"] == SMALL.steps


def check_that_rows_and_timeline_go_on(run, undisturbed):
    """As if the run had not been interrupted: every row once, and every step in the timeline."""
    found, expected = (
        [
            (row["event"], row["step"])
            for row in each.metrics()
            if row["event"] not in ("started", "resume")
        ]
        for each in (run, undisturbed)
    )
    assert found == expected
    texts, others = (
        [
            json.loads(line)["text"]
            for line in (each.path / "episodes.jsonl").read_text().splitlines()
        ]
        for each in (run, undisturbed)
    )
    assert texts == others
    seconds = [row["seconds"] for row in run.metrics()]
    assert seconds == sorted(seconds)
    spans = sorted(
        (s for s in Timeline.load(run.timeline).spans if s.kind == "train"), key=lambda s: s.start
    )
    assert [span.args["step"] for span in spans] == [0, 1, 2, 3]
    assert all(before.end <= after.start for before, after in pairwise(spans))


def test_a_run_whose_weights_stop_being_finite_ends_with_the_step_and_the_last_good_checkpoint(
    tmp_path, sync_run
):
    shutil.copytree(sync_run.path, tmp_path / "run")
    folder, config = RunFolder(tmp_path / "run"), SMALL.changed(learning_rate=1e30)
    shutil.rmtree(folder.checkpoints()[-1])
    shutil.rmtree(folder.policy)
    with pytest.raises(TrainingDiverged, match="version 3"):
        train_on(config, folder, resume=folder.newest_checkpoint())
    assert [checkpoint.name for checkpoint in folder.checkpoints()] == ["step_000002"]
    assert not folder.policy.exists()
