"""Everything that can be set about a run, in one place; the command line is made from it.

``check`` says in one sentence what is wrong with a configuration, before anything starts.

Settings that one part of the system uses alone stand in a group, and that part takes the group:
``Learner(policy, config.learner)``. No two settings have the same name, so it is ``--learning-rate
1e-3`` on the command line and ``config.changed(learning_rate=1e-3)`` in Python. This file imports
nothing from the package except its errors. A choice is a ``Literal``, so that ``--help`` lists it;
``tests/test_config.py`` fails when such a list differs from the tasks, losses or transports that
exist.
"""

import json
import math
import shlex
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

from zorplex_rl.errors import ConfigError

TaskName = Literal["simple", "compositional", "multi_step", "recursive", "mix"]
Difficulty = Literal["easy", "medium", "hard"]
LossName = Literal[
    "reinforce",
    "grpo",
    "dapo",
    "gspo",
    "maxrl",
    "tis",
    "cispo",
    "decoupled_ppo",
    "icepop",
    "dppo",
    "m2po",
    "sequence_rejection",
    "geometric_rejection",
]
TransportName = Literal["auto", "shm", "rdma", "message"]
OnUpdate = Literal["wait", "continue", "keep-prefix"]
Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["float32", "bfloat16"]

TASKS_WITH_DIFFICULTY = ("compositional", "mix")
"""Tasks for --difficulty; every other task has one."""
LOSSES_WITHOUT_GROUPS = ("reinforce",)
"""Their advantage does not compare a prompt's samples with each other: one will do."""
_BOUNDED = (
    "grpo",
    "dapo",
    "gspo",
    "maxrl",
    "cispo",
    "decoupled_ppo",
    "icepop",
    "dppo",
    "sequence_rejection",
    "geometric_rejection",
)
LOSS_KNOBS = {
    "clip_low": _BOUNDED,
    "clip_high": _BOUNDED,
    "truncation": ("tis", "decoupled_ppo", "dppo"),
    "second_moment": ("m2po",),
}
"""Settings that only some losses have, with their defaults in the loss's signature."""


@dataclass(frozen=True)
class LearnerConfig:
    """How the learner makes the next version of the weights from a batch."""

    loss: LossName = "grpo"
    """What is done about stale data; losses.py and masks.py have the formulas. reinforce: nothing,
    for fresh data and one update a batch. grpo: no token moves far from where it was sampled; the
    first choice. dapo: grpo that lets rare good tokens grow more. gspo: grpo by whole episodes, for
    long ones. maxrl: grpo in which hard prompts count more. tis: an importance weight for every
    token, truncated; for little lag. cispo: tis with bounds on both sides. decoupled_ppo: tis for
    the lag and grpo's clip within a step, for lag and several updates. icepop: leaves out tokens
    with an extreme ratio, for a sampler that computes otherwise than the trainer. dppo: leaves out
    tokens by probability and not by ratio, where rare tokens matter. m2po: leaves out as few tokens
    as hold the second moment down, for much lag; computes the batch twice. sequence_rejection and
    geometric_rejection: leave out whole episodes that are far off, as a safeguard."""
    credit: Literal["episode", "prefix"] = "episode"
    """To whom an episode's advantage goes. episode: to all its tokens alike. prefix: each token is
    compared with those of the group's samples that are the same up to it, so that it earns only
    what came after it; for tasks whose samples begin alike, and for few steps."""
    learning_rate: float = 2e-4
    """Learning rate of AdamW after the warm-up; it falls linearly to a tenth at the last step."""
    warmup_steps: int = 5
    """Steps in which the learning rate rises linearly to its full height."""
    scale_rate: float = 0.0
    """Learning rate of the logits' scale, a number that is learned beside the weights, by Adam on
    its logarithm, in the last fifth of the steps. The policy becomes as sure as its rewards
    justify, so that sampled answers are nearly as good as greedy ones; earlier it would stop
    exploring. 0 leaves it to the weights. For Llama and Qwen2 models; 0.2 on the embedded one."""
    weight_decay: float = 0.0
    """Weight decay of AdamW."""
    max_grad_norm: float = 1.0
    """Largest norm of a gradient; larger ones are scaled down to it."""
    clip_low: float | None = None
    """How far a token's ratio may fall below 1; in gspo, sequence_rejection and geometric_rejection
    an episode's; in dppo how far a token's probability itself may fall. None is the loss's own: 0.2
    in grpo, dapo, maxrl and decoupled_ppo, 0.03 in gspo and geometric_rejection, 0.15 in dppo, 0.5
    in icepop and sequence_rejection, 1 (no bound) in cispo."""
    clip_high: float | None = None
    """How far it may rise above 1. None is the loss's own: 0.2 in grpo, maxrl and decoupled_ppo,
    0.28 in dapo, 0.04 in gspo, 0.03 in geometric_rejection, 0.15 in dppo, 1 in sequence_rejection,
    3 in cispo, 4 in icepop."""
    truncation: float | None = None
    """Largest importance weight of a token, in tis, decoupled_ppo and dppo. None is the loss's own:
    2, in dppo 20."""
    second_moment: float | None = None
    """Largest mean square of log-ratios, in m2po. None is 0.04."""
    kl_coefficient: float = 0.0
    """Weight of the KL penalty towards the starting policy; above 0 starts a reference process."""
    updates_per_batch: int = 1
    """Optimizer updates for each batch."""
    ess_control: bool = False
    """Multiply the learning rate of each update by the square root of the effective sample size of
    the batch's episodes (VCPO): smaller steps on stale data, none smaller on fresh ones."""
    token_budget: int = 8192
    """Padded tokens that the trainer's model takes at once: bounds the memory of a step."""


