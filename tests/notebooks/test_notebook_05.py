"""Notebook 05: its classifier, reward and schedule are right; it runs without a real model."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_notebooks import Later

from zorplex_rl.course import nb05, nb05b
from zorplex_rl.course.recorded_steps import recorded_steps
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.rewards import final_answer, score

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
notebook = Later(ROOT / "notebooks" / "05_rl_intro.py")


@pytest.fixture(scope="module")
def episodes(embedded):
    environment = Zorplex(seed=0)
    tasks = environment.tasks(tuple(nb05.TASK_SPECS), 80, "held_out")
    return rollout(
        embedded, [RolloutRequest(t, s) for s, t in enumerate(tasks)], environment.execute
    )


def test_the_exercises_sort_and_price_episodes_as_the_package_does(episodes):
    seen = set()
    for episode in episodes:
        answer, right = final_answer(episode.sampled_text), score(episode)
        ending = notebook.Solutions.outcome(answer, episode.task.answer, episode.finish)
        needless = max(0, episode.tool_calls - episode.task.min_tool_calls)
        assert ending == right.outcome
        assert notebook.Solutions.reward(ending, needless) == pytest.approx(right.reward)
        seen.add(ending)
    assert len(seen) >= 4


def test_no_slot_waits_while_there_are_episodes(episodes):
    seconds = [episode.seconds for episode in episodes]
    plan = notebook.Solutions.schedule(seconds, 4)
    begin = {slot: [start for other, start in plan if other == slot] for slot in range(4)}
    assert all(starts == sorted(starts) and starts[0] == 0 for starts in begin.values())
    assert max(start for _, start in plan) <= min(
        max(
            start + took
            for (other, start), took in zip(plan, seconds, strict=True)
            if other == slot
        )
        for slot in range(4)
    )


def test_what_a_policy_writes_adds_no_element_to_the_page(embedded, episodes):
    task = replace(episodes[0].task, question="<img src=x>")
    card = nb05.episode_card(embedded, [replace(episodes[0], task=task, score=score(episodes[0]))])
    assert "<img" not in card and "&lt;img src=x&gt;" in card and "<|im_end|>" not in card


def test_a_straggler_is_hidden_from_lag_two_on():
    lags = nb05.straggler_by_lag()
    assert list(lags) == [0, 1, 2, 3, 4]
    assert lags[0] > lags[1] > 1.02 * lags[2] and lags[2] == pytest.approx(lags[4], rel=0.02)


def test_it_tells_what_the_policy_wrote_itself_from_what_a_tool_wrote():
    def place(outcome, *turns):
        return notebook.place_of_the_number(
            SimpleNamespace(
                task=SimpleNamespace(answer=50),
                score=SimpleNamespace(outcome=outcome),
                sampled_text=[text for text, _ in turns],
                turns=[SimpleNamespace(text=text, result=result) for text, result in turns],
            )
        )

    assert place("success", ("[ANSWER] 50", None)) == "answer"
    assert place("wrong_format", ("LOOKUP[a]", " -> 50\n"), ("so it is 50", None)) == "own words"
    assert place("wrong_format", ("LOOKUP[a]", " -> 50\n"), ("done", None)) == "tool's words"
    assert place("wrong_answer", ("LOOKUP[a]", " -> 150\n"), ("[ANSWER] 501", None)) is None


def test_the_first_cells_wait_for_no_library_that_they_do_not_use():
    """The setup cell needs torch; transformers, scipy and matplotlib take seconds, and load with
    what uses them."""
    notebook_path = ROOT / "notebooks" / "05b_write_the_loop.py"
    code = (
        "import importlib.util, sys; "
        f"spec = importlib.util.spec_from_file_location('nb', {str(notebook_path)!r}); "
        "module = importlib.util.module_from_spec(spec); sys.modules['nb'] = module; spec.loader.exec_module(module); "
        "print([name for name in ('transformers', 'scipy', 'matplotlib', 'monarch') if name in sys.modules])"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert said.stdout.strip().splitlines()[-1] == "[]"


def test_the_card_shows_the_recorded_run_and_then_the_readers_own(embedded):
    card = nb05b.RecordedCard("A title", "small", Sampling(max_tokens=96), lines=2)
    assert "Recorded on" in card.result["said"] and "So" in card.result["figure"]
    assert len(card.texts) == 21 and card.texts[0][0]["outcome"] == "wrong_format"
    card.play(embedded, 0)
    assert card.texts[0][0] == card.recording["steps"][0][0], "the same question, the same text"
    card.play(embedded, 1)
    assert "By the run on this page" in card.result["said"] and len(card.texts) == 2
    assert "still step 1" in card.at(7).said


def test_a_recording_is_of_the_first_question_of_all_cards_and_gets_better():
    for name in ("small", "smollm2"):
        run = recorded_steps(name)
        assert run["asked"][0][:3] == ["compositional", 0, 7]
        assert run["right"][1] > run["right"][0] + 0.2
        assert "benchmarks/recorded_steps.py" in run["source"]
        assert all(len(step) == len(run["asked"]) for step in run["steps"])


@pytest.mark.long
def test_it_runs_from_its_first_cell_to_its_last_without_a_real_model(monkeypatch, tmp_path):
    monkeypatch.setenv("ZORPLEX_CACHE", str(tmp_path))
    config = SimpleNamespace(seed=0, samples=40, real_samples=8, steps=12)
    _, values = notebook.app.run(defs={"config": config})
    assert values["smol"] is None and "not on this machine" in values["computed_on"]
    assert len(values["reports"]) == 4
    assert values["places"].count("own words") > values["places"].count("tool's words") > 0
    assert {"success", "wrong_format"} < {ending for ending, _ in values["gallery"]}
    shown = [[one["reward"] for one in step] for step in values["card"].texts]
    assert len(shown) == config.steps + 1 and sum(shown[-1]) > sum(shown[0])
    assert 0 < values["idle_share"] < 1 and values["slowest_over_fastest"] > 2
