"""Record what two policies write for a few questions, after each step of training: the cards of notebooks 05, 05b and 05d.

    python benchmarks/recorded_steps.py               about five minutes on two cores; writes recorded_steps.json

Runs the notebooks' own code with their own settings: the small policy by ``take_turns`` of 05, SmolLM2
(``zorplex-rl policy get smollm2``) by the loop of 05b and the settings of 05d. The first question
is that of all cards. Of the others, as many endings as there are at step 0.
"""

from __future__ import annotations

import json
import sys
from datetime import date
from typing import Any

import torch
from shaped_rewards import NOTEBOOKS
from table import describe_machine

from zorplex_rl.course import nb05b, nb05d
from zorplex_rl.course.figures.tokens import Written, written
from zorplex_rl.course.kept_file import load_notebook
from zorplex_rl.course.recorded_steps import RECORDED
from zorplex_rl.course.widgets import LiveCurve
from zorplex_rl.learning.train_simple import play
from zorplex_rl.policy.load import Policy, load_policy
from zorplex_rl.policy.requests import RolloutRequest, Sampling
from zorplex_rl.policy.rollout import rollout
from zorplex_rl.policy.smollm2 import cached
from zorplex_rl.task.environment import ZORPLEX, Zorplex
from zorplex_rl.task.episode import Episode
from zorplex_rl.task.rewards import accuracy, score

Asked = tuple[str, int, int, int]
"""Kind, number among the held-out tasks, seed of the sampling, worked examples."""
FIRST: Asked = ("compositional", 0, 7, 0)


class Recorder:
    """Ask the same few questions again after each step."""

    def __init__(self, asked: list[Asked], sampling: Sampling) -> None:
        self.asked = asked
        self.sampling = sampling
        self.steps: list[list[Written]] = []

    def play(self, policy: Policy, step: int) -> None:
        self.steps.append([written(policy, episode) for episode in self.answers(policy)])

    def answers(self, policy: Policy) -> list[Episode]:
        requests = []
        for kind, number, seed, shots in self.asked:
            task = Zorplex(0, shots=shots).tasks((kind,), number + 1, "held_out")[number]
            requests.append(RolloutRequest(task, seed))
        episodes = rollout(policy, requests, ZORPLEX.execute, self.sampling)
        for episode in episodes:
            episode.score = score(episode)
        return episodes

    def result(self, *right: float) -> dict[str, Any]:
        shares = [round(share, 4) for share in right]
        return {"asked": self.asked, "right": shares, "steps": self.steps}


def unlike(policy: Policy, kind: str, shots: int, sampling: Sampling, count: int) -> list[Asked]:
    """Return ``count`` questions whose answers end in as many ways as there are: of 24."""
    tasks = Zorplex(0, shots=shots).tasks((kind,), 24, "held_out")
    episodes = play(policy, ZORPLEX, tasks, 0, sampling)
    (first,) = Recorder([(*FIRST[:3], shots)], sampling).answers(policy)
    chosen = nb05b.varied([first, *episodes], count + 1)[1:]
    numbers = [next(n for n, one in enumerate(episodes) if one is other) for other in chosen]
    return [(kind, number, number, shots) for number in numbers]


def record_small() -> dict[str, Any]:
    torch.set_num_threads(1)
    notebook = load_notebook(NOTEBOOKS / "05_rl_intro.py")
    environment, policy = Zorplex(0), load_policy()
    sampling = Sampling(temperature=1.0, max_tokens=96, max_turns=6, slots=64)
    exam = environment.tasks(("compositional",), 200, "held_out")
    before = accuracy(play(policy, environment, exam, 0, sampling))
    recorder = Recorder([FIRST, *unlike(policy, "compositional", 0, sampling, 3)], sampling)
    recorder.play(policy, 0)
    notebook.take_turns(policy, environment, sampling, 20, lambda step: recorder.play(policy, step))
    return recorder.result(before, accuracy(play(policy, environment, exam, 0, sampling)))


def record_smollm2() -> dict[str, Any]:
    loop = load_notebook(NOTEBOOKS / "05b_write_the_loop.py")
    page = load_notebook(NOTEBOOKS / "05d_a_language_model.py")
    config = page.settings.run()[1]["config"]
    sampling = Sampling(max_tokens=48, max_turns=48, slots=32)
    asked = [(*FIRST[:3], 2), *unlike(load_policy(str(cached())), "simple", 2, sampling, 3)]

    def train(policy: Policy, config: Any, sampler: Any, on_step: Any) -> None:
        limits = Sampling(max_tokens=config.max_tokens)
        environment = Zorplex(config.seed, shots=2)
        loss_of = loop.Solutions.policy_gradient
        loop.train(policy, environment, limits, config, sampler, loss_of, on_step)

    # What a card does after each step is done by the recorder.
    recorder = Recorder(asked, sampling)
    marks = nb05d.teach(
        folder=str(cached()),
        config=config,
        train=train,
        sampler=loop.Solutions.sample_episode,
        curve=LiveCurve(config.steps),
        card=recorder,
        one_more=lambda number=1: None,
    )
    before, after = (exams[0] for exams in marks)
    return recorder.result(accuracy(before), accuracy(after))


def main() -> None:
    about = {
        "command": "benchmarks/recorded_steps.py",
        "date": date.today().isoformat(),
        "machine": describe_machine(),
    }
    found = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
    for name, record in (("small", record_small), ("smollm2", record_smollm2)):
        if not sys.argv[1:] or name in sys.argv[1:]:
            found[name] = record() | about
            print(name, found[name]["right"])
    RECORDED.write_text(json.dumps(found, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
