"""The per-sample loss of a batch as a twice differentiable function of the leaves that a Hessian is taken over."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from scala_lab.curvature.quick_layers import QuickLayers
from scala_lab.curvature.space import ParameterSpace
from scala_lab.methods.task_loss import task_loss
from scala_lab.models.first_token import FirstTokenOnly


def word_table(model: nn.Module) -> str | None:
    """Name of the word-embedding table, if the model can be run from embeddings that were looked up outside."""
    lookup: Any = getattr(model, "get_input_embeddings", None)
    if lookup is None or "inputs_embeds" not in inspect.signature(model.forward).parameters:
        return None
    table = lookup()
    if type(table) is not nn.Embedding or table.max_norm is not None:
        return None
    return next((name for name, value in model.named_parameters() if value is table.weight), None)


class BatchLoss:
    """Cross-entropy or squared error per sample, in eval mode, with attention that has a second derivative.

    The fused attention kernels have no second derivative; torch's plain one does, so stock checkpoints work
    without being loaded in a special way.

    Attributes:
        leaves: What to differentiate by, in the order of the space: the parameters themselves, and a
            copy of the used rows in place of the word-embedding table.
    """

    def __init__(self, model: nn.Module, space: ParameterSpace, labels: Sequence[Tensor]) -> None:
        self.model, self.space = model, space
        self.regression = is_regression(model, labels)
        self.first_token = FirstTokenOnly(model)
        self._rows = None
        self.leaves: list[Tensor] = list(space.parameters.values())
        if space.compact:
            place = list(space.parameters).index(space.table_name or "")
            self._rows = self.leaves[place].detach()[space.used_ids].requires_grad_()
            self._padding = _padding_place(model, space)
            self.leaves[place] = self._rows

    def __call__(self, inputs: Mapping[str, Tensor], labels: Tensor) -> Tensor:
        """One loss per sample."""
        return task_loss(self.logits(inputs), labels, self.regression)

    def logits(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Outputs per sample."""
        training = self.model.training
        self.model.eval()
        try:
            with sdpa_kernel(SDPBackend.MATH), self.first_token.applied(), QuickLayers(self.leaves):
                return self.model(**self._model_inputs(inputs)).logits
        finally:
            self.model.train(training)

    def _model_inputs(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self._rows is None or "input_ids" not in inputs:
            return dict(inputs)
        places = self.space.place_of(inputs["input_ids"])
        rest = {name: value for name, value in inputs.items() if name != "input_ids"}
        return {"inputs_embeds": functional.embedding(places, self._rows, padding_idx=self._padding), **rest}


def is_regression(model: nn.Module, labels: Sequence[Tensor]) -> bool:
    """Whether the loss is a squared error: by the model's config, else by its outputs and the labels."""
    config: Any = getattr(model, "config", None)
    if getattr(config, "problem_type", None) is not None:
        return config.problem_type == "regression"
    return getattr(config, "num_labels", 2) == 1 or any(part.is_floating_point() for part in labels)


def _padding_place(model: nn.Module, space: ParameterSpace) -> int | None:
    """Where the padding row went, if the table keeps its gradient at 0 and it is among the used rows."""
    padding = model.get_input_embeddings().padding_idx  # type: ignore[operator]
    if padding is None or space.used_ids is None or not bool((space.used_ids == padding).any()):
        return None
    return int((space.used_ids < padding).sum())
