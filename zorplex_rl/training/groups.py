"""From the numbers of groups to batches: which may start, who samples them, what they are worth.

    admit ──► replay buffer: which groups may start?
    sample, score_and_store      tasks ──► generator ──► reward ──► kept here; the replay buffer gets number and version
    next_batch                   replay buffer: which groups are trained on next? ──► advantages

A whole episode is sent twice: from its generator to here, and from here to the trainer. So one place
knows what became of each group: it is given back if its generator dies.
"""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

from zorplex_rl.config import Config
from zorplex_rl.learning.advantages import ADVANTAGES, zero_variance_share
from zorplex_rl.run import journal
from zorplex_rl.services.options import ReplicaFailed
from zorplex_rl.task.episode import Episode
from zorplex_rl.training.actors import Admission, Group
from zorplex_rl.training.generator import NO_WEIGHTS, GeneratorHandle
from zorplex_rl.training.roles import Roles
from zorplex_rl.training.run_log import RunLog


@dataclass(slots=True)
class Batch:
    """The groups of one training step, and what else the trainer needs."""

    groups: list[tuple[int, Group]]
    """Each with its number, sorted."""
    advantages: list[float]
    """One for each episode."""
    zero_variance_share: float
    """The share of groups whose rewards are all equal."""
    reference_logprobs: list[list[float]] | None = None
    """For each episode, log π of the starting policy for each token, if there is a KL penalty."""

    @property
    def episodes(self) -> list[Episode]:
        return [episode for _, group in self.groups for episode in group]


class Groups:
    """The groups of a run that have not been trained on. ``published`` is the version of the newest
    weights."""

    def __init__(self, config: Config, roles: Roles, log: RunLog) -> None:
        self.config = config
        self.published = -1
        self._roles = roles
        self._log = log
        self._scored: dict[int, Group] = {}

    async def publish(self) -> None:
        """Publish the trainer's weights and tell generators that wait for them."""
        self.published = await self._roles.trainer.call("publish")
        await self._roles.replay_buffer.published.route(self.published)

    async def admit_step(self) -> list[Sequence[int]]:
        """Return each generator's share of groups to start now; nothing once a batch is there."""
        count = self.config.prompts_per_step
        numbers = await self._roles.replay_buffer.admit_now.route(self.published, count)
        share = self.config.share
        return [numbers[first : first + share] for first in range(0, len(numbers), share)]

    async def admit(self, generator: GeneratorHandle) -> Admission:
        """Return what ``generator`` may do with its weights, as soon as there is something."""
        return await self._roles.replay_buffer.admit.route(generator.version, self.config.share)

    def is_behind(self, generator: GeneratorHandle) -> bool:
        """Return whether ``generator`` should pull; while the trainer restarts, old weights do."""
        newer = generator.version < self.published
        return newer and (self._roles.trainer.is_up or generator.version == NO_WEIGHTS)

    async def sample(
        self, generator: GeneratorHandle, numbers: Sequence[int]
    ) -> list[tuple[int, Group]]:
        """Return the groups ``numbers``; none if the generator dies: others make them again."""
        try:
            tasks = await self._roles.dataset.tasks.route(numbers)
            async with self._log.waiting("sampling groups", generator.progress):
                groups, history = await generator.call(
                    "generate", list(zip(numbers, tasks, strict=True))
                )
        except ReplicaFailed:
            await self._roles.replay_buffer.abandon.route(numbers)
            return []
        if history[-1]:
            self._log.folder.append_journal(journal.engine_events_row(*history))
        return groups

    async def score_and_store(self, sampled: Awaitable[list[tuple[int, Group]]]) -> None:
        """Wait for ``sampled`` groups, have them scored, and put them into the replay buffer."""
        groups = await sampled
        if not groups:
            return
        await self._roles.score([episode for _, group in groups for episode in group])
        # Kept first: once the buffer has their numbers, the trainer may ask for them.
        self._scored.update(groups)
        versions = [
            (number, min(episode.first_version for episode in group)) for number, group in groups
        ]
        await self._roles.replay_buffer.add.route(versions)

    async def next_batch(self) -> Batch | None:
        """Return the next batch to train on, when complete; None once all is trained on."""
        numbers = await self._roles.replay_buffer.take.route()
        if numbers is None:
            return None
        groups = [(number, self._scored.pop(number)) for number in numbers]
        rewards = [[episode.scored.reward for episode in group] for _, group in groups]
        advantages: list[float] = []
        for of_group in ADVANTAGES[self.config.learner.loss](rewards):
            advantages += of_group
        batch = Batch(groups, advantages, zero_variance_share(rewards))
        if reference := self._roles.services.get("reference"):
            batch.reference_logprobs = await reference.logprobs.route(batch.episodes)
        return batch

    async def end(self) -> None:
        """Wake all waiters of the replay buffer: training is over."""
        await self._roles.replay_buffer.end.route()
