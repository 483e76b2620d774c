"""Settings for a policy's size: ``zorplex-rl train --preset qwen0.5b``. Explicit flags win.

A preset is data: for every setting the value and the reason for it. What is not named here keeps
its default. The shapes are those in the models' own ``config.json`` (Qwen2.5 technical report,
arXiv:2412.15115, table 1).

That of the embedded policy is what ``benchmarks/time_to_accuracy.py`` found best. They are no
defaults: they are for Qwen2 and Llama models, one trainer process and samples that begin alike.
None of the Qwen presets has been trained to the end by this project: no GPU was there when they
were written. Their memory is computed by ``memory.py``; ``zorplex-rl size --preset …`` prints it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from zorplex_rl.config import Config
from zorplex_rl.sizing.model_shape import ModelShape

PresetName = Literal["embedded", "qwen0.5b", "qwen1.5b", "qwen3b"]


@dataclass(frozen=True, slots=True)
class Preset:
    """Settings by name, each with its reason, and the shape of the policy that they are for."""

    shape: ModelShape
    settings: Mapping[str, tuple[Any, str]]
    trainer_gigabytes: int = 1
    """Memory of a GPU for the trainer, with answers of full length. A test computes it."""

    @property
    def values(self) -> dict[str, Any]:
        """The settings without the reasons."""
        return {name: value for name, (value, _) in self.settings.items()}


def _qwen(policy: str, shape: ModelShape, trainer_gigabytes: int, **changed: tuple[Any, str]) -> Preset:
    common: dict[str, tuple[Any, str]] = {
        "policy": (policy, "the instruction-tuned model: it knows the chat template and follows the tool format"),
        "dtype": ("bfloat16", "half the weights, activations and cache; the masters stay float32"),
        "learning_rate": (
            1e-6,
            "pretrained weights: 200 times less than for the embedded policy, as is usual for them",
        ),
        "warmup_steps": (10, "AdamW's second moment needs some steps before its scale can be trusted"),
        "group_size": (8, "the variance of a group's mean falls with 1/8; more would only multiply the sampling"),
        "prompts_per_step": (16, "128 episodes in a step: a small learning rate wants a gradient with less noise"),
        "max_tokens": (256, "an untrained model explains before it answers"),
        "slots": (64, "a decode step reads all weights once, however many rows share it"),
        "token_budget": (8192, "17 rows of full length at once; the logits of 151,936 entries are the largest part"),
        "eval_every": (20, "an evaluation samples as much as a step"),
        "eval_tasks": (64, "±12 percentage points at most (95 %)"),
        "checkpoint_every": (50, "a checkpoint has 12 bytes for each parameter"),
        "spares": (0, "a loaded spare would take the memory of a whole model"),
    }
    return Preset(shape, common | changed, trainer_gigabytes)


PRESETS: dict[str, Preset] = {
    "embedded": Preset(
        ModelShape(layers=4, hidden=128, heads=4, kv_heads=2, intermediate=384, vocabulary=533),
        {
            "policy": ("embedded", "ships with the package; the other settings win on its hard tasks"),
            "credit": ("prefix", "its samples begin alike, and a mistake shows in the token that turns off"),
            "learning_rate": (5e-4, "a rate that is soon high and soon low again: good for few steps alone"),
            "steps": (64, "with 32 or 40 one tuning seed of two ends below 90 % of the hard tasks"),
        },
    ),
    "qwen0.5b": _qwen(
        "Qwen/Qwen2.5-0.5B-Instruct",
        ModelShape(layers=24, hidden=896, heads=14, kv_heads=2, intermediate=4864, vocabulary=151936),
        48,
    ),
    "qwen1.5b": _qwen(
        "Qwen/Qwen2.5-1.5B-Instruct",
        ModelShape(layers=28, hidden=1536, heads=12, kv_heads=2, intermediate=8960, vocabulary=151936),
        80,
        token_budget=(4096, "half of that of the 0.5B model, whose tokens take half the activations"),
    ),
    "qwen3b": _qwen(
        "Qwen/Qwen2.5-3B-Instruct",
        ModelShape(layers=36, hidden=2048, heads=16, kv_heads=2, intermediate=11008, vocabulary=151936),
        80,
        token_budget=(2048, "weights, masters, moments and gradients leave little of an 80 GB device"),
        checkpoint_every=(100, "a checkpoint has 37 GB"),
    ),
}


def preset_config(name: PresetName) -> Config:
    """Return the configuration of the preset ``name``."""
    return Config().changed(**PRESETS[name].values)
