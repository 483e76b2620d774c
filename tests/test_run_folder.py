"""The folder of a run: what is written stays whole, and what a crash has cut off is left out."""

from __future__ import annotations

import json

import pytest

from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError
from zorplex_rl.run_folder import RunFolder


def step_row(step: int) -> dict:
    return {"event": "step", "step": step}


def test_a_folder_is_reopened_with_the_configuration_that_it_was_made_with(tmp_path):
    config = Config(task="mix", seed=7, learning_rate=1e-5)
    folder = RunFolder.create(tmp_path / "a" / "b", config)
    folder.finish_checkpoint(folder.begin_checkpoint(3), {"step": 3})
    again, found = RunFolder.reopen(tmp_path / "a" / "b")
    assert found == config
    assert again.controller_state(again.newest_checkpoint()) == {"step": 3}


def test_a_checkpoint_that_was_not_finished_does_not_exist(tmp_path):
    folder = RunFolder.create(tmp_path / "run", Config())
    folder.finish_checkpoint(folder.begin_checkpoint(10), {"step": 10})
    (folder.begin_checkpoint(20) / "trainer").mkdir()
    assert folder.newest_checkpoint().name == "step_000010"


def test_only_the_newest_checkpoints_are_kept(tmp_path):
    folder = RunFolder.create(tmp_path / "run", Config())
    for step in (10, 20, 30, 1000):
        folder.finish_checkpoint(folder.begin_checkpoint(step), {"step": step})
    assert [path.name for path in folder.checkpoints()] == ["step_000030", "step_001000"]


def test_a_line_that_a_crash_has_cut_off_is_left_out(tmp_path):
    folder = RunFolder.create(tmp_path / "run", Config())
    folder.append_metrics(step_row(1))
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "st')
    assert folder.metrics() == [step_row(1)]


def test_a_resumed_run_forgets_what_it_is_going_to_do_again(tmp_path):
    folder = RunFolder.create(tmp_path / "run", Config())
    for step in range(1, 6):
        folder.append_metrics(step_row(step))
    folder.append_metrics({"event": "eval", "step": 3, "final": True})
    folder.append_metrics({"event": "eval", "step": 2, "final": False})
    folder.forget_after(3)
    assert [(row["event"], row["step"]) for row in folder.metrics()] == [
        ("step", 1),
        ("step", 2),
        ("step", 3),
        ("eval", 2),
    ]


def test_a_configuration_of_another_version_is_refused_by_its_unknown_field(tmp_path):
    folder = RunFolder.create(tmp_path / "run", Config())
    folder.finish_checkpoint(folder.begin_checkpoint(1), {"step": 1})
    values = json.loads(Config().to_json()) | {"warp_factor": 9}
    (folder.path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError, match="'warp_factor'"):
        RunFolder.reopen(folder.path)
    (folder.path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        RunFolder.reopen(folder.path)
