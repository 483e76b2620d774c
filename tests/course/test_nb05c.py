"""What stands behind notebook 05c: draws that reach every case, a verdict for every outcome, and
runs of several seeds."""

from __future__ import annotations

import json
from statistics import fmean
from types import SimpleNamespace

import pytest

from zorplex_rl.course import nb05c
from zorplex_rl.course.recorded_steps import recorded_steps
from zorplex_rl.task.environment import Zorplex, kinds_of


@pytest.mark.parametrize(
    ("once", "often", "old", "said"),
    [
        ((0.3, 0.1), (0.2, 0.1), 0.6, "taught"),
        ((0.3, 0.1), (-0.2, 0.1), 0.6, "narrowed"),
        ((0.3, 0.1), (-0.13, 0.1), 0.6, "No clear difference"),
        ((0.3, 0.1), (0.02, 0.1), 0.95, "too little room"),
        (
            (0.3, 0.1),
            (0.02, 0.1),
            0.6,
            "fits sharpening, and it proves nothing: a change of less than 15 points",
        ),
        ((0.0, 0.1), (0.02, 0.1), 0.6, "decides nothing"),
    ],
)
def test_every_outcome_has_its_verdict(once, often, old, said):
    assert said in nb05c.verdict(once, often, old)


def test_all_questions_about_a_word_are_one_observation():
    exam = [("blip", 1), ("zork", 0), ("blip", 0), ("blip", 1), ("blip", 0)]
    episodes = [
        SimpleNamespace(
            task=SimpleNamespace(words=(word,)),
            scored=SimpleNamespace(outcome="success" if right else "wrong_answer"),
        )
        for word, right in exam
    ]
    assert nb05c.shares_by_word(episodes) == [0.5, 0.0]


def test_a_penalty_saves_the_accuracy_only_if_it_held_the_policy_nearer():
    began, free = {"accuracy": 0.5}, {"accuracy": 0.1, "kl": 0.2}
    held = [
        {"accuracy": accuracy, "kl": kl}
        for accuracy, kl in ((0.5, 0.01), (0.3, 0.01), (0.12, 0.01), (0.5, 0.19))
    ]
    assert [nb05c.saved(began, free, found) for found in held] == [0, 1, 2, []]


def test_the_ends_of_a_run_are_means_of_three_steps_and_of_fewer_in_a_short_run():
    rows = [dict.fromkeys(("reward", "accuracy", "calls", "kl"), float(step)) for step in range(8)]
    assert [end["kl"] for end in nb05c.ends(rows)] == [1.0, 6.0]
    assert [end["kl"] for end in nb05c.ends(rows[:2])] == [0.0, 1.0]


def test_runs_of_several_seeds_are_shown_with_an_interval_over_runs(tmp_path):
    file = tmp_path / "seeds.jsonl"
    lines = []
    for seed, after in enumerate((0.5, 0.7, 0.9)):
        shares = {
            "before": {"greedy": 0.6, "sampled": 0.2},
            "after": {"greedy": 0.9, "sampled": after},
        }
        lines.append(
            json.dumps({"command": "zorplex-rl train", "seed": seed, "seconds": 50.0} | shares)
        )
    lines.append(lines[0].replace("zorplex-rl train", "zorplex-rl train --task multi_step"))
    file.write_text("\n".join(lines) + "\n")

    def change(before, after):
        return fmean(after) - fmean(before), 0.23

    runs = nb05c.runs_by_seed(file)
    assert runs == ([0.2] * 3, [0.5, 0.7, 0.9])
    assert nb05c.SEEDS.read_text().startswith('{"command": "zorplex-rl train --preset smollm2')
    text, drawn, verdict, _ = (part.text for part in nb05c.other_seeds(runs, change, "you"))
    assert "3 runs of SmolLM2" in text and "zorplex-rl train --preset smollm2" in text
    assert "after training 50% to 90%" in drawn
    assert "ended at 90%, the worst at 50%" in verdict and "+50 ± 23 points" in verdict


def test_other_draws_of_the_untrained_policy_gave_05_another_share():
    """05c says: the same questions, and nothing differs but the draws."""
    exam = Zorplex(0).tasks(kinds_of("compositional"), 200, "held_out")
    assert exam == Zorplex(0).tasks(("compositional",), 200, "held_out")
    assert recorded_steps("small")["right"][0] == 0.295


def test_smollm2_is_paid_more_for_the_first_question_and_its_text_says_for_what():
    first, *_, last = (step[0] for step in recorded_steps("smollm2")["steps"])
    written = "".join(text for text, _ in last["tokens"])
    assert first["reward"] == 0 < last["reward"] and last["outcome"] == "wrong_answer"
    assert first["question"] == "What is lurp - grix?"
    assert written.count("LOOKUP[") == 2 and "LOOKUP[larp]" in written and "17-17=9" in written
