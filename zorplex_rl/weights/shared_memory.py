"""Share memory between processes of one host: one process writes, any number of processes read, without
a copy in between.

    publisher   allocate(size)       ──► uint8 tensor, and a handle of a few dozen bytes
    reader      open_shared(handle)  ──► a tensor on the same memory

The memory is a ``memfd``: it has no name in any file system, and a reader opens it through the
publisher's entry in /proc. So nothing is left behind, however the publisher ends, and a reader can
still use what it has mapped. Linux only.

On another host, or in another container, the same process id means another process. So the memory
ends with random bytes, which the handle repeats: a reader that finds them has opened the right memory.
"""

import mmap
import os
import secrets
from dataclasses import dataclass

import torch
from torch import Tensor

NAME = "zorplex_weights"
PROOF_BYTES = 32


@dataclass(frozen=True, slots=True)
class SharedHandle:
    """Where the memory is, and how to verify it."""

    pid: int
    descriptor: int
    size: int
    """Bytes, without the proof."""
    proof: bytes
    """The random bytes at its end."""


def allocate(size: int) -> tuple[Tensor, SharedHandle] | tuple[None, None]:
    """Allocate ``size`` zeroed bytes. They exist until this process and the last reader have ended.

    Returns the memory as uint8 [size] and its handle, or (None, None) on a system without
    ``memfd``.
    """
    if not hasattr(os, "memfd_create"):
        return None, None
    descriptor = os.memfd_create(NAME)
    proof = secrets.token_bytes(PROOF_BYTES)
    os.ftruncate(descriptor, size + PROOF_BYTES)
    os.pwrite(descriptor, proof, size)
    return _map(descriptor, size), SharedHandle(os.getpid(), descriptor, size, proof)


def open_shared(handle: SharedHandle) -> Tensor:
    """Return the memory of ``handle``, uint8 [size], for reading only. Raises OSError if it is on
    another host or its process is gone."""
    entry = f"/proc/{handle.pid}/fd/{handle.descriptor}"
    if os.readlink(entry).startswith(f"/memfd:{NAME}"):
        descriptor = os.open(entry, os.O_RDWR)
        try:
            if os.pread(descriptor, PROOF_BYTES, handle.size) == handle.proof:
                return _map(descriptor, handle.size)
        finally:
            os.close(descriptor)
    raise OSError(f"process {handle.pid} of this host is not the one that shared these weights")


def _map(descriptor: int, size: int) -> Tensor:
    # Writable on both sides, because torch has no read-only tensors.
    return torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)
