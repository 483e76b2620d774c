"""A run's folder from somebody else: whatever it holds, nothing in it runs, and nothing outside of
it is read or written."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runs import SMALL, state_at
from test_checkpoint import Runs

from zorplex_rl.cli.commands import main
from zorplex_rl.config import Config, HostsConfig
from zorplex_rl.errors import ConfigError
from zorplex_rl.policy.load import EMBEDDED_PATH
from zorplex_rl.run.folder import RunFolder, expect_plain, seal
from zorplex_rl.run.timeline import Span, Timeline

pytestmark = pytest.mark.slow

TASK = """
open({ran!r}, "w").close()
from zorplex_rl.task.environment import Environment
class Own(Environment):
    def task(self, index, split):
        raise SystemExit
"""


@pytest.fixture
def ran(tmp_path) -> Path:
    """What hostile code makes when it runs."""
    return tmp_path / "ran"


@pytest.fixture
def run(tmp_path) -> Path:
    return make_run(tmp_path / "run", SMALL)


def make_run(path: Path, config: Config) -> Path:
    """Write the folder of a run of two steps, with a policy, by hand: as whoever hands it around
    can."""
    (path / "checkpoints" / "step_000002" / "trainer").mkdir(parents=True)
    (path / "config.json").write_text(config.to_json())
    for file in ("metrics.jsonl", "episodes.jsonl", "journal.jsonl"):
        (path / file).write_text("")
    Timeline().save(path / "timeline.json")
    newest = path / "checkpoints" / "step_000002"
    (newest / "trainer" / "learner.safetensors").write_bytes(b"no weights")
    (newest / "controller.json").write_text(json.dumps(state_at(2, config)))
    seal(newest)
    shutil.copytree(EMBEDDED_PATH, path / "policy")
    return path


def refused(capsys, *arguments: object) -> str:
    """What ``zorplex-rl`` says when it refuses ``arguments``: one sentence."""
    assert main([str(argument) for argument in arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("zorplex-rl: ") and said.count("\n") == 1
    return said


def test_no_command_runs_the_code_of_a_task_that_the_folder_names_or_brings(tmp_path, ran, capsys):
    (tmp_path / "tasks.py").write_text(TASK.format(ran=str(ran)))
    path = make_run(tmp_path / "run", SMALL.changed(task=str(tmp_path / "tasks.py")))
    shutil.copyfile(tmp_path / "tasks.py", path / "task.py")
    assert main(["status", str(path)]) == 1
    assert main(["export", str(path), "--to", str(tmp_path / "model")]) == 0
    for command in ("train --resume", "replay"):
        assert f"--task {tmp_path / 'tasks.py'}" in refused(capsys, *command.split(), path)
    assert not ran.exists()


def test_a_run_that_was_on_other_machines_goes_on_there_only_if_they_are_named_again(tmp_path, capsys):
    hosts = HostsConfig(hosts="attach:tcp://192.0.2.1:4444", listen="tcp://0.0.0.0:1")
    path = make_run(tmp_path / "run", replace(SMALL, cluster=hosts))
    said = refused(capsys, "train", "--resume", path)
    assert "say where it goes on" in said
    assert "--hosts attach:tcp://192.0.2.1:4444 --listen tcp://0.0.0.0:1, or here, with --hosts this" in said
    assert RunFolder(path).resume_command.endswith(hosts.flags)


LINKED = ["config.json", "metrics.jsonl", "episodes.jsonl", "journal.jsonl", "timeline.json", "curve.svg", "telemetry.json", ".lock",
          "task.py", "checkpoints/step_000002/controller.json", "policy/model.safetensors", "policy"]  # fmt: skip


@pytest.mark.parametrize("name", LINKED)
def test_a_link_out_of_the_folder_is_neither_read_nor_written_through(run, tmp_path, capsys, name):
    outside = tmp_path / "outside"
    if (run / name).exists():
        (run / name).rename(outside)
    else:
        outside.write_text("{}")
    before = outside.read_bytes() if outside.is_file() else None
    (run / name).symlink_to(outside)
    for command in (
        ["train", "--resume", run],
        ["export", run, "--to", tmp_path / "model"],
        ["status", run],
        ["replay", run],
    ):
        assert f"holds '{name}', which is a link" in refused(capsys, *command)
    assert before is None or outside.read_bytes() == before
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("name", ["metrics.jsonl", "telemetry.json", "task.py"])
def test_a_pipe_in_the_folder_keeps_nobody_waiting(run, capsys, name):
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    for command in ("train --resume", "status", "replay"):
        assert f"holds '{name}', which is neither a file nor a folder" in refused(capsys, *command.split(), run)


@pytest.mark.parametrize("name", ["/etc/hostname", "../../config.json", "\x1b[2J"])
def test_a_manifest_names_files_of_its_own_folder_only(run, capsys, name):
    manifest = run / "checkpoints" / "step_000002" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {name: {"bytes": 1, "sha256": ""}}))
    assert "which is not in its folder" in refused(capsys, "train", "--resume", run)


@pytest.mark.parametrize("text", ["", "[]", "null", "[" * 100_000, '{"steps": NaN}', '{"steps": 1e999}',
                                  '{"slots": "x"}', '{"cluster": []}', "\0" * 100, '{"policy": {"__reduce__": "os.system"}}'])  # fmt: skip
def test_a_configuration_that_is_none_is_refused(run, capsys, text, tmp_path):
    (run / "config.json").write_text(text)
    assert str(run) in refused(capsys, "train", "--resume", run)
    refused(capsys, "export", run, "--to", tmp_path / "model")


@pytest.mark.parametrize(
    "change",
    [{"step": -1}, {"step": "2"}, {"seconds": float("nan")}, {"written": {"../config.json": 0}},
     {"replay": []}, {"episodes": 10**40}, {"more": 1}],
)  # fmt: skip
def test_a_state_that_no_controller_wrote_is_refused_whatever_its_checksum_says(run, capsys, change):
    newest = run / "checkpoints" / "step_000002"
    (newest / "controller.json").write_text(json.dumps(state_at(2) | change))
    seal(newest)
    assert "is no state of a run" in refused(capsys, "train", "--resume", run)


ABSURD = (-1, 1, 2**50, 10**40, 1e300, "x", None, True, [], [5], [1, 1], {}, [[0, ["x"]]], [[0, []], [0, []]])


def absurd_forms(value: Any) -> Iterator[Any]:
    """``value`` with one entry after the other, at any depth, replaced by one absurd value after
    the other."""
    yield from (absurd for absurd in ABSURD if absurd != value or type(absurd) is not type(value))
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from (value | {name: absurd} for absurd in absurd_forms(entry))


def test_no_entry_of_a_state_can_be_absurd(run):
    """What is admitted is true of some run of this configuration: only what a run has counted and
    timed may be anything."""
    newest, free = (
        run / "checkpoints" / "step_000002",
        ("episodes", "next_evaluation", "seconds", "timeline_seconds", "written"),
    )
    refusals, admitted = [], []
    for state in absurd_forms(state_at(2)):
        (newest / "controller.json").write_text(json.dumps(state))
        try:
            RunFolder(run).controller_state(newest, SMALL)
        except ConfigError as error:
            refusals.append(str(error))
        else:
            of_run = {name: value for name, value in state.items() if name not in free}
            of_run["replay"]["counters"] = {"trained": of_run["replay"]["counters"]["trained"]}
            admitted.append(of_run)
    assert len(refusals) > 200 and admitted
    assert all("\n" not in refusal and "is no state of a run" in refusal for refusal in refusals)
    expected = {name: value for name, value in state_at(2).items() if name not in free}
    expected["replay"]["counters"] = {"trained": expected["replay"]["counters"]["trained"]}
    assert all(state == expected for state in admitted)


def test_rows_are_cut_whatever_length_a_state_gives_them(run):
    (run / "metrics.jsonl").write_text('{"event": "step", "step": 1}\n')
    RunFolder(run).rewind(run / "checkpoints" / "step_000002", {"metrics.jsonl": 2**52, "episodes.jsonl": 2**52})
    assert len(RunFolder(run).metrics()) == 1


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"traceEvents": [{"pid": 1}]}', "[" * 100_000, '{"traceEvents": 3, "otherData": []}']
)
def test_a_timeline_that_is_none_is_a_value_error(tmp_path, text):
    (tmp_path / "timeline.json").write_text(text)
    with pytest.raises(ValueError, match="is not a trace"):
        Timeline.load(tmp_path / "timeline.json")


@pytest.mark.parametrize(
    ("entry", "value"), [("ts", 10**400), ("ts", float("inf")), ("dur", -5), ("name", 5), ("args", [1])]
)
def test_a_timeline_that_could_not_be_written_again_is_none_either(tmp_path, entry, value):
    Timeline([Span("trainer", "train", 1.0, 2.0, {})]).save(tmp_path / "timeline.json")
    trace = json.loads((tmp_path / "timeline.json").read_text())
    trace["traceEvents"][-1][entry] = value
    (tmp_path / "timeline.json").write_text(json.dumps(trace))
    with pytest.raises(ValueError, match="is not a trace"):
        Timeline.load(tmp_path / "timeline.json")


def test_rows_that_no_run_has_written_are_left_out(run):
    rows = [
        {"event": "eval", "step": "1", "final": True}, {"event": ["eval"], "step": 1}, {"event": "step", "step": True},
        {"event": "eval", "step": 1, "greedy_accuracy": "<script>"}, {"event": "step", "step": 1, "seconds": {}},
    ]  # fmt: skip
    good = {"event": "step", "step": 1, "seconds": 1.0, "accuracy": 0.5}
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (*rows, good)))
    assert RunFolder(run).metrics() == [good]
    assert not RunFolder(run).is_finished(1)


def test_what_a_folder_says_does_not_reach_the_terminal_as_a_command(run, capsys):
    warnings = [{"text": "\x1b[2Jmoon\u2028"}, {"text": ["\x1b"]}, {}]
    rows = (json.dumps({"event": "warning", "step": 1} | warning) for warning in warnings)
    (run / "metrics.jsonl").write_text("\n".join(rows))
    assert main(["status", str(run)]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == ["step 1: \\x1b[2Jmoon\\u2028", "step 1: "]
    (run / "config.json").write_text(json.dumps(json.loads((run / "config.json").read_text()) | {"\x1b[2J": 1}))
    assert "\\x1b[2J" in refused(capsys, "train", "--resume", run)


def test_a_path_with_what_could_be_markup_is_printed_as_it_is(run, capsys):
    folder = shutil.copytree(run / "policy", run.parent / "p[" / "x]:moon:")
    assert main(["size", "--policy", str(folder), "--no-time"]) == 0
    assert main(["eval", "--policy", str(folder), "--tasks", "1", "--task", "simple", "--max-tokens", "16"]) == 0
    assert "".join(capsys.readouterr().out.split()).count("[/x]:moon:") == 2


def test_a_pickle_in_any_place_of_the_folder_never_runs(tmp_path, ran, capsys):
    """Where text is expected, and where tensors are; each time the checksums are right."""
    original = make_run(tmp_path / "original", SMALL)
    dumped = pickle.dumps(Runs(str(ran)))
    for file in sorted(path.relative_to(original) for path in original.rglob("*") if path.is_file()):
        path = Path(shutil.copytree(original, tmp_path / "run"))
        (path / file).write_bytes(dumped)
        if file.parts[0] == "checkpoints" and file.name != "manifest.json":
            seal(path / "checkpoints" / "step_000002")
        main(["export", str(path), "--to", str(tmp_path / "model")])
        main(["export", str(path), "--to", str(tmp_path / "of_step"), "--step", "2"])
        main(["status", str(path)])
        main(["replay", str(path)])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("zorplex_rl.cli.train.run", lambda *_: 0)
            main(["train", "--resume", str(path)])
        assert not ran.exists(), file
        shutil.rmtree(path)
        shutil.rmtree(tmp_path / "model", ignore_errors=True)
    assert "Traceback" not in capsys.readouterr().err


CODE = """
open({ran!r}, "w").close()
class Evil: pass
"""
OWN_CODE = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil", "AutoTokenizer": ["evil.Evil", None]}


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", {"auto_map": OWN_CODE}),
        ("config.json", {"model_type": "evil", "auto_map": OWN_CODE}),
        ("config.json", {"attn_implementation": "evil/kernel"}),
        ("config.json", {"hidden_size": -1}),
        ("config.json", {"num_hidden_layers": 10**9}),
        ("config.json", {"hidden_size": "x"}),
        ("config.json", {"hidden_size": 64 * 10**7}),
        ("config.json", {"quantization_config": {"quant_method": "awq"}}),
        ("tokenizer_config.json", {"auto_map": OWN_CODE, "tokenizer_class": "Evil"}),
        ("tokenizer_config.json", {"tokenizer_class": 3}),
    ],
)
def test_a_policy_that_brings_code_or_nonsense_runs_none_and_is_refused_in_one_sentence_at_most(
    run, ran, tmp_path, file, change, capsys
):
    policy = run / "policy"
    (policy / "evil.py").write_text(CODE.format(ran=str(ran)))
    (policy / file).write_text(json.dumps(json.loads((policy / file).read_text()) | change))
    if main(["export", str(run), "--to", str(tmp_path / "model")]) == 0:
        assert not (tmp_path / "model" / "evil.py").exists()
    else:
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and str(policy) in said
    assert not ran.exists()


def test_pickled_weights_are_refused(run, ran, capsys):
    weights = run / "policy" / "model.safetensors"
    weights.with_name("pytorch_model.bin").write_bytes(pickle.dumps(Runs(str(ran))))
    weights.unlink()
    for command in (["eval", "--policy"], ["size", "--policy"], ["train", "--policy"]):
        assert "has no weights but pickled ones" in refused(capsys, *command, run / "policy")
    assert not ran.exists()


@pytest.mark.parametrize(
    "template",
    ["{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ cycler.__init__.__globals__.os.system('x') }}", "{% for"],
)
def test_a_chat_template_reaches_nothing_outside(run, capsys, template):
    (run / "policy" / "chat_template.jinja").write_text(template)
    assert "has a chat template that fails" in refused(capsys, "eval", "--policy", run / "policy", "--tasks", "1")


def test_a_file_that_gets_its_name_while_one_looks_is_nothing_strange(tmp_path, monkeypatch):
    """``status`` looks into a run that goes on. What it writes has another name until it is whole."""
    (tmp_path / "metrics.jsonl").touch()
    walk = os.walk
    monkeypatch.setattr(
        os, "walk", lambda top: ((place, folders, [*files, "gone.tmp"]) for place, folders, files in walk(top))
    )
    expect_plain(tmp_path, "the run")
