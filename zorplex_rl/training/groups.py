"""Turn group numbers into batches: ask which may start, have them sampled and scored, collect them.

    admit                        replay buffer: which groups may start?
    sample, score_and_store      tasks ──► generator ──► reward ──► stored here; the replay buffer only counts them
    next_batch                   replay buffer: which groups are trained on next? ──► advantages

An episode is sent twice: from its generator to this process, and from here to the trainer. So one
place knows the state of every group, and can requeue those whose generator died.
"""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

from zorplex_rl.config import Config
from zorplex_rl.learning.advantages import ADVANTAGES, zero_variance_share
from zorplex_rl.run import journal
from zorplex_rl.services.options import ReplicaFailed
from zorplex_rl.task.episode import Episode
from zorplex_rl.training.actors import Admission, Group, NumberedGroup
from zorplex_rl.training.generator import NO_WEIGHTS, GeneratorHandle
from zorplex_rl.training.roles import Roles
from zorplex_rl.training.run_log import RunLog


@dataclass(slots=True)
class Batch:
    """The data of one training step."""

    groups: list[NumberedGroup]
    """Sorted by number."""
    advantages: list[float]
    """One number for each episode."""
    zero_variance_share: float
    """The share of groups whose rewards are all equal."""
    reference_logprobs: list[list[float]] | None = None
    """For each episode, the starting policy's log-prob of each token; None without a KL penalty."""

    @property
    def episodes(self) -> list[Episode]:
        return [episode for _, group in self.groups for episode in group]


class Groups:
    """The groups of a run that have not been trained on."""

    def __init__(self, config: Config, roles: Roles, log: RunLog) -> None:
        self.config = config
        self.published = NO_WEIGHTS
        """Version of the newest published weights."""
        self._roles = roles
        self._replay_buffer = roles.replay_buffer
        self._log = log
        self._scored: dict[int, Group] = {}

    async def publish(self) -> None:
        """Publish the trainer's weights, and wake generators that wait for them."""
        self.published = await self._roles.trainer.call("publish")
        await self._replay_buffer.published.route(self.published)

    async def admit_step(self) -> list[Sequence[int]]:
        """Return each generator's share of the groups to start now; [] once the batch is complete."""
        count = self.config.prompts_per_step
        numbers = await self._replay_buffer.admit_now.route(self.published, count)
        share = self.config.share
        return [numbers[first : first + share] for first in range(0, len(numbers), share)]

    async def admit(self, generator: GeneratorHandle) -> Admission:
        """Return what ``generator`` may do with its weights, as soon as there is something to do."""
        return await self._replay_buffer.admit.route(generator.version, self.config.share)

    def is_behind(self, generator: GeneratorHandle) -> bool:
        """Return whether ``generator`` should pull. While the trainer restarts, old weights are good enough."""
        newer = generator.version < self.published
        return newer and (self._roles.trainer.is_up or generator.version == NO_WEIGHTS)

    async def sample(
        self,
        generator: GeneratorHandle,
        numbers: Sequence[int],
    ) -> list[NumberedGroup]:
        """Return the groups ``numbers``. If the generator dies, return [] and queue them to be sampled again."""
        try:
            tasks = await self._roles.dataset.tasks.route(numbers)
            numbered = list(zip(numbers, tasks, strict=True))
            async with self._log.waiting("sampling groups", generator.progress):
                groups, history = await generator.call("generate", numbered)
        except ReplicaFailed:
            await self._replay_buffer.abandon.route(numbers)
            return []
        if history[-1]:
            self._log.folder.append_journal(journal.engine_events_row(*history))
        return groups

    async def score_and_store(self, sampled: Awaitable[list[NumberedGroup]]) -> None:
        """Wait for ``sampled`` groups, score them, store them, and tell the replay buffer."""
        groups = await sampled
        if not groups:
            return
        versions = []
        episodes: list[Episode] = []
        for number, group in groups:
            episodes += group
            oldest = min(episode.first_version for episode in group)
            versions.append((number, oldest))
        await self._roles.score(episodes)
        # Stored first: as soon as the buffer has their numbers, they may be in a batch.
        self._scored.update(groups)
        await self._replay_buffer.add.route(versions)

    async def next_batch(self) -> Batch | None:
        """Return the next batch as soon as it is complete; None after the last one."""
        numbers = await self._replay_buffer.take.route()
        if numbers is None:
            return None
        groups = [(number, self._scored.pop(number)) for number in numbers]
        rewards = [[episode.scored.reward for episode in group] for _, group in groups]
        advantages: list[float] = []
        estimate = ADVANTAGES[self.config.learner.loss]
        for of_group in estimate(rewards):
            advantages += of_group
        batch = Batch(groups, advantages, zero_variance_share(rewards))
        reference = self._roles.services.get("reference")
        if reference:
            batch.reference_logprobs = await reference.logprobs.route(batch.episodes)
        return batch

    async def end(self) -> None:
        """Tell all who wait for the replay buffer that training is over."""
        await self._replay_buffer.end.route()
