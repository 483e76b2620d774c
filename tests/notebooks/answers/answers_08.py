"""Answers to the exercises of notebook 08: wrong ones that learners give, and right ones that look
unusual."""

from __future__ import annotations

from fractions import Fraction
from itertools import chain
from statistics import fmean, pstdev, stdev

import torch


def has_eight_hard_wired(version, started, per_step, max_lag):
    return max(0, (version + max_lag + 1) * 8 - started)


def cuts_the_lag_at_one(version, started, per_step, max_lag):
    return max(0, (version + min(max_lag, 1) + 1) * per_step - started)


def ignores_what_is_started(version, started, per_step, max_lag):
    return (version + max_lag + 1) * per_step


def ignores_the_version(version, started, per_step, max_lag):
    return max(0, (max_lag + 1) * per_step - started)


def is_a_step_short(version, started, per_step, max_lag):
    return max(0, (version + max_lag) * per_step - started)


def is_a_step_too_generous(version, started, per_step, max_lag):
    return max(0, (version + max_lag + 2) * per_step - started)


def may_be_negative(version, started, per_step, max_lag):
    return (version + max_lag + 1) * per_step - started


def starts_whole_batches_only(version, started, per_step, max_lag):
    return max(0, (version + max_lag + 1) * per_step - started) // per_step * per_step


