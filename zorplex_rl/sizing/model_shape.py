"""The shape of a model: the sizes that its memory is computed from. Needs no torch.

a folder    sizes as its config.json says, parameters counted in its files: exact for every family
a size      ModelShape(layers=24, …): parameters by Qwen2's formula
"""

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from zorplex_rl.policy.model_folder import FAMILY, filled, read_config, weight_shapes


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model of Qwen2's architecture. ``head_size`` 0 means hidden / heads.

    >>> ModelShape(layers=24, hidden=896, heads=14, kv_heads=2, intermediate=4864, vocabulary=151936).parameters
    494032768
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    tied: bool = True
    head_size: int = 0
    counted: int = 0
    """Parameters that were counted; 0 is as the formula says."""
    unknown: str = ""
    """How a model of another family differs from what is computed."""
    reads: int = 0
    """Maximum length of a text in tokens; 0: not known."""

    @property
    def attention(self) -> int:
        """Width of all query heads together."""
        return self.heads * (self.head_size or self.hidden // self.heads)

    @property
    def keys(self) -> int:
        """Width of all key heads together; the values have the same."""
        return self.kv_heads * (self.head_size or self.hidden // self.heads)

    @property
    def matrices(self) -> int:
        """Parameters of one layer that are in matrices."""
        return self.hidden * (2 * self.attention + 2 * self.keys + 3 * self.intermediate)

    def trained(self, rank: int) -> int:
        """Return how many parameters are trained: all, or those of adapters of ``rank``, if it is not 0."""
        if rank == 0:
            return self.parameters
        # Inputs and outputs of a layer's seven matrices.
        ends = 7 * self.hidden + 2 * self.attention + 2 * self.keys + 3 * self.intermediate
        return self.layers * rank * ends

    @property
    def table(self) -> int:
        """Parameters of the embedding table."""
        return self.vocabulary * self.hidden

    @property
    def tables(self) -> int:
        """Parameters of embedding table and output layer, which are one if they are tied."""
        return self.table * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """Number of parameters, tied weights counted once."""
        biases_and_norms = self.attention + 2 * self.keys + 2 * self.hidden
        return (
            self.counted
            or self.layers * (self.matrices + biases_and_norms) + self.hidden + self.tables
        )


def shape_of(folder: Path) -> ModelShape:
    """Return the shape of the model in ``folder``."""
    config = read_config(folder)
    kind = config["model_type"]
    unknown = ""
    if kind in FAMILY:
        config = filled(config)
    else:
        unknown = f"activations and cache are those of a Llama of its sizes, not of a {kind}"
        # The sizes of a model that also reads images are those of its text model.
        config = config.get("text_config") or config
    shapes = weight_shapes(folder)
    hidden = _size(config, "hidden_size", "n_embd")
    heads = _size(config, "num_attention_heads", "n_head", otherwise=1)
    return ModelShape(
        layers=_size(config, "num_hidden_layers", "n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=_size(config, "num_key_value_heads", otherwise=heads),
        intermediate=_size(config, "intermediate_size", "ffn_dim", otherwise=4 * hidden),
        vocabulary=_size(config, "vocab_size"),
        tied=not any(name.endswith(("lm_head.weight", "embed_out.weight")) for name in shapes),
        head_size=_size(config, "head_dim"),
        counted=sum(map(prod, shapes.values())),
        unknown=unknown,
        reads=_size(config, "max_position_embeddings", "n_positions"),
    )


def _size(config: dict[str, Any], *names: str, otherwise: int = 0) -> int:
    """Return the first of ``names`` that ``config`` has: the largest size, where layers differ."""
    size = next((config[name] for name in names if config.get(name)), otherwise)
    return max(size) if isinstance(size, list) else size
