"""Pack all parameters of a model into one contiguous buffer.

    name                          offset      bytes
    model.embed_tokens.weight          0     273408
    model.layers.0.….q_proj.weight  273408     65536
    …

One large transfer is several times faster than hundreds of small ones. Tied parameters appear once,
under their first name. Tensors with the widest elements come first, so that every tensor is aligned
without gaps.

Weights are sent in the number type in which they are published. If the reader's model has another
type, they are rounded on arrival.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

Weights = nn.Module | Mapping[str, Tensor]
"""A model, or tensors by name."""


class LayoutMismatch(ValueError):
    """The weights belong to another model."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor in the buffer: name, shape, dtype, offset and size in bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each tensor is in a buffer of ``size`` bytes."""

    entries: tuple[TensorEntry, ...]
    size: int

    @classmethod
    def of(cls, weights: Weights) -> Self:
        """Return the layout of ``weights``."""
        tensors = named_weights(weights)
        entries = []
        offset = 0
        for name in sorted(tensors, key=lambda name: -tensors[name].itemsize):
            tensor = tensors[name]
            shape = tuple(tensor.shape)
            entries.append(TensorEntry(name, shape, tensor.dtype, offset, tensor.nbytes))
            offset += tensor.nbytes
        return cls(tuple(entries), offset)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor by its name."""
        return {entry.name: entry.shape for entry in self.entries}

    @torch.no_grad()
    def pack(self, weights: Weights, buffer: Tensor) -> None:
        """Copy ``weights`` into ``buffer``, uint8 [size]."""
        tensors = named_weights(weights)
        with copying(gpu_of(tensors)) as copy:
            for entry in self.entries:
                copy(_view(entry, buffer), tensors[entry.name])

    @torch.no_grad()
    def unpack(self, buffer: Tensor, weights: Weights) -> None:
        """Copy ``buffer``, uint8 [size], into ``weights``, in place."""
        tensors = named_weights(weights)
        with copying(gpu_of(tensors)) as copy:
            for entry in self.entries:
                copy(tensors[entry.name], _view(entry, buffer))


def _view(entry: TensorEntry, buffer: Tensor) -> Tensor:
    end = entry.offset + entry.size
    return buffer[entry.offset : end].view(entry.dtype).view(entry.shape)


def check_shapes(
    mine: Mapping[str, tuple[int, ...]],
    theirs: Mapping[str, tuple[int, ...]],
) -> None:
    """Raise LayoutMismatch unless both have the same names and shapes. It names the first difference."""
    for name in sorted({*mine, *theirs}):
        here = mine.get(name, "missing")
        there = theirs.get(name, "missing")
        if here != there:
            raise LayoutMismatch(
                f"the weights are of another model: parameter {name!r} is {here} here and {there} there; "
                "load the same policy on both"
            )


def named_weights(weights: Weights) -> dict[str, Tensor]:
    """Return what training changes, by name: parameters and saved buffers; of a model with adapters, only
    those. A tensor with two names (tied embeddings) appears once."""
    if isinstance(weights, Mapping):
        return dict(weights)
    parameters = dict(weights.named_parameters())
    trained = {name: p.data for name, p in parameters.items() if p.requires_grad}
    if len(trained) < len(parameters):
        return trained
    saved = weights.state_dict(keep_vars=True)
    for name, buffer in weights.named_buffers():
        if name in saved:
            trained[name] = buffer
    return trained


def gpu_of(weights: Weights) -> torch.device | None:
    """Return the GPU of ``weights``, or None if they are on the CPU. Makes no CUDA call."""
    for tensor in named_weights(weights).values():
        if tensor.is_cuda:
            return tensor.device
    return None


@contextmanager
def copying(gpu: torch.device | None) -> Iterator[Callable[[Tensor, Tensor], object]]:
    """Yield a function (target, source) that copies between ``gpu`` and pinned memory. All copies are
    done when the block ends.

    They run on a second CUDA stream, and are waited for once. They begin after everything that was
    queued on the GPU before, such as the optimizer's step.
    """
    if gpu is None:
        yield Tensor.copy_
        return
    stream = torch.cuda.Stream(gpu)
    stream.wait_stream(torch.cuda.current_stream(gpu))
    try:
        with torch.cuda.stream(stream):
            yield _begin_copy
    finally:
        stream.synchronize()


def _begin_copy(target: Tensor, source: Tensor) -> None:
    """Queue a copy on the present stream. The GPU converts the number type; the host would have to wait
    for the copy first."""
    if target.is_cuda:
        source = source.to(target.device, non_blocking=True)
    else:
        source = source.to(target.dtype)
    target.copy_(source, non_blocking=True)
