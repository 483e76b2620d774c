"""What a run survives: killed generators, a killed process tree, Ctrl-C. All with real processes and real signals."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

import pytest
from runs import SMALL, as_flags, command, counters, eventually, final_weights, rows, same_weights, train_here

from zorplex_rl.run_folder import RunFolder


@pytest.mark.parametrize("spares", [1, 0])
def test_a_generator_killed_in_mid_run_is_replaced_and_no_group_is_lost(tmp_path, spares):
    from zorplex_rl.system import crew

    config = replace(
        SMALL, mode="async", max_lag=1, steps=8, prompts_per_step=4, generators=2, spares=spares, checkpoint_every=8
    )
    killed_at: list[float] = []
    noticed_at: list[float] = []
    pids: list[int] = []
    original = crew.Crew.publish

    def show(row):
        if row["event"] == "step" and row["step"] == 2:
            os.kill(pids[0], signal.SIGKILL)
            killed_at.append(time.monotonic())
        if row["event"] == "restart":
            noticed_at.append(time.monotonic())

    async def note_pids(self):
        pids[:] = [worker.replica.pid for worker in self.generators.workers]
        return await original(self)

    crew.Crew.publish = note_pids
    try:
        run = train_here(config, tmp_path / "run", show=show)
    finally:
        crew.Crew.publish = original

    restarts = rows(run.path, "restart")
    assert len(restarts) == 1
    assert restarts[0]["died"] != restarts[0]["took_over"]
    assert len(rows(run.path, "step")) == config.steps
    found = counters(run)
    assert found["trained"] == config.steps * config.prompts_per_step
    assert found["started"] == found["trained"] + found["abandoned"]
    if spares:
        assert restarts[0]["recovery_seconds"] < 5
        assert noticed_at[0] - killed_at[0] < 5


def test_a_killed_process_tree_is_resumed_and_ends_as_if_nothing_had_happened(tmp_path):
    config = replace(SMALL, steps=6)
    undisturbed = train_here(config, tmp_path / "undisturbed")
    path = tmp_path / "killed"
    with command("train", *as_flags(config), "--out", str(path)) as running:
        assert eventually(lambda: (path / "checkpoints" / "step_000002" / "controller.json").exists())
        for pid in running.members():
            os.kill(pid, signal.SIGKILL)
        assert running.all_gone()
    assert not (path / "policy").exists()
    with command("train", "--resume", str(path)) as running:
        code, output = running.finish()
        assert code == 0, output
        assert "held-out accuracy, greedy" in output
        assert running.all_gone()
    assert same_weights(final_weights(path), final_weights(undisturbed.path))
    assert [row["step"] for row in rows(path, "step")] == [1, 2, 3, 4, 5, 6]


def test_ctrl_c_checkpoints_stops_every_process_and_says_how_to_resume(tmp_path):
    config = replace(SMALL, mode="async", steps=500, checkpoint_every=1000, spares=1)
    path = tmp_path / "run"
    with command("train", *as_flags(config), "--out", str(path)) as running:
        assert eventually(lambda: len(rows(path, "step")) >= 2)
        os.killpg(running.process.pid, signal.SIGINT)
        code, output = running.finish()
        assert code == 130
        assert f"--resume {path}" in output
        assert "Traceback" not in output
        assert running.all_gone()
    done = rows(path, "step")[-1]["step"]
    folder, _ = RunFolder.reopen(path)
    assert folder.newest_checkpoint().name == f"step_{done:06d}"


def test_a_controller_that_is_killed_takes_all_its_actors_with_it(tmp_path):
    path = tmp_path / "run"
    with command("train", *as_flags(replace(SMALL, steps=500)), "--out", str(path)) as running:
        assert eventually(lambda: rows(path, "step"))
        running.process.kill()
        assert running.all_gone()
