"""One training step of which every role is a service: seven names, and no line of ``one_step``
knows which process answers.

    python examples/service_step.py

A process that writes episodes is killed in mid-step. Each episode has its own seed, so another
process writes the same tokens from the same weights: the step gives the episodes that one process
alone gives, token for token.

    role            remembers                     if it dies in `zorplex-rl train`
    dataset         nothing                       the run ends; it need not
    policy          a copy of the weights         its groups are written again; a successor pulls weights first
    tools           nothing                       calls go elsewhere
    reward          nothing                       calls go elsewhere
    reference       weights that never change     calls wait for its successor
    replay_buffer   groups that are under way        the run ends, and resumes from its checkpoint
    trainer         weights and optimizer         it loads a checkpoint and takes the steps since then again
"""

import asyncio
import logging
import os
import signal
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import SimpleNamespace

import torch

from zorplex_rl.config import Config, LearnerConfig
from zorplex_rl.learning.advantages import group_relative
from zorplex_rl.policy.load import load_policy
from zorplex_rl.policy.requests import group_requests
from zorplex_rl.policy.rollout import Sampling, rollout
from zorplex_rl.services.options import ServiceOptions
from zorplex_rl.services.registry import register_service
from zorplex_rl.services.service import Service
from zorplex_rl.services.spawn import replicas_of
from zorplex_rl.task.environment import Zorplex, kinds_of
from zorplex_rl.task.own_task import EnvironmentSource
from zorplex_rl.training import actors
from zorplex_rl.training.generator import GeneratorActor
from zorplex_rl.training.trainer import TrainerActor

REPEATABLE = {
    "policy": {"generate"},
    "tools": {"execute"},
    "reward": {"score"},
    "reference": {"logprobs"},
}
"""Requests that may be sent again: the same seeds and weights give the same episodes."""


@dataclass
class Step:
    episodes: list
    metrics: dict
    versions: list
    """Of the weights that each process of the policy has afterwards."""
    victim: str = ""
    retries: int = 0


def starts_of(run, device, services):
    """Return how a replica of each role is started. ``services`` will have the running ones."""
    source = EnvironmentSource.of(run)
    new_policy = replicas_of(GeneratorActor, run, device, "tools", named=True)

    async def start_policy(name):
        """Start a process of the policy and show it the trainer, from which it pulls weights."""
        publisher = await services["trainer"].replica_at(0)
        replica = await new_policy(name)
        await replica.actor.subscribe.call_one(publisher.actor)
        return replica

    return {
        "trainer": replicas_of(TrainerActor, run, device, named=True),
        "dataset": replicas_of(actors.DatasetActor, source),
        "policy": start_policy,
        "tools": replicas_of(actors.ToolActor, run, named=True),
        "reward": replicas_of(actors.RewardActor, source, named=True),
        "reference": replicas_of(actors.ReferenceActor, run, device, named=True),
        "replay_buffer": replicas_of(actors.ReplayBufferActor, run),
    }


async def one_step(roles, prompts):
    """Take one training step: tasks, episodes, scores, advantages, new weights."""
    version = await roles.trainer.publish.route()
    await roles.policy.pull.fanout()  # every replica needs the weights

    numbers = await roles.replay_buffer.admit_now.route(version, prompts)
    tasks = await roles.dataset.tasks.route(numbers)
    written = {}

    async def write_and_score(number, task):
        groups, _ = await roles.policy.generate.route([(number, task)])
        _, group = groups[0]
        attempts = [episode.attempt for episode in group]
        scores = await roles.reward.score.route(attempts)
        for episode, score in zip(group, scores, strict=True):
            episode.score = score
        written[number] = group
        await roles.replay_buffer.add.route([(number, version)])

    writing = map(write_and_score, numbers, tasks)
    await asyncio.gather(*writing)

    episodes = []
    rewards = []
    for number in await roles.replay_buffer.take.route():
        group = written[number]
        episodes.extend(group)
        rewards.append([episode.score.reward for episode in group])
    advantages = []
    for group in group_relative(rewards):
        advantages.extend(group)
    reference = await roles.reference.logprobs.route(episodes)
    metrics = await roles.trainer.step.route(episodes, advantages, reference)
    await roles.trainer.publish.route()
    versions = await roles.policy.pull.fanout()
    return Step(episodes, metrics, versions)


async def kill_a_writer(policy):
    """Kill a process of ``policy`` once both have begun to write. Returns its name."""

    def writing(replica):
        return sum(request.method == "generate" for request in replica.in_flight)

    while min(map(writing, policy.replicas)) < 1:
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)
    victim = max(policy.replicas, key=writing)
    os.kill(victim.pid, signal.SIGKILL)
    return victim.name


async def step_under_a_kill(run, device="cpu"):
    """Open a service for every role, and take a step while a writer is killed."""
    services = {}
    for name, start in starts_of(run, device, services).items():
        options = ServiceOptions(
            replicas=2 if name == "policy" else 1,
            router="least_loaded",
            idempotent=REPEATABLE.get(name, ()),
            probe_timeout=20.0,
        )
        services[name] = Service(name, start, options)

    async with AsyncExitStack() as stack:
        # The policy asks the trainer, which is the first, where its weights are.
        trainer, *others = services.values()
        await stack.enter_async_context(trainer)
        opening = map(stack.enter_async_context, others)
        await asyncio.gather(*opening)
        await register_service(services["tools"])  # generators find it by its name
        policy = services["policy"]
        killing = asyncio.create_task(kill_a_writer(policy))
        try:
            roles = SimpleNamespace(**services)
            step = await one_step(roles, run.prompts_per_step)
        finally:
            killing.cancel()
        step.victim = await killing
        step.retries = policy.router.counts["retries"]
        return step


def alone(run):
    """Return the episodes of the same step, written in this process."""
    torch.set_num_threads(1)
    zorplex = Zorplex(run.seed, shots=run.shots)
    tasks = zorplex.tasks(kinds_of(run.task), run.prompts_per_step)
    requests = group_requests(enumerate(tasks), run.group_size, run.seed)
    policy = load_policy(run.policy, "cpu")
    return rollout(policy, requests, zorplex.execute, Sampling.of(run))


async def main():
    logging.getLogger("monarch.supervision").setLevel(logging.ERROR)  # the death is intended
    run = Config(
        device="cpu",
        prompts_per_step=4,
        group_size=4,
        max_lag=0,
        learner=LearnerConfig(kl_coefficient=0.01),
        tool_latency=0.05,
    )
    began = time.monotonic()
    step = await step_under_a_kill(run)
    total = len(step.episodes)
    same = 0
    for one, other in zip(alone(run), step.episodes, strict=True):
        same += one.token_ids == other.token_ids
    seconds = time.monotonic() - began
    print(f"{step.victim} was killed while it wrote; {step.retries} requests were sent again.")
    print(f"{same} of {total} episodes are those of the same step in one process, token for token.")
    print(
        f"Loss {step.metrics['loss']:.4f}. Every policy process has version {set(step.versions)}."
    )
    print(f"All of it, eight processes started and ended included, took {seconds:.0f} s.")


if __name__ == "__main__":
    asyncio.run(main())
