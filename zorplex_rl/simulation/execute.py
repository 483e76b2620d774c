"""Execute the schedule of a run in one process: the real rollout engines and the real learner,
without actors and without Monarch.

    schedule    what each generator is told, between which of its steps        ← the journal, or a simulated run
                which groups each step is trained on, in order

    for every version:   evaluate, if that is due
                         generators   go on, up to the event that needs newer weights
                         learner      takes a step on the groups of the schedule

Whoever decodes together, and with which weights, is as it was in the run. So is the order in which
a step adds up gradients, and how the weights lie in memory. So the results are the run's, bit for
bit, on the same machine.

The same schedule can be executed with another loss, learning rate or seed. Episodes then have other
lengths: an event comes after as many steps as in the run, or as soon as the engine is idle, and a
group that the next step needs is sampled to its end before the weights change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch

from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError
from zorplex_rl.learning.advantages import ADVANTAGES
from zorplex_rl.learning.learner import Learner, response_logprobs
from zorplex_rl.policy.load import Policy, load_policy
from zorplex_rl.policy.rollout import RolloutEngine
from zorplex_rl.policy.tool_loop import Sampling, group_requests, held_out_requests
from zorplex_rl.simulation.schedule import Part, Schedule
from zorplex_rl.task.environment import Environment
from zorplex_rl.task.episode import Episode, Task
from zorplex_rl.task.own_task import EnvironmentSource
from zorplex_rl.task.parser import ToolCall
from zorplex_rl.task.rewards import accuracy
from zorplex_rl.weights.layout import named_weights


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Held-out accuracy of the weights ``version``."""

    version: int
    greedy: float
    sampled: float


@dataclass(frozen=True, slots=True)
class Trained:
    """A training step: its groups' numbers, their episodes, and the learner's diagnostics."""

    step: int
    groups: list[int]
    episodes: list[Episode]
    metrics: dict[str, float]


class Generator:
    """One generator of the run: an engine with weights of its own, that is told what its history in
    ``part`` says."""

    def __init__(
        self,
        policy: Policy,
        config: Config,
        source: EnvironmentSource,
        part: Part,
        name: str,
        task_of: Callable[[int], Task],
        is_exact: bool,
    ) -> None:
        self.policy, self.config = policy, config
        self._events, self._at, self._ahead = part.histories[name], 0, 0
        self._task_of, self._environment = task_of, source.make()
        # Without slow tools, and in rounds, it does not matter when an answer comes.
        self._holds_answers = is_exact and config.max_lag > 0
        self._runs_out = not is_exact and config.on_update == "wait"
        self._engine = RolloutEngine(policy, self._execute, Sampling.of(config), self._environment)
        self._answers: dict[Future[str], str] = {}
        self._tickets: dict[int, list[int]] = {}
        self._ended: dict[int, Episode] = {}

    def advance(self, version: int, take_weights: Callable[[Policy], None]) -> None:
        """Go on, up to the event that needs weights newer than ``version``. ``take_weights`` copies
        those of ``version``."""
        while self._at < len(self._events):
            steps, what, value = self._events[self._at]
            if what == "version" and value > version:
                return
            self._step(None if what == "version" and self._runs_out else steps)
            self._at += 1
            if what == "version":
                take_weights(self.policy)
                self._engine.version = value
            elif what == "submit":
                self._submit(value)
            elif self._holds_answers:
                for call in (self._engine.calls.get(ticket) for ticket in value):
                    if call in self._answers:
                        call.set_result(self._answers.pop(call))

    def take(self, number: int) -> list[Episode]:
        """Return the episodes of group ``number``, sampled to their end."""
        if number not in self._tickets:
            raise ConfigError(f"the journal does not say when group {number} was sampled; train anew to replay a run")
        tickets = self._tickets.pop(number)
        while not all(ticket in self._ended for ticket in tickets):
            self._one_step()
            self._ahead += 1
        return [self._ended.pop(ticket) for ticket in tickets]

    def _submit(self, numbers: list[int]) -> None:
        size = self.config.group_size
        requests = group_requests([(n, self._task_of(n)) for n in numbers], size, self.config.seed)
        tickets = self._engine.submit(requests)
        self._tickets |= {n: tickets[i * size : (i + 1) * size] for i, n in enumerate(numbers)}

    def _step(self, steps: int | None) -> None:
        """Take ``steps`` steps after the event before, or as many as there are until it is idle."""
        left = steps - self._ahead if steps is not None else None
        self._ahead = 0
        while not self._engine.idle and (left is None or left > 0):
            self._one_step()
            left = left and left - 1

    def _one_step(self) -> None:
        if self._engine.stalled_on:
            # Its answers came later in the run than its rows need them here.
            for call in self._engine.calls.values():
                if call in self._answers:
                    call.set_result(self._answers.pop(call))
        self._ended |= dict(self._engine.step())

    def _execute(self, task: Task, call: ToolCall) -> str | Future[str]:
        answer = self._environment.execute(task, call)
        if self.config.tool_latency == 0:
            return answer
        promise: Future[str] = Future()
        if self._holds_answers:
            self._answers[promise] = answer
        else:
            promise.set_result(answer)
        return promise


