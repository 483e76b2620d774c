"""Answers to the exercises of notebook 08: wrong ones that learners give, and right ones that look
unusual."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import chain
from statistics import fmean, pstdev

import torch


def has_eight_hard_wired(version, step, on_the_way, per_step, max_lag):
    return max(0, (version + max_lag - step + 1) * 8 - on_the_way)


def cuts_the_lag_at_one(version, step, on_the_way, per_step, max_lag):
    return max(0, (version + min(max_lag, 1) - step + 1) * per_step - on_the_way)


def ignores_what_is_on_the_way(version, step, on_the_way, per_step, max_lag):
    return max(0, (version + max_lag - step + 1) * per_step)


def ignores_the_version(version, step, on_the_way, per_step, max_lag):
    return max(0, (max_lag + 1) * per_step - on_the_way)


def is_a_step_short(version, step, on_the_way, per_step, max_lag):
    return max(0, (version + max_lag - step) * per_step - on_the_way)


def is_a_step_too_generous(version, step, on_the_way, per_step, max_lag):
    return max(0, (version + max_lag - step + 2) * per_step - on_the_way)


def may_be_negative(version, step, on_the_way, per_step, max_lag):
    return (version + max_lag - step + 1) * per_step - on_the_way


def starts_whole_batches_only(version, step, on_the_way, per_step, max_lag):
    return max(0, (version + max_lag - step + 1) * per_step - on_the_way) // per_step * per_step


def counts_the_places_one_by_one(version, step, on_the_way, per_step, max_lag):
    places = [s for s in range(step, version + max_lag + 1) for _ in range(per_step)]
    return len(places[on_the_way:])


def gives_a_tensor(version, step, on_the_way, per_step, max_lag):
    return torch.tensor((version + max_lag - step + 1) * per_step - on_the_way).clamp(min=0)


def gives_a_float(version, step, on_the_way, per_step, max_lag):
    return max(0.0, (version + max_lag - step + 1.0) * per_step - on_the_way)


def advantages_of(batch):
    return [(r - fmean(rewards)) / (pstdev(rewards) + 1e-4) for rewards, _ in batch for r in rewards]


def episodes_of(batch):
    return [episode for _, group in batch for episode in group]


async def begins_before_it_has_a_batch(trainer, ready, now, news, steps, per_step, on_step):
    while now.step <= steps:
        now.step += 1
        batch = [await ready.get() for _ in range(per_step)]
        metrics = await trainer.step(episodes_of(batch), advantages_of(batch))
        now.published = await trainer.publish()
        news.set()
        on_step(now.step, metrics)


async def never_publishes(trainer, ready, now, news, steps, per_step, on_step):
    while now.step < steps:
        batch = [await ready.get() for _ in range(per_step)]
        now.step += 1
        metrics = await trainer.step(episodes_of(batch), advantages_of(batch))
        now.published += 1
        news.set()
        on_step(now.step, metrics)


async def publishes_before_the_step(trainer, ready, now, news, steps, per_step, on_step):
    while now.step < steps:
        batch = [await ready.get() for _ in range(per_step)]
        now.step += 1
        now.published = await trainer.publish()
        metrics = await trainer.step(episodes_of(batch), advantages_of(batch))
        news.set()
        on_step(now.step, metrics)


async def wakes_before_the_version_is_known(trainer, ready, now, news, steps, per_step, on_step):
    while now.step < steps:
        batch = [await ready.get() for _ in range(per_step)]
        now.step += 1
        metrics = await trainer.step(episodes_of(batch), advantages_of(batch))
        news.set()
        now.published = await trainer.publish()
        on_step(now.step, metrics)


async def wakes_nobody(trainer, ready, now, news, steps, per_step, on_step):
    while now.step < steps:
        batch = [await ready.get() for _ in range(per_step)]
        now.step += 1
        metrics = await trainer.step(episodes_of(batch), advantages_of(batch))
        now.published = await trainer.publish()
        on_step(now.step, metrics)


async def compares_with_the_whole_batch(trainer, ready, now, news, steps, per_step, on_step):
    while now.step < steps:
        batch = [await ready.get() for _ in range(per_step)]
        now.step += 1
        rewards = [r for found, _ in batch for r in found]
        advantages = [(r - fmean(rewards)) / (pstdev(rewards) + 1e-4) for r in rewards]
        metrics = await trainer.step(episodes_of(batch), advantages)
        now.published = await trainer.publish()
        news.set()
        on_step(now.step, metrics)


async def divides_by_zero(trainer, ready, now, news, steps, per_step, on_step):
    while now.step < steps:
        batch = [await ready.get() for _ in range(per_step)]
        now.step += 1
        advantages = [(r - fmean(found)) / pstdev(found) for found, _ in batch for r in found]
        metrics = await trainer.step(episodes_of(batch), advantages)
        now.published = await trainer.publish()
        news.set()
        on_step(now.step, metrics)


async def trains_on_rewards(trainer, ready, now, news, steps, per_step, on_step):
    while now.step < steps:
        batch = [await ready.get() for _ in range(per_step)]
        now.step += 1
        metrics = await trainer.step(episodes_of(batch), [r for found, _ in batch for r in found])
        now.published = await trainer.publish()
        news.set()
        on_step(now.step, metrics)


async def gives_lists_of_lists(trainer, ready, now, news, steps, per_step, on_step):
    while now.step < steps:
        batch = [await ready.get() for _ in range(per_step)]
        now.step += 1
        metrics = await trainer.step([group for _, group in batch], [advantages_of([one]) for one in batch])
        now.published = await trainer.publish()
        news.set()
        on_step(now.step, metrics)


async def computes_with_tensors(trainer, ready, now, news, steps, per_step, on_step):
    for number in range(now.step, steps):
        batch = []
        while len(batch) < per_step:
            batch.append(await ready.get())
        now.step = number + 1
        advantages = []
        for rewards, _ in batch:
            found = torch.tensor(rewards)
            advantages.append((found - found.mean()) / (found.std(correction=0) + 1e-4))
        metrics = await trainer.step(list(chain(*(group for _, group in batch))), torch.cat(advantages))
        now.published = await trainer.publish()
        on_step(now.step, metrics)
        news.set()


async def returns_its_last_metrics(trainer, ready, now, news, steps, per_step, on_step):
    metrics = None
    while not now.step >= steps:
        episodes, advantages = (), ()
        for _ in range(per_step):
            rewards, group = await ready.get()
            middle, spread = sum(rewards) / len(rewards), pstdev(rewards) + 1e-4
            episodes, advantages = (*episodes, *group), (*advantages, *((r - middle) / spread for r in rewards))
        now.step += 1
        metrics = await trainer.step(episodes, advantages)
        now.published = await trainer.publish()
        news.set()
        on_step(now.step, metrics)
    return metrics


def rounds_to_the_nearest(sampling, training):
    return max(1, round(sampling / training))


def rounds_down(sampling, training):
    return max(1, sampling // training)


def counts_the_batch_in_training(sampling, training):
    return math.ceil(sampling / training) + 1


def does_not_round(sampling, training):
    return max(1.0, sampling / training)


def is_upside_down(sampling, training):
    return math.ceil(training / sampling)


def computes_exactly(sampling, training):
    return math.ceil(Fraction(sampling) / Fraction(training))


def adds_batches_until_it_is_enough(sampling, training):
    count = 1
    while count * training < sampling:
        count += 1
    return torch.tensor(count)


WRONG = {
    "may_start": [
        has_eight_hard_wired,
        cuts_the_lag_at_one,
        ignores_what_is_on_the_way,
        ignores_the_version,
        is_a_step_short,
        is_a_step_too_generous,
        may_be_negative,
        starts_whole_batches_only,
        gives_a_float,
    ],
    "train": [
        begins_before_it_has_a_batch,
        never_publishes,
        publishes_before_the_step,
        wakes_before_the_version_is_known,
        wakes_nobody,
        compares_with_the_whole_batch,
        divides_by_zero,
        trains_on_rewards,
        gives_lists_of_lists,
    ],
    "lag_needed": [
        rounds_to_the_nearest,
        rounds_down,
        counts_the_batch_in_training,
        does_not_round,
        is_upside_down,
    ],
}
RIGHT = {
    "may_start": [counts_the_places_one_by_one, gives_a_tensor],
    "train": [computes_with_tensors, returns_its_last_metrics],
    "lag_needed": [computes_exactly, adds_batches_until_it_is_enough],
}
