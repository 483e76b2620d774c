"""Settings by name: ``zorplex-rl train --preset embedded``. Explicit flags win."""

from typing import Literal

from zorplex_rl.config import Config

PresetName = Literal["embedded", "smollm2"]


def preset_config(name: PresetName) -> Config:
    """Return the configuration of the preset ``name``: what is not named keeps its default."""
    if name == "smollm2":
        # One worked example for each wording of a question. Adapters learn it in five steps at this rate
        # (benchmarks/LOG.md); a group's rewards are not divided by their deviation, because a group without
        # a right answer would count as much as one with.
        return Config(
            policy=name,
            task="simple",
            shots=3,
            lora_rank=16,
            max_lag=0,
            steps=5,
            prompts_per_step=4,
            max_tokens=40,
            eval_tasks=32,
        ).changed(loss="dr_grpo", learning_rate=5e-4, warmup_steps=0, dtype="float32")
    # The best that benchmarks/time_to_accuracy.py found on its hard tasks.
    return Config().changed(steps=64, credit="prefix", learning_rate=5e-4)
