"""The folder of a run: what is written stays whole, and what a crash has cut off is left out."""

from __future__ import annotations

import json
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from runs import SMALL, state_at

from zorplex_rl.cli.train import _what_failed
from zorplex_rl.config import Config, LearnerConfig
from zorplex_rl.errors import CheckpointError, ConfigError, StorageError
from zorplex_rl.run.folder import RunFolder
from zorplex_rl.run.timeline import Timeline
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.episode import Episode

EPISODE = Episode(Zorplex().task(0), [], [], [], [], [], "answer")


def step_row(step: int) -> dict:
    return {"event": "step", "step": step}


def test_a_folder_is_reopened_with_the_configuration_that_it_was_made_with(tmp_path):
    config = Config(task="mix", seed=7, learner=LearnerConfig(learning_rate=1e-5))
    folder = RunFolder.create(tmp_path / "a" / "b", config)
    folder.finish_checkpoint(folder.begin_checkpoint(3), state_at(3))
    again, found = RunFolder.reopen(tmp_path / "a" / "b")
    assert found == config
    assert again.controller_state(again.newest_checkpoint()) == state_at(3)


def test_a_checkpoint_that_was_not_finished_does_not_exist(tmp_path):
    folder = RunFolder.create(tmp_path / "run", Config())
    folder.finish_checkpoint(folder.begin_checkpoint(10), state_at(10))
    (folder.begin_checkpoint(20) / "trainer").mkdir()
    assert folder.newest_checkpoint().name == "step_000010"


def test_only_the_newest_checkpoints_are_kept(tmp_path):
    folder = RunFolder.create(tmp_path / "run", Config())
    for step in (10, 20, 30, 1000):
        folder.finish_checkpoint(folder.begin_checkpoint(step), state_at(step))
    assert [path.name for path in folder.checkpoints()] == ["step_000030", "step_001000"]


def test_a_line_that_a_crash_has_cut_off_is_left_out(tmp_path):
    folder = RunFolder.create(tmp_path / "run", Config())
    folder.append_metrics(step_row(1))
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "st')
    assert folder.metrics() == [step_row(1)]


@pytest.mark.parametrize("line", [b"\0" * 100, b"\xff\xfe", b"[]", b"3", b"{}", b"[" * 100_000, b"\xe2\x80\xa8"])
def test_a_line_that_is_no_row_hides_no_later_row(tmp_path, line):
    folder = RunFolder.create(tmp_path / "run", Config())
    folder.append_metrics(step_row(1))
    with (folder.path / "metrics.jsonl").open("ab") as file:
        file.write(line + b"\n")
    folder.append_metrics(step_row(2))
    assert folder.metrics() == [step_row(1), step_row(2)]
    assert not folder.is_finished(2)


def test_only_folders_that_a_run_names_are_checkpoints(tmp_path):
    folder = filled_folder(tmp_path / "run", 1)
    for name in ("step_", "step_x", "step_²", "step_-1"):
        (folder.path / "checkpoints" / name).mkdir()
    assert [path.name for path in folder.checkpoints()] == ["step_000001"]


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


def episode_steps(folder: RunFolder) -> list[int]:
    return [json.loads(line)["step"] for line in (folder.path / "episodes.jsonl").read_text().splitlines()]


def test_rows_episodes_and_checkpoints_that_came_after_a_checkpoint_go_when_a_run_continues_from_it(tmp_path):
    folder = filled_folder(tmp_path / "run", 1, 2)
    first, second = folder.checkpoints()
    # What follows the second checkpoint bears its step, or an earlier one, and yet is written
    # again.
    folder.append_metrics({"event": "eval", "step": 2, "final": True})
    folder.append_metrics({"event": "eval", "step": 1})
    folder.append_episode(2, EPISODE, "eval")
    (folder.begin_checkpoint(3) / "trainer").mkdir()
    folder.rewind(second, folder.controller_state(second)["written"])
    assert folder.metrics() == [step_row(1), step_row(2)]
    assert episode_steps(folder) == [1, 2]
    assert sorted(path.name for path in (folder.path / "checkpoints").iterdir()) == ["step_000001", "step_000002"]
    folder.rewind(first, folder.controller_state(first)["written"])
    assert folder.metrics() == [step_row(1)]
    assert episode_steps(folder) == [1]
    assert folder.checkpoints() == [first]


def test_rows_that_a_crash_of_the_machine_has_cut_short_are_cut_to_whole_lines(tmp_path):
    folder = filled_folder(tmp_path / "run", 1, 2)
    metrics = folder.path / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-4])
    newest = folder.newest_checkpoint()
    folder.rewind(newest, folder.controller_state(newest)["written"])
    folder.append_metrics(step_row(3))
    assert folder.metrics() == [step_row(1), step_row(3)]


def cut_data(checkpoint: Path) -> None:
    file = checkpoint / "trainer" / "learner.safetensors"
    file.write_bytes(file.read_bytes()[:600])


def flip_a_bit(checkpoint: Path) -> None:
    file = checkpoint / "trainer" / "learner.safetensors"
    file.write_bytes(bytes(500) + b"\1" + bytes(499))


def lose_data(checkpoint: Path) -> None:
    (checkpoint / "trainer" / "learner.safetensors").unlink()


def cut_controller(checkpoint: Path) -> None:
    (checkpoint / "controller.json").write_text('{"step": 2')


