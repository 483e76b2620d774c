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
            shots=2,
            max_lag=0,
            steps=8,
            prompts_per_step=4,
            max_tokens=40,
            eval_tasks=32,
            learning_rate=2e-5,
            warmup_steps=0,
            # Eight steps at this rate move a weight by less than bfloat16 can tell.
            dtype="float32",
        )
    # The best that benchmarks/time_to_accuracy.py found on its hard tasks.
    return Config().changed(steps=64, credit="prefix", learning_rate=5e-4)
