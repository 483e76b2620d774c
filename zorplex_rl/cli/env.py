"""``zorplex-rl env check``: test a user's task for what a run relies on, a line a check."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import tyro

from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError, TaskError
from zorplex_rl.task.checks import CHECKS, Sample
from zorplex_rl.task.own_task import EnvironmentSource

TRIED = 8
"""Tasks for the policy, and samples of each: a training step with default settings."""


@dataclass(frozen=True)
class Env:
    """Check your own task before training: zorplex-rl env check FILE.py:CLASS. Exit code 1 if it fails."""

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
    """Maximum length of a response in tokens."""
    max_turns: int = Config.max_turns
    """Maximum number of stretches of sampled text in an episode."""

    def run(self) -> int:
        settings = dict(vars(self))
        del settings["action"]
        config = Config(**settings)
        config.check()
        if not config.is_own_task:
            raise ConfigError(
                f"{self.task!r} comes with the package; give the file of a task of your own"
            )
        sample = Sample(EnvironmentSource.of(config))
        failed = [
            subject for subject, check in CHECKS.items() if not passes(subject, check, sample)
        ]
        if not failed and not passes("policy", partial(try_policy, config=config), sample):
            failed = ["policy"]
        if failed:
            print(f"\nNot ready: {', '.join(failed)}.")
            return 1
        print(f"\nReady: zorplex-rl train --task {self.task} …")
        return 0


def passes(subject: str, check: Callable[[Sample], str], sample: Sample) -> bool:
    """Print the result of ``check``. Returns whether there was no error."""
    try:
        finding = check(sample)
    except ConfigError as error:
        print(f"no     {subject:<14}  {error}", flush=True)
        return False
    print(f"ok     {subject:<14}  {finding}", flush=True)
    return True


def try_policy(sample: Sample, config: Config) -> str:
    """Sample answers to some tasks, several to each. Returns how often they were right. Raises TaskError
    if the rewards vary within no group: then a run learns nothing."""
    from zorplex_rl.devices import prepare
    from zorplex_rl.learning.signal import why_no_reward_varies
    from zorplex_rl.policy.auto import resolved
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.policy.requests import Sampling, group_requests
    from zorplex_rl.policy.rollout import rollout

    name = config.policy
    prepare("cpu", resolved(config.changed(max_lag=0)).threads)
    environment = sample.environment
    episodes = rollout(
        load_policy(name),
        group_requests(enumerate(sample.tasks["train"][:TRIED]), TRIED, run_seed=0),
        environment.execute,
        Sampling.of(config),
        environment=environment,
    )
    rewards = defaultdict[int, set[float]](set)
    for episode in episodes:
        episode.score = environment.score(*episode.attempt)
        rewards[episode.group].add(episode.score.reward)
    varied = sum(len(of_group) > 1 for of_group in rewards.values())
    if not varied:
        reason = why_no_reward_varies(episodes)
        raise TaskError(f"{name!r} finds no reward: {reason}; try another one with --policy")
    calling = sum(episode.tool_calls > 0 for episode in episodes)
    right = sum(episode.scored.outcome == "success" for episode in episodes)
    answers = f"calls a tool in {calling} of {len(episodes)} episodes and is right in {right}"
    return f"{name!r} {answers}; rewards vary within {varied} of {TRIED} groups"
