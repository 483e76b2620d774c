"""The alarm of a run is in its log, in the live view and in ``status``."""

from __future__ import annotations

from runs import SMALL, train_here

from zorplex_rl.cli.status import NOTHING_TO_SEE, Status, status


def test_a_run_whose_policy_runs_away_from_its_data_rings_its_alarm_and_status_repeats_it(tmp_path, capsys):
    # 32 episodes a step: the effective sample size of 8 cannot fall below an eighth.
    reckless = SMALL.changed(
        loss="reinforce", learning_rate=4e-3, warmup_steps=1, updates_per_batch=2, max_lag=3, steps=10,
        prompts_per_step=4, group_size=8, eval_tasks=2,
    )  # fmt: skip
    folder = train_here(reckless, tmp_path / "run")
    warned = [row for row in folder.metrics() if row["event"] == "warning" and "collapse" in row["text"]]
    foretold, *rang = warned
    assert foretold["step"] <= 3 and "--max-lag allows" in foretold["text"]
    assert rang and "about to collapse" in rang[0]["text"]
    assert "lower --learning-rate or --max-lag" in rang[0]["text"]
    capsys.readouterr()
    assert status(Status(folder.path)) == NOTHING_TO_SEE
    said = capsys.readouterr().out
    assert all(f"step {row['step']}: {row['text']}" in said for row in warned)
