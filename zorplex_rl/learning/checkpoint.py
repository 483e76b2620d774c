"""Save and load a learner as one file of safetensors: masters, moments, version, random state.

    learner.safetensors    8 bytes: length of the header │ header, JSON: {name: dtype, shape, place} │ the numbers

Nothing in such a file can run. ``run/folder.py`` moves a checkpoint to its place once it is whole.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from zorplex_rl.errors import CheckpointError
from zorplex_rl.learning.learner import Learner
from zorplex_rl.policy.load import policy_folder
from zorplex_rl.policy.lora import adapted_layers
from zorplex_rl.policy.model_folder import digest_of
from zorplex_rl.run.folder import storing

FILE = "learner.safetensors"
TYPES = {
    torch.float32: "F32",
    torch.int64: "I64",
    torch.uint8: "U8",
}
RANDOM_STATE = "torch_rng"


def save_learner(learner: Learner, folder: Path) -> None:
    """Write ``learner`` and torch's random state to ``folder``. Raises StorageError. All ranks of a
    sharded learner must call this: rank 0 writes what a single process would write."""
    state = learner.state_dict()
    if state is None:
        return
    state[RANDOM_STATE] = torch.get_rng_state()
    with storing("the checkpoint"):
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(state, folder / FILE, base_of(learner))


def load_learner(learner: Learner, folder: Path) -> None:
    """Restore ``learner`` and torch's random state from what ``save_learner`` wrote to ``folder``.
    Raises CheckpointError if that is not a learner, or belongs to another model."""
    try:
        with safe_open(folder / FILE, framework="pt") as opened:
            if (opened.metadata() or {}).get("base", "") != base_of(learner):
                raise CheckpointError(
                    "it holds an adapter, or weights, for another model "
                    f"than policy {learner.policy.name!r} is now"
                )
            learner.restore(opened.get_tensor)
            torch.set_rng_state(opened.get_tensor(RANDOM_STATE))
    except (SafetensorError, OSError, RuntimeError) as error:
        raise CheckpointError(f"its {FILE} is not of this learner: {error}") from error


def base_of(learner: Learner) -> str:
    """Return a digest of the weights that ``learner`` adapts; "" if it trains all weights."""
    if not adapted_layers(learner.policy.model):
        return ""
    return digest_of(policy_folder(learner.policy.name))


def write_tensors(
    tensors: Mapping[str, Tensor],
    file: Path,
    base: str = "",
) -> None:
    """Write ``tensors`` one at a time: safetensors' ``save_file`` first copies all of them off a GPU.
    ``base`` is the digest of the model that they adapt."""
    header: dict[str, Any] = {"__metadata__": {"base": base}}
    start = 0
    for name, tensor in tensors.items():
        end = start + tensor.nbytes
        header[name] = {
            "dtype": TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            flat = tensor.detach().cpu().contiguous().view(-1)
            out.write(flat.view(torch.uint8).numpy().data)
