"""Describe a policy: ``zorplex-rl policy show``. How good it is says ``zorplex-rl eval``."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class PolicyCommand:
    """Describe a policy: architecture, parameters, vocabulary."""

    action: Annotated[Literal["show"], tyro.conf.Positional]
    policy: str = "embedded"
    """embedded, the folder of a model, or a hub id."""

    def run(self) -> int:
        from zorplex_rl.policy.load import load_policy

        policy = load_policy(self.policy)
        config = policy.model.config
        heads = config.num_attention_heads
        print(f"policy        {policy.name}")
        print(f"architecture  {config.architectures[0]}: {config.num_hidden_layers} layers of {config.hidden_size}")
        print(f"attention     {heads} heads, {getattr(config, 'num_key_value_heads', heads)} of keys and values")
        print(f"parameters    {policy.model.num_parameters():,}")
        print(f"vocabulary    {len(policy.tokenizer):,} entries ({type(policy.tokenizer).__name__})")
        return 0
