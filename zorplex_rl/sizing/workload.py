"""What a run asks of its models: lengths, numbers of episodes, number types, and how it is divided.

    Config ──► Workload ──► micro-batches        one process, or Parallel ones

``memory.py`` and ``step_time.py`` compute from it what that takes.
"""

from dataclasses import dataclass
from typing import Self

from zorplex_rl.config import Config

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
RING_SLOTS = 3
"""As in ``weights/ring.py``; a test holds the two together."""
CACHE_STEP = 32
"""``RolloutEngine`` reserves rows of a multiple of this many tokens."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch: ``rows`` of ``response`` tokens after ``prompts`` of ``prompt`` tokens."""

    prompts: int
    prompt: int
    rows: int
    response: int


@dataclass(frozen=True, slots=True)
class Workload:
    """What a run feeds its models; lengths in tokens, of the longest prompt and response.

    ``shared_prompt`` is how many tokens all prompts start with, ``tasks`` the number of prompts
    that a generator has before it, and ``evaluated`` the tasks of an evaluation, which samples
    beside the generator's stream in a cache of its own (0: there is none). ``stored`` is the number
    type of the policy's files.
    """

    prompt: int = 100
    response: int = Config.max_tokens
    prompts: int = Config.prompts_per_step
    group_size: int = Config.group_size
    token_budget: int = Config.learner.token_budget
    slots: int = Config.slots
    shared_prompt: int = 0
    tasks: int = Config.prompts_per_step
    evaluated: int = Config.eval_tasks
    dtype: str = "float32"
    transfer: str = "float32"
    stored: str = "float32"
    sampled_in: str = ""
    """Number type of the generator's model; none is ``dtype``. Its memory is computed with it, its
    seconds without."""
    max_tokens: int = 0
    """Tokens for which a slot is reserved, maybe more than used; 0 is as ``response``."""

    @property
    def ring_bytes(self) -> int:
        """Bytes of the ring for each parameter."""
        return RING_SLOTS * BYTES[self.transfer]

    @classmethod
    def of(cls, config: Config, prompt: int, stored: str = "float32", shared_prompt: int = 0) -> Self:
        """Return the workload of ``config`` for prompts of up to ``prompt`` tokens."""
        sampled_in = "" if config.generator_dtype == "same" else config.generator_dtype
        return cls(
            prompt, config.max_tokens, config.prompts_per_step, config.group_size, config.learner.token_budget,
            config.slots, shared_prompt, config.share, config.eval_tasks, config.dtype, config.dtype, stored, sampled_in,
            config.max_tokens,
        )  # fmt: skip

    @property
    def micro_batches(self) -> list[tuple[MicroBatch, int]]:
        """The micro-batches of a step, and how often each occurs, if all responses are longest.

        ``learning/batches.py`` splits.

        >>> Workload(prompt=100, response=100, prompts=4, group_size=8, token_budget=2000).micro_batches[1]
        (MicroBatch(prompts=2, prompt=100, rows=2, response=100), 1)
        """
        rows, most = self.prompts * self.group_size, max(1, self.token_budget // (self.prompt + self.response))
        sizes = {most: rows // most, rows % most: 1}
        return [
            (MicroBatch(min(self.prompts, size), self.prompt, size, self.response), count)
            for size, count in sizes.items()
            if size and count
        ]


@dataclass(frozen=True, slots=True)
class Parallel:
    """A model on ``data`` processes at ZeRO ``stage`` 0 to 3, each of ``tensor`` processes."""

    data: int = 1
    stage: int = 0
    tensor: int = 1

    def of(self, part: str) -> int:
        """Return by how much the persistent ``part`` is divided."""
        from_stage = {"moments": 1, "masters": 1, "gradients": 2, "weights": 3}
        return self.tensor * (self.data if self.stage >= from_stage.get(part, 4) else 1)


ONE_PROCESS = Parallel()
