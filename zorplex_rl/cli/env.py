"""``zorplex-rl env check``: test a user's task for what a run relies on, a line a check."""

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import tyro

from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError, TaskError
from zorplex_rl.task.checks import CHECKS, Sample
from zorplex_rl.task.own_task import EnvironmentSource

TRIED = 8
"""Tasks for the policy, and answers to each: a training step with default settings."""


@dataclass(frozen=True)
class Env:
    """Check your own task before training: zorplex-rl env check FILE.py:CLASS. Exit code 1: no."""

    action: Annotated[Literal["check"], tyro.conf.Positional]
    task: Annotated[str, tyro.conf.Positional]
    """FILE.py:CLASS, or FILE.py if it has one such class."""
    task_data: str | None = None
    """The text file that the task reads."""
    policy: str = "embedded"
    """The policy that is to learn it: embedded, smollm2, the folder of a model, or a hub id."""
    shots: int = Config.shots
    """Worked examples of the task, as in train."""
    max_tokens: int = Config.max_tokens
    """Longest response in tokens."""
    max_turns: int = Config.max_turns
    """Most stretches of sampled text in an episode."""

    def run(self) -> int:
        config = Config(
            task=self.task,
            task_data=self.task_data,
            policy=self.policy,
            shots=self.shots,
            max_tokens=self.max_tokens,
            max_turns=self.max_turns,
        )
        config.check()
        if not config.is_own_task:
            raise ConfigError(
                f"{self.task!r} comes with the package; give the file of a task of your own"
            )
        sample = Sample(EnvironmentSource.of(config))
        wrong: list[str] = []
        for about, check in (CHECKS | {"policy": partial(try_policy, config=config)}).items():
            if about == "policy" and wrong:
                break
            try:
                state, said = "ok", check(sample)
            except ConfigError as error:
                state, said = "no", str(error)
                wrong.append(about)
            print(f"{state:<5}  {about:<14}  {said}", flush=True)
        print(
            f"\nNot ready: {', '.join(wrong)}."
            if wrong
            else f"\nReady: zorplex-rl train --task {self.task} …"
        )
        return 1 if wrong else 0


def try_policy(sample: Sample, config: Config) -> str:
    """Have the policy answer tasks, several times each, and compare rewards as a run does."""
    from zorplex_rl.devices import prepare
    from zorplex_rl.learning.signal import why_no_reward_varies
    from zorplex_rl.policy.auto import resolved
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.policy.requests import Sampling, group_requests
    from zorplex_rl.policy.rollout import rollout

    name = config.policy
    prepare("cpu", resolved(config.changed(max_lag=0)).threads)
    environment, rewards = sample.environment, defaultdict[int, set[float]](set)
    requests = group_requests(enumerate(sample.tasks["train"][:TRIED]), TRIED, run_seed=0)
    sampling = Sampling.of(config)
    episodes = rollout(
        load_policy(name), requests, environment.execute, sampling, environment=environment
    )
    for episode in episodes:
        episode.score = environment.score(*episode.attempt)
        rewards[episode.group].add(episode.score.reward)
    varied = sum(len(found) > 1 for found in rewards.values())
    if not varied:
        raise TaskError(
            f"{name!r} finds no reward: {why_no_reward_varies(episodes)}; try another one with --policy"
        )
    calling = sum(episode.tool_calls > 0 for episode in episodes)
    right = sum(episode.scored.outcome == "success" for episode in episodes)
    found = (
        f"{name!r} calls a tool in {calling} of {len(episodes)} episodes and is right in {right}"
    )
    return f"{found}; rewards vary within {varied} of {TRIED} groups"
