"""How long a whole run takes: the seconds of its steps and evaluations, added as in the loop.

    in turns       start ── sample ── train ── sample ── train ── … ── evaluate
    side by side   start ── sample ── sample ── …           the longer of the two, and no less than
                              └─ train ── train ── …        what all the work takes on all cores

For a button's label, or to know whether to fetch a coffee: it leaves out waits for tools, and how
much two processes slow each other down.
"""

import os
from dataclasses import dataclass, replace
from typing import Self

from zorplex_rl.config import Config
from zorplex_rl.sizing.model_shape import ModelShape
from zorplex_rl.sizing.step_time import calibrate, sample_seconds, train_seconds
from zorplex_rl.sizing.workload import Workload

ANSWER_SHARE = 0.5
"""A common answer ÷ ``max_tokens``: the embedded policy's have 45 of 96 tokens, tools' included."""
EVALUATIONS = 2
"""An evaluation answers its tasks greedily, and once by sampling."""


@dataclass(frozen=True, slots=True)
class RunTime:
    """Seconds here: a process's imports and load, a generator's batch, a trainer's step."""

    start: float
    sample: float
    train: float
    cores: int = 1

    @classmethod
    def here(cls, config: Config, shape: ModelShape, prompt: int, start: float, seconds: float = 0.03) -> Self:
        """Measure this machine for ``config`` and ``prompt`` tokens, ``seconds`` per speed."""
        longest = Workload.of(config, prompt)
        work = replace(longest, response=max(2, round(ANSWER_SHARE * longest.response)))
        machine = calibrate(shape, work, seconds, "cuda" if config.device == "cuda" else "cpu")
        return cls(
            start,
            sum(sample_seconds(shape, replace(work, tasks=work.prompts), machine).values()),
            sum(train_seconds(shape, work, machine, config.learner.updates_per_batch).values()),
            os.cpu_count() or 1,
        )

    def starting(self, processes: int) -> float:
        """Return the seconds until ``processes`` with a model are ready, one per core at a time."""
        return self.start * max(1.0, processes / self.cores)

    def sampling(self, episodes: int, config: Config) -> float:
        """Return the seconds in which one process samples ``episodes``."""
        return self.sample * episodes / (config.prompts_per_step * config.group_size)

    def run(self, config: Config) -> float:
        """Return a run's seconds, from the start of its processes to the last evaluation."""
        evaluations = 2 + (config.steps - 1) // config.eval_every
        evaluating = self.sampling(EVALUATIONS * config.eval_tasks * evaluations, config)
        sampling, training = self.sample * config.steps, self.train * config.steps
        generators = config.services.generators
        if config.max_lag:
            everything = (sampling + evaluating + training) / self.cores
            loop = max(sampling / generators + evaluating, training, everything)
        else:
            loop = sampling / generators + evaluating + training
        return self.starting(1 + generators + config.services.spares) + loop
