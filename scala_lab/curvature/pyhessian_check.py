"""PyHessian 0.1 on the same data, as a second opinion on the top eigenvalues.

PyHessian wants `model(inputs) -> outputs`, a criterion, and inputs with a batch dimension; it crashes on attention
without a second derivative, on parameters that do not enter the loss, and on weights in float64. Here each batch is
handed to it as a number repeated once per sample, behind which the real batch is looked up: its own weighting by
`inputs.size(0)` then is by samples, as ours, and no field of the batch is lost.

It stops when two successive eigenvalues differ by less than its tolerance, which bounds no error. The residuals of the
result are therefore computed with our operator, and `converged` is judged by them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from scala_lab.curvature.eigensolvers import EigenResult, norm
from scala_lab.curvature.loss import is_regression
from scala_lab.curvature.operator import HessianOperator
from scala_lab.errors import UserError
from scala_lab.methods.base import task_loss


def pyhessian_top(
    model: nn.Module,
    batches: Iterable[Mapping[str, Any]],
    k: int = 1,
    tol: float = 1e-3,
    max_iterations: int = 100,
    seed: int = 0,
    *,
    change: float | None = None,
    op: HessianOperator | None = None,
    on_product: Callable[[], None] | None = None,
) -> EigenResult:
    """The k eigenvalues of largest magnitude as PyHessian finds them, judged by our residuals.

    The model, its gradients and its mode are left as they were.

    Args:
        model: A transformers model for sequence classification, over all of whose trainable parameters H is taken.
        batches: Dicts as the model takes them, `labels` included. One batch lets PyHessian reuse its graph.
        k: How many.
        tol: Largest residual of a converged pair.
        max_iterations: For each eigenvalue.
        seed: Of PyHessian's random starts; the global random state is put back afterwards.
        change: Relative change of the eigenvalue between iterations at which PyHessian stops; default `tol`. The error
            of an eigenvalue is of second order, so a residual of tol takes a change of about tol squared.
        op: The operator on the same model and batches that the residuals are computed with; default a new one.
        on_product: Called after every product; an exception raised there stops the search.

    Returns:
        Eigenvalues as PyHessian reports them, in its order. `hvps` counts PyHessian's products, not ours.
    """
    batches = list(batches)
    op = op or HessianOperator(model, batches, budget=0)
    if len(op.space.parameters) < sum(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("the pyhessian solver takes H over all trainable parameters: leave out the patterns")
    with _left_as_it_was(model), torch.random.fork_rng():
        torch.manual_seed(seed)
        values, vectors, hvps, unused = _run(_Numbered(model, batches), k, change or tol, max_iterations, on_product)
    touched = torch.stack([op.space.touched(vector) for vector in vectors])
    residuals = np.array([_residual(op, value, vector) for value, vector in zip(values, touched, strict=True)])
    note = "PyHessian's eigenvalues; residuals by our operator"
    if unused:
        note += f"; {unused} parameters that do not enter the loss were hidden from PyHessian"
    return EigenResult(np.array(values), touched, residuals, hvps, bool((residuals <= tol).all()), tol, op.space, note)


class _Numbered(nn.Module):
    """A model that is called with the number of a batch, once per sample, and returns its losses."""

    def __init__(self, model: nn.Module, batches: list[Mapping[str, Any]]) -> None:
        super().__init__()
        self.model = model
        self.device = next(model.parameters()).device
        self.batches = [
            {name: torch.as_tensor(value).to(self.device) for name, value in batch.items()} for batch in batches
        ]
        self.regression = is_regression(model, [batch["labels"] for batch in self.batches])

    def numbers(self) -> list[tuple[Tensor, Tensor]]:
        """What PyHessian takes for (inputs, targets)."""
        return [
            (torch.full((len(batch["labels"]),), number), batch["labels"]) for number, batch in enumerate(self.batches)
        ]

    def forward(self, numbers: Tensor) -> Tensor:
        inputs = {name: value for name, value in self.batches[int(numbers[0])].items() if name != "labels"}
        return self.model(**inputs).logits

    def mean_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return task_loss(logits, labels, self.regression).mean()


def _run(
    numbered: _Numbered, k: int, change: float, max_iterations: int, on_product: Callable[[], None] | None
) -> tuple[list[float], list[Tensor], int, int]:
    """Eigenvalues, full unit vectors, products, and how many parameters had to be hidden."""
    from pyhessian import hessian, hessian_vector_product

    class Counting(hessian):
        """Goes through one counted product, with one batch (from its retained graph) as with many."""

        products = 0

        def dataloader_hv_product(self, v: list[Tensor]) -> tuple[float, list[Tensor]]:
            if len(pairs) > 1:
                value, product = super().dataloader_hv_product(v)
            else:
                product = hessian_vector_product(self.gradsH, self.params, v)
                value = float(sum((left * right).sum() for left, right in zip(product, v, strict=True)))
            self.products += 1
            if on_product is not None:
                on_product()
            return value, product

    pairs = numbered.numbers()
    everything = [parameter for parameter in numbered.parameters() if parameter.requires_grad]
    source: dict[str, Any] = {"dataloader": pairs} if len(pairs) > 1 else {"data": pairs[0]}
    with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using backward\\(\\) with create_graph=True")
        numbered.eval()
        unused = _hide_unused(numbered, everything)
        solver = Counting(numbered, numbered.mean_loss, cuda=numbered.device.type == "cuda", **source)
        solver.full_dataset = True
        values, vectors = solver.eigenvalues(maxIter=max_iterations, tol=change, top_n=k)
    places = {id(parameter): part for part, parameter in enumerate(solver.params)}
    flat = [
        torch.cat(
            [
                vector[places[id(p)]].detach().flatten() if id(p) in places else torch.zeros_like(p).flatten()
                for p in everything
            ]
        ).detach()
        for vector in vectors
    ]
    return values, [vector / norm(vector) for vector in flat], solver.products, unused


def _hide_unused(numbered: _Numbered, parameters: list[nn.Parameter]) -> int:
    """Turn off `requires_grad` of parameters without influence on the loss's gradient; returns how many."""
    numbers, labels = numbered.numbers()[0]
    loss = numbered.mean_loss(numbered(numbers), labels)
    gradients = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
    hidden = [
        parameter
        for parameter, gradient in zip(parameters, gradients, strict=True)
        if gradient is None or not gradient.requires_grad
    ]
    for parameter in hidden:
        parameter.requires_grad_(False)
    return len(hidden)


def _residual(op: HessianOperator, value: float, vector: Tensor) -> float:
    scale = max(abs(value), torch.finfo(torch.float32).tiny)
    return norm(op.multiply(vector) - value * vector) / scale


@contextmanager
def _left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Put back gradients, what requires one, the mode, and the default type, which PyHessian draws vectors in."""
    before = [(parameter, parameter.grad, parameter.requires_grad) for parameter in model.parameters()]
    training, default = model.training, torch.get_default_dtype()
    torch.set_default_dtype(before[0][0].dtype)
    for parameter, _, _ in before:
        parameter.grad = None
    try:
        yield
    finally:
        torch.set_default_dtype(default)
        model.train(training)
        for parameter, gradient, required in before:
            parameter.grad = gradient
            parameter.requires_grad_(required)