@dataclass(slots=True)
class Execution:
    """Executes ``schedule`` with the settings ``config``, from ``policy`` on, whose model is left
    as it is. Iterate over it: it yields ``Evaluated`` and ``Trained``.

    ``train_on`` may replace the episodes of a step. ``learner`` holds the newest weights.
    """

    config: Config
    source: EnvironmentSource
    schedule: Schedule
    policy: Policy
    train_on: Callable[[int, list[Episode]], list[Episode]] = lambda step, episodes: episodes
    learner: Learner = field(init=False)
    _environment: Environment = field(init=False)

    def __post_init__(self) -> None:
        self.learner = Learner(
            self._load(self.config.dtype), self.config.learner, self.config.steps, self.config.temperature
        )
        self._environment = self.source.make()

    def __iter__(self) -> Iterator[Evaluated | Trained]:
        if self.policy.model.device.type == "cpu":
            torch.set_num_threads(self.config.threads)
        config = self.config
        evaluator = self._load(config.sampled_in)
        for part in self.schedule.parts:
            self.learner.decay_steps = part.decay_steps
            own = (self._task_of, self.schedule.is_exact)
            generators = {
                name: Generator(self._load(config.sampled_in), config, self.source, part, name, *own)
                for name in part.histories
            }
            for generator in generators.values():
                # With weights that travel in another type, also the first ones are rounded.
                self._take_weights(generator.policy)
            for step, batch in sorted(part.batches.items()):
                if step - 1 in self.schedule.evaluations:
                    yield self._evaluate(evaluator)
                for generator in generators.values():
                    generator.advance(step - 1, self._take_weights)
                yield self._train(step, batch, generators)
        if self.schedule.steps in self.schedule.evaluations:
            yield self._evaluate(evaluator)

    def _train(self, step: int, batch: Sequence[tuple[int, str]], generators: dict[str, Generator]) -> Trained:
        config, groups = self.config, []
        for number, name in batch:
            if name not in generators:
                raise ConfigError(f"the journal does not know {name!r}, which sampled group {number}")
            groups.append(generators[name].take(number))
        episodes = [episode for group in groups for episode in group]
        self._score(episodes)
        used = self.train_on(step, episodes)
        size = config.group_size
        rewards = [[e.scored.reward for e in used[i : i + size]] for i in range(0, len(used), size)]
        advantages = [a for group in ADVANTAGES[config.learner.loss](rewards) for a in group]
        reference = None
        if config.learner.kl_coefficient > 0:
            reference = response_logprobs(self.policy, used, config.temperature, config.learner.token_budget)
        return Trained(step, [n for n, _ in batch], episodes, self.learner.step(used, advantages, reference))

    def _evaluate(self, evaluator: Policy) -> Evaluated:
        """Measure the newest weights."""
        config, environment = self.config, self._environment
        self._take_weights(evaluator)
        requests = held_out_requests([environment.task(index, "held_out") for index in range(config.eval_tasks)])
        found = []
        for temperature in (0.0, config.temperature):
            sampling = Sampling.of(config, temperature)
            engine = RolloutEngine(evaluator, environment.execute, sampling, environment)
            found.append(engine.run(requests))
            self._score(found[-1])
        return Evaluated(self.learner.version, *map(accuracy, found))

    def _score(self, episodes: Sequence[Episode]) -> None:
        for episode in episodes:
            episode.score = self._environment.score(*episode.attempt)

    def _task_of(self, number: int) -> Task:
        return self._environment.task(number, "train")

    def _load(self, dtype: str) -> Policy:
        """Return the policy, loaded as the run's processes loaded it. A copy in memory begins at
        other addresses; with other remainders of 64 the last bit of a product may differ."""
        return load_policy(self.policy.name, self.policy.model.device, dtype)

    @torch.no_grad()
    def _take_weights(self, policy: Policy) -> None:
        """Copy the learner's weights into ``policy``."""
        own: dict[str, Any] = named_weights(policy.model)
        for name, weight in named_weights(self.learner.policy.model).items():
            own[name].copy_(weight)
