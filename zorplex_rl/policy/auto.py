"""Give each setting that is ``auto`` its value: by the policy's size, and by this machine."""

from typing import Any

from zorplex_rl.config import Config
from zorplex_rl.devices import (
    assign_devices,
    cores,
    is_faster_in_bfloat16,
)
from zorplex_rl.policy.load import policy_folder, weight_bytes

SMALL_BYTES = 100_000_000
"""Weights of a small model."""


def resolved(config: Config) -> Config:
    """Return ``config`` with a value for each ``auto``. A run records them, so it is resumed and replayed
    with the same values. Raises PolicyError if there is no such policy.

                   weights up to 100 MB     more
        dtype      float32                  bfloat16 on a GPU, or if this processor is faster with it
        threads    1                        all cores if roles take turns, else a share for each; 1 on a GPU
        spares     1                        0

    A small model is no faster with more threads. With one thread its runs do not depend on the cores."""
    settings = config.settings()
    asked = [name for name in ("dtype", "threads", "spares") if settings[name] == "auto"]
    if not asked:
        return config
    values: dict[str, Any] = {
        "dtype": "float32",
        "threads": 1,
        "spares": 1,
    }
    if weight_bytes(policy_folder(config.policy)) > SMALL_BYTES:
        values = of_large_model(config, "dtype" in asked)
    return config.changed(**{name: values[name] for name in asked})


def of_large_model(config: Config, chooses_dtype: bool) -> dict[str, Any]:
    """Return the values for a model of more than ``SMALL_BYTES``. Choosing a dtype takes a measurement."""
    roles = (config.services.generators, config.services.trainer_processes)
    at_once = max(roles) if config.max_lag == 0 else sum(roles)
    devices = assign_devices(config.device, ["trainer"])
    on_gpu = devices["trainer"] != "cpu"
    values: dict[str, Any] = {"spares": 0}
    values["threads"] = 1 if on_gpu else max(1, cores() // at_once)
    if chooses_dtype:
        values["dtype"] = "bfloat16" if on_gpu or is_faster_in_bfloat16() else "float32"
    return values
