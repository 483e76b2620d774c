"""What stands behind notebook 11: a run that is kept, a planted fault, and what advice is worth by a
recorded study."""

from __future__ import annotations

from types import SimpleNamespace

from zorplex_rl.course import nb08, nb11
from zorplex_rl.course.recorded_study import Row, Study


def study_of(accuracies: dict[tuple[str, int, float], list[float]]) -> Study:
    rows = []
    for (loss, lag, rate), path in accuracies.items():
        steps = [3 * (index + 1) for index in range(len(path))]
        rows.append(Row(loss, lag, rate, 0, path[-1], None, "2026-01-02", steps, path))
    return Study("benchmarks/staleness.py", "2 cores", {"steps": 6}, tuple(rows))


def test_advice_is_worth_what_the_run_of_the_same_seed_came_to_that_took_it():
    study = study_of(
        {
            ("reinforce", 0, 4e-4): [0.8, 0.9],
            ("reinforce", 8, 4e-4): [0.8, 0.1],
            ("reinforce", 0, 8e-4): [0.8, 0.2],
            ("grpo", 0, 8e-4): [0.9, 0.7],
            ("grpo", 0, 4e-4): [0.9, 0.9],
            ("grpo", 8, 4e-4): [0.7, 0.8],
        }
    )

    def advise(accuracies, control, far):
        assert far == 0.0
        return (
            "leave it"
            if accuracies[-1] > 0.5
            else "clip"
            if control[-1] > 0.5
            else "lower the rate"
        )

    found = {row["advice"]: row for row in nb11.worth(study, advise)}
    assert found["clip"] == {
        "advice": "clip",
        "runs": 1,
        "as they ended": "10%",
        "with the advice": "80%",
        "clipped instead": "80%",
        "both cures": "80%",
    }
    lower = found["lower the rate"]
    assert (lower["with the advice"], lower["clipped instead"], lower["both cures"]) == (
        "90%",
        "70%",
        "90%",
    )
    assert found["leave it"]["runs"] == 4


def test_a_run_that_is_kept_takes_the_place_of_the_one_before_it(tmp_path):
    settings = SimpleNamespace(
        policy="embedded", device="cpu", seed=0, shots=0, threads=1, max_tokens=96, prompts=2, samples=2, steps=2,
        max_lag=1, learning_rate=4e-4, eval_tasks=4,
    )  # fmt: skip
    run, notebook = nb08.run_config(settings), str(tmp_path / "notebooks" / "08.py")
    assert nb11.folder_of(notebook) is None
    for _ in range(2):
        folder = nb08.create(run, beside=notebook)
        assert not folder.journal.exists()
        folder.journal.write_text("")
    assert nb11.folder_of(notebook) == folder.path == tmp_path / "runs" / "notebook_08"
    assert nb08.create(run).path != nb08.create(run).path
