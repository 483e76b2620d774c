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
from zorplex_rl.errors import ConfigError
from zorplex_rl.run_folder import RunFolder
from zorplex_rl.simulation.replay import read_recording, replay
from zorplex_rl.simulation.what_if import paired_interval, what_if


@pytest.fixture
def copied(sync_run, tmp_path):
    """A copy of the synchronous run, to be changed."""
    shutil.copytree(sync_run.path, tmp_path / "run")
    return tmp_path / "run"


def journal(path):
    return [json.loads(line) for line in (path / "journal.jsonl").read_text().splitlines()]


def write_journal(path, rows):
    (path / "journal.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_synchronous_run_is_the_same_bit_for_bit(sync_run):
    done = []
    found = replay(read_recording(sync_run.path), done.append)
    assert found.is_equal, found.first_difference
    assert done == [1, 2, 3, 4]
    assert found.episodes == found.same_episodes == 4 * SMALL.prompts_per_step * SMALL.group_size
    assert found.evaluations == found.same_evaluations == 2
    assert found.weights == found.same_weights == ["checkpoint of step 2", "checkpoint of step 4", "trained policy"]


def test_an_asynchronous_run_of_two_generators_slow_tools_and_updates_in_flight_is_the_same_bit_for_bit(lagging_run):
    found = replay(read_recording(lagging_run.path))
    assert found.is_equal, found.first_difference
    assert found.steps == found.same_steps == LAGGING.steps
    assert found.same_weights == ["checkpoint of step 8", "trained policy"]


def test_so_is_one_whose_episodes_are_read_again_with_new_weights(tmp_path):
    config = LAGGING.changed(
        on_update="keep-prefix", task="multi_step", tool_latency=0.1, generators=1, max_lag=2, steps=5, eval_tasks=2
    )
    recording = read_recording(train_here(config, tmp_path / "run").path)
    found = replay(recording)
    assert found.is_equal, found.first_difference
    of_two = [e for batch in recording.batches.values() for e in batch.episodes if e.first_version < e.turns[-1][2]]
    assert of_two
    lags = [step - 1 - e.first_version for step, batch in recording.batches.items() for e in batch.episodes]
    assert 0 <= min(lags) <= max(lags) <= config.max_lag


def test_the_journal_knows_every_version_that_sampled_a_turn(lagging_run):
    lags = []
    for step, batch in read_recording(lagging_run.path).batches.items():
        for episode in batch.episodes:
            versions = [episode.first_version, *(version for _, _, version in episode.turns)]
            assert versions == sorted(versions)
            lags += [step - 1 - version for version in versions]
    assert min(lags) >= 0
    assert 0 < max(lags) <= LAGGING.max_lag


def test_the_first_difference_is_named_and_the_rest_is_still_compared(copied):
    rows = journal(copied)
    batch = next(row for row in rows if row["event"] == "batch" and row["step"] == 4)
    logprobs = array("f", base64.b64decode(batch["logprobs"]))
    logprobs[0] -= 2.0**-10
    batch["logprobs"] = base64.b64encode(logprobs.tobytes()).decode()
    write_journal(copied, rows)
    found = replay(read_recording(copied))
    named = f"step 4, group {batch['groups'][0]}, episode 0: the log-probability of token 0 is "
    assert found.first_difference.startswith(named)
    assert found.first_difference.endswith("(apart by 9.8e-04)")
    assert found.same_episodes == found.episodes - 1
    # Step 4 is taken on what the journal says, so it is not the step that the run took.
    assert found.same_steps == 3
    assert found.same_weights == ["checkpoint of step 2"]
    assert found.why


def test_weights_that_are_not_what_the_run_wrote_are_named(copied):
    file = copied / "policy" / "model.safetensors"
    weights = load_file(file)
    name = next(iter(weights))
    weights[name] = weights[name] + torch.tensor(2.0**-20)
    save_file(weights, file, {"format": "pt"})
    found = replay(read_recording(copied))
    assert found.first_difference.startswith(f"the weights of the trained policy: {name} is apart by ")
    assert "the files of the weights are not what the run wrote" in found.why


def test_a_learning_rate_that_is_changed_is_executed_on_the_same_draws_and_the_command_draws_and_tells_what_was_measured(
    sync_run, tmp_path, capsys, monkeypatch
):
    results = []
    monkeypatch.setattr(
        "zorplex_rl.simulation.what_if.what_if", lambda *given: results.append(what_if(*given)) or results[-1]
    )
    flags = ["--learning-rate", "0.002", "--seeds", "2", "--out", str(tmp_path / "a.svg")]
    assert main(["replay", str(sync_run.path), *flags]) == 0
    (found,) = results
    first, second = found.pairs
    assert (first.seed, second.seed) == (SMALL.seed, SMALL.seed + 1)
    # The first step meets the same episodes, sampled with the same weights.
    for pair in found.pairs:
        assert pair.original.episodes[0] == pair.changed.episodes[0]
        assert pair.parted == 1
        assert pair.same_episodes()[0] == 1.0
    assert first.original.episodes[0] != second.original.episodes[0]
    assert found.why.endswith("--learning-rate 0.002 instead of 0.0002")
    # What the run itself was is one side of the first pair.
    rows = sync_run.evaluations()
    assert [e.greedy for e in first.original.evaluations] == [row["greedy_accuracy"] for row in rows]
    assert found.predicted == (None, None)
    said = " ".join(capsys.readouterr().out.split())
    assert "--learning-rate 0.002 instead of 0.0002; 2 seeds" in said
    assert "sampled, at the end" in said
    drawn = (tmp_path / "a.svg").read_text()
    assert "as it was" in drawn
    assert "held-out accuracy" in drawn


def test_another_lag_has_the_schedule_and_the_seconds_of_the_simulator(sync_run):
    recording = read_recording(sync_run.path)
    found = what_if(recording, SMALL.changed(max_lag=2), seeds=1, evaluate_every=1)
    (pair,) = found.pairs
    for course in (pair.original, pair.changed):
        assert [found.version for found in course.evaluations] == list(range(SMALL.steps + 1))
    assert max(pair.original.lags) == 0
    assert 0 < max(pair.changed.lags) <= 2
    assert all(seconds > 0 for seconds in found.predicted)
    assert "the mean lag of its groups is 0 versions, and in the changed run " in found.why
    assert found.difference("sampled, at the end")[1] is None


def test_the_command_replays_unchanged_its_exit_code_says_whether_it_is_the_same_and_another_machine_is_the_first_reason(
    copied, capsys
):
    assert main(["replay", str(copied)]) == 0
    assert "32 of 32 episodes, 4 of 4 steps, 2 of 2 evaluations" in " ".join(capsys.readouterr().out.split())
    rows = journal(copied)
    rows[0]["processor"] = "Abacus 9"
    next(row for row in rows if row["event"] == "batch")["rewards"][0] += 1.0
    write_journal(copied, rows)
    assert main(["replay", str(copied)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "the first difference: step 1, group 0, episode 0: the reward" in said
    assert "the likeliest reason: the run's processor was Abacus 9" in said


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--loss", "grpo"], "changes nothing: the run had the same settings"),
        (["--seeds", "5"], "changes nothing: the run had the same settings"),
        (["--without-fault"], "--without-fault changes nothing: no process of this run was replaced"),
        (["--loss", "tis", "--clip-low", "0.1"], "--clip-low is a setting of "),
        (["--loss", "tis", "--seeds", "0"], "--seeds is 0"),
        (["--learning-rate", "-1"], "--learning-rate is -1"),
    ],
)
def test_a_change_that_is_none_or_cannot_be_gets_one_sentence(sync_run, capsys, flags, expected):
    assert main(["replay", str(sync_run.path), *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


def test_a_folder_that_cannot_be_replayed_gets_one_sentence(copied, tmp_path):
    def refused(match, change):
        path = tmp_path / "changed"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(copied, path)
        rows = journal(path)
        change(rows)
        write_journal(path, rows)
        with pytest.raises(ConfigError, match=match):
            replay(read_recording(path))

    def batch(rows):
        return next(row for row in rows if row["event"] == "batch")

    refused("has no training step", lambda rows: rows.clear())
    refused("has no training step", lambda rows: rows.__delitem__(slice(1, None)))
    refused("lacks steps: it has 2 to 4", lambda rows: rows.remove(batch(rows)))
    refused("line 1 of the journal in .* KeyError", lambda rows: rows.__setitem__(0, {"event": "sitting"}))
    refused("line 1 of the journal .* event is 'nonsense'", lambda rows: rows[0].update(event="nonsense"))
    refused("0 groups, not 2 different ones", lambda rows: batch(rows).update(groups=[]))
    refused("numbers for .* tokens", lambda rows: batch(rows).update(tokens=""))
    refused("Error", lambda rows: batch(rows).update(tokens="no base64"))
    refused("is no count", lambda rows: batch(rows).update(step=-1))
    refused("is no count", lambda rows: batch(rows)["turns"][0].__setitem__(0, "0"))
    refused("not within its tokens", lambda rows: batch(rows)["turns"][0].__setitem__(1, 10**6))
    refused(
        "is not one of the policy's",
        lambda rows: batch(rows).update(tokens=base64.b64encode(b"\x7f" * 4 * sum(batch(rows)["lengths"])).decode()),
    )
    refused("an event is 'explode'", lambda rows: rows[1]["events"].append([0, "explode", 1]))
    refused("does not know 'nobody'", lambda rows: batch(rows).update(generators=["nobody"] * 2))
    refused(
        "does not say when group .* was sampled",
        lambda rows: [row.update(events=[]) for row in rows if row["event"] == "told"],
    )
    (copied / "journal.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"has no journal\.jsonl: an earlier version made it"):
        read_recording(copied)


def test_a_journal_that_a_crash_has_cut_off_is_replayed_as_far_as_it_goes_also_past_an_order_of_no_group_at_all(copied):
    rows = journal(copied)
    next(row for row in rows if row["event"] == "told")["events"].insert(0, [0, "submit", []])
    write_journal(copied, rows)
    text = (copied / "journal.jsonl").read_text()
    (copied / "journal.jsonl").write_text(text[: text.index('"step": 4') + 100])
    found = replay(read_recording(copied))
    assert found.is_equal, found.first_difference
    assert found.steps == 3
    assert found.weights == ["checkpoint of step 2"]


def test_a_run_that_is_under_way_is_not_replayed(copied):
    with RunFolder(copied).locked(), pytest.raises(ConfigError, match="is under way"):
        read_recording(copied)


def test_the_interval_of_equal_differences_has_no_width():
    assert paired_interval([0.25, 0.25, 0.25]) == (0.25, 0.25)
    assert paired_interval([-1.0, 1.0]) == (-1.0, 1.0)
    assert paired_interval([0.5]) is None
