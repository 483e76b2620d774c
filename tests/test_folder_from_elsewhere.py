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
from zorplex_rl.run.folder import seal
from zorplex_rl.run.timeline import Timeline

pytestmark = pytest.mark.slow

CODE = """
open({ran!r}, "w").close()
from zorplex_rl.task.environment import Environment
class Evil(Environment):
    def task(self, index, split):
        raise SystemExit
"""


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
    Timeline().save(path / "timeline.json")
    (newest / "trainer" / "learner.safetensors").write_bytes(b"no weights")
    (newest / "controller.json").write_text(json.dumps(state_at(2, config)))
    seal(newest)
    shutil.copytree(EMBEDDED_PATH, path / "policy")
    return path


def test_no_command_runs_the_code_of_a_task_that_the_folder_names_or_brings(tmp_path, ran, capsys):
    task = tmp_path / "tasks.py"
    task.write_text(CODE.format(ran=str(ran)))
    path = make_run(tmp_path / "run", SMALL.changed(task=str(task)))
    shutil.copyfile(task, path / "tasks.py")
    assert main(["status", str(path)]) == 0
    assert main(["export", str(path), "--to", str(tmp_path / "model")]) == 0
    for command in ("train --resume", "replay"):
        assert main([*command.split(), str(path)]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "--task" in said and str(task) in said
    assert not ran.exists()


def test_a_run_that_was_on_other_machines_goes_on_here_unless_they_are_named_again(tmp_path, monkeypatch):
    path = make_run(tmp_path / "run", SMALL.changed(hosts="attach:tcp://192.0.2.1:4444", insecure=True))
    monkeypatch.setattr(train, "train", lambda config, *_: (config.hosts, config.insecure))
    assert main(["train", "--resume", str(path)]) == ("this", False)


def test_a_pickle_in_any_place_of_the_folder_never_runs(tmp_path, ran, monkeypatch):
    """Where text is expected, and where tensors are; each time the checksums are right."""
    original = make_run(tmp_path / "original")
    monkeypatch.setattr(train, "train", lambda *_: 0)
    for file in sorted(path.relative_to(original) for path in original.rglob("*") if path.is_file()):
        path = Path(shutil.copytree(original, tmp_path / "run"))
        (path / file).write_bytes(pickle.dumps(Runs(str(ran))))
        if file.parts[0] == "checkpoints" and file.name != "manifest.json":
            seal(path / "checkpoints" / "step_000002")
        for command in ("export --to model", "export --to of_step --step 2", "status", "replay", "train --resume"):
            name, *flags = command.replace("--to ", f"--to {tmp_path}/").split()
            # A spoilt file may be a traceback: what counts is that nothing ran.
            with contextlib.suppress(Exception):
                main([name, *flags, str(path)] if flags[-1:] == ["--resume"] else [name, str(path), *flags])
        assert not ran.exists(), file
        shutil.rmtree(path)
        shutil.rmtree(tmp_path / "model", ignore_errors=True)
    pickle.loads(pickle.dumps(Runs(str(ran))))
    assert ran.exists(), "it is no test"


OWN_CODE = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil", "AutoTokenizer": ["evil.Evil", None]}


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", {"auto_map": OWN_CODE}),
        ("config.json", {"model_type": "evil", "auto_map": OWN_CODE}),
        ("tokenizer_config.json", {"auto_map": OWN_CODE, "tokenizer_class": "Evil"}),
        ("chat_template.jinja", "{{ cycler.__init__.__globals__.os.mknod('RAN') }}"),
    ],
)
def test_a_policy_that_brings_code_runs_none(tmp_path, ran, file, change, capsys):
    policy = make_run(tmp_path / "run") / "policy"
    (policy / "evil.py").write_text(CODE.format(ran=str(ran)))
    if isinstance(change, str):
        (policy / file).write_text(change.replace("RAN", str(ran)))
    else:
        (policy / file).write_text(json.dumps(json.loads((policy / file).read_text()) | change))
    if main(["eval", "--policy", str(policy), "--tasks", "1", "--task", "simple"]) != 0:
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and str(policy) in said
    assert not ran.exists()


def test_pickled_weights_are_refused(tmp_path, ran, capsys):
    policy = make_run(tmp_path / "run") / "policy"
    (policy / "pytorch_model.bin").write_bytes(pickle.dumps(Runs(str(ran))))
    (policy / "model.safetensors").unlink()
    for command in ("eval", "size", "train"):
        assert main([command, "--policy", str(policy)]) == 2
        assert "safetensors" in capsys.readouterr().err
    assert not ran.exists()