@dataclass(frozen=True)
class ServicesConfig:
    """How many processes each role has."""

    generators: int = 1
    """Generator processes."""
    spares: int = 1
    """Loaded generators in reserve; one replaces a dead generator within about a second."""
    tool_replicas: int = 1
    """Tool processes, where tools have processes of their own."""
    reward_replicas: int = 1
    """Reward processes."""
    trainer_processes: int = 1
    """Trainer processes, each with a part of weights and optimizer (FSDP2); for memory, not speed."""


@dataclass(frozen=True)
class HostsConfig:
    """Which machines a run uses, and what lives where. A run may be resumed on others."""

    hosts: str = "this"
    """this, processes:N (N workers on this machine, to try it out), attach:tls://HOST:PORT,… to
    machines where `zorplex-rl worker` runs, slurm:N (N nodes, a job each), or kubernetes:N (N pods;
    needs the extra kubernetes and Monarch's operator; not run by this project's tests)."""
    tls: str | None = None
    """With --hosts attach:tls://… or slurm:N: the folder of this machine's files, made by
    `zorplex-rl certificates`. A Slurm node takes its own from beside it, FOLDER/NODE, which it has
    to see there. None is the environment variable ZORPLEX_TLS."""
    insecure: bool = False
    """Allow other machines without TLS: --hosts attach:tcp://…, slurm:N without --tls, or
    kubernetes:N (Monarch's channel to a pod is plain TCP). Nothing is encrypted then, and whoever
    reaches a worker can run programs as its user: for trusted networks only."""
    listen: str | None = None
    """Where this machine listens: tls://HOST:PORT. None is its address on the hosts' network."""
    trainer_host: int = 0
    """Number of the host on which the trainer begins, with all its processes; the first is 0."""
    generators_on: Literal["spread", "others"] = "spread"
    """Where generators, tools and reference live: on all hosts, or on others than the trainer's."""
    lease: float = 10.0
    """Seconds without contact after which a host ends; only then a trainer moves. At least 4."""
    start_seconds: float = 600.0
    """How long to wait for the hosts that Slurm or Kubernetes is asked for."""
    slurm_options: str | None = None
    """With --hosts slurm:N: sbatch's options for every node: 'partition=gpu time=04:00:00'."""
    image: str | None = None
    """With --hosts kubernetes:N: the container image, with this version of zorplex-rl in it."""
    namespace: str = "default"
    """With --hosts kubernetes:N: the namespace."""
    pod_gpus: int = 0
    """With --hosts kubernetes:N: NVIDIA GPUs of each pod."""
    pod_memory: str = "1Gi"
    """With --hosts kubernetes:N: size of each pod's /dev/shm."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether the hosts are other machines than this."""
        return self.hosts != "this" and not self.hosts.startswith("processes:")

    @property
    def flags(self) -> str:
        """These settings as they are typed, without those left as they come."""
        given = {name: value for name, value in asdict(self).items() if value != getattr(HostsConfig, name)}
        return " ".join(
            _flag(name) if value is True else f"{_flag(name)} {shlex.quote(str(value))}"
            for name, value in given.items()
        )


