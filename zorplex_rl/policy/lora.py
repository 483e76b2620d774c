"""Low-rank adapters (LoRA, Hu et al. 2021): the weights stay as they are, and a narrow path beside each
linear layer is trained.

    x ──► W [out, in], frozen ──────────────────► + ──► y
    └───► A [rank, in] ──► B [out, rank] ──► · 32 / rank ──► ┘        rank · (in + out) numbers instead of in · out

B begins as zeros, so at first the adapted model computes the same as before. A sampler on a CPU adds the
path to a copy of W, once for each version; in 16 bits it computes the path, as the trainer does. A
token's log-prob is the same in both, but for rounding. Files and tensors have the names of the library
PEFT, which reads what ``save_adapter`` writes.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zorplex_rl.policy.model_folder import ADAPTER_CONFIG
from zorplex_rl.policy.product import packed, product_of

ALPHA = 32.0
"""The factor of the narrow path, times the rank."""
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
"""What PEFT puts before the name of a layer."""


class AdaptedLinear(nn.Linear):
    """A frozen linear layer with a narrow path beside it."""

    whole: Tensor | None = None
    """The weight of a plain layer that computes the same; ``merge_to_sample`` sets it."""

    def __init__(
        self,
        layer: nn.Linear,
        rank: int,
        draws: torch.Generator,
    ) -> None:
        # Skip nn.Linear's initialisation: weight and bias are those of ``layer``.
        nn.Module.__init__(self)
        self.in_features = layer.in_features
        self.out_features = layer.out_features
        self.weight = layer.weight
        self.bias = layer.bias
        self.scale = ALPHA / rank
        device = layer.weight.device
        bound = 1 / math.sqrt(self.in_features)
        a = torch.empty(rank, self.in_features).uniform_(-bound, bound, generator=draws)
        self.lora_a = nn.Parameter(a.to(device))
        self.lora_b = nn.Parameter(torch.zeros(self.out_features, rank, device=device))
        self.start: tuple[Tensor, Tensor] | None = None
        """A and B of the adapter from which training goes on; None: B began as zeros."""

    def forward(self, x: Tensor) -> Tensor:
        if self.whole is not None:
            return product_of(x, self.whole, self.bias)
        product = product_of(x, self.weight, self.bias)
        # Sampling runs the path in float32: to convert few tokens is cheaper than to convert A and B. Training
        # has many tokens, and its backward pass would keep the converted ones.
        dtype = x.dtype if torch.is_grad_enabled() else torch.float32
        narrow = F.linear(x.to(dtype), self.lora_a.to(dtype))
        added = F.linear(self.scale * narrow, self.lora_b.to(dtype))
        return (product + added).to(x.dtype)

    @torch.no_grad()
    def merged(self) -> Tensor:
        """Return the weight [out, in] of a plain layer that computes the same."""
        weight = self.weight.float()
        merged = torch.addmm(weight, self.lora_b, self.lora_a, alpha=self.scale)
        return merged.to(self.weight.dtype)


def adapt(model: nn.Module, rank: int) -> None:
    """Freeze ``model``, and put a path of ``rank`` beside each linear layer but the output layer. Raises
    ValueError if there is no such layer."""
    model.requires_grad_(False)
    output: Any = model.get_output_embeddings()  # type: ignore[operator]
    # Every process draws the same.
    draws = torch.Generator().manual_seed(0)
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is nn.Linear and layer is not output:
                setattr(parent, name, AdaptedLinear(layer, rank, draws))
    if not adapted_layers(model):
        raise ValueError("it has no linear layers that could be adapted; leave --lora-rank out")


def adapted_layers(model: nn.Module) -> dict[str, AdaptedLinear]:
    """Return the adapted layers of ``model`` by name; none if it is not adapted."""
    modules = model.named_modules()
    return {name: layer for name, layer in modules if isinstance(layer, AdaptedLinear)}


def merge_to_sample(model: nn.Module) -> None:
    """Have ``model``, which only samples, compute with one weight in each adapted layer. Call this each
    time its weights were replaced. In 16 bits, and on a GPU, whose products round, the paths stay: a sum
    would lose what they add."""
    places = []
    for layer in adapted_layers(model).values():
        if layer.weight.is_cpu and layer.weight.dtype == torch.float32:
            # A place for each, once: new memory would take as long as the sum, and sums between them leave holes.
            if layer.whole is None:
                layer.whole = packed(layer.weight)
            places.append((layer, layer.whole))
    for layer, whole in places:
        whole.copy_(packed(layer.merged()))


def merged_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights, by name, of a plain model that computes what ``model`` does."""
    weights = {name: value.detach() for name, value in model.named_parameters()}
    for name, layer in adapted_layers(model).items():
        del weights[f"{name}.lora_a"], weights[f"{name}.lora_b"]
        weights[f"{name}.weight"] = layer.merged()
    return weights


