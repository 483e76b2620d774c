"""Read a learner saved with torch.distributed.checkpoint by an earlier version; no unpickling.

    .metadata       a pickle: which tensor lies where      read with a stand-in for each of a few classes; any other is refused
    __0_0.distcp    each value as torch.save wrote it      read with torch.load(weights_only=True)

A pickle calls functions by name, so it can run any program. Here no name is looked up.
"""

import io
import pickle
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zorplex_rl.errors import CheckpointError

METADATA = ".metadata"
ADMITTED = {
    ("pathlib", "PosixPath"),
    ("torch", "Size"),
    ("torch", "float32"),
    ("torch", "uint8"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    *(
        ("torch.distributed.checkpoint.metadata", name)
        for name in (
            "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties",
            "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
        )
    ),
}  # fmt: skip
"""What the metadata of such a checkpoint is made of."""
_BROKEN = (pickle.UnpicklingError, EOFError, AttributeError, LookupError, TypeError, ValueError, RecursionError)


def old_tensors(folder: Path) -> dict[str, Callable[[], Tensor]]:
    """Return each value's name in ``folder``, and its reader; both raise CheckpointError."""
    try:
        with (folder / METADATA).open("rb") as file:
            places = _Reader(file).load().storage_data.items()
            found = {str(index.fqn): _place(folder, info) for index, info in places}
    except OSError as error:
        raise CheckpointError(f"{METADATA} cannot be read ({error.strerror})") from error
    except _BROKEN as error:
        raise CheckpointError(f"{METADATA} is no metadata of a checkpoint: {error}") from error
    return {name: partial(_read, name, *place) for name, place in found.items()}


class _Record:
    """Stands for an object of an admitted class: it holds what was saved and does nothing."""

    def __init__(self, *arguments: object) -> None: ...

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no checkpoint does")
        # A class of its own: a pickle can set attributes of what it is given.
        return type(name, (_Record,), {})

    def persistent_load(self, pid: object) -> Any:
        raise pickle.UnpicklingError("it names an object outside of itself")


def _place(folder: Path, info: Any) -> tuple[Path, int, int]:
    """Return the file, the first byte and the number of bytes that ``info`` tells of."""
    name, offset, length = info.relative_path, info.offset, info.length
    if not (isinstance(name, str) and isinstance(offset, int) and isinstance(length, int)):
        raise ValueError("the place of a value is no file, offset and length")
    file = folder / Path(name).name
    if Path(name).name != name or offset < 0 or not 0 <= length <= file.stat().st_size - offset:
        raise ValueError(f"{name!r} has no {length} bytes from {offset} on")
    return file, offset, length


def _read(name: str, file: Path, offset: int, length: int) -> Tensor:
    with file.open("rb") as opened:
        opened.seek(offset)
        saved = io.BytesIO(opened.read(length))
    try:
        with zipfile.ZipFile(saved) as archive:
            # As torch writes it: what is read is as large as the file.
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise ValueError("it is compressed")
        saved.seek(0)
        # The version was saved as a number.
        return torch.as_tensor(torch.load(saved, map_location="cpu", weights_only=True))
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, *_BROKEN) as error:
        raise CheckpointError(f"{name} in {file.name} is not as torch saves a tensor") from error