@dataclass(frozen=True)
class Config:
    """One training run."""

    task: TaskName | str = "compositional"
    """Kind of task; mix is all in turn. Or a task of your own: FILE.py:CLASS (FILE.py alone if
    it has one such class). Its code runs with your rights, here and on every host:
    docs/OWN_TASK.md."""
    task_data: str | None = None
    """A text file for a task of your own; its text goes to every process."""
    tool_timeout: float = 30.0
    """Seconds after which a tool of a task of your own counts as answered: the policy then reads
    ERROR: timed out after 30 s, and the episode goes on."""
    difficulty: Difficulty = "easy"
    """Words in a compositional question: easy (2), medium (3), hard (4)."""
    hints: bool = False
    """Show a worked example, with made-up values, in the system prompt."""
    policy: str = "embedded"
    """Policy to start from: embedded, the folder of a model, or a hub id."""
    max_lag: int = 1
    """How many versions old a group's weights may be when it is trained on. At 0 generation and
    training take turns, on-policy; above 0 they run side by side."""
    steps: int = 120
    """Training steps; the policy's version grows by one with each."""
    prompts_per_step: int = 8
    """Groups in a training batch."""
    group_size: int = 8
    """Episodes sampled for each prompt."""
    temperature: float = 1.0
    """Temperature of sampling in training; at least 0.01."""
    max_tokens: int = 96
    """Longest response in tokens, tool results included."""
    max_turns: int = 6
    """Most stretches of sampled text in an episode: one more than the answered tool calls."""
    slots: int = 64
    """Episodes that a generator decodes at once."""
    tool_latency: float = 0.0
    """Mean of the simulated time of a tool call in seconds (log-normal). Above 0 the tools run in a
    process of their own; at 0 in the generators. With --max-lag 0 the episodes that wait go on
    together once no other can, so that the weights do not depend on how fast tools answer."""
    tool_latency_variation: float = 1.5
    """Coefficient of variation of that time."""
    on_update: OnUpdate = "wait"
    """What new weights do to episodes under way. wait: the generator first ends the groups that it
    has begun. The others take the weights between two tokens. continue: episodes go on with them,
    and what was read with the old ones stays read. keep-prefix: what is written stays, and is read
    again with the new weights."""
    transport: TransportName = "auto"
    """How weights travel: shm (shared memory), rdma (RDMABuffer, with its TCP fallback), message
    (inside a reply), or auto (the first that works)."""
    eval_every: int = 10
    """Steps between evaluations on held-out tasks; one more before and one after training."""
    eval_tasks: int = 100
    """Held-out tasks in an evaluation, each answered once greedily and once sampled."""
    checkpoint_every: int = 20
    """Steps between checkpoints."""
    seed: int = 0
    """Seed of the tasks, their tables and the sampling."""
    device: Device = "auto"
    """auto is CUDA where there is one."""
    dtype: Dtype = "float32"
    """Number type of the model; bfloat16 has float32 master weights."""
    generator_dtype: Literal["same", "float32", "bfloat16", "float16"] = "same"
    """Number type of the generators' model: same (as --dtype), or another. Weights travel in that of
    the trainer and are rounded where they arrive; metrics report the mismatch."""
    threads: int = 1
    """Torch threads for each actor on CPU."""
    tensorboard: bool = False
    """Also write TensorBoard events to the run folder (needs the package tensorboard)."""
    telemetry: bool = False
    """Collect Monarch's own tables and trace, for zorplex-rl status RUN. They are served on the
    loopback interface, to every user of this machine."""
    learner: LearnerConfig = LearnerConfig()
    """How the learner makes the next version of the weights from a batch."""
    services: ServicesConfig = ServicesConfig()
    """How many processes each role has."""
    cluster: HostsConfig = HostsConfig()
    """Which machines a run uses, and what lives where."""

    def settings(self) -> dict[str, Any]:
        """Return every setting's value by its name, in one flat list."""
        return {name: getattr(getattr(self, group) if group else self, name) for name, (group, _) in _types().items()}

    def changed(self, **settings: Any) -> Self:
        """Return a copy with other values for ``settings``, whatever groups they are in.

        >>> Config().changed(steps=7, learning_rate=1e-3).learner.learning_rate
        0.001
        """
        changed = self
        for name, value in settings.items():
            group, _ = _types()[name]
            within = {group: replace(getattr(changed, group), **{name: value})} if group else {name: value}
            changed = replace(changed, **within)
        return changed

    def check(self) -> None:
        """Raise ConfigError for the first setting that cannot work."""
        values, learner, generators = self.settings(), self.learner, self.services.generators
        for name, (_, kind) in _types().items():
            if get_origin(kind) is Literal and values[name] not in get_args(kind):
                raise ConfigError(
                    f"{_flag(name)} is {_kind(values[name])}; expected one of {', '.join(get_args(kind))}"
                )
        for name, value in values.items():
            check_finite(name, value)
        for name in _AT_LEAST_ONE:
            check_range(name, values[name], 1)
        for name in _AT_LEAST_ZERO:
            check_range(name, values[name], 0)
        for name, most in _AT_MOST.items():
            check_range(name, values[name], most=most)
        set_knobs = [knob for knob in LOSS_KNOBS if values[knob] is not None]
        for name in ("learning_rate", "max_grad_norm", "tool_timeout", *set_knobs):
            if not values[name] > 0:
                raise ConfigError(f"{_flag(name)} is {values[name]}; it must be above 0")
        check_range("lease", values["lease"], 4)
        check_temperature(self.temperature)
        check_seed(self.seed)
        for knob, losses in LOSS_KNOBS.items():
            if knob in set_knobs and learner.loss not in losses:
                raise ConfigError(
                    f"{_flag(knob)} is a setting of {', '.join(losses)}, and --loss is {learner.loss}; "
                    f"leave it out, or choose {'it' if len(losses) == 1 else 'one of these'}"
                )
        if learner.clip_low is not None and learner.clip_low > 1:
            raise ConfigError(
                f"--clip-low is {learner.clip_low}, but a ratio cannot fall by more than 1; use 1 or less"
            )
        if learner.loss not in LOSSES_WITHOUT_GROUPS and self.group_size < 2:
            raise ConfigError(
                f"--group-size is {self.group_size}, but --loss {learner.loss} compares the samples of a prompt with each other; "
                f"use a group size of 2 or more, or --loss reinforce"
            )
        if learner.credit == "prefix" and self.group_size < 2:
            raise ConfigError(
                f"--credit prefix compares the samples of a prompt, and --group-size is {self.group_size}; "
                "use 2 or more, or --credit episode"
            )
        if self.is_own_task:
            for name, tells in _ZORPLEX_ONLY.items():
                if values[name] != getattr(Config, name):
                    raise ConfigError(f"{_flag(name)} {tells}, and --task is {_kind(self.task)}; leave it out")
        elif self.task_data is not None:
            raise ConfigError(f"--task-data is for a task of your own, and --task is {self.task}; leave it out")
        if self.difficulty != "easy" and self.task not in TASKS_WITH_DIFFICULTY:
            raise ConfigError(
                f"--difficulty is {self.difficulty}, and task {self.task!r} has only one; leave it out, or use "
                f"{' or '.join(TASKS_WITH_DIFFICULTY)}"
            )
        if self.max_lag == 0 and self.on_update != Config.on_update:
            raise ConfigError(
                f"--on-update is {self.on_update}, but at --max-lag 0 no episode is under way when weights come; leave it out"
            )
        if learner.scale_rate and self.services.trainer_processes > 1:
            raise ConfigError(
                "--scale-rate needs the last norm's gain in one process; use --trainer-processes 1, or leave it out"
            )
        if self.prompts_per_step < generators:
            raise ConfigError(
                f"--generators is {generators}, but a step has only {self.prompts_per_step} prompts to share among them; "
                f"use at most {self.prompts_per_step}"
            )

    @property
    def is_own_task(self) -> bool:
        """Whether the task is the user's."""
        return self.task not in get_args(TaskName)

    @property
    def task_flags(self) -> str:
        """How a task of the user is named on the command line; nothing for Zorplex."""
        data = f" --task-data {shlex.quote(self.task_data)}" if self.task_data else ""
        return f"--task {shlex.quote(self.task)}{data}" if self.is_own_task else ""

    @property
    def sampled_in(self) -> str:
        """The number type of the generators' model."""
        return self.dtype if self.generator_dtype == "same" else self.generator_dtype

    @property
    def share(self) -> int:
        """Return how many of a step's groups a generator gets; it decodes them side by side."""
        return -(-self.prompts_per_step // self.services.generators)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Make a configuration of what a run folder's JSON file holds.

        Groups may be missing, as in earlier versions, whose settings are one list. Some had a
        ``mode``: sync is now ``max_lag`` 0, and async what their ``max_lag`` says. Some had an
        ``update``: groups is now ``on_update`` wait, and in-flight continue.

        Raises ConfigError for no JSON object, an unknown field or a value of the wrong type.
        """
        if not isinstance(values, dict):
            raise ConfigError(
                f"the configuration is {_kind(values)}; expected a JSON object with one entry for each setting"
            )
        values = dict(values)
        for group in _GROUPS:
            if not isinstance(inside := values.pop(group, {}), dict):
                raise ConfigError(f"the configuration's {group} is {_kind(inside)}; expected an object")
            values |= inside
        if "mode" in values:
            if (mode := values.pop("mode")) not in ("sync", "async"):
                raise ConfigError(f"the configuration's mode is {_kind(mode)}; expected sync or async")
            if mode == "sync":
                values["max_lag"] = 0
        if "update" in values:
            if (update := values.pop("update")) not in ("groups", "in-flight"):
                raise ConfigError(f"the configuration's update is {_kind(update)}; expected groups or in-flight")
            values["on_update"] = "continue" if update == "in-flight" and values.get("max_lag") != 0 else "wait"
        types = _types()
        if unknown := sorted(values.keys() - types.keys()):
            raise ConfigError(f"the configuration has a field {unknown[0]!r} that this version does not know")
        return cls().changed(**{name: _typed(name, value, types[name][1]) for name, value in values.items()})

    def difference(self, other: Self) -> str | None:
        """Return the first setting that differs in ``other``: ``--flag here ≠ there``, or None."""
        theirs = other.settings()
        changed = ((name, value) for name, value in self.settings().items() if value != theirs[name])
        return next((f"{_flag(name)} {value} ≠ {theirs[name]}" for name, value in changed), None)


_GROUPS = {"learner": LearnerConfig, "services": ServicesConfig, "cluster": HostsConfig}
_ZORPLEX_ONLY = {
    "difficulty": "is about Zorplex tasks",
    "hints": "is about the prompts of Zorplex tasks",
}
"""Settings that mean nothing in a task of the user, and what the error says of them."""
_AT_LEAST_ONE = (
    "steps prompts_per_step group_size updates_per_batch token_budget max_tokens max_turns slots generators "
    "tool_replicas reward_replicas trainer_processes "
    "eval_every eval_tasks checkpoint_every threads start_seconds"
).split()
_AT_LEAST_ZERO = (
    "max_lag warmup_steps scale_rate weight_decay kl_coefficient spares tool_latency tool_latency_variation trainer_host "
    "pod_gpus"
).split()
MOST_PROCESSES, MOST_EPISODES, MOST_STEPS = 1_000, 1_000_000, 1_000_000_000
"""Far more than any run needs. Beyond them it only stops answering: all is there at once."""
# A rate is at most 1. A call of more than an hour, or a spread beyond a thousand times the mean,
# overflows the log-normal draw sooner or later. AdamW computes in float32, whose largest number is
# 3e38, and divides the rate by 0.1 in its first step.
_AT_MOST = {
    "learning_rate": 1e30,
    "lease": 3600.0,
    "start_seconds": 30 * 86400.0,
    "pod_gpus": MOST_PROCESSES,
    "trainer_host": MOST_PROCESSES,
    "tool_latency": 3600.0,
    "tool_timeout": 86400.0,
    "tool_latency_variation": 1000.0,
    **dict.fromkeys(
        "generators spares tool_replicas reward_replicas trainer_processes threads".split(), MOST_PROCESSES
    ),
    **dict.fromkeys("prompts_per_step group_size eval_tasks slots max_turns updates_per_batch".split(), MOST_EPISODES),
    **dict.fromkeys(
        "steps max_lag warmup_steps token_budget max_tokens eval_every checkpoint_every".split(),
        MOST_STEPS,
    ),
}

LOWEST_TEMPERATURE = 0.01
"""Measured on the embedded policy: at temperature 1 it is in doubt (probability below 0.99) at 285
of 1,000 tokens, at 0.1 at 48, at 0.01 at 5. From there on sampling is greedy decoding: all samples
of a prompt are alike, and there is nothing to learn from. What the logits of sampler and trainer
differ by (5e-6 in float32, 0.06 in bfloat16) is divided by the temperature, too."""


def check_finite(name: str, value: Any) -> None:
    """Raise ConfigError if the setting ``name`` is an infinite number or none at all."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{_flag(name)} is {value}; it must be a finite number")


