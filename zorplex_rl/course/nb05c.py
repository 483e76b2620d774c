"""Drive notebook 05c: its training, draws for its checks, a verdict on pass@k, recorded runs.

settings  Training  shares_by_word            what the page sets and does not show; a run; an exam, word by word
drawn_shares  drawn_attempts  drawn_tokens    arguments of ``change``, ``pass_at_k`` and ``kl``
check_change  check_pass_at_k  check_kl       their checks, with the mistakes that learners make
runs_by_seed  other_seeds     benchmarks/seeds.jsonl ──► runs that differ in nothing but their seed
points             a change of a share, in words
verdict            pass@1 and pass@k, before and after ──► taught, narrowed, or undecided
PaidCard           what a policy writes in training, with what it is paid for it
tokens_of  ends    the tokens of a batch as three tensors; the first and the last steps of a run
recorded_runs                                 benchmarks/shaped_rewards.json
two_rewards                                   two of these runs, of which one learned the task
"""

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev, variance
from types import SimpleNamespace
from typing import Any

import torch

from zorplex_rl.config import LearnerConfig
from zorplex_rl.course import FILES, nb05
from zorplex_rl.course.figures import figure as style
from zorplex_rl.course.figures.lines import (
    Line,
    line_panels,
    seeds_chart,
    whole_steps,
)
from zorplex_rl.course.lesson import exercise
from zorplex_rl.course.lesson.lesson import figure, folded, md
from zorplex_rl.course.nb05b import Card, example, varied
from zorplex_rl.learning.learner import Learner, response_logprobs
from zorplex_rl.policy.load import Policy, load_policy
from zorplex_rl.policy.rollout import Sampling
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.episode import Episode, Score

RECORDED = FILES / "benchmarks" / "shaped_rewards.json"
SEEDS = FILES / "benchmarks" / "seeds.jsonl"
Change = Callable[[Sequence[float], Sequence[float]], Sequence[float]]
Tokens = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""For each token of a batch: its log-prob now and before, and whether the policy sampled it."""
MISTAKES = (("wrong_answer",), ("wrong_format",), ("tool_spam", "truncated"))
"""Outcomes of failed episodes, as the page asks for them."""
TWO = (0.0, 0.5)
"""What a call earned in runs A and B, which the page shows first."""


def settings(policy: str, **shown: Any) -> SimpleNamespace:
    """Return the page's settings: those ``shown``, what follows from the policy, and those of its later sections."""
    embedded = policy == "embedded"
    return SimpleNamespace(
        policy=policy,
        device="cuda" if torch.cuda.is_available() else "cpu",
        shots=0 if embedded else 2,  # worked examples, as turns of the chat
        max_tokens=96 if embedded else 256,
        learning_rate=4e-4 if embedded else 3e-6,
        kind_tasks=100,  # of each kind that was not trained
        pass_tasks=40,
        pass_difficulty="hard",  # four words, where training has two
        pass_samples=32,  # attempts at each of these tasks
        pass_at=(1, 2, 4, 8, 16, 32),
        pass_judged=16,  # the old policy leaves room there
        hack_steps=14,
        hack_bonus=0.5,  # for every tool call
        hack_penalty=3.0,  # weight of the KL penalty
        **shown,
    )


class Training:
    """Train a copy of the policy that ``config`` names; another copy is its reference."""

    def __init__(self, config: SimpleNamespace, kl: float) -> None:
        self.config = config
        self.policy = load_policy(config.policy, config.device)
        self.reference = load_policy(config.policy, config.device)
        rate = LearnerConfig(learning_rate=config.learning_rate, warmup_steps=2, kl_coefficient=kl)
        self.learner = Learner(self.policy, rate)

    def play(self, step: int) -> list[Episode]:
        """Return the scored episodes of a step, one group after the other."""
        config = self.config
        environment = Zorplex(config.seed, shots=config.shots)
        sampling = Sampling(max_tokens=config.max_tokens)
        sizes = config.prompts, config.samples
        return nb05.generate(self.policy, environment, step, sampling, *sizes, math.prod(sizes))

    def step(
        self, episodes: list[Episode], rewards: list[float], advantages: list[float]
    ) -> SimpleNamespace:
        """Take a step. Returns its record; ``before`` holds the reference's log-probs."""
        before = response_logprobs(self.reference, episodes)
        self.learner.step(episodes, advantages, before)
        return SimpleNamespace(
            policy=self.policy, episodes=episodes, reward=fmean(rewards), before=before
        )


def shares_by_word(episodes: Sequence[Episode]) -> list[float]:
    """Return the share of right answers for each word, in the order in which the words are asked for."""
    right: dict[tuple[str, ...], list[bool]] = {}
    for episode in episodes:
        found = right.setdefault(episode.task.words, [])
        found.append(episode.scored.outcome == "success")
    return [fmean(found) for found in right.values()]


def drawn_shares(rng: random.Random) -> tuple[list[float], list[float]]:
    """Draw the arguments of ``change``: a number a task, before and after."""
    before = [rng.random() for _ in range(rng.randint(3, 9))]
    drift = rng.uniform(-0.3, 0.6)
    return before, [share + drift + rng.gauss(0, 0.2) for share in before]


