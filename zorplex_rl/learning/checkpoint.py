"""A learner on disk: weights, optimizer, version and torch's random state, as a torch.distributed.checkpoint."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as checkpoint

from zorplex_rl.errors import StorageError
from zorplex_rl.learning.learner import Learner


def save_learner(learner: Learner, folder: Path) -> None:
    """Write ``learner`` and torch's random state to ``folder``. Raises StorageError if they cannot be written."""
    try:
        with _without_process_group():
            checkpoint.save(_state(learner), checkpoint_id=folder, no_dist=True)
    except checkpoint.CheckpointException as error:
        # No Exception but a BaseException, which an actor does not survive. It holds one failure for each rank; here there is one rank.
        (failure, _), *_ = error.failures.values()
        raise StorageError(f"the checkpoint cannot be written ({_reason(failure)})") from failure


def load_learner(learner: Learner, folder: Path) -> None:
    """Bring ``learner`` and torch's random state to what ``save_learner`` wrote."""
    state = _state(learner)
    with _without_process_group():
        checkpoint.load(state, checkpoint_id=folder, no_dist=True)
    learner.load_state_dict(state)
    torch.set_rng_state(state["torch_rng"])


def _reason(failure: BaseException | None) -> str:
    """What the system said, which torch's file writer hides behind an error of its own."""
    cause = failure
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return (cause.strerror or str(cause)) if isinstance(cause, OSError) else str(failure)


def _state(learner: Learner) -> dict[str, Any]:
    return learner.state_dict() | {"torch_rng": torch.get_rng_state()}


@contextlib.contextmanager
def _without_process_group() -> Iterator[None]:
    """A single process saves and loads without torch.distributed; keep it from warning of that each time."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.distributed.*")
        yield
