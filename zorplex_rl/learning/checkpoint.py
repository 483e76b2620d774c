"""Save and load a learner: weights, optimizer, version and torch's random state, as a torch.distributed.checkpoint."""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as checkpoint

from zorplex_rl.errors import StorageError
from zorplex_rl.learning.learner import Learner


@contextlib.contextmanager
def _without_process_group() -> Iterator[None]:
    """Suppress torch's warning that a single process saves and loads without torch.distributed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.distributed.*")
        yield


@_without_process_group()
def save_learner(learner: Learner, folder: Path) -> None:
    """Write ``learner`` and torch's random state to ``folder``. Raises StorageError if they cannot be written.

    A sharded learner writes the same as one of a single process. All its ranks must call this; rank 0 writes.
    """
    if (state := learner.whole_state()) is None:
        return
    try:
        checkpoint.save(_with_random_state(state), checkpoint_id=folder, no_dist=True)
    except checkpoint.CheckpointException as error:
        # CheckpointException is a BaseException, which ends an actor. It holds one failure for each rank; here there is one rank.
        (failure, _), *_ = error.failures.values()
        raise StorageError(f"the checkpoint cannot be written ({_reason(failure)})") from failure


@_without_process_group()
def load_learner(learner: Learner, folder: Path) -> None:
    """Restore ``learner`` and torch's random state from what ``save_learner`` wrote to ``folder``. A rank reads its shards alone."""
    state = _with_random_state(learner.state_dict())
    checkpoint.load(state, checkpoint_id=folder, no_dist=True)
    learner.load_state_dict(state)
    torch.set_rng_state(state["torch_rng"])


def _reason(failure: BaseException | None) -> str:
    """Return the system's error message, which torch's file writer hides behind its own error."""
    cause = failure
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return (cause.strerror or str(cause)) if isinstance(cause, OSError) else str(failure)


def _with_random_state(state: dict[str, Any]) -> dict[str, Any]:
    return state | {"torch_rng": torch.get_rng_state()}
