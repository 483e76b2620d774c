"""What a run says of its evaluations."""

from __future__ import annotations

from zorplex_rl.config import Config
from zorplex_rl.run.folder import RunFolder
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.episode import Episode, Score
from zorplex_rl.training.run_log import RunLog

TASKS = Zorplex(0).tasks(("simple:easy",), 4, "held_out")


def answers(*outcomes: str) -> list[Episode]:
    """An answer to each of the first tasks, with these outcomes."""
    episodes = []
    for task, outcome in zip(TASKS, outcomes, strict=True):
        episode = Episode(task, [], [], [], [], [], "answer")
        correct = float(outcome == "success")
        episode.score = Score(outcome, None, correct=correct, format=0.0, extra_calls=0.0)
        episodes.append(episode)
    return episodes


def test_every_evaluation_shows_the_same_two_questions(tmp_path):
    said: list[str] = []
    log = RunLog(RunFolder.create(tmp_path / "run", Config()), say=said.append)
    for outcomes in (
        ("success", "wrong_answer", "success", "truncated"),
        ("wrong_answer", "success", "success", "success"),
    ):
        episodes = answers(*outcomes)
        log.evaluation(0, episodes, episodes)
    shown = [text.partition("  │")[0] for text in said]
    assert shown == [TASKS[number].question for number in (0, 1, 0, 1)]
    assert [text.rpartition(": ")[2] for text in said[2:]] == ["wrong_answer", "success"]
