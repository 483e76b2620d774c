"""Describe a policy: ``zorplex-rl policy show``."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from zorplex_rl.cli.eval import show_accuracy
from zorplex_rl.cli.flags import Command
from zorplex_rl.cli.output import plain_console
from zorplex_rl.config import MOST_EPISODES, check_range


@dataclass(frozen=True)
class Policy(Command):
    """Describe a policy: architecture, parameters, vocabulary, accuracy for each kind of task."""

    action: Annotated[Literal["show"], tyro.conf.Positional]
    """What to do; there is only show."""
    policy: str = "embedded"
    """embedded, the folder of a model, or a hub id."""
    tasks: int = 200
    """Held-out tasks of each kind to measure accuracy on."""


def show_policy(command: Policy) -> int:
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.policy.rollout import Sampling
    from zorplex_rl.task.environment import Zorplex, kinds_of

    check_range("tasks", command.tasks, 1, MOST_EPISODES)
    policy, environments = load_policy(command.policy), {name: Zorplex(kinds=(name,)) for name in kinds_of("mix")}
    config, console = policy.model.config, plain_console()
    heads = config.num_attention_heads
    console.print(f"policy        {policy.name}")
    console.print(
        f"architecture  {config.architectures[0]}: {config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
        f"{heads} heads, {getattr(config, 'num_key_value_heads', heads)} key-value heads"
    )
    console.print(f"parameters    {policy.model.num_parameters():,}")
    console.print(f"vocabulary    {len(policy.tokenizer):,} entries ({type(policy.tokenizer).__name__})")
    for title, temperature in (("sampled at temperature 1", 1.0), ("greedy", 0.0)):
        show_accuracy(f"accuracy, {title}", policy, environments, command.tasks, Sampling(temperature))
    return 0
