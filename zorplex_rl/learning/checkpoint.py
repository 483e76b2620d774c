"""Save and load a learner as one file of safetensors: masters, moments, version, random state.

Nothing in such a file can run. ``run/folder.py`` puts a checkpoint in its place when it is whole.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from zorplex_rl.errors import CheckpointError
from zorplex_rl.learning.learner import Learner
from zorplex_rl.run.folder import storing

if TYPE_CHECKING:
    from zorplex_rl.learning.sharded_learner import ShardedLearner

FILE = "learner.safetensors"
RANDOM_STATE = "torch_rng"


def save_learner(learner: "Learner | ShardedLearner", folder: Path) -> None:
    """Write ``learner`` and torch's random state to ``folder``. Raises StorageError. All ranks of a
    sharded learner must call this; rank 0 writes, and the same as one process would."""
    state = learner.state_dict()
    if state is None:
        return
    with storing("the checkpoint"):
        folder.mkdir(parents=True, exist_ok=True)
        state = {name: tensor.cpu().contiguous() for name, tensor in state.items()}
        try:
            save_file(state | {RANDOM_STATE: torch.get_rng_state()}, folder / FILE)
        except SafetensorError as error:
            raise OSError(error) from error


def load_learner(learner: "Learner | ShardedLearner", folder: Path) -> None:
    """Restore ``learner`` and torch's random state from what ``save_learner`` wrote to ``folder``.
    Raises CheckpointError if that is no learner, or one of another model."""
    try:
        with safe_open(folder / FILE, framework="pt") as opened:
            learner.restore(opened.get_tensor)
            torch.set_rng_state(opened.get_tensor(RANDOM_STATE))
    except (SafetensorError, OSError, RuntimeError) as error:
        raise CheckpointError(f"its {FILE} is not of this learner: {error}") from error
