"""The alarm of a run is in its log, in the live view and in ``status``."""

from __future__ import annotations

from runs import SMALL, train_here

from zorplex_rl.cli.status import NOTHING_TO_SEE, Status, status


def test_a_run_whose_policy_runs_away_from_its_data_rings_its_alarm_and_status_repeats_it(tmp_path, capsys):
    reckless = SMALL.changed(loss="reinforce", learning_rate=0.02, warmup_steps=0, max_lag=2, steps=6)
    folder = train_here(reckless, tmp_path / "run")
    rang = [row for row in folder.metrics() if row["event"] == "warning" and "about to collapse" in row["text"]]
    assert rang
    assert "lower --learning-rate or --max-lag" in rang[0]["text"]
    capsys.readouterr()
    assert status(Status(folder.path)) == NOTHING_TO_SEE
    assert f"step {rang[0]['step']}: {rang[0]['text']}" in capsys.readouterr().out
