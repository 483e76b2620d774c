"""Everything that can be set about a run, in one place; the command line is made from it.

``check`` says in one sentence what is wrong with a configuration, before anything is started or written.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from zorplex_rl.errors import ConfigError


@dataclass(frozen=True)
class Config:
    """One training run."""

    task: str = "compositional"
    """What to learn: simple, compositional, multi_step, recursive, or mix (all four in turn)."""
    difficulty: str = "easy"
    """Words in a compositional question: easy (2), medium (3), hard (4)."""
    hints: bool = False
    """Show a worked example, with made-up values, in the system prompt."""
    curriculum: bool = False
    """Begin with the easiest tier and move on when held-out accuracy passes --curriculum-threshold."""
    curriculum_threshold: float = 0.9
    """Greedy held-out accuracy at which the next tier begins."""
    policy: str = "embedded"
    """Where to start: embedded, the folder of a model, or a hub id."""
    mode: str = "async"
    """async (generation and training side by side) or sync (in turns)."""
    max_lag: int = 1
    """How many versions old the weights that sampled a group may be when it is trained on; 0 is on-policy. sync is always 0."""
    steps: int = 120
    """Training steps; the policy's version grows by one with each."""
    prompts_per_step: int = 8
    """Groups in a training batch."""
    group_size: int = 8
    """Episodes sampled for each prompt."""
    loss: str = "grpo"
    """reinforce, grpo, dapo, tis (truncated importance sampling) or decoupled_ppo."""
    learning_rate: float = 2e-4
    """Of AdamW: reached after a warm-up of five steps, falling linearly to a tenth at the last step."""
    kl_coefficient: float = 0.0
    """Weight of the KL penalty towards the starting policy; above 0 a reference process is started."""
    updates_per_batch: int = 1
    """Optimizer updates for each batch."""
    token_budget: int = 8192
    """Padded tokens that go through the trainer's model at once; bounds memory, does not change the result."""
    temperature: float = 1.0
    """Of sampling in training."""
    max_tokens: int = 96
    """Longest response in tokens, tool results included."""
    max_turns: int = 6
    """Most stretches of sampled text in an episode; one less is the number of tool calls that are answered."""
    slots: int = 64
    """Episodes that a generator decodes at once."""
    generators: int = 1
    """Generator processes."""
    spares: int = 1
    """Loaded generators kept in reserve; one replaces a generator that dies within about a second, not after loading torch."""
    tool_latency: float = 0.0
    """Mean of the simulated time of a tool call in seconds (log-normal). Above 0 the tools run in a process of their own; at 0 in the generators."""
    tool_latency_variation: float = 1.5
    """Coefficient of variation of that time."""
    tool_replicas: int = 1
    """Tool processes, where tools have processes of their own."""
    reward_replicas: int = 1
    """Reward processes."""
    update: str = "groups"
    """When a generator takes new weights: groups (between groups, so that each is of one version) or in-flight (between decode steps)."""
    transport: str = "auto"
    """How weights travel: shm (shared memory), rdma (RDMABuffer, with its TCP fallback), message (inside a reply), or auto (the first that works)."""
    transfer_dtype: str = "same"
    """What weights travel as: same (as they are), or bfloat16, at half the bytes of float32; metrics report the mismatch that it causes."""
    eval_every: int = 10
    """Steps between evaluations on held-out tasks; there is always one before and one after training."""
    eval_tasks: int = 100
    """Held-out tasks in an evaluation, each answered once greedily and once sampled."""
    checkpoint_every: int = 20
    """Steps between checkpoints."""
    seed: int = 0
    """Of the tasks with their tables, and of the sampling."""
    device: str = "auto"
    """auto (CUDA where there is one), cpu or cuda."""
    dtype: str = "float32"
    """Of the model: float32, or bfloat16 with float32 master weights."""
    threads: int = 1
    """Torch threads for each actor on CPU."""
    tensorboard: bool = False
    """Also write TensorBoard events to the run folder (needs the package tensorboard)."""

    def check(self) -> None:
        """Raise ConfigError for the first setting that cannot work."""
        from zorplex_rl.learning.advantages import ADVANTAGES, group_relative
        from zorplex_rl.task.curriculum import TASK_NAMES, ladder_of
        from zorplex_rl.task.zorplex import DIFFICULTIES

        _one_of("task", self.task, TASK_NAMES)
        _one_of("difficulty", self.difficulty, DIFFICULTIES)
        _one_of("mode", self.mode, ("sync", "async"))
        _one_of("loss", self.loss, ADVANTAGES)
        _one_of("transport", self.transport, ("auto", "shm", "rdma", "message"))
        _one_of("transfer_dtype", self.transfer_dtype, ("same", "bfloat16"))
        _one_of("update", self.update, ("groups", "in-flight"))
        _one_of("device", self.device, ("auto", "cpu", "cuda"))
        _one_of("dtype", self.dtype, ("float32", "bfloat16"))
        for name in _AT_LEAST_ONE:
            _at_least(name, getattr(self, name), 1)
        for name in _AT_LEAST_ZERO:
            _at_least(name, getattr(self, name), 0)
        for name in ("learning_rate", "temperature", "curriculum_threshold"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{_flag(name)} is {getattr(self, name)}; it must be above 0")
        if ADVANTAGES[self.loss] is group_relative and self.group_size < 2:
            raise ConfigError(
                f"--group-size is {self.group_size}, but --loss {self.loss} compares the samples of a prompt with each other; "
                f"use a group size of 2 or more, or --loss reinforce"
            )
        if self.curriculum and len(ladder_of(self.task)) < 2:
            raise ConfigError(
                f"--curriculum needs tiers, and task {self.task!r} has only one; use compositional or mix"
            )
        if self.curriculum and self.difficulty != "easy":
            raise ConfigError(f"--curriculum starts at the easiest tier; leave out --difficulty {self.difficulty}")
        if self.prompts_per_step < self.generators:
            raise ConfigError(
                f"--generators is {self.generators}, but a step has only {self.prompts_per_step} prompts to share among them; "
                f"use at most {self.prompts_per_step}"
            )

    @property
    def lag(self) -> int:
        """The age bound in force: 0 in sync mode."""
        return 0 if self.mode == "sync" else self.max_lag

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Config:
        """The configuration of a run folder; ConfigError names a field that this version does not know."""
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(values.keys() - known):
            raise ConfigError(f"the configuration has a field {unknown[0]!r} that this version does not know")
        return cls(**values)

    def difference(self, other: Config) -> str | None:
        """The first setting in which ``other`` differs, as ``--flag here ≠ there``, or None."""
        for field in dataclasses.fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if mine != theirs:
                return f"{_flag(field.name)} {mine} ≠ {theirs}"
        return None


_AT_LEAST_ONE = (
    "steps prompts_per_step group_size updates_per_batch token_budget max_tokens max_turns slots generators "
    "tool_replicas reward_replicas "
    "eval_every eval_tasks checkpoint_every threads"
).split()
_AT_LEAST_ZERO = "max_lag kl_coefficient spares tool_latency tool_latency_variation".split()


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _one_of(name: str, value: str, allowed: Any) -> None:
    if value not in allowed:
        raise ConfigError(f"{_flag(name)} is {value!r}; expected one of {', '.join(allowed)}")


def _at_least(name: str, value: float, least: int) -> None:
    if not value >= least:
        raise ConfigError(f"{_flag(name)} is {value}; it must be {least} or more")
