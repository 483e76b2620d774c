"""Zorplex RL: a small, real, complete RL system for language models, on Monarch actors.

Importing the package is cheap: the names below are loaded on first use.
"""

import importlib
from typing import Any

__version__ = "0.1.0"
__all__ = [
    "TASK_SPECS",
    "ZORPLEX_WORDS",
    "generate_with_tools",
    "get_spec",
    "make_zorplex_table",
    "print_result",
]
TORCH_SETTINGS = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "1000",
    "THP_MEM_ALLOC_ENABLE": "1",
}
"""Idle torch threads spin briefly, then sleep, leaving the core to other processes. Large tensors use 2 MB pages."""

_NEED_TORCH = ("generate_with_tools", "print_result")


def __getattr__(name: str) -> Any:
    if name in __all__:
        module = "zorplex_rl.policy.generate" if name in _NEED_TORCH else "zorplex_rl.task.specs"
        return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
