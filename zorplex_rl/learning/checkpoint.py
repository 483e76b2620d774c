"""A learner on disk: weights, optimizer, version and torch's random state, as a torch.distributed.checkpoint."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as checkpoint

from zorplex_rl.learning.learner import Learner


def save_learner(learner: Learner, folder: Path) -> None:
    """Write ``learner`` and torch's random state to ``folder``."""
    with _without_process_group():
        checkpoint.save(_state(learner), checkpoint_id=folder, no_dist=True)


def load_learner(learner: Learner, folder: Path) -> None:
    """Bring ``learner`` and torch's random state to what ``save_learner`` wrote."""
    state = _state(learner)
    with _without_process_group():
        checkpoint.load(state, checkpoint_id=folder, no_dist=True)
    learner.load_state_dict(state)
    torch.set_rng_state(state["torch_rng"])


def _state(learner: Learner) -> dict[str, Any]:
    return learner.state_dict() | {"torch_rng": torch.get_rng_state()}


@contextlib.contextmanager
def _without_process_group() -> Iterator[None]:
    """A single process saves and loads without torch.distributed; keep it from warning of that each time."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.distributed.*")
        yield
