"""The folder of a run: what is written stays whole, and what a crash has cut off is left out."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from runs import state_at

from zorplex_rl.cli.commands import main
from zorplex_rl.config import Config, LearnerConfig
from zorplex_rl.errors import CheckpointError, ConfigError, StorageError
from zorplex_rl.run.folder import RunFolder
from zorplex_rl.run.timeline import Timeline
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.episode import Episode
from zorplex_rl.task.rewards import score

EPISODE = Episode(Zorplex().task(0, "train"), [], [], [], [], [], "answer")
EPISODE.score = score(EPISODE)


def step_row(step: int) -> dict:
    return {"event": "step", "step": step}


def filled_folder(path: Path, *steps: int) -> RunFolder:
    """A run folder with a row, an episode and a checkpoint for each of ``steps``."""
    folder = RunFolder.create(path, Config())
    for step in steps:
        folder.append_metrics(step_row(step))
        folder.append_episode(step, EPISODE, "train")
        begun = folder.begin_checkpoint(step)
        (begun / "trainer").mkdir()
        (begun / "trainer" / "learner.safetensors").write_bytes(bytes(1000))
        folder.finish_checkpoint(begun, state_at(step, written=folder.written()))
    return folder


def test_a_folder_is_reopened_with_the_configuration_that_it_was_made_with(tmp_path):
    config = Config(task="mix", seed=7, learner=LearnerConfig(learning_rate=1e-5))
    folder = RunFolder.create(tmp_path / "a" / "b", config)
    folder.finish_checkpoint(folder.begin_checkpoint(3), state_at(3))
    again, found = RunFolder.reopen(tmp_path / "a" / "b")
    assert found == config
    assert again.controller_state(again.newest_checkpoint()) == state_at(3)


def test_a_checkpoint_that_was_not_finished_does_not_exist_and_the_last_two_are_kept(tmp_path):
    folder = filled_folder(tmp_path / "run", 10, 20, 1000)
    (folder.begin_checkpoint(1001) / "trainer").mkdir()
    assert [path.name for path in folder.checkpoints()] == ["step_000020", "step_001000"]


def test_rows_episodes_and_checkpoints_that_came_after_a_checkpoint_go_when_a_run_continues_from_it(
    tmp_path,
):
    folder = filled_folder(tmp_path / "run", 1, 2)
    first, second = folder.checkpoints()
    # These rows bear the step of the second checkpoint or an earlier one, and yet came after it.
    folder.append_metrics({"event": "eval", "step": 2, "final": True})
    folder.append_metrics({"event": "eval", "step": 1})
    folder.append_episode(2, EPISODE, "eval")
    (folder.begin_checkpoint(3) / "trainer").mkdir()
    for checkpoint, steps in ((second, [1, 2]), (first, [1])):
        with folder.locked():
            folder.rewind(checkpoint, folder.controller_state(checkpoint)["written"])
        assert folder.metrics() == [step_row(step) for step in steps]
        lines = (folder.path / "episodes.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == steps
        names = sorted(path.name for path in (folder.path / "checkpoints").iterdir())
        assert names == [f"step_{step:06d}" for step in steps]


def test_rows_that_a_crash_of_the_machine_has_cut_short_are_cut_to_whole_lines(tmp_path):
    folder = filled_folder(tmp_path / "run", 1, 2)
    metrics = folder.path / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-4])
    newest = folder.newest_checkpoint()
    folder.rewind(newest, folder.controller_state(newest)["written"])
    folder.append_metrics(step_row(3))
    assert folder.metrics() == [step_row(1), step_row(3)]


@pytest.mark.parametrize("broken", [b'{"event": "st', b"\0" * 20, b'{"event": "\xff"}'])
def test_of_the_rows_only_the_last_may_be_broken_and_another_one_is_named(tmp_path, capsys, broken):
    folder = filled_folder(tmp_path / "run", 1, 2)
    metrics = folder.path / "metrics.jsonl"
    rows = metrics.read_bytes()
    metrics.write_bytes(rows + broken)
    assert folder.metrics() == [step_row(1), step_row(2)]
    metrics.write_bytes(rows + broken + b"\n" + rows)
    for command in ("status", "train --resume"):
        assert main([*command.split(), str(folder.path)]) == 2
        assert (
            f"line 3 of {str(metrics)!r} is no longer what was written" in capsys.readouterr().err
        )


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("trainer/learner.safetensors", lambda old: old[:600]),
        ("trainer/learner.safetensors", lambda old: bytes(500) + b"\1" + bytes(499)),
        ("trainer/learner.safetensors", None),
        ("controller.json", lambda old: b'{"step": 2'),
        ("manifest.json", lambda old: old[:50]),
        ("manifest.json", None),
    ],
)
def test_a_checkpoint_that_is_not_what_was_written_is_named_and_without_it_the_older_one_is_used(
    tmp_path, name, damage
):
    folder = filled_folder(tmp_path / "a run", 1, 2)
    older, newest = folder.checkpoints()
    assert folder.newest_checkpoint() == newest
    file = newest / name
    if damage:
        file.write_bytes(damage(file.read_bytes()))
    else:
        file.unlink()
    with pytest.raises(CheckpointError) as refused:
        folder.newest_checkpoint()
    assert str(newest) in str(refused.value)
    newest.rename(tmp_path / "away")
    assert folder.newest_checkpoint() == older


def test_a_folder_that_exists_is_not_touched_and_one_that_fits_on_no_disk_is_not_made(tmp_path):
    with pytest.raises(ConfigError, match="--out"):
        RunFolder.create(tmp_path / "deep" / "run", Config(), bytes_needed=1 << 60)
    assert not (tmp_path / "deep").exists()
    (tmp_path / "file").touch()
    for taken in (tmp_path, tmp_path / "file" / "run"):
        with pytest.raises(ConfigError, match="--out"):
            RunFolder.create(taken, Config())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_can_be_locked_again_by_its_owner_and_by_no_other(tmp_path):
    folder = filled_folder(tmp_path / "run", 1)
    with folder.locked():
        with folder.locked():
            pass
        with pytest.raises(ConfigError, match="under way"), RunFolder(folder.path).locked():
            pass
    with RunFolder(folder.path).locked():
        pass


def test_the_way_to_go_on_names_again_what_a_folder_does_not_decide(tmp_path):
    hosts = "attach:tcp://192.0.2.1:4444"
    config = Config(task="my task.py", task_data="words.txt", hosts=hosts, insecure=True)
    folder = RunFolder.create(tmp_path / "a run", config)
    assert "no checkpoint" in folder.how_to_go_on
    folder.finish_checkpoint(folder.begin_checkpoint(3), state_at(3))
    advice, _, line = folder.how_to_go_on.partition(" with: ")
    assert advice.endswith("step 3")
    assert shlex.split(line) == [
        "zorplex-rl", "train", "--resume", str(folder.path), "--task", "my task.py", "--task-data", "words.txt",
        "--hosts", hosts, "--insecure",
    ]  # fmt: skip


def fill(disk: Path) -> None:
    """Leave no byte free on ``disk``."""
    with (
        (disk / "filler").open("ab", buffering=0) as file,
        pytest.raises(OSError, match="No space left"),
    ):
        while True:
            file.write(bytes(512))


@pytest.mark.slow
@pytest.mark.parametrize("small_disk", ["1m"], indirect=True)
def test_a_disk_that_fills_up_is_one_sentence_whatever_is_written(small_disk, embedded):
    from zorplex_rl.learning.checkpoint import save_learner
    from zorplex_rl.learning.learner import Learner

    folder, learner = filled_folder(small_disk / "run", 1), Learner(embedded)
    begun = folder.begin_checkpoint(3)
    folder.save_timeline(Timeline())
    for action in (
        lambda: save_learner(learner, begun / "trainer"),
        # What is left of a file's last block is enough for a few rows.
        lambda: [folder.append_metrics(step_row(2)) for _ in range(200)],
        lambda: [folder.append_episode(2, EPISODE, "train") for _ in range(200)],
        lambda: folder.save_config(Config(seed=1)),
        lambda: folder.save_curve("<svg/>"),
        lambda: folder.save_timeline(Timeline()),
        lambda: folder.finish_checkpoint(begun, {}),
    ):
        fill(small_disk)
        with pytest.raises(StorageError, match=r"\(No space left on device\)$"):
            action()
    (small_disk / "filler").unlink()
    assert folder.newest_checkpoint() == folder.checkpoints()[0]
    assert Timeline.load(folder.timeline) == Timeline()
    assert RunFolder.reopen(folder.path)[1] == Config()
