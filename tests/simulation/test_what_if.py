"""A run is executed again from its journal: unchanged it is the same, bit for bit, or the first
difference is named; with one thing changed it is compared on the same random draws.

Runs in which processes die, and runs that were resumed, are replayed where they are made:
``training/test_faults.py``.
"""

from __future__ import annotations

import base64
import json
import shutil
from array import array

import pytest
import torch
from runs import LAGGING, SMALL, train_here
from safetensors.torch import load_file, save_file

from zorplex_rl.cli.commands import main
from zorplex_rl.course.figures.two_runs import same_episodes, tokens_of, two_runs, why_parted
from zorplex_rl.simulation.what_if import read_recording, replay, what_if

pytestmark = pytest.mark.slow


@pytest.fixture
def copied(sync_run, tmp_path):
    """A copy of the synchronous run, to be changed."""
    shutil.copytree(sync_run.path, tmp_path / "run")
    return tmp_path / "run"


def journal(path):
    return [json.loads(line) for line in (path / "journal.jsonl").read_text().splitlines()]


def write_journal(path, rows):
    (path / "journal.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def versions_of(recording):
    """(step, versions that sampled it) of every episode."""
    for session in recording.sessions:
        for step, batch in session.batches.items():
            for episode in batch.episodes:
                yield step, [episode.first_version, *(version for _, _, version in episode.turns)]


def test_a_synchronous_run_is_the_same_bit_for_bit(sync_run):
    done = []
    found = replay(read_recording(sync_run.path), lambda step, policy: done.append(step))
    assert found.is_equal, found.first_difference
    assert done == [1, 2, 3, 4]
    episodes = 4 * SMALL.prompts_per_step * SMALL.group_size
    assert (
        found.compared
        == found.same
        == {"episodes": episodes, "steps": 4, "evaluations": 2, "files of weights": 3}
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"generators": 2, "on_update": "continue"},
        pytest.param({"generators": 2, "on_update": "wait"}, marks=pytest.mark.long),
        pytest.param(
            {"generators": 1, "on_update": "continue", "task": "multi_step"}, marks=pytest.mark.long
        ),
    ],
    ids=lambda changed: f"{changed['generators']} {changed['on_update']}",
)
def test_so_is_an_asynchronous_one_however_its_generators_take_new_weights(changed, tmp_path):
    config = LAGGING.changed(tool_latency=0.0, max_lag=2, steps=4, checkpoint_every=4, **changed)
    recording = read_recording(train_here(config, tmp_path / "run").path)
    found = replay(recording)
    assert found.is_equal, found.first_difference
    assert found.compared["steps"] == config.steps
    assert found.compared["files of weights"] == 2
    for step, versions in versions_of(recording):
        assert versions == sorted(versions)
        assert 0 <= step - 1 - versions[0] <= config.max_lag


def test_the_first_difference_is_named_and_the_rest_is_still_compared(copied):
    rows = journal(copied)
    batch = next(row for row in rows if row["event"] == "batch" and row["step"] == 3)
    logprobs = array("f", base64.b64decode(batch["logprobs"]))
    logprobs[0] -= 2.0**-10
    batch["logprobs"] = base64.b64encode(logprobs.tobytes()).decode()
    write_journal(copied, rows)
    found = replay(read_recording(copied))
    assert (
        found.first_difference
        == f"step 3, group {batch['groups'][0]}: token 0 or its log-probability"
    )
    assert found.same["episodes"] == found.compared["episodes"] - 1
    assert found.same["steps"] == found.compared["steps"] == 4


def test_weights_that_are_not_what_the_run_wrote_are_named(copied):
    file = copied / "policy" / "model.safetensors"
    weights = load_file(file)
    name = next(iter(weights))
    weights[name] = weights[name] + torch.tensor(2.0**-20)
    save_file(weights, file, {"format": "pt"})
    found = replay(read_recording(copied))
    assert found.first_difference == f"{name} of the trained policy"
    assert (found.same["files of weights"], found.compared["files of weights"]) == (2, 3)


