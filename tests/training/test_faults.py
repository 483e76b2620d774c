"""What a run survives: killed generators, a killed process tree, Ctrl-C. All with real processes
and real signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest
from runs import SMALL, as_flags, command, counters, eventually, final_weights, rows, same_weights, train_here

from zorplex_rl.run.folder import RunFolder
from zorplex_rl.run.timeline import Timeline
from zorplex_rl.simulation.recorded import read_run
from zorplex_rl.simulation.what_if import read_recording, replay

pytestmark = pytest.mark.slow


@pytest.fixture
def controller():
    """``controller`` is for ``on_start``; from then on ``controller()`` is that of the run under
    way."""
    started = []

    def of_the_run(*arrived):
        started.extend(arrived)
        return started[0]

    return of_the_run


def events(path, without=""):
    """(event, step) of every row, in order."""
    return [(row["event"], row["step"]) for row in RunFolder(path).metrics() if row["event"] != without]


def episode_texts(path):
    """(step, purpose, text) of every episode that is kept, in order."""
    rows = map(json.loads, (path / "episodes.jsonl").read_text().splitlines())
    return [(row["step"], row["purpose"], row["text"]) for row in rows]


def kill(service, blow=signal.SIGKILL):
    """Kill one of its replicas outright, or have it stand still."""
    os.kill(next(replica.pid for replica in service.replicas if replica.pid), blow)


@pytest.mark.long
def test_one_of_two_generators_killed_in_mid_run_is_replaced_without_a_spare_and_no_group_is_lost(tmp_path, controller):
    config = SMALL.changed(max_lag=1, steps=8, prompts_per_step=4, generators=2, checkpoint_every=8)

    def show(row):
        if row["event"] == "step" and row["step"] == 2:
            kill(controller().services["generator"])

    run = train_here(config, tmp_path / "run", show=show, on_start=controller)
    (restart,) = rows(run.path, "restart")
    assert restart["role"] == "generator" and restart["died"] != restart["took_over"]
    assert len(rows(run.path, "step")) == config.steps
    found = counters(run)
    assert found["trained"] == config.steps * config.prompts_per_step
    assert found["started"] == found["trained"] + found["abandoned"]
    found = replay(read_recording(run.path))
    assert found.is_equal, found.first_difference


def test_a_run_survives_the_loss_of_every_role_and_loses_no_group(tmp_path, controller):
    """One stands still, and the others die.

    verl-project/verl issue 12: the rollout hangs, there is no error message, and the last line of
    the log says that two requests are running. huggingface/trl pull request 5320: one generation
    that failed was raised again, and ended the rollout process, and with it the run.
    """
    config = SMALL.changed(
        max_lag=1, steps=8, checkpoint_every=4, tool_latency=0.01, eval_every=100, spares=1, tool_replicas=2,
        reward_replicas=2,
    )  # fmt: skip

    times: dict[tuple[str, object], float] = {}

    def show(row):
        times[row["event"], row.get("role", row["step"])] = time.monotonic()
        if row["event"] == "step":
            match row["step"]:
                case 1:
                    kill(controller().services["tools"])
                case 2:
                    kill(controller().services["reward"], signal.SIGSTOP)
                case 4:
                    kill(controller().services["generator"])
                case 6:
                    os.kill(controller().trainer.replica.pid, signal.SIGKILL)

    run = train_here(config, tmp_path / "run", show=show, on_start=controller)
    restarts = rows(run.path, "restart")
    assert sorted(row["role"] for row in restarts) == ["generator", "reward", "tools", "trainer"]
    # A spare generator is ready to take over.
    assert times["restart", "generator"] - times["step", 4] < 5
    assert times["restart", "reward"] - times["step", 2] < 20
    assert [row["step"] for row in rows(run.path, "step")] == list(range(1, config.steps + 1))
    found = counters(run)
    assert found["trained"] == config.steps * config.prompts_per_step
    assert found["started"] == found["trained"] + found["abandoned"]
    assert found["stale"] == 0
    trace = json.loads(run.timeline.read_text())["traceEvents"]
    assert sum(event["name"] == "restart" for event in trace) == 4


def test_a_trainer_that_dies_comes_back_with_the_very_weights_that_it_had(tmp_path, controller, sync_run):
    """Before the first checkpoint it starts from the policy, later from the newest one; either way
    it takes the lost steps again."""
    config = SMALL.changed(checkpoint_every=2)

    def show(row):
        if row["event"] == "step" and row["step"] in (1, 3):
            os.kill(controller().trainer.replica.pid, signal.SIGKILL)

    run = train_here(config, tmp_path / "run", show=show, on_start=controller)
    assert [row["role"] for row in rows(run.path, "restart")] == ["trainer", "trainer"]
    assert same_weights(final_weights(run.path), final_weights(sync_run.path))


@pytest.mark.long
@pytest.mark.parametrize("max_lag", [0, 1])
def test_a_trainer_that_hangs_is_noticed_within_ten_seconds_and_every_group_is_trained_once(
    tmp_path, controller, max_lag
):
    config = SMALL.changed(max_lag=max_lag, steps=6, checkpoint_every=2)
    stopped = {}

    def show(row):
        if row["event"] == "step" and row["step"] == 3:
            stopped["at"], stopped["pid"] = time.monotonic(), controller().trainer.replica.pid
            os.kill(stopped["pid"], signal.SIGSTOP)
        if row["event"] == "restart":
            stopped["noticed after"] = time.monotonic() - stopped["at"] - row["recovery_seconds"]

    run = train_here(config, tmp_path / "run", show=show, on_start=controller)
    assert [row["role"] for row in rows(run.path, "restart")] == ["trainer"]
    assert stopped["noticed after"] < 10.5
    assert [row["step"] for row in rows(run.path, "step")] == list(range(1, 7))
    found = counters(run)
    assert found["trained"] == config.steps * config.prompts_per_step
    assert found["started"] == found["trained"] + found["abandoned"]
    with pytest.raises(ProcessLookupError):
        os.kill(stopped["pid"], 0)


def test_a_controller_that_is_killed_takes_all_its_actors_with_it_and_the_run_is_resumed_as_if_nothing_had_happened(
    tmp_path, sync_run
):
    path = tmp_path / "killed"
    with command("train", *as_flags(SMALL), "--out", str(path)) as running:
        assert eventually(lambda: (path / "checkpoints" / "step_000002" / "controller.json").exists())
        running.process.kill()
        assert running.all_gone()
    assert not (path / "policy").exists()
    with command("train", "--resume", str(path)) as running:
        code, output = running.finish()
        assert code == 0, output
        assert "held-out accuracy, greedy" in output
        assert running.all_gone()
    assert same_weights(final_weights(path), final_weights(sync_run.path))
    assert len(rows(path, "resume")) == 1
    assert events(path, without="resume") == events(sync_run.path)
    assert episode_texts(path) == episode_texts(sync_run.path)
    seconds = [row["seconds"] for row in RunFolder(path).metrics()]
    assert seconds == sorted(seconds)
    # The timeline goes on too: every step, those before the checkpoint first.
    trained = sorted(
        (s for s in Timeline.load(path / "timeline.json").spans if s.kind == "train"), key=lambda s: s.start
    )
    assert [span.args["step"] for span in trained] == [0, 1, 2, 3]
    assert all(before.end <= after.start for before, after in pairwise(trained))
    with pytest.raises(ValueError, match="not in one go"):
        read_run(path)
    found = replay(read_recording(path))
    assert found.is_equal, found.first_difference
    assert found.compared["steps"] == 4


def test_ctrl_c_checkpoints_stops_every_process_and_says_how_to_resume(tmp_path):
    config = SMALL.changed(max_lag=1, steps=500, checkpoint_every=1000)
    path = tmp_path / "run"
    with command("train", *as_flags(config), "--out", str(path)) as running:
        assert eventually(lambda: len(rows(path, "step")) >= 2)
        # What computes is elsewhere: the controller is up without loading torch, which takes a second.
        assert "libtorch" not in Path(f"/proc/{running.process.pid}/maps").read_text()
        os.kill(running.process.pid, signal.SIGINT)
        # ``timeout`` signals its child and then the child's group: that is one wish.
        os.killpg(running.process.pid, signal.SIGINT)
        code, output = running.finish()
        assert code == 130
        assert f"--resume {path}" in output
        assert "stopped after a checkpoint" in output
        assert "Traceback" not in output
        assert running.all_gone()
    done = rows(path, "step")[-1]["step"]
    folder, _ = RunFolder.reopen(path)
    assert folder.newest_checkpoint().name == f"step_{done:06d}"


def test_a_run_whose_weights_stop_being_finite_ends_with_the_step_the_last_good_checkpoint_and_what_to_lower(
    tmp_path, sync_run
):
    shutil.copytree(sync_run.path, tmp_path / "run")
    folder, config = RunFolder(tmp_path / "run"), SMALL.changed(learning_rate=1e30)
    shutil.rmtree(folder.checkpoints()[-1])
    # Or else it counts as finished.
    shutil.rmtree(folder.policy)
    (folder.path / "config.json").write_text(config.to_json())
    with command("train", "--resume", str(folder.path)) as running:
        code, output = running.finish()
        assert running.all_gone()
    assert code == 1
    assert "Traceback" not in output
    said = output.splitlines()[-1]
    assert said.startswith("zorplex-rl: training has diverged: the largest logit of step 3 is nan; ")
    assert "start again with a lower --learning-rate (now 1e+30)" in said
    assert said.endswith(f"the last good checkpoint is {folder.newest_checkpoint()}")
    assert [checkpoint.name for checkpoint in folder.checkpoints()] == ["step_000002"]


@pytest.mark.long
def test_a_run_that_diverges_before_its_first_checkpoint_says_that_there_is_none(tmp_path):
    config = SMALL.changed(learning_rate=1e30, max_lag=1)
    with command("train", "--out", str(tmp_path / "run"), *as_flags(config)) as running:
        code, output = running.finish()
        assert running.all_gone()
    assert code == 1
    assert "Traceback" not in output
    assert output.splitlines()[-1].endswith(
        "start again with a lower --learning-rate (now 1e+30); there was no checkpoint yet"
    )
    assert RunFolder(tmp_path / "run").checkpoints() == []
