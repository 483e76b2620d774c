"""Settings by name: ``zorplex-rl train --preset embedded``. Explicit flags win."""

from typing import Literal

from zorplex_rl.config import Config

PresetName = Literal["embedded", "smollm2"]


def preset_config(name: PresetName) -> Config:
    """Return the configuration of the preset ``name``: what is not named keeps its default."""
    if name == "smollm2":
        return Config().changed(
            policy=name,
            task="simple",
            # One worked example for each wording of a question.
            shots=3,
            max_lag=0,
            # Adapters learn in five steps at this rate (benchmarks/LOG.md).
            lora_rank=16,
            learning_rate=1e-3,
            warmup_steps=0,
            steps=5,
            prompts_per_step=4,
            # Undivided by its deviation, a group with a right answer counts more than one without.
            loss="dr_grpo",
            # The longest right answer has 21 tokens (simple), 32 (multi_step), 66 (recursive).
            max_tokens=34,
            eval_tasks=32,
        )
    # The best that benchmarks/time_to_accuracy.py found on its hard tasks.
    return Config().changed(steps=64, credit="prefix", learning_rate=5e-4)
