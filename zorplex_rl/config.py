"""All settings of a run, in one place. The command line is made from them.

Settings that only one part of the system uses form a group, and that part takes the group:
``Learner(policy, config.learner)``. No two settings have the same name, so a group is not named:
``--learning-rate 1e-3`` on the command line, ``config.changed(learning_rate=1e-3)`` in Python. The
bounds of a setting are declared with its field. ``check`` says in one sentence what is wrong, before
anything starts.
"""

import json
import math
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

from zorplex_rl.errors import ConfigError

TaskName = Literal["simple", "compositional", "multi_step", "recursive", "mix"]
Difficulty = Literal["easy", "medium", "hard"]
LossName = Literal[
    "reinforce",
    "grpo",
    "dr_grpo",
    "dapo",
    "gspo",
    "maxrl",
    "tis",
    "cispo",
    "decoupled_ppo",
    "icepop",
    "dppo",
]
TransportName = Literal["auto", "shm", "rdma", "message"]
OnUpdate = Literal["wait", "continue"]
Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16"]


def bounded(default: Any, least: float = -math.inf, most: float = math.inf) -> Any:
    """Return a field with a default, and with bounds for ``check``."""
    return field(default=default, metadata={"least": least, "most": most})


@dataclass(frozen=True)
class LearnerConfig:
    """How the learner makes the next version of the weights from a batch."""

    loss: LossName = "grpo"
    """How stale data are handled; learning/losses.py has the formulas. Start with grpo."""
    credit: Literal["episode", "prefix"] = "episode"
    """Advantage of a token: the episode's, or the value of what comes after its prefix."""
    learning_rate: float = bounded(2e-4, 0, 1)
    """Learning rate of AdamW after the warm-up; it falls to a tenth by the last step."""
    warmup_steps: int = bounded(5, 0)
    """Steps in which the learning rate rises linearly to its full value."""
    clip_low: float | None = bounded(None, 0, 1)
    """How far a ratio may fall below 1; None is the bound of the loss."""
    clip_high: float | None = bounded(None, 0)
    """How far a ratio may rise above 1; None is the bound of the loss."""
    truncation: float | None = bounded(None, 0)
    """Largest importance weight of a token; None is the limit of the loss."""
    kl_coefficient: float = bounded(0.0, 0)
    """Weight of the KL penalty. Above 0, the starting policy gets its own process, unless adapters are trained."""
    updates_per_batch: int = bounded(1, 1)
    """Optimizer updates for each batch."""
    token_budget: int = bounded(8192, 1)
    """Distinct tokens in one pass of the trainer's model; this bounds the memory of a step."""


@dataclass(frozen=True)
class ServicesConfig:
    """How many processes each role has."""

    generators: int = bounded(1, 1)
    """Generator processes."""
    spares: int | Literal["auto"] = bounded("auto", 0)
    """Loaded generators that replace dead ones. auto is 1, or 0 above 100 MB of weights."""
    trainer_processes: int = bounded(1, 1)
    """Trainer processes, each with a part of weights and optimizer (FSDP2). Saves memory, not time."""


