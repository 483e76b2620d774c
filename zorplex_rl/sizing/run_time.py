"""How long a whole run takes: the computed seconds of its steps and evaluations, added up as the
loop does them.

    in turns       start ── sample ── train ── sample ── train ── … ── evaluate
    side by side   start ── sample ── sample ── …           the longer of the two, and no less than
                              └─ train ── train ── …        what all the work takes on all cores

This is for the label of a button and for a reader who wants to know whether to fetch a coffee: it
leaves out whatever waits for a tool, and how much two processes slow each other down.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Self

from zorplex_rl.config import Config
from zorplex_rl.sizing.sizing import ModelShape, Workload
from zorplex_rl.sizing.step_time import calibrate, sample_seconds, train_seconds

ANSWER_SHARE = 0.5
"""Length of a common answer as a share of ``max_tokens``. The embedded policy's have about 45 of 96
tokens, those of its tools included."""
EVALUATIONS = 2
"""An evaluation answers its tasks greedily, and once by sampling."""


@dataclass(frozen=True, slots=True)
class RunTime:
    """Seconds on this machine: for a process to import and load, for a generator to sample a batch,
    for the trainer to take a step."""

    start: float
    sample: float
    train: float
    cores: int = 1

    @classmethod
    def here(cls, config: Config, shape: ModelShape, prompt: int, start: float, seconds: float = 0.03) -> Self:
        """Measure this machine for ``config`` with prompts of ``prompt`` tokens, each speed for
        ``seconds``. ``start`` is known to the caller."""
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
        """Return the seconds until ``processes`` processes with a model are ready, as many at a
        time as there are cores."""
        return self.start * max(1.0, processes / self.cores)

    def sampling(self, episodes: int, config: Config) -> float:
        """Return the seconds in which one process samples ``episodes``."""
        return self.sample * episodes / (config.prompts_per_step * config.group_size)

    def run(self, config: Config) -> float:
        """Return the seconds of a run of ``config``, from the start of its processes to the last
        evaluation."""
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
