"""A tiny classifier whose Hessian fits into memory, batches for it, that Hessian by torch.func, and any known one."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.func import functional_call, hessian
from torch.nn import functional
from transformers import AutoModelForSequenceClassification

from tests.tiny import save_tiny_model


def tiny_classifier(folder: Path, architecture: str = "bert", labels: int = 3) -> torch.nn.Module:
    """A model of about a thousand parameters with its default attention, in float64."""
    save_tiny_model(folder, architecture, labels=labels, hidden=4, layers=1, positions=12)
    return AutoModelForSequenceClassification.from_pretrained(folder).double()


def tiny_batches(sizes=(4, 3, 1), labels: int = 3, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    """Batches of the same samples for any way to cut them: lengths 4 to 8, padded."""
    rng = torch.Generator().manual_seed(seed)
    total = sum(sizes)
    lengths = torch.randint(4, 9, (total,), generator=rng)
    ids = torch.randint(5, 20, (total, 8), generator=rng)
    mask = (torch.arange(8) < lengths[:, None]).long()
    targets = torch.randint(0, max(labels, 2), (total,), generator=rng)
    targets = targets.double() * 1.7 if labels == 1 else targets
    rows = {"input_ids": ids * mask, "attention_mask": mask, "labels": targets}
    parts = {name: value.split(list(sizes)) for name, value in rows.items()}
    return [dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True)]


def write_out_layer_norms(model: torch.nn.Module) -> None:
    """Compute every LayerNorm by its formula.

    torch.func's batching rule for the fused one gives wrong second derivatives by its weight (torch 2.13: the
    matrix is not even symmetric, and disagrees with finite differences of the gradient).
    """

    def formula(module):
        def forward(x):
            centred = x - x.mean(-1, keepdim=True)
            return centred / (centred.square().mean(-1, keepdim=True) + module.eps).sqrt() * module.weight + module.bias

        return forward

    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.forward = formula(module)


def dense_hessian(folder: Path, batches: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    """The full Hessian of the mean loss over all samples, by torch.func on the model with eager attention."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager").double().eval()
    write_out_layer_norms(model)
    named = dict(model.named_parameters())
    whole = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
    labels = whole.pop("labels")

    def mean_loss(flat):
        values, start = {}, 0
        for name, parameter in named.items():
            values[name] = flat[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        logits = functional_call(model, values, kwargs=whole).logits
        if labels.is_floating_point():
            return functional.mse_loss(logits.squeeze(-1), labels)
        return functional.cross_entropy(logits, labels)

    flat = torch.cat([parameter.detach().flatten() for parameter in named.values()])
    matrix = hessian(mean_loss)(flat)
    assert torch.allclose(matrix, matrix.T, atol=1e-12)
    return matrix


class Known:
    """A known matrix in place of a Hessian."""

    device, dtype = torch.device("cpu"), torch.float64

    def __init__(self, matrix: torch.Tensor) -> None:
        self.matrix = matrix
        self.products = 0
        self.space = type("Space", (), {"touched_size": len(matrix), "size": len(matrix), "full": lambda _, v: v})()

    def multiply(self, vector: torch.Tensor) -> torch.Tensor:
        self.products += 1
        return self.matrix @ vector

    def gradient(self) -> torch.Tensor:
        return torch.zeros(len(self.matrix), dtype=self.dtype)
