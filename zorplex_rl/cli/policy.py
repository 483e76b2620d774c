"""Build the embedded policy from nothing, or show one: ``zorplex-rl policy build|show``."""

import contextlib
import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from zorplex_rl.cli.eval import accuracy_of, accuracy_table
from zorplex_rl.cli.flags import Command
from zorplex_rl.cli.output import plain_console
from zorplex_rl.config import MOST_EPISODES, check_range, check_seed
from zorplex_rl.errors import ConfigError

if TYPE_CHECKING:
    from zorplex_rl.policy.load import Policy as LoadedPolicy


@dataclass(frozen=True)
class Build(Command):
    """Build the embedded policy from scratch: tokenizer, model, supervised warm start. Or show a
    model of your own the task, with --start."""

    out: Path = Path("embedded-policy")
    """The folder to write."""
    seed: int = 0
    """Seed of the demonstrations and the initial weights."""
    steps: int | None = None
    """Training steps; the recipe's own number if left out, and 200 with --start."""
    start: str | None = None
    """The folder of a model, or a hub id, that learns from a few demonstrations what an answer
    looks like: a small model alone hardly ever finds a reward. On a GPU, if there is one."""


@dataclass(frozen=True)
class Show(Command):
    """Describe a policy: architecture, parameters, vocabulary, accuracy for each kind of task."""

    policy: str = "embedded"
    """embedded, the folder of a model, or a hub id."""
    tasks: int = 200
    """Held-out tasks of each kind to measure accuracy on."""


@dataclass(frozen=True)
class Policy:
    """Build the embedded policy, or describe a policy."""

    action: Build | Show


def build_or_show(command: Policy) -> int:
    return build(command.action) if isinstance(command.action, Build) else show(command.action)


def load_for_training(name: str) -> "LoadedPolicy":
    """Load policy ``name`` in float32, on the first GPU if there is one. Raises PolicyError."""
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.training.devices import assign_devices, prepare

    device = assign_devices("auto", ["policy"])["policy"]
    prepare(device, threads=2)
    return load_policy(name, device)


def build(command: Build) -> int:
    from rich.progress import Progress

    from zorplex_rl.policy.warmstart import WarmStart, lesson_for_a_model, save_policy, warm_start

    if command.out.exists():
        raise ConfigError(f"--out {str(command.out)!r} exists already; choose another folder")
    check_seed(command.seed)
    if command.steps is not None:
        check_range("steps", command.steps, 1, MOST_EPISODES)
    if command.start is not None:
        recipe = lesson_for_a_model(command.steps or 200, command.seed)
    elif command.steps is not None:
        recipe = WarmStart(seed=command.seed).shortened(command.steps)
    else:
        recipe = WarmStart(seed=command.seed)
    try:
        # Before the work, so that it is not done for nothing.
        command.out.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(
            f"--out {str(command.out)!r} cannot be written ({error.strerror}); choose another folder"
        ) from error
    try:
        start = None if command.start is None else load_for_training(command.start)
        with Progress() as progress:
            bar = progress.add_task("warm start", total=recipe.steps)
            show = partial(progress.update, bar)
            policy = warm_start(recipe, lambda step, loss: show(completed=step, description=f"loss {loss:.3f}"), start)
        save_policy(policy, command.out, recipe)
    finally:
        with contextlib.suppress(OSError):
            # Only if it is empty: then the work was interrupted.
            command.out.rmdir()
    print(f"wrote {command.out}; use it with --policy {shlex.quote(str(command.out))}")
    return 0


def show(command: Show) -> int:

    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.policy.rollout import Sampling
    from zorplex_rl.task.environment import Zorplex, kinds_of

    check_range("tasks", command.tasks, 1, MOST_EPISODES)
    policy, environments = load_policy(command.policy), {name: Zorplex(kinds=(name,)) for name in kinds_of("mix")}
    config = policy.model.config
    console = plain_console()
    console.print(f"policy        {policy.name}")
    console.print(
        f"architecture  {config.architectures[0]}: {config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
        f"{config.num_attention_heads} heads, {getattr(config, 'num_key_value_heads', config.num_attention_heads)} key-value heads"
    )
    console.print(f"parameters    {policy.model.num_parameters():,}")
    console.print(f"vocabulary    {len(policy.tokenizer):,} entries ({type(policy.tokenizer).__name__})")
    for title, temperature in (("sampled at temperature 1", 1.0), ("greedy", 0.0)):
        reports = accuracy_of(console, policy, environments, command.tasks, Sampling(temperature))
        console.print(accuracy_table(f"accuracy, {title}, {command.tasks} held-out tasks each", reports))
    return 0