def drawn_attempts(rng: random.Random) -> tuple[int, int, int]:
    """Draw the arguments of ``pass_at_k``; at times all are right, none is, or k too large."""
    samples = rng.randint(1, 80)
    correct = rng.choice((0, samples, rng.randint(0, samples), rng.randint(0, samples)))
    return samples, correct, rng.randint(1, samples)


def drawn_tokens(rng: random.Random) -> Tokens:
    """Draw the arguments of ``kl``; tokens that a tool wrote stand in between."""
    count = rng.randint(3, 9)
    now = [-rng.expovariate(1.0) for _ in range(count)]
    before = [value + rng.gauss(0, 0.7) for value in now]
    return as_tensors(now, before, [True, *(rng.random() < 0.6 for _ in range(count - 2)), False])


def as_tensors(now: Sequence[float], before: Sequence[float], sampled: Sequence[bool]) -> Tokens:
    """Return the arguments of ``kl``."""
    log_probs = torch.tensor([now, before], dtype=torch.float64)
    return log_probs[0], log_probs[1], torch.tensor(sampled)


def check_change(attempt: exercise.Attempt, solution: exercise.Attempt) -> None:
    def scaled(factor: Callable[[int], float]) -> exercise.Attempt:
        """Return an answer with the right mean, and with the noise of n tasks times ``factor`` of n."""

        def answer(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
            gain, noise = solution(before, after)
            return gain, noise * factor(len(before))

        return answer

    def unpaired(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
        noise = (variance(before) + variance(after)) / len(before)
        return fmean(after) - fmean(before), 2 * math.sqrt(noise)

    exercise.agree(
        attempt,
        solution,
        drawn_shares,
        examples=[([0, 1], [0, 1]), ([0, 0, 1], [1, 0, 1]), ([0, 0, 0, 0], [1, 0, 1, 0])],
        mistakes={
            "you compared the two lists, not task by task, so how hard a task is counts as noise": unpaired,
            "that is one standard error, and two are asked for": scaled(lambda n: 0.5),
            "`pstdev` divides by n; of a sample, `stdev` divides by n − 1": scaled(
                lambda n: math.sqrt(1 - 1 / n)
            ),
            "that is the scatter of a task, not of the mean: divide by √n": scaled(math.sqrt),
            "you subtract the wrong way round": lambda before, after: solution(after, before),
        },
    )


def check_pass_at_k(attempt: exercise.Attempt, solution: exercise.Attempt) -> None:
    exercise.agree(
        attempt,
        solution,
        drawn_attempts,
        times=60,
        examples=[(4, 1, 2), (2, 1, 2), (2, 0, 1), (3, 1, 1)],
        mistakes={
            "you put each attempt back after it was drawn": lambda n, c, k: 1 - (1 - c / n) ** k,
            "that is the chance that all are wrong": lambda n, c, k: 1 - solution(n, c, k),
            "that is the chance that all are right": lambda n, c, k: (
                math.comb(c, k) / math.comb(n, k)
            ),
            "if fewer than k are wrong, one of the k is right": lambda n, c, k: (
                solution(n, c, k) * (n - c >= k)
            ),
        },
    )


def check_kl(attempt: exercise.Attempt, solution: exercise.Attempt) -> None:
    exercise.agree(
        attempt,
        solution,
        drawn_tokens,
        times=30,
        examples=[as_tensors([-1.0, 0.0], [-2.0, -9.0], [True, False])],
        mistakes={
            "the tool's tokens count too; the policy did not choose them": lambda now, before, own: (
                solution(now, before, own | True)
            ),
            "you divide by all tokens, not by the sampled ones": lambda now, before, own: (
                solution(now, before, own) * own.double().mean()
            ),
            "that is the mean of d alone, which scatters more": lambda now, before, own: (
                now - before
            )[own].mean(),
            "that is the other direction: d is now − before": lambda now, before, own: solution(
                before, now, own
            ),
            "that is the sum; KL is a mean": lambda now, before, own: (
                solution(now, before, own) * own.sum()
            ),
            "the −1 of `exp(-d) - 1` is missing, so the mean is 1 too high": lambda now, before, own: (
                solution(now, before, own) + 1
            ),
        },
    )


def verdict(once: Sequence[float], often: Sequence[float], old: float) -> str:
    """Say what pass@k tells: gain and noise once and ``often``, the ``old`` share there."""
    gain, noise = often[0], 1.5 * often[1]  # tasks share their words
    if gain > noise:
        return "So it was taught, as far as this k tells: it solves more than the old policy does in as many attempts."
    if gain < -noise:
        return "So the old policy, given enough attempts, is ahead: training has narrowed what it tries."
    if 1 - old <= noise:
        return "The old policy leaves too little room there: these tasks cannot show teaching."
    if once[0] > once[1]:
        return f"No clear difference there. That fits sharpening, and it proves nothing: a change of less than {100 * noise:.0f} points could hide."
    return "Neither is clearly better at one attempt either, so this run decides nothing."


def points(share: float) -> str:
    """Write a change of a share in percentage points.

    >>> points(0.124), points(-0.05), points(-0.001)
    ('+12', '−5', '0')
    """
    rounded = round(100 * share)
    return f"{rounded:+d}".replace("-", "−") if rounded else "0"


class PaidCard(Card):
    """Show what a policy writes that is paid 1 for a right answer, and ``bonus`` for every call."""

    def __init__(
        self,
        bonus: float,
        policy: Policy,
        steps: int,
        sampling: Sampling,
        answered: Sequence[Episode],
    ) -> None:
        self.bonus = bonus
        # One of each outcome; what is cut off is long.
        ends = varied([example(policy, sampling), *answered], 5)
        shown = [self.paid(each) for each in ends if each.scored.outcome != "truncated"]
        super().__init__(
            "What the policy writes while its reward rises", policy, steps, sampling, shown, lines=5
        )

    def paid(self, episode: Episode) -> Episode:
        """Return a copy of a scored episode with the score that this run pays."""
        honest = episode.scored
        right = float(honest.outcome == "success")
        return replace(
            episode,
            score=Score(honest.outcome, honest.answer, right, 0.0, self.bonus * episode.tool_calls),
        )

    def scored(self, episode: Episode) -> Episode:
        return self.paid(super().scored(episode))


def tokens_of(episodes: Sequence[Episode], before: Sequence[Sequence[float]]) -> Tokens:
    """Return all tokens of a batch: log-prob as sampled, the reference's, sampled or not."""
    now = [logprob for episode in episodes for logprob in episode.logprobs]
    own = [sampled for episode in episodes for sampled in episode.sampled]
    return as_tensors(now, [logprob for found in before for logprob in found], own)


def ends(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Return the means over the first and the last three steps of a run."""
    count = min(3, len(rows) // 2) or 1
    names = [name for name in rows[0] if name != "tokens"]
    return [
        {name: fmean(row[name] for row in part) for name in names}
        for part in (rows[:count], rows[-count:])
    ]


def saved(
    began: Mapping[str, float], free: Mapping[str, float], held: Mapping[str, float]
) -> int | list[int]:
    """Return the right answer: the penalty saved the accuracy (0), in part (1), not (2)."""
    if held["kl"] >= 0.8 * free["kl"]:
        return []
    if held["accuracy"] >= began["accuracy"] - 0.05:
        return 0
    return 1 if held["accuracy"] > free["accuracy"] + 0.05 else 2


def runs_by_seed(file: Path = SEEDS) -> tuple[list[float], list[float]]:
    """Return the shares of right answers before and after training, of runs that differ in nothing but their seed."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    # The file may hold further studies.
    rows = [row for row in rows if row["command"] == rows[0]["command"]]
    before, after = ([row[when]["sampled"] for row in rows] for when in ("before", "after"))
    return before, after


def other_seeds(runs: tuple[list[float], list[float]], change: Change, whose: str) -> list[Any]:
    """Return what the page shows of such ``runs``: texts and a figure."""
    before, after = runs
    gain, noise = map(float, change(before, after))
    return [
        md(f"""
        An interval over *questions* says what others would give. It does not say what another *run* would give: other training
        tasks, other draws. So run again. Here are {len(after)} runs of SmolLM2 with nothing changed but the seed,
        by `zorplex-rl train --preset smollm2 --seed N`.
        """),
        figure(
            seeds_chart(before, after),
            "Right answers, sampled, of the same held-out questions. A point is a run; equal ones stand above each other.",
        ),
        md(f"""
        Before training the runs differ only in their worked examples and in the draws. There are three examples here,
        and two in notebook 05, so the starts here and there cannot be compared.

        The best run ended at {max(after):.0%}, the worst at {min(after):.0%}. Someone who shows a single run can pick the best. In the mean, training
        changed the share by {points(gain)} ± {100 * noise:.0f} points, by {whose}, with one number for each run. That
        interval is about the *mean* of many runs. A single further run would mostly end within {200 * stdev(after):.0f} points
        of {fmean(after):.0%}.
        """),
        folded(
            "What makes runs differ?",
            """
        Look first at what is drawn once for a whole run, because it does not average out. Here
        that is the *worked examples* in each prompt. When there were two, and both had the same wording, SmolLM2 called the tool only for
        questions of that wording, and some seeds never learned more. So these runs have three, one of each wording.
        """,
        ),
    ]


def recorded_runs() -> dict[str, Any]:
    """Return the recorded runs on shaped rewards."""
    study: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return study


def two_rewards(study: Mapping[str, Any]) -> str:
    """Draw the mean reward of runs A and B over their steps."""
    free = {run["bonus"]: run["reward"] for run in study["runs"] if run["penalty"] == 0}
    panels = {
        f"run {name}: mean reward": [Line("_", list(enumerate(free[bonus], 1)), style.GREEN)]
        for name, bonus in zip("AB", TWO, strict=True)
    }

    return line_panels(
        panels,
        "Two rewards",
        "both rise over the steps",
        220,
        lambda number, axes: whole_steps(axes),
    )