def lose_manifest(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").unlink()


def cut_manifest(checkpoint: Path) -> None:
    file = checkpoint / "manifest.json"
    file.write_text(file.read_text()[:50])


def empty_manifest(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").write_text("{}")


def nested_manifest(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").write_text("[" * 100_000)


@pytest.mark.parametrize(
    "damage",
    [
        cut_data,
        flip_a_bit,
        lose_data,
        cut_controller,
        lose_manifest,
        cut_manifest,
        empty_manifest,
        nested_manifest,
    ],
)
def test_a_checkpoint_that_is_not_what_was_written_is_named_and_the_older_one_offered(tmp_path, damage, wording):
    folder = filled_folder(tmp_path / "a run", 1, 2)
    assert folder.intact_checkpoint() == folder.newest_checkpoint()
    damage(folder.newest_checkpoint())
    with pytest.raises(ConfigError) as refused:
        folder.intact_checkpoint()
    wording(re.sub(r"10 of \d+ bytes", "10 of N bytes", str(refused.value)), damage.__name__)
    assert folder.intact_checkpoint(1) == folder.checkpoints()[0]
    damage(folder.checkpoints()[0])
    with pytest.raises(ConfigError, match="no other one is whole"):
        folder.intact_checkpoint()


def test_a_checkpoint_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    with pytest.raises(ConfigError, match="--from-checkpoint is 7; the checkpoints in .* are of step 1, 2"):
        filled_folder(tmp_path / "run", 1, 2).intact_checkpoint(7)


def test_two_runs_that_begin_in_the_same_second_get_folders_of_their_own(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: RunFolder.create_beside(tmp_path / "20300101-120000", Config()), range(8)))
    assert sorted(folder.path.name for folder in folders) == [
        "20300101-120000", *(f"20300101-120000-{n}" for n in range(2, 9))
    ]  # fmt: skip


def test_a_folder_that_exists_is_offered_to_be_continued_only_if_that_is_possible(tmp_path):
    folder = RunFolder.create(tmp_path / "a run", Config())
    with pytest.raises(ConfigError, match="choose another --out$"):
        RunFolder.create(folder.path, Config())
    folder.finish_checkpoint(folder.begin_checkpoint(1), state_at(1))
    with pytest.raises(ConfigError, match="or continue the run in it with --resume '.*a run'$"):
        RunFolder.create(folder.path, Config())


def test_who_has_locked_a_folder_may_lock_it_again_and_nobody_else_may(tmp_path):
    folder = filled_folder(tmp_path / "run", 1)
    with folder.locked():
        with folder.locked():
            pass
        with pytest.raises(ConfigError, match="is under way in another process"), RunFolder(folder.path).locked():
            pass
    with RunFolder(folder.path).locked():
        pass


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of one megabyte."""
    if os.geteuid():
        pytest.skip("mounting a file system needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=False).returncode:
        pytest.skip("this machine lets nobody mount a file system")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.slow
def test_a_disk_that_fills_up_is_one_sentence_whatever_is_written(tiny_disk, embedded):
    from zorplex_rl.learning.checkpoint import save_learner
    from zorplex_rl.learning.learner import Learner

    folder, learner = filled_folder(tiny_disk / "run", 1), Learner(embedded)
    with pytest.raises(StorageError, match=r"^the checkpoint cannot be written \(No space left on device\)$"):
        save_learner(learner, folder.begin_checkpoint(2))
    folder.abandon_checkpoint(folder.path / "checkpoints" / ".step_000002")
    begun = folder.begin_checkpoint(3)
    for action in (
        # What is left of a file's last block is enough for a few rows.
        lambda: [folder.append_metrics(step_row(2)) for _ in range(200)],
        lambda: [folder.append_episode(2, EPISODE, "train") for _ in range(200)],
        lambda: folder.save_config(Config()),
        lambda: folder.save_curve("<svg/>"),
        lambda: folder.save_timeline(Timeline()),
        lambda: folder.finish_checkpoint(begun, {}),
    ):
        fill(tiny_disk)
        with pytest.raises(StorageError, match=r"run' cannot be written any more \(No space left on device\)$"):
            action()
    (tiny_disk / "filler").unlink()
    assert folder.intact_checkpoint() == folder.checkpoints()[0]
    assert RunFolder.reopen(folder.path)[1] == Config()


def fill(disk: Path) -> None:
    """Leave no byte free on ``disk``."""
    with (disk / "filler").open("ab", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(512))


def test_a_configuration_of_another_version_is_refused_by_its_unknown_field(tmp_path):
    folder = RunFolder.create(tmp_path / "run", Config())
    folder.finish_checkpoint(folder.begin_checkpoint(1), state_at(1))
    values = json.loads(Config().to_json()) | {"warp_factor": 9}
    (folder.path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError, match="'warp_factor'"):
        RunFolder.reopen(folder.path)
    (folder.path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        RunFolder.reopen(folder.path)


def test_where_a_checkpoint_is_of_no_use_the_newest_other_one_that_is_whole_is_offered(tmp_path):
    """Its files are what was written, and it cannot be restored all the same."""
    folder = RunFolder.create(tmp_path / "run", SMALL)
    for step in (1, 2):
        folder.finish_checkpoint(folder.begin_checkpoint(step), state_at(step))
    newest, error = folder.newest_checkpoint(), CheckpointError("it lacks masters.0")
    config = folder.reopen(folder.path)[1]
    said = _what_failed(error, error, config, folder, newest)
    assert said.startswith(
        f"the checkpoint of step 2 in {str(folder.path)!r} is broken: it lacks masters.0; use the one of step 1 instead: "
    )
    assert said.endswith("--from-checkpoint 1")
