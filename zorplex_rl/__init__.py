"""Zorplex RL: a small, real, complete reinforcement-learning system for language models, on Monarch actors.

Importing the package is cheap. The names below that need torch are loaded when they are first asked for.
"""

from typing import Any

from zorplex_rl.task.specs import TASK_SPECS, ZORPLEX_WORDS, get_spec, make_zorplex_table

__version__ = "0.1.0"
__all__ = ["TASK_SPECS", "ZORPLEX_WORDS", "generate_with_tools", "get_spec", "make_zorplex_table", "print_result"]

_NEED_TORCH = ("generate_with_tools", "print_result")


def __getattr__(name: str) -> Any:
    if name in _NEED_TORCH:
        from zorplex_rl.policy import generate

        return getattr(generate, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_NEED_TORCH})