def check_temperature(temperature: float, greedy: bool = False) -> None:
    """Raise ConfigError below ``LOWEST_TEMPERATURE``; 0 passes where ``greedy`` makes sense."""
    check_finite("temperature", temperature)
    if temperature < LOWEST_TEMPERATURE and not (greedy and temperature == 0):
        expected = f"0 (greedy), or {LOWEST_TEMPERATURE} or more" if greedy else f"{LOWEST_TEMPERATURE} or more"
        raise ConfigError(f"--temperature is {temperature}; it must be {expected}")


def check_seed(seed: int) -> None:
    """Raise ConfigError for a seed that does not fit into the 64 bits of torch's generators."""
    if not -(2**63) <= seed < 2**63:
        raise ConfigError(f"--seed is {_kind(seed)}; it must fit into 64 bits, so be between -2^63 and 2^63 - 1")


@cache
def _types() -> dict[str, tuple[str | None, Any]]:
    """Return of every setting the group that holds it, or None, and its type."""
    own = {name: (None, kind) for name, kind in get_type_hints(Config).items() if name not in _GROUPS}
    return own | {name: (group, kind) for group, of in _GROUPS.items() for name, kind in get_type_hints(of).items()}


def _typed(name: str, value: Any, expected: Any) -> Any:
    """Return ``value`` as a field of type ``expected`` has it: a whole number may become a float.
    Raises ConfigError for other types. True and False are no numbers here."""
    if expected == TaskName | str:
        expected = str
    if get_origin(expected) is Literal:
        expected = type(get_args(expected)[0])
    if type(None) in get_args(expected):
        if value is None:
            return None
        (expected,) = set(get_args(expected)) - {type(None)}
    if expected is float and type(value) is int:
        try:
            return float(value)
        except OverflowError as error:
            raise ConfigError(f"the configuration's {name} is too large a number") from error
    # Python's JSON reads NaN and Infinity, which no setting may be.
    check_finite(name, value)
    if type(value) is not expected:
        raise ConfigError(f"the configuration's {name} is {_kind(value)}; expected {_KINDS[expected]}")
    return value


_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def _kind(value: Any) -> str:
    """Return a short description of a value, for people.

    >>> _kind("many"), _kind([1, 2]), _kind(None)
    ("'many'", 'a list', 'null')
    """
    if not isinstance(value, (bool, int, float, str)):
        return _KINDS[type(value)]
    if isinstance(value, int) and abs(value) >= 10**20:
        # Python refuses to write out a number of thousands of digits.
        return "a number of more than 20 digits"
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def check_range(name: str, value: float, least: float = -math.inf, most: float = math.inf) -> None:
    """Raise ConfigError if the setting ``name`` is below ``least`` or above ``most``."""
    if not value >= least:
        raise ConfigError(f"{_flag(name)} is {_kind(value)}; it must be {_bound(least)} or more")
    if value > most:
        raise ConfigError(f"{_flag(name)} is {_kind(value)}; it must be {_bound(most)} or less")


def _bound(value: float) -> str:
    """Return ``value`` as people write it.

    >>> _bound(3600.0), _bound(1_000_000), _bound(0.25), _bound(1e30)
    ('3600', '1000000', '0.25', '1e+30')
    """
    return str(int(value)) if value == int(value) and value < 1e15 else str(value)