def counts_the_groups_one_by_one(version, started, per_step, max_lag):
    return sum(n // per_step <= version + max_lag for n in range(started, started + 1000))


def gives_a_tensor(version, started, per_step, max_lag):
    return torch.tensor((version + max_lag + 1) * per_step - started).clamp(min=0)


def gives_a_float(version, started, per_step, max_lag):
    return max(0.0, (version + max_lag + 1.0) * per_step - started)


def advantages_of(batch):
    return [
        (r - fmean(rewards)) / (pstdev(rewards) + 1e-4) for rewards, _ in batch for r in rewards
    ]


def episodes_of(batch):
    return [episode for _, group in batch for episode in group]


async def takes_a_step_too_many(trainer, ready, newest, news, steps, per_step, on_step):
    for step in range(steps + 1):
        batch = [await ready.get() for _ in range(per_step)]
        metrics = await trainer.step(episodes_of(batch), advantages_of(batch))
        newest.version = await trainer.publish()
        news.set()
        on_step(step, metrics)


async def never_publishes(trainer, ready, newest, news, steps, per_step, on_step):
    for step in range(steps):
        batch = [await ready.get() for _ in range(per_step)]
        metrics = await trainer.step(episodes_of(batch), advantages_of(batch))
        newest.version += 1
        news.set()
        on_step(step, metrics)


async def publishes_before_the_step(trainer, ready, newest, news, steps, per_step, on_step):
    for step in range(steps):
        batch = [await ready.get() for _ in range(per_step)]
        newest.version = await trainer.publish()
        metrics = await trainer.step(episodes_of(batch), advantages_of(batch))
        news.set()
        on_step(step, metrics)


async def wakes_before_the_version_is_known(trainer, ready, newest, news, steps, per_step, on_step):
    for step in range(steps):
        batch = [await ready.get() for _ in range(per_step)]
        metrics = await trainer.step(episodes_of(batch), advantages_of(batch))
        news.set()
        newest.version = await trainer.publish()
        on_step(step, metrics)


def is_no_coroutine(trainer, ready, newest, news, steps, per_step, on_step):
    for step in range(steps):
        on_step(step, {})


async def counts_the_versions_itself(trainer, ready, newest, news, steps, per_step, on_step):
    for step in range(steps):
        batch = [await ready.get() for _ in range(per_step)]
        metrics = await trainer.step(episodes_of(batch), advantages_of(batch))
        await trainer.publish()
        newest.version = step + 1
        news.set()
        on_step(step, metrics)


async def forgets_to_await_the_step(trainer, ready, newest, news, steps, per_step, on_step):
    for step in range(steps):
        batch = [await ready.get() for _ in range(per_step)]
        metrics = trainer.step(episodes_of(batch), advantages_of(batch))
        newest.version = await trainer.publish()
        news.set()
        on_step(step, metrics)


async def forgets_to_await_the_version(trainer, ready, newest, news, steps, per_step, on_step):
    for step in range(steps):
        batch = [await ready.get() for _ in range(per_step)]
        metrics = await trainer.step(episodes_of(batch), advantages_of(batch))
        newest.version = trainer.publish()
        news.set()
        on_step(step, metrics)


async def calls_as_an_actor(trainer, ready, newest, news, steps, per_step, on_step):
    for step in range(steps):
        batch = [await ready.get() for _ in range(per_step)]
        metrics = await trainer.step.call_one(episodes_of(batch), advantages_of(batch))
        newest.version = await trainer.publish.call_one()
        news.set()
        on_step(step, metrics)


async def wakes_nobody(trainer, ready, newest, news, steps, per_step, on_step):
    for step in range(steps):
        batch = [await ready.get() for _ in range(per_step)]
        metrics = await trainer.step(episodes_of(batch), advantages_of(batch))
        newest.version = await trainer.publish()
        on_step(step, metrics)


async def takes_the_sample_deviation(trainer, ready, newest, news, steps, per_step, on_step):
    for step in range(steps):
        batch = [await ready.get() for _ in range(per_step)]
        advantages = [(r - fmean(all_)) / (stdev(all_) + 1e-4) for all_, _ in batch for r in all_]
        metrics = await trainer.step(episodes_of(batch), advantages)
        newest.version = await trainer.publish()
        news.set()
        on_step(step, metrics)


async def compares_with_the_whole_batch(trainer, ready, newest, news, steps, per_step, on_step):
    for step in range(steps):
        batch = [await ready.get() for _ in range(per_step)]
        rewards = [r for found, _ in batch for r in found]
        advantages = [(r - fmean(rewards)) / (pstdev(rewards) + 1e-4) for r in rewards]
        metrics = await trainer.step(episodes_of(batch), advantages)
        newest.version = await trainer.publish()
        news.set()
        on_step(step, metrics)


async def divides_by_zero(trainer, ready, newest, news, steps, per_step, on_step):
    for step in range(steps):
        batch = [await ready.get() for _ in range(per_step)]
        advantages = [(r - fmean(found)) / pstdev(found) for found, _ in batch for r in found]
        metrics = await trainer.step(episodes_of(batch), advantages)
        newest.version = await trainer.publish()
        news.set()
        on_step(step, metrics)


async def trains_on_rewards(trainer, ready, newest, news, steps, per_step, on_step):
    for step in range(steps):
        batch = [await ready.get() for _ in range(per_step)]
        metrics = await trainer.step(episodes_of(batch), [r for found, _ in batch for r in found])
        newest.version = await trainer.publish()
        news.set()
        on_step(step, metrics)


async def gives_lists_of_lists(trainer, ready, newest, news, steps, per_step, on_step):
    for step in range(steps):
        batch = [await ready.get() for _ in range(per_step)]
        metrics = await trainer.step(
            [group for _, group in batch], [advantages_of([one]) for one in batch]
        )
        newest.version = await trainer.publish()
        news.set()
        on_step(step, metrics)


async def computes_with_tensors(trainer, ready, newest, news, steps, per_step, on_step):
    for step in range(steps):
        batch = []
        while len(batch) < per_step:
            batch.append(await ready.get())
        news.set()  # once too often, which does no harm
        advantages = []
        for rewards, _ in batch:
            found = torch.tensor(rewards)
            advantages.append((found - found.mean()) / (found.std(correction=0) + 1e-4))
        metrics = await trainer.step(
            list(chain(*(group for _, group in batch))), torch.cat(advantages)
        )
        newest.version = await trainer.publish()
        on_step(step, metrics)
        news.set()


async def returns_its_last_metrics(trainer, ready, newest, news, steps, per_step, on_step):
    metrics, step = None, 0
    while step < steps:
        episodes, advantages = (), ()
        for _ in range(per_step):
            rewards, group = await ready.get()
            middle, spread = sum(rewards) / len(rewards), pstdev(rewards) + 1e-4
            episodes, advantages = (
                (*episodes, *group),
                (*advantages, *((r - middle) / spread for r in rewards)),
            )
        metrics = await trainer.step(episodes, advantages)
        newest.version = await trainer.publish()
        news.set()
        on_step(step, metrics)
        step += 1
    return metrics


def forgets_the_trainer(sampling, training, max_lag):
    return (sampling + training) / (max_lag + 1)


def forgets_the_lag(sampling, training, max_lag):
    return max(training, sampling + training)


def spreads_the_batch_alone(sampling, training, max_lag):
    return max(training, sampling / (max_lag + 1))


def is_a_lag_short(sampling, training, max_lag):
    return max(training, (sampling + training) / max(1, max_lag))


def adds_the_bounds(sampling, training, max_lag):
    return training + (sampling + training) / (max_lag + 1)


def computes_exactly(sampling, training, max_lag):
    return max(map(Fraction, (training, (sampling + training) / (max_lag + 1))))


def sorts_tensors(sampling, training, max_lag):
    return torch.tensor([training, (sampling + training) / (1 + max_lag)]).sort().values[-1]


WRONG = {
    "may_start": [
        has_eight_hard_wired,
        cuts_the_lag_at_one,
        ignores_what_is_started,
        ignores_the_version,
        is_a_step_short,
        is_a_step_too_generous,
        starts_whole_batches_only,
        gives_a_float,
    ],
    "train": [
        takes_a_step_too_many,
        never_publishes,
        publishes_before_the_step,
        wakes_before_the_version_is_known,
        wakes_nobody,
        is_no_coroutine,
        counts_the_versions_itself,
        forgets_to_await_the_step,
        calls_as_an_actor,
        forgets_to_await_the_version,
        compares_with_the_whole_batch,
        takes_the_sample_deviation,
        divides_by_zero,
        trains_on_rewards,
        gives_lists_of_lists,
    ],
    "least_seconds": [
        forgets_the_trainer,
        forgets_the_lag,
        spreads_the_batch_alone,
        is_a_lag_short,
        adds_the_bounds,
    ],
}
RIGHT = {
    "may_start": [counts_the_groups_one_by_one, gives_a_tensor, may_be_negative],
    "train": [computes_with_tensors, returns_its_last_metrics],
    "least_seconds": [computes_exactly, sorts_tensors],
}