def merge(model: nn.Module) -> None:
    """Replace the adapted layers of ``model`` by plain ones that compute the same. Then all weights can be
    trained."""
    for name, layer in adapted_layers(model).items():
        plain = nn.Linear(layer.in_features, layer.out_features, device="meta")
        plain.weight = nn.Parameter(layer.merged())
        plain.bias = layer.bias
        model.set_submodule(name, plain)
    model.requires_grad_(True)


@contextmanager
def as_it_began(model: nn.Module) -> Iterator[None]:
    """Have ``model`` compute what it did before training: without its adapters, or with those from which
    training goes on."""
    trained = []
    for layer in adapted_layers(model).values():
        a = layer.lora_a.data
        b = layer.lora_b.data
        trained.append((layer, a, b))
        began = layer.start or (a, torch.zeros_like(b))
        layer.lora_a.data = began[0]
        layer.lora_b.data = began[1]
    try:
        yield
    finally:
        for layer, a, b in trained:
            layer.lora_a.data = a
            layer.lora_b.data = b


def save_adapter(
    model: nn.Module,
    base: str,
    digest: str,
    folder: Path,
) -> None:
    """Write the adapter of ``model`` as a folder in PEFT's format. ``base`` is the name of the model that
    it belongs to, ``digest`` the digest of that model's weights."""
    from safetensors.torch import save_file

    layers = adapted_layers(model)
    first, *_ = layers.values()
    rank = first.lora_a.shape[0]
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": first.scale * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
        "target_modules": sorted({name.rpartition(".")[2] for name in layers}),
    }
    tensors = {}
    for name, layer in layers.items():
        tensors[f"{PREFIX}{name}.lora_A.weight"] = layer.lora_a.detach().cpu().contiguous()
        tensors[f"{PREFIX}{name}.lora_B.weight"] = layer.lora_b.detach().cpu().contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ADAPTER_CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt", "base": digest})


@torch.no_grad()
def load_adapter(
    model: nn.Module,
    folder: Path,
    settings: dict[str, Any],
    digest: str,
) -> None:
    """Put the adapter in ``folder`` beside the layers of ``model``, whose weights have this ``digest``. A
    layer that the adapter leaves out stays as it is. Raises ValueError for an adapter of another model,
    another kind or other sizes."""
    from safetensors import safe_open

    if settings.get("use_dora") or settings.get("use_rslora"):
        raise ValueError("its adapter is not plain LoRA")
    adapt(model, settings["r"])
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        # An adapter that another program wrote names no digest.
        if (file.metadata() or {}).get("base", digest) != digest:
            base = settings["base_model_name_or_path"]
            raise ValueError(f"its adapter belongs to another model than {base!r} is now")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for name, layer in adapted_layers(model).items():
        layer.scale = settings["lora_alpha"] / settings["r"]
        for part, parameter in (("lora_A", layer.lora_a), ("lora_B", layer.lora_b)):
            tensor = tensors.pop(f"{PREFIX}{name}.{part}.weight", parameter)
            if tensor.shape != parameter.shape:
                shape = tuple(tensor.shape)
                raise ValueError(f"its adapter has {part} of {name!r} of shape {shape}")
            parameter.copy_(tensor)
        layer.start = (layer.lora_a.clone(), layer.lora_b.clone())
    for name in tensors:
        raise ValueError(f"its adapter has {name!r}, and this model has no such layer")