@dataclass(frozen=True)
class Config:
    """One training run."""

    task: TaskName | str = "compositional"
    """Kind of task; mix takes all kinds in turn. Or your own: FILE.py, FILE.py:CLASS (docs/OWN_TASK.md)."""
    task_data: str | None = None
    """A text file for a task of your own."""
    tool_timeout: float = bounded(30.0, 0.1)
    """Timeout (seconds) for your own task's tools; then the policy reads ERROR: timed out."""
    difficulty: Difficulty = "easy"
    """Words in a compositional question: easy (2), medium (3), hard (4)."""
    shots: int = bounded(0, 0)
    """Worked examples of the task, shown as turns of the chat before each question."""
    policy: str = "embedded"
    """Policy to start from: embedded, smollm2, the folder of a model, or a hub id."""
    template_arguments: str = ""
    """Arguments of the chat template: NAME=VALUE,…, like enable_thinking=false."""
    lora_rank: int = bounded(0, 0)
    """Rank of adapters, which are trained while the weights stay; 0 trains all weights."""
    max_lag: int = bounded(1, 0)
    """Maximum number of versions a group may lag behind the trainer. 0: generators and trainer take turns."""
    steps: int = bounded(120, 1)
    """Training steps; the policy's version grows by one with each."""
    prompts_per_step: int = bounded(8, 1)
    """Groups in a training batch."""
    group_size: int = bounded(8, 1)
    """Episodes sampled for each prompt."""
    temperature: float = bounded(1.0, 0.01)
    """Temperature of sampling in training."""
    max_tokens: int = bounded(96, 1)
    """Maximum length of a response in tokens, tool results included."""
    max_turns: int = bounded(6, 1)
    """Maximum number of turns of an episode: one more than its answered tool calls."""
    slots: int = bounded(64, 1)
    """Episodes a generator decodes at once."""
    tool_latency: float = bounded(0.0, 0, 3600)
    """Mean seconds of a simulated tool call. Above 0, tools get their own process."""
    on_update: OnUpdate = "wait"
    """Whether running episodes end before new weights are used, or continue with them."""
    transport: TransportName = "auto"
    """How weights are sent: shared memory, RDMABuffer, messages, or the first that works."""
    eval_every: int = bounded(10, 1)
    """Steps between evaluations on held-out tasks; also done before and after training."""
    eval_tasks: int = bounded(100, 1)
    """Held-out tasks in an evaluation, each answered once greedily and once sampled."""
    checkpoint_every: int = bounded(20, 1)
    """Steps between checkpoints."""
    seed: int = bounded(0, -(2**63), 2**63 - 1)
    """Seed of tasks, tables and sampling."""
    device: Device = "auto"
    """auto is CUDA where there is one."""
    dtype: Dtype = "auto"
    """Number type; bfloat16 keeps float32 master weights, auto is the faster one."""
    threads: int | Literal["auto"] = bounded("auto", 1)
    """Torch threads of each actor on CPU; auto shares out the cores."""
    hosts: str = "this"
    """this, processes:N, or attach:tls://HOST:PORT,… of workers (docs/HOSTS.md)."""
    insecure: bool = False
    """Allow tcp:// in --hosts. It is not encrypted, and anyone who reaches a worker can run programs there."""
    learner: LearnerConfig = LearnerConfig()
    """How the learner updates the weights."""
    services: ServicesConfig = ServicesConfig()
    """How many processes each role has."""

    def settings(self) -> dict[str, Any]:
        """Return the value of every setting by its name, whatever its group."""
        values = {}
        for name, group in GROUP_OF.items():
            values[name] = getattr(getattr(self, group) if group else self, name)
        return values

    def changed(self, **settings: Any) -> Self:
        """Return a copy with other values for ``settings``, whatever their groups.

        >>> Config().changed(steps=7, learning_rate=1e-3).learner.learning_rate
        0.001
        """
        changed = self
        for name, value in settings.items():
            group = GROUP_OF[name]
            change = {name: value}
            if group:
                change = {group: replace(getattr(changed, group), **change)}
            changed = replace(changed, **change)
        return changed

    def check(self) -> None:
        """Raise ConfigError for the first setting that cannot work."""
        for part in (self, self.learner, self.services):
            types = get_type_hints(type(part))
            for each in fields(part):
                check_setting(
                    each.name, getattr(part, each.name), types[each.name], **each.metadata
                )
        compares = self.learner.loss != "reinforce" or self.learner.credit == "prefix"
        if compares and self.group_size < 2:
            raise ConfigError(
                f"--loss {self.learner.loss} with --credit {self.learner.credit} compares the samples of a "
                f"prompt, and there is {self.group_size}; train with a --group-size of 2 or more"
            )
        if self.is_own_task and self.difficulty != "easy":
            raise ConfigError(f"--difficulty is about Zorplex tasks, and --task is {self.task!r}")
        if self.prompts_per_step < self.services.generators:
            raise ConfigError(
                f"--generators is {self.services.generators}, but a step has only {self.prompts_per_step} "
                "prompts to share among them"
            )

    @property
    def is_own_task(self) -> bool:
        """Whether the task is the user's."""
        return self.task not in get_args(TaskName)

    @property
    def share(self) -> int:
        """Groups of a step for each generator, which decodes them side by side."""
        return -(-self.prompts_per_step // self.services.generators)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return what ``to_json`` wrote. Raises ConfigError for anything else."""
        try:
            values = json.loads(text)
            groups = {name: of(**values[name]) for name, of in _GROUPS.items()}
            return cls(**values | groups)
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"the configuration of the run cannot be read: {error!r}") from error

    def difference(self, other: Self) -> str | None:
        """Return the first setting that differs in ``other``: ``--flag here ≠ there``, or None."""
        theirs = other.settings()
        for name, value in self.settings().items():
            if value != theirs[name]:
                return f"{flag(name)} {value} ≠ {theirs[name]}"
        return None


_GROUPS = {"learner": LearnerConfig, "services": ServicesConfig}
GROUP_OF: dict[str, str | None] = {
    each.name: None for each in fields(Config) if each.name not in _GROUPS
}
GROUP_OF |= {each.name: group for group, of in _GROUPS.items() for each in fields(of)}
"""The group of each setting; None if it is in none."""


def check_setting(
    name: str, value: Any, kind: Any, least: float = -math.inf, most: float = math.inf
) -> None:
    """Raise ConfigError if ``value`` is not one of the choices of ``kind``, or a number out of bounds."""
    if get_origin(kind) is Literal and value not in get_args(kind):
        raise ConfigError(f"{flag(name)} is {value!r}; expected one of {', '.join(get_args(kind))}")
    if isinstance(value, int | float) and not least <= value <= most:
        expected = f"{least:g} or more" if most == math.inf else f"between {least:g} and {most:g}"
        raise ConfigError(f"{flag(name)} is {value}; it must be {expected}")


def flag(name: str) -> str:
    """Return the flag of the setting ``name``."""
    return "--" + name.replace("_", "-")