def test_a_changed_learning_rate_is_executed_on_the_same_draws_and_the_command_tells_the_difference(
    sync_run, capsys, monkeypatch
):
    results = []
    monkeypatch.setattr(
        "zorplex_rl.simulation.what_if.what_if",
        lambda *given: results.append(what_if(*given)) or results[-1],
    )
    assert main(["replay", str(sync_run.path), "--learning-rate", "0.002", "--seeds", "2"]) == 0
    (found,) = results
    first, second = found.pairs
    assert (first.seed, second.seed) == (SMALL.seed, SMALL.seed + 1)
    # The first step meets the same episodes, sampled with the same weights.
    for pair in found.pairs:
        assert tokens_of(pair.original.steps[0]) == tokens_of(pair.changed.steps[0])
        assert pair.parted == 1
        assert same_episodes(pair)[0] == 1.0
    assert tokens_of(first.original.steps[0]) != tokens_of(second.original.steps[0])
    assert why_parted(first).startswith("they part in step 1: both learn from the same episodes")
    # What the run itself was is one side of the first pair.
    rows = sync_run.evaluations()
    assert [e.greedy for e in first.original.evaluations] == [
        row["greedy_accuracy"] for row in rows
    ]
    assert found.predicted == (None, None)
    assert found.change == "--learning-rate 0.002 instead of 0.0002"
    said = " ".join(capsys.readouterr().out.split())
    before, after = found.means("sampled, at the end")
    assert f"{before:.1%}" in said and f"{after - before:+.1%}" in said
    drawn = two_runs(found, "why")
    assert "as it was" in drawn and "held-out accuracy" in drawn


@pytest.mark.parametrize("loss", ["grpo", pytest.param("tis", marks=pytest.mark.long)])
def test_another_lag_has_the_schedule_and_the_seconds_of_the_simulator(sync_run, loss):
    recording = read_recording(sync_run.path)
    found = what_if(recording, SMALL.changed(max_lag=2, loss=loss), seeds=1)
    (pair,) = found.pairs
    for trace in (pair.original, pair.changed):
        assert [evaluated.version for evaluated in trace.evaluations] == [0, SMALL.steps]
    lags, changed = (
        [step.metrics["lag_mean"] for step in trace.steps]
        for trace in (pair.original, pair.changed)
    )
    assert max(lags) == 0
    assert 0 < max(changed) <= 2
    assert all(seconds > 0 for seconds in found.predicted)
    assert found.difference("sampled, at the end")[1] is None


def test_the_command_replays_unchanged_and_its_exit_code_says_whether_it_is_the_same(
    copied, capsys
):
    assert main(["replay", str(copied), "--loss", "grpo", "--seeds", "5"]) == 0
    assert "32 of 32 episodes, 4 of 4 steps" in " ".join(capsys.readouterr().out.split())
    rows = journal(copied)
    rows[0]["processor"] = "Abacus 9"
    next(row for row in rows if row["event"] == "batch")["rewards"][0] += 1.0
    write_journal(copied, rows)
    assert main(["replay", str(copied)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "step 1, group 0" in said and "Abacus 9" in said


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--without-fault"], "--without-fault"),
        (["--loss", "tis", "--seeds", "0"], "--seeds"),
        (["--learning-rate", "-1"], "--learning-rate"),
    ],
)
def test_a_change_that_cannot_be_gets_one_sentence(sync_run, capsys, flags, named):
    assert main(["replay", str(sync_run.path), *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line


def test_a_journal_that_a_crash_has_cut_off_is_replayed_as_far_as_it_goes(copied):
    write_journal(copied, journal(copied))
    text = (copied / "journal.jsonl").read_text()
    (copied / "journal.jsonl").write_text(text[: text.index('"step": 4') + 100])
    found = replay(read_recording(copied))
    assert found.is_equal, found.first_difference
    assert (found.compared["steps"], found.compared["files of weights"]) == (3, 1)
