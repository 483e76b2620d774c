"""Save and load a learner as a safetensors file: weights, optimizer, version, random state.

    learner.safetensors    8 bytes: length of the header │ header, JSON: {name: dtype, shape, from, to} │ the numbers

Nothing in such a file can run. ``old_checkpoint.py`` reads earlier versions' pickles safely.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from zorplex_rl.errors import CheckpointError, StorageError
from zorplex_rl.learning.learner import Learner
from zorplex_rl.learning.old_checkpoint import METADATA, old_tensors

FILE = "learner.safetensors"
TYPES = {torch.float32: "F32", torch.int64: "I64", torch.uint8: "U8"}
RANDOM_STATE = "torch_rng"


def save_learner(learner: Learner, folder: Path) -> None:
    """Write ``learner`` and torch's random state to ``folder``. Raises StorageError. A sharded
    learner writes the same. All its ranks must call this; rank 0 writes."""
    if (state := learner.whole_state()) is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(state | {RANDOM_STATE: torch.get_rng_state()}, folder / FILE)
    except OSError as error:
        raise StorageError(f"the checkpoint cannot be written ({error.strerror or error})") from error


def load_learner(learner: Learner, folder: Path, step: int | None = None) -> None:
    """Restore ``learner`` and torch's random state from what ``save_learner`` wrote to ``folder``.
    Raises CheckpointError if that is no learner, or one of another model, or not of ``step``."""
    with _reading(folder) as read:
        if step is not None and (version := int(read("version"))) != step:
            raise CheckpointError(f"its learner is of step {version}, and the checkpoint of step {step}")
        learner.restore(read)
        random_state = read(RANDOM_STATE)
        try:
            torch.set_rng_state(random_state)
        except (RuntimeError, TypeError) as error:
            raise CheckpointError(f"its {RANDOM_STATE} is no state of torch's random numbers") from error


def write_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Write ``tensors`` one at a time: safetensors' ``save_file`` first copies all off a GPU."""
    header, end = {}, 0
    for name, tensor in tensors.items():
        place = [end, end := end + tensor.nbytes]
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            out.write(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


@contextmanager
def _reading(folder: Path) -> Iterator[Callable[[str], Tensor]]:
    """Yield the function that returns a tensor of the learner in ``folder`` by its name."""
    file = folder / FILE
    if (folder / METADATA).is_file():
        tensors = old_tensors(folder)

        def read_old(name: str) -> Tensor:
            if name not in tensors:
                raise CheckpointError(f"it lacks {name}")
            return tensors[name]()

        yield read_old
        return
    try:
        with safe_open(file, framework="pt") as opened:
            yield opened.get_tensor
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"its {file.name} is no file of safetensors: {error}") from error
