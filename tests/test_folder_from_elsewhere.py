"""A run's folder from elsewhere: whatever it holds, nothing in it is unpickled or run."""

from __future__ import annotations

import contextlib
import json
import pickle
import shutil
from pathlib import Path

import pytest
from runs import SMALL, state_at
from test_checkpoint import Runs

from zorplex_rl.cli import train
from zorplex_rl.cli.commands import main
from zorplex_rl.config import Config
from zorplex_rl.policy.load import EMBEDDED_PATH
from zorplex_rl.run.folder import RunFolder, seal
from zorplex_rl.run.timeline import Timeline

pytestmark = pytest.mark.slow


@pytest.fixture
def ran(tmp_path) -> Path:
    """What hostile code makes when it runs."""
    return tmp_path / "ran"


def make_run(path: Path, config: Config = SMALL) -> Path:
    """Write the folder of a run of two steps, with a policy, by hand."""
    newest = path / "checkpoints" / "step_000002"
    (newest / "trainer").mkdir(parents=True)
    (path / "config.json").write_text(config.to_json())
    for file in ("metrics.jsonl", "episodes.jsonl", "journal.jsonl"):
        (path / file).write_text("")
    RunFolder(path).save_timeline(Timeline())
    (newest / "trainer" / "learner.safetensors").write_bytes(b"no weights")
    (newest / "controller.json").write_text(json.dumps(state_at(2, config)))
    seal(newest)
    shutil.copytree(EMBEDDED_PATH, path / "policy")
    return path


def test_a_pickle_in_any_place_of_the_folder_never_runs(tmp_path, ran, monkeypatch):
    """Where text is expected, and where tensors are; each time the checksums are right."""
    original = make_run(tmp_path / "original")
    monkeypatch.setattr(train, "train", lambda *_: 0)
    for file in sorted(
        path.relative_to(original) for path in original.rglob("*") if path.is_file()
    ):
        path = Path(shutil.copytree(original, tmp_path / "run"))
        (path / file).write_bytes(pickle.dumps(Runs(str(ran))))
        if file.parts[0] == "checkpoints" and file.name != "manifest.json":
            seal(path / "checkpoints" / "step_000002")
        for command in (
            "export --to model",
            "export --to of_step --step 2",
            "status",
            "replay",
            "train --resume",
        ):
            name, *flags = command.replace("--to ", f"--to {tmp_path}/").split()
            # A spoilt file may be a traceback: what counts is that nothing ran.
            with contextlib.suppress(Exception):
                main(
                    [name, *flags, str(path)]
                    if flags[-1:] == ["--resume"]
                    else [name, str(path), *flags]
                )
        assert not ran.exists(), file
        shutil.rmtree(path)
        shutil.rmtree(tmp_path / "model", ignore_errors=True)
    pickle.loads(pickle.dumps(Runs(str(ran))))
    assert ran.exists(), "it is no test"
