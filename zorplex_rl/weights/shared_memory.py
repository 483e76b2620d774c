"""Share memory between processes of one host: one process writes, any number of processes read, and
nothing is copied in between.

    publisher   allocate(size)       ──► uint8 tensor, and a handle of a few dozen bytes
    reader      open_shared(handle)  ──► a tensor on the same memory

The memory is a ``memfd``: it has no name in any file system, and a reader opens it through the
publisher's entry in /proc. So nothing is left behind however the publisher ends, and a reader can
still read what it has mapped. Linux only.

Two containers on one machine have one boot id, and a process number of one means another process in
the other: its entry in /proc may be foreign memory of the same size. So the memory ends with random
bytes, which the handle repeats. Only who finds them there has opened this memory. Nothing is
written, and nothing that is not such memory is opened, before that is known.
"""

import mmap
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from zorplex_rl.weights.layout import Weights, on_cuda

NAME, PROOF_BYTES = "zorplex_weights", 32
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class SharedHandle:
    """Says where the memory is: the host (by the id of its last boot), the process, its file
    descriptor, the size in bytes, and how to know it."""

    boot_id: str
    pid: int
    descriptor: int
    size: int
    proof: bytes = b""
    """The random bytes that follow the memory."""


def allocate_for(model: Weights, size: int) -> tuple[Tensor | None, SharedHandle | None]:
    """Allocate ``size`` bytes for the weights of ``model``. Returns (None, None) for a model on
    CUDA, which needs pinned memory instead."""
    return (None, None) if on_cuda(model) else allocate(size)


def allocate(size: int) -> tuple[Tensor | None, SharedHandle | None]:
    """Allocate ``size`` zeroed bytes, which exist as long as this process or the last reader.

    Returns the memory as uint8 [size] and its handle, or (None, None) on a system without
    ``memfd``.
    """
    if not (hasattr(os, "memfd_create") and BOOT_ID.exists()):
        return None, None
    descriptor, proof = os.memfd_create(NAME), secrets.token_bytes(PROOF_BYTES)
    os.ftruncate(descriptor, size + PROOF_BYTES)
    os.pwrite(descriptor, proof, size)
    return _map(descriptor, size), SharedHandle(_boot_id(), os.getpid(), descriptor, size, proof)


def open_shared(handle: SharedHandle) -> Tensor:
    """Return the memory of ``handle``, uint8 [size], for reading only. Raises OSError if it is on
    another host or its process is gone."""
    if handle.boot_id != _boot_id():
        raise OSError("the weights are in the memory of another host")
    entry, foreign = (
        f"/proc/{handle.pid}/fd/{handle.descriptor}",
        f"process {handle.pid} is not the one that shared these weights",
    )
    if not os.readlink(entry).startswith(f"/memfd:{NAME}"):
        raise OSError(foreign)
    descriptor = os.open(entry, os.O_RDWR)
    try:
        found = os.pread(descriptor, PROOF_BYTES, handle.size)
        if os.fstat(descriptor).st_size != handle.size + PROOF_BYTES or not handle.proof or found != handle.proof:
            raise OSError(foreign)
        return _map(descriptor, handle.size)
    finally:
        os.close(descriptor)


def _map(descriptor: int, size: int) -> Tensor:
    # Writable on both sides, because torch has no read-only tensors.
    return torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)


def _boot_id() -> str:
    return BOOT_ID.read_text().strip()
