"""Settings by name: ``zorplex-rl train --preset embedded``. Explicit flags win."""

from typing import Any, Literal

from zorplex_rl.config import Config

PresetName = Literal["embedded"]
PRESETS: dict[PresetName, dict[str, tuple[Any, str]]] = {
    # The best that benchmarks/time_to_accuracy.py found on its hard tasks.
    "embedded": {
        "policy": ("embedded", "ships with the package"),
        "credit": ("prefix", "its samples begin alike, and a mistake shows in the token that turns off"),
        "learning_rate": (5e-4, "a rate that is soon high and soon low again: good for few steps alone"),
        "steps": (64, "with 32 or 40 one tuning seed of two ends below 90 % of the hard tasks"),
    },
}
"""Of every setting the value and the reason for it; what is not named keeps its default."""


def preset_config(name: PresetName) -> Config:
    """Return the configuration of the preset ``name``."""
    return Config().changed(**{setting: value for setting, (value, _) in PRESETS[name].items()})
