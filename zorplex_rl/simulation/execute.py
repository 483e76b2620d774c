"""Execute the schedule of a run in one process: the real rollout engines and the real learner,
without actors and without Monarch.

    Schedule    the events of each generator, each after a number of its steps
                the groups of each training step, in order

    for every version:   an evaluation, if one is due
                         generators   go on, up to the event that needs newer weights
                         learner      takes a step on the groups of the schedule

The schedule is the journal's, or that of a simulated run (``what_if.py``).

The same rows decode together as in the run, with the same weights, and a step adds up gradients in the
same order. So on the same machine the results are those of the run, bit for bit. With another loss,
learning rate or seed, episodes have other lengths. Then an event comes after as many steps as in the
run, or as soon as the engine is idle, and the groups that the next step needs are sampled to their
end before the weights change.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import chain, islice

import torch

from zorplex_rl.config import Config
from zorplex_rl.learning.advantages import ADVANTAGES
from zorplex_rl.learning.learner import Learner, response_logprobs
from zorplex_rl.policy.load import Policy, load_policy_of
from zorplex_rl.policy.lora import merge_to_sample
from zorplex_rl.policy.requests import EngineEvent, Sampling, group_requests, held_out_requests
from zorplex_rl.policy.rollout import RolloutEngine
from zorplex_rl.task.environment import Environment
from zorplex_rl.task.episode import Episode, Task
from zorplex_rl.task.own_task import EnvironmentSource
from zorplex_rl.task.parser import ToolCall
from zorplex_rl.task.rewards import accuracy
from zorplex_rl.weights.layout import named_weights


@dataclass(slots=True)
class Segment:
    """The part of a run between two starts of its processes."""

    decay_steps: int
    """Steps that the run was to have: the learning rate falls until then."""
    histories: dict[str, list[EngineEvent]]
    """The events of each generator, in order."""
    batches: dict[int, list[tuple[int, str]]]
    """The (group, generator) of each step, in order."""


@dataclass(slots=True)
class Schedule:
    """The order of everything that happens in a run."""

    segments: list[Segment]
    evaluations: list[int]
    """The versions that are evaluated."""

    @property
    def steps(self) -> int:
        """Number of steps."""
        return sum(len(segment.batches) for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Held-out accuracy of the weights ``version``."""

    version: int
    greedy: float
    sampled: float


@dataclass(frozen=True, slots=True)
class Trained:
    """A training step."""

    step: int
    groups: list[int]
    """The groups' numbers, in the order of the batch."""
    episodes: list[Episode]
    metrics: dict[str, float]
    """The learner's diagnostics."""


class Generator:
    """One generator of the run: an engine with a copy of the weights, which replays ``events``.

    Slow tools answer at once here, so rows are decoded beside other rows than in the run."""

    def __init__(
        self,
        policy: Policy,
        config: Config,
        environment: Environment,
        events: list[EngineEvent],
    ) -> None:
        self.policy = policy
        self._config = config
        self._environment = environment
        self._events = events
        self._next = 0
        # Steps that ``take`` took before the event after which they were due.
        self._ahead = 0
        sampling = Sampling.of(config)
        self._engine = RolloutEngine(policy, self._execute, sampling, environment)
        self._tickets: dict[int, list[int]] = {}
        self._finished: dict[int, Episode] = {}

    def advance(self, version: int, take_weights: Callable[[Policy], None]) -> None:
        """Go on, up to the event that needs weights newer than ``version``. ``take_weights`` copies
        those of ``version``."""
        while self._next < len(self._events):
            steps, what, value = self._events[self._next]
            if what == "version" and value > version:
                return
            waits = what == "version" and self._config.on_update == "wait"
            self._step(None if waits else steps)
            self._next += 1
            if what == "version":
                take_weights(self.policy)
                self._engine.version = value
            elif what == "submit":
                self._submit(value)

    def take(self, number: int) -> list[Episode]:
        """Return the episodes of group ``number``, sampled to their end."""
        tickets = self._tickets.pop(number)
        while not all(ticket in self._finished for ticket in tickets):
            self._finished |= dict(self._engine.step())
            self._ahead += 1
        return [self._finished.pop(ticket) for ticket in tickets]

    def _submit(self, numbers: list[int]) -> None:
        config = self._config
        tasks = [(number, self._environment.task(number, "train")) for number in numbers]
        requests = group_requests(tasks, config.group_size, config.seed)
        tickets = iter(self._engine.submit(requests))
        for number in numbers:
            self._tickets[number] = list(islice(tickets, config.group_size))

    def _step(self, steps: int | None) -> None:
        """Take ``steps`` steps after the last event, or fewer if the engine is idle before; None is until
        it is idle."""
        left = math.inf if steps is None else steps - self._ahead
        self._ahead = 0
        while not self._engine.idle and left > 0:
            self._finished |= dict(self._engine.step())
            left -= 1

    def _execute(self, task: Task, call: ToolCall) -> str | Future[str]:
        answer = self._environment.execute(task, call)
        if self._config.tool_latency == 0:
            return answer
        promise: Future[str] = Future()
        promise.set_result(answer)
        return promise


