"""``zorplex-rl env check``: test a user's task for what a run relies on, a line a check.

    ok     splits         none of 400 held-out tasks is among 400 training tasks
    no     tools          LOOKUP['']: failed in execute(…): ValueError: invalid literal for int() with base 10: '', in line 21

A *no* names an example. ``task/checks.py`` has the checks that need no policy.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from zorplex_rl.cli.flags import Command
from zorplex_rl.config import Config, check_range
from zorplex_rl.errors import ConfigError
from zorplex_rl.task.apart import Finding, findings_apart, report
from zorplex_rl.task.checks import Broken, Sample, findings_of
from zorplex_rl.task.source import EnvironmentSource

TRIED = 8
"""Tasks for the policy, and answers to each: a training step with default settings."""


@dataclass(frozen=True)
class Env(Command):
    """Check your own task before training: zorplex-rl env check FILE.py:CLASS. Exit code 1: no."""

    action: Annotated[Literal["check"], tyro.conf.Positional]
    """What to do; there is only check."""
    task: Annotated[str, tyro.conf.Positional]
    """FILE.py:CLASS, or FILE.py if it has one such class."""
    task_data: str | None = None
    """The text file that the task reads."""
    task_timeout: float = Config.task_timeout
    """Longest time in seconds that one call of the task may take."""
    seed: int = 0
    """Seed that the class is made with."""
    policy: str = "embedded"
    """The policy that is to learn it: embedded, the folder of a model, or a hub id. Its tokenizer
    measures the prompts, and it answers some tasks."""
    max_tokens: int = Config.max_tokens
    """Longest response in tokens."""
    constant_limit: float = 0.25
    """Largest share of held-out tasks for which one constant answer may be right."""


def check_environment(command: Env) -> int:
    """Print a line for each check. Returns the exit code: 1 if one failed."""
    config = Config(
        task=command.task, task_data=command.task_data, task_timeout=command.task_timeout, seed=command.seed,
        max_tokens=command.max_tokens,
    )  # fmt: skip
    config.check()
    if not config.is_own_task:
        raise ConfigError(f"{command.task!r} comes with the package; give the file of a task of your own")
    check_range("constant_limit", command.constant_limit, 0, 1)
    findings = []
    program = "from zorplex_rl.cli.env import report_findings; report_findings()"
    for finding in findings_apart(program, (EnvironmentSource.of(config), command), command.task_timeout):
        findings.append(finding)
        print(f"{finding.state:<5}  {finding.about:<14}  {finding.said}", flush=True)
    wrong = [finding.about for finding in findings if finding.state == "no"]
    chosen = f" --policy {command.policy}" if command.policy != Env.policy else ""
    print(f"\nNot ready: {', '.join(wrong)}." if wrong else f"\nReady: zorplex-rl train --task {command.task}{chosen}")
    return 1 if wrong else 0


def report_findings() -> None:
    """Check what the parent process asks for, in this one."""
    report(_findings)


def _findings(asked: tuple[EnvironmentSource, Env], begin: Callable[[str], None]) -> Iterator[Finding]:
    source, command = asked
    return findings_of(
        source,
        command.task_timeout,
        command.constant_limit,
        begin,
        {"prompts": lambda sample: measure_prompts(sample, command.policy, command.max_tokens)},
        {"policy": lambda sample: try_policy(sample, command.policy, command.max_tokens)},
    )


def measure_prompts(sample: Sample, policy: str, max_tokens: int) -> str:
    """Count the tokens of the prompts with the tokenizer of ``policy``."""
    from zorplex_rl.policy.model_folder import check_policy, fast_tokenizer, positions_of

    folder = check_policy(policy)
    tokenizer, positions = fast_tokenizer(folder), positions_of(folder)
    if tokenizer is None or positions is None:
        return f"not measured: the policy {policy!r} has no tokenizer.json, or does not say how much it reads"
    tasks = [task for tasks in sample.tasks.values() for task in tasks]
    longest, task = max(
        ((len(tokenizer.encode(task.system + task.question).ids), task) for task in tasks), key=lambda pair: pair[0]
    )
    if longest + max_tokens > positions:
        raise Broken(
            f"{task.question!r:.40} takes {longest} tokens, and with --max-tokens {max_tokens} that is more than the {positions} that {policy!r} "
            f"reads; shorten the prompts or the responses"
        )
    return f"the longest takes {longest} tokens; with --max-tokens {max_tokens} that fits the {positions} that {policy!r} reads"


def try_policy(sample: Sample, name: str, max_tokens: int) -> str:
    """Have the policy answer tasks, several times each, and compare rewards as a run does."""
    from zorplex_rl.learning.learning_signal import why_no_reward_varies
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout

    requests = [
        RolloutRequest(task, seed, group)
        for group, task in enumerate(sample.tasks["train"][:TRIED])
        for seed in range(group * TRIED, (group + 1) * TRIED)
    ]
    sampling = Sampling(max_tokens=max_tokens, slots=len(requests))
    episodes = rollout(
        load_policy(name), requests, sample.environment.execute, sampling, environment=sample.environment
    )
    rewards: dict[int, set[float]] = {}
    for episode in episodes:
        episode.score = sample.environment.score(*episode.attempt)
        rewards.setdefault(episode.group, set()).add(episode.score.reward)
    if varied := sum(len(found) > 1 for found in rewards.values()):
        calling, right = (sum(e.tool_calls > 0 for e in episodes), sum(e.scored.outcome == "success" for e in episodes))
        answered = sum(e.scored.answer is not None for e in episodes)
        return (
            f"{name!r} calls a tool in {calling} of {len(episodes)} episodes, answers in the format in {answered}, and is right in {right}; "
            f"rewards vary within {varied} of {TRIED} groups"
        )
    raise Broken(
        f"{name!r} cannot learn it: no reward varies within {TRIED} groups of {TRIED} episodes, as {why_no_reward_varies(episodes)}; "
        f"try another one with --policy"
    )
