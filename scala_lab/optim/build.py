"""From a spec to an optimizer: parameter groups and the learning rate."""

import math
import re
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import nn

from scala_lab.config import OptimSpec
from scala_lab.optim.lamb import Lamb


def parameter_groups(model: nn.Module, spec: OptimSpec) -> list[dict[str, Any]]:
    """Return the groups of the trainable parameters for an optimizer, in the order of `model.named_parameters()`.

    Biases and normalisation weights never decay. What shares a rate for `groups`, with layers as in `layer_names`:

    | optimizer | tensor | layer |
    |---|---|---|
    | adamw | no rates to share | the same |
    | lamb | each matrix its own; biases and norms not adapted | one per layer over its matrices |
    | lamb, adapt_all | each tensor its own | one per layer over everything in it |
    | ngd | each tensor its own | one per layer over everything in it |

    LAMB's default is by layer, as the ScaLA paper writes it. A freshly initialised classifier is small (sd 0.02), so
    that its own ratio hardly lets it grow; in one group with the pooler it moves as far as the pooler's weights, 4.5
    times as far on the embedded encoder. Seen there on mini-mnli (2,048 rows, 12 epochs, B=512, seed 0, best of five
    rates): AdamW 65.3; by tensor 61.8, with U=inf 61.9, with adapt_all 61.3; by layer 65.9, 65.8, 65.8; by tensor but
    for a joint head 65.5. A head that is fresh as a whole (RoBERTa's, a decoder's) stays small either way.
    """
    named = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
    undecayed = undecayed_names(model)
    without_decay = [param for name, param in named if name in undecayed]
    if spec.optimizer == "adamw" or spec.groups == "tensor":
        with_decay = [param for name, param in named if name not in undecayed]
        decay: dict[str, Any] = {"name": "decay", "params": with_decay, "weight_decay": spec.weight_decay}
        rest: dict[str, Any] = {"name": "no decay", "params": without_decay, "weight_decay": 0.0}
        if spec.optimizer == "lamb":
            decay["adapt"], rest["adapt"] = True, spec.adapt_all
        if spec.optimizer == "ngd":
            decay["joint"] = rest["joint"] = False
        return [group for group in (decay, rest) if group["params"]]
    unadapted = undecayed if spec.optimizer == "lamb" and not spec.adapt_all else set()
    layers = layer_names(model)
    by_layer: dict[str, dict[str, Any]] = {}
    for name, param in named:
        if name not in unadapted:
            new = {"name": layers[name], "params": [], "decayed": [], "weight_decay": spec.weight_decay, "joint": True}
            group = by_layer.setdefault(layers[name], new)
            group["params"].append(param)
            group["decayed"].append(name not in undecayed)
    result = list(by_layer.values())
    if unadapted and without_decay:
        result.append({"name": "biases and norms", "params": without_decay, "weight_decay": 0.0, "adapt": False})
    return result


def undecayed_names(model: nn.Module) -> set[str]:
    """Return the names of biases, of the weights of LayerNorm and RMSNorm modules, and of other vectors."""
    return {
        name
        for prefix, module in model.named_modules()
        for name, param in module.named_parameters(prefix, recurse=False)
        if param.ndim <= 1 or name.endswith("bias") or _is_norm(module)
    }


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, (nn.LayerNorm, nn.RMSNorm)) or type(module).__name__.endswith(("LayerNorm", "RMSNorm"))


def layer_names(model: nn.Module) -> dict[str, str]:
    """Return the layer of each parameter: its numbered block, else `embeddings`, or `head` for all that is neither.

    The order in which a model defines its parts does not count: XLM-RoBERTa's classifier comes before its blocks, and
    DeBERTa's table of relative positions after them. ALBERT's shared layers are one block.
    """
    tables = {id(table.weight) for table in model.modules() if isinstance(table, nn.Embedding)}
    layers: dict[str, str] = {}
    for name, param in model.named_parameters():
        block = re.match(r"(.*?\.\d+)\.", name)  # up to the first number: bert.encoder.layer.0
        outside = "embeddings" if id(param) in tables or "emb" in name.lower() else "head"
        layers[name] = block[1] if block else outside
    return layers


REFERENCE_BATCH, REFERENCE_WIDTH = 32, 384  # the batch size and the encoder width at which rates are quoted

BASE_RATE: Mapping[str, float] = {"adamw": 1.77e-4, "lamb": 3.54e-3, "ngd": 1.77e-3}
"""Peak rate at the reference batch and width; at batch size 1024 that is 1e-3 for adamw, 2e-2 for lamb by layer, 1e-2
for ngd. Lamb's is from SST-2 (MiniLM-L3, 8,192 rows, 6 epochs): 87.5 held-out at 2e-2, 86.6 at 1e-2; by tensor
87.3 at 1e-2. On the embedded encoder the best is 2e-2 to 4e-2."""

WIDER_EXPONENT = 2.0
"""How fast the rate falls for encoders wider than the reference: 4.4e-5 for adamw at BERT-base's 768."""

NARROWER_EXPONENT: Mapping[str, float] = {"adamw": 0.6, "lamb": 0.0, "ngd": 0.0}
"""How fast it rises for narrower encoders: 3e-3 for adamw at the embedded encoder's 64 and batch size 1024. The updates
of the others are proportional to the weight norm, whatever the number of weights."""


def build_optimizer(model: torch.nn.Module, spec: OptimSpec, lr: float) -> torch.optim.Optimizer:
    """Return the optimizer of a resolved spec for a model that is already on its device and in its dtype."""
    assert spec.eps is not None
    groups = parameter_groups(model, spec)
    limits = {"max_weight_norm": spec.max_weight_norm, "min_weight_norm": spec.min_weight_norm}
    betas = (spec.beta1, spec.beta2)
    if spec.optimizer == "lamb":
        return Lamb(groups, lr=lr, betas=betas, eps=spec.eps, weight_decay=spec.weight_decay, **limits)
    if spec.optimizer == "ngd":
        from scala_lab.optim.ngd import Ngd

        return Ngd(groups, lr=lr, weight_decay=spec.weight_decay, **limits)
    fused = all(param.is_floating_point() and param.device.type in ("cpu", "cuda") for param in model.parameters())
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=spec.eps, weight_decay=spec.weight_decay, fused=fused)


def rate_factor(step: int, total: int, warmup: float) -> float:
    """Return the share of the peak rate at a 0-based step: linear warm-up to 1, then linear decay, never 0.

    min((step + 1) / (W + 1), (total - step) / (total - W)) with W = round(warmup * total) warm-up steps, at
    most total - 1. The peak is at step W.
    """
    warmup_steps = min(round(warmup * total), total - 1)
    return min((step + 1) / (warmup_steps + 1), (total - step) / (total - warmup_steps))


def scaled_rate(lr: float, batch_size: int, rule: Literal["none", "sqrt", "linear"]) -> float:
    """Return the rate at `batch_size`, where `lr` is the rate at batch size 32 unless the rule is none."""
    growth = batch_size / REFERENCE_BATCH
    return lr * {"none": 1.0, "sqrt": math.sqrt(growth), "linear": growth}[rule]


def default_rate(optimizer: str, hidden_size: int, batch_size: int) -> float:
    """Return a sound peak rate: BASE_RATE * sqrt(B / 32) * (384 / width)^exponent."""
    ratio = REFERENCE_WIDTH / hidden_size
    exponent = NARROWER_EXPONENT[optimizer] if ratio > 1 else WIDER_EXPONENT
    return scaled_rate(BASE_RATE[optimizer], batch_size, "sqrt") * ratio**exponent
