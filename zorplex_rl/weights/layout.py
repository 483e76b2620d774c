"""Pack all parameters of a model into one contiguous buffer.

    name                          offset      bytes
    model.embed_tokens.weight          0     273408
    model.layers.0.….q_proj.weight  273408     65536     every tensor starts at a multiple of ALIGNMENT
    …

One large transfer is several times faster than hundreds of small ones. Tied parameters appear once,
under their first name.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

ALIGNMENT = 64
Weights = nn.Module | Mapping[str, Tensor]
"""A model, or a mapping from names to tensors."""


class LayoutMismatch(ValueError):
    """The weights belong to another model. The message is one sentence for people."""


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
    """The position of every parameter of a model, or every tensor of a mapping, in a buffer of
    ``size`` bytes."""

    entries: tuple[TensorEntry, ...]
    size: int

    @classmethod
    def of(cls, model: Weights, dtype: torch.dtype | None = None, alignment: int = ALIGNMENT) -> Self:
        """Return the layout of ``model``'s weights. If ``dtype`` is given, floating-point weights
        travel as that type.

        With ``alignment`` 1 there are no gaps; then every tensor's offset must be a multiple of its
        element size.
        """
        entries, offset = [], 0
        for name, tensor in named_weights(model).items():
            travels_as = dtype if dtype and tensor.is_floating_point() else tensor.dtype
            size = tensor.numel() * travels_as.itemsize
            entries.append(TensorEntry(name, tuple(tensor.shape), travels_as, offset, size))
            offset += -(-size // alignment) * alignment
        return cls(tuple(entries), offset)

    def check(self, other: Self) -> None:
        """Raise LayoutMismatch, which names the first difference, unless ``other`` describes the
        same parameters."""
        mine, theirs = ({e.name: e for e in layout.entries} for layout in (self, other))
        if missing := sorted(mine.keys() ^ theirs.keys()):
            raise LayoutMismatch(
                f"the weights are of another model: parameter {missing[0]!r} is only on one side; load the same policy on both"
            )
        for name, entry in mine.items():
            if (entry.shape, entry.dtype) != (theirs[name].shape, theirs[name].dtype):
                raise LayoutMismatch(
                    f"the weights are of another model: parameter {name!r} is {entry.shape} {entry.dtype} here "
                    f"and {theirs[name].shape} {theirs[name].dtype} there; load the same policy on both"
                )

    @torch.no_grad()
    def pack(self, model: Weights, buffer: Tensor) -> None:
        """Copy ``model``'s weights into ``buffer``, uint8 [size]. Weights that travel as a smaller
        type are rounded."""
        weights = named_weights(model)
        with copying(gpu_of(weights)) as copy:
            for entry in self.entries:
                copy(self._view(entry, buffer), weights[entry.name])

    @torch.no_grad()
    def unpack(self, buffer: Tensor, model: Weights) -> None:
        """Copy ``buffer``, uint8 [size], into ``model``'s weights, in place."""
        weights = named_weights(model)
        with copying(gpu_of(weights)) as copy:
            for entry in self.entries:
                copy(weights[entry.name], self._view(entry, buffer))

    @staticmethod
    def _view(entry: TensorEntry, buffer: Tensor) -> Tensor:
        return buffer[entry.offset : entry.offset + entry.size].view(entry.dtype).view(entry.shape)


def named_weights(model: Weights) -> dict[str, Tensor]:
    """Return parameters and saved buffers by name. A tensor with two names (tied embeddings)
    appears once."""
    if isinstance(model, Mapping):
        return dict(model)
    saved = model.state_dict(keep_vars=True).keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in saved}
    return {name: p.data for name, p in model.named_parameters()} | buffers


def gpu_of(weights: Mapping[str, Tensor]) -> torch.device | None:
    """Return the GPU of ``weights``, or None if they are on the CPU. Looks at the tensors only and
    makes no CUDA call."""
    return next((tensor.device for tensor in weights.values() if tensor.is_cuda), None)


def on_cuda(model: Weights) -> bool:
    """Return whether the weights of ``model`` are on a GPU."""
    return gpu_of(named_weights(model)) is not None


@contextmanager
def copying(gpu: torch.device | None) -> Iterator[Callable[[Tensor, Tensor], object]]:
    """Give a function (target, source) for copies between ``gpu`` and pinned memory. They are all
    done when the block has ended.

    The copies are put on a stream of their own and waited for once, not each for itself. They begin
    after everything that the GPU has been given to compute before, such as the optimizer's step.
    Without a GPU a copy is done when it returns.
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
    """Put a copy on the present stream. A change of type is computed on the GPU: on the host it
    would have to wait for the copy."""
    source = source.to(target.device, non_blocking=True) if target.is_cuda else source.to(target.dtype)
    target.copy_(source, non_blocking=True)