@dataclass(slots=True)
class Execution:
    """Execute ``schedule`` with the settings ``config``, beginning with a copy of ``policy``. Iterate over
    it: it yields ``Evaluated`` and ``Trained``."""

    config: Config
    source: EnvironmentSource
    schedule: Schedule
    policy: Policy
    learner: Learner = field(init=False)
    """Holds the newest weights."""
    _environment: Environment = field(init=False)

    def __post_init__(self) -> None:
        config = self.config
        self.learner = Learner(
            self._load(),
            config.learner,
            config.steps,
            config.temperature,
        )
        self._environment = self.source.make()

    def __iter__(self) -> Iterator[Evaluated | Trained]:
        if self.policy.model.device.type == "cpu":
            torch.set_num_threads(int(self.config.threads))
        evaluator = self._load()
        for segment in self.schedule.segments:
            self.learner.decay_steps = segment.decay_steps
            generators = self._generators(segment)
            for step, batch in sorted(segment.batches.items()):
                if step - 1 in self.schedule.evaluations:
                    yield self._evaluate(evaluator)
                for generator in generators.values():
                    generator.advance(step - 1, self._take_weights)
                yield self._train(step, batch, generators)
        if self.schedule.steps in self.schedule.evaluations:
            yield self._evaluate(evaluator)

    def _generators(self, segment: Segment) -> dict[str, Generator]:
        """Return the generators of ``segment``, with the learner's weights."""
        generators: dict[str, Generator] = {}
        for name, events in segment.histories.items():
            policy = self._load()
            # If weights travel in another type, the first ones are rounded, too.
            self._take_weights(policy)
            generators[name] = Generator(
                policy,
                self.config,
                self._environment,
                events,
            )
        return generators

    def _train(
        self,
        step: int,
        batch: Sequence[tuple[int, str]],
        generators: dict[str, Generator],
    ) -> Trained:
        config = self.config
        groups = [generators[name].take(number) for number, name in batch]
        episodes = list(chain.from_iterable(groups))
        self._score(episodes)
        rewards = [[episode.scored.reward for episode in group] for group in groups]
        advantages_of = ADVANTAGES[config.learner.loss]
        advantages = list(chain.from_iterable(advantages_of(rewards)))
        reference = None
        if config.learner.kl_coefficient > 0 and not config.lora_rank:
            reference = response_logprobs(
                self.policy,
                episodes,
                config.temperature,
                config.learner.token_budget,
            )
        metrics = self.learner.step(episodes, advantages, reference)
        numbers = [number for number, _ in batch]
        return Trained(step, numbers, episodes, metrics)

    def _evaluate(self, evaluator: Policy) -> Evaluated:
        """Measure the newest weights on held-out tasks, greedily and by sampling."""
        config = self.config
        environment = self._environment
        self._take_weights(evaluator)
        tasks = [environment.task(index, "held_out") for index in range(config.eval_tasks)]
        engine = RolloutEngine(
            evaluator,
            environment.execute,
            Sampling.of(config),
            environment,
        )
        episodes = engine.run(held_out_requests(tasks))
        self._score(episodes)
        greedy = accuracy(episodes[::2])
        sampled = accuracy(episodes[1::2])
        return Evaluated(self.learner.version, greedy, sampled)

    def _score(self, episodes: Sequence[Episode]) -> None:
        for episode in episodes:
            episode.score = self._environment.score(*episode.attempt)

    def _load(self) -> Policy:
        """Return the policy, loaded as the run's processes loaded it. A copy in memory begins at
        other addresses; with other remainders of 64 the last bit of a product may differ."""
        return load_policy_of(self.config, self.policy.model.device)

    @torch.no_grad()
    def _take_weights(self, policy: Policy) -> None:
        """Copy the learner's weights into ``policy``, which samples."""
        newest = named_weights(self.learner.policy.model)
        for name, weight in named_weights(policy.model).items():
            weight.copy_(newest[name])
        merge_to_sample(policy.model)
