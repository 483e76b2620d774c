"""Check the controller's state, read from a run's folder, which may hold anything.

    controller.json ──read_state──► the state, as the controller writes it in every type, or ConfigError

``manifest.py`` checks that the folder holds only files, and ``checkpoint.py`` the tensors.
"""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError
from zorplex_rl.learning.replay_buffer import Counters

STATE: dict[str, Any] = {
    "step": 0,
    "episodes": 0,
    "next_evaluation": 0,
    "replay": {"version": 0, "next_group": 0, "again": [0], "counters": asdict(Counters())},
    "seconds": 0.0,
    "timeline_seconds": 0.0,
    "written": {"metrics.jsonl": 0, "episodes.jsonl": 0},
}
"""What ``controller.json`` looks like: 0 is any count, 0.0 any seconds, [0] any counts."""


def read_state(checkpoint: Path, file: str, config: Config | None = None) -> dict[str, Any]:
    """Return the state of a controller of ``config`` in ``checkpoint``. Raises ConfigError."""
    try:
        state = json.loads((checkpoint / file).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{str(checkpoint / file)!r} cannot be read ({error}); use another checkpoint") from error
    wrong = _difference(state, STATE, "")
    if wrong is None and config:
        wrong = _contradiction(state, config, int(checkpoint.name.removeprefix("step_")))
    if wrong:
        raise ConfigError(f"{str(checkpoint / file)!r} is no state of a run: {wrong}; use another checkpoint")
    return state


def _contradiction(state: dict[str, Any], config: Config, step: int) -> str | None:
    """Return what cannot be true of a run of ``config`` after ``step`` steps, or None. Every group
    that was ever started has been trained on, or is to be generated again."""
    replay = state["replay"]
    trained, again = step * config.prompts_per_step, replay["again"]
    claims = {
        f"step is {state['step']}": state["step"] == step,
        f"replay.version is {replay['version']}": replay["version"] == step,
        f"replay.counters.trained is {replay['counters']['trained']}": replay["counters"]["trained"] == trained,
        f"replay.next_group is {replay['next_group']}": replay["next_group"] == trained + len(again),
        "replay.again has a number twice, or one that no group has": again == sorted({*again})
        and all(number < replay["next_group"] for number in again),
    }
    false = next((said for said, holds in claims.items() if not holds), None)
    return false and f"{false}, which a run with this config.json does not have after step {step}"


def _difference(value: Any, like: Any, name: str) -> str | None:
    """Return where ``value`` is not like ``like``, or None."""
    match like:
        case dict():
            if not isinstance(value, dict) or value.keys() != like.keys():
                return f"{name or 'it'} has not exactly the entries {', '.join(like)}"
            found = (_difference(value[key], like[key], f"{name}.{key}".lstrip(".")) for key in like)
        case [each] | (each,):
            if not isinstance(value, list):
                return f"{name} is no list"
            found = (_difference(one, each, name) for one in value)
        case list():
            if not isinstance(value, list) or len(value) != len(like):
                return f"{name} has an entry that is no list of {len(like)}"
            found = (_difference(one, each, name) for one, each in zip(value, like, strict=True))
        case str():
            return None if isinstance(value, str) else f"{name} has an entry that is no text"
        case _:
            kinds = (int, float) if isinstance(like, float) else (int,)
            is_right = type(value) in kinds and math.isfinite(value) and 0 <= value < 2**53
            kind = "time" if isinstance(like, float) else "count"
            return None if is_right else f"{name} is or has {value!r:.40}, which is no {kind}"
    return next(filter(None, found), None)
