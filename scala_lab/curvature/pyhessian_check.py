"""PyHessian 0.1 on the same data, as a second opinion on the top eigenvalues.

PyHessian wants `model(inputs) -> outputs`, a criterion, and inputs with a batch dimension; it crashes on attention
without a second derivative, on parameters that do not enter the loss, and on weights in float64. Here it gets the index
of each batch, repeated once per sample, by which the real batch is looked up: its own weighting by `inputs.size(0)`
then is by samples, as ours, and no field of the batch is lost.

It stops when two successive eigenvalues differ by less than its tolerance, which bounds no error. The residuals of the
result are therefore computed with our operator, and `converged` is judged by them.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from scala_lab.curvature.eigensolvers import EigenResult, norm
from scala_lab.curvature.loss import is_regression, on_device, without_labels
from scala_lab.curvature.operator import HessianOperator
from scala_lab.divergence import task_loss
from scala_lab.errors import UserError


def pyhessian_top(
    op: HessianOperator,
    batches: Sequence[Mapping[str, Any]],
    k: int = 1,
    tol: float = 1e-3,
    max_iterations: int = 100,
    seed: int = 0,
) -> EigenResult:
    """Return the k eigenvalues of largest magnitude as PyHessian reports them, in its order, with our residuals.

    `op`, made of the same batches, has the model and computes the residuals; an exception in its `on_product` ends the
    search. The model, its gradients and its mode are restored afterwards, as is the global random state. `hvps` counts
    PyHessian's products, not ours. One batch lets PyHessian reuse its graph.

    PyHessian stops where the relative change of an eigenvalue falls below `tol`, or after `max_iterations` for each.
    The error of an eigenvalue is of second order: a residual of tol takes a change of about tol squared.
    """
    model = op.model
    if len(op.space.parameters) < sum(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("the pyhessian solver takes H over all trainable parameters: leave out the patterns")
    with _restored(model), torch.random.fork_rng():
        torch.manual_seed(seed)
        values, vectors, hvps, unused = _run(_IndexedModel(model, batches), k, tol, max_iterations, op.on_product)
    touched = torch.stack([op.space.touched(vector) for vector in vectors])
    residuals = [
        norm(op.multiply(vector) - value * vector) / max(abs(value), torch.finfo(torch.float32).tiny)
        for value, vector in zip(values, touched, strict=True)
    ]
    note = "PyHessian's eigenvalues; residuals by our operator"
    if unused:
        note += f"; {unused} parameters that do not enter the loss were hidden from PyHessian"
    return EigenResult(np.array(values), touched, np.array(residuals), hvps, tol, op.space, note)


class _IndexedModel(nn.Module):
    """A model that is called with the index of a batch, once per sample."""

    def __init__(self, model: nn.Module, batches: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self.model = model
        self.device = next(model.parameters()).device
        self.batches = on_device(batches, self.device)
        labels = [batch["labels"] for batch in self.batches]
        self.regression = is_regression(model, labels)
        self.pairs = [(torch.full((len(part),), index), part) for index, part in enumerate(labels)]

    def forward(self, indices: Tensor) -> Tensor:
        return self.model(**without_labels(self.batches[int(indices[0])])).logits

    def mean_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return task_loss(logits, labels, self.regression).mean()


def _run(
    model: _IndexedModel, k: int, tol: float, max_iterations: int, on_product: Callable[[], None] | None
) -> tuple[list[float], list[Tensor], int, int]:
    """Return eigenvalues, full unit vectors, products, and how many parameters had to be hidden."""
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

    pairs = model.pairs  # what PyHessian takes for (inputs, targets)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    source: dict[str, Any] = {"dataloader": pairs} if len(pairs) > 1 else {"data": pairs[0]}
    with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using backward\\(\\) with create_graph=True")
        model.eval()
        unused = _hide_unused(model, trainable)
        solver = Counting(model, model.mean_loss, cuda=model.device.type == "cuda", **source)
        solver.full_dataset = True
        values, vectors = solver.eigenvalues(maxIter=max_iterations, tol=tol, top_n=k)
    full_vectors = []
    for vector in vectors:
        parts = {id(parameter): part.detach() for parameter, part in zip(solver.params, vector, strict=True)}
        flat = torch.cat([parts.get(id(parameter), torch.zeros_like(parameter)).flatten() for parameter in trainable])
        full_vectors.append((flat / norm(flat)).detach())
    return values, full_vectors, solver.products, unused


def _hide_unused(model: _IndexedModel, parameters: list[nn.Parameter]) -> int:
    """Turn off `requires_grad` of parameters without influence on the loss's gradient; returns how many."""
    indices, labels = model.pairs[0]
    loss = model.mean_loss(model(indices), labels)
    gradients = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
    unused = [gradient is None or not gradient.requires_grad for gradient in gradients]
    for parameter, hidden in zip(parameters, unused, strict=True):
        parameter.requires_grad_(not hidden)
    return sum(unused)


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Restore gradients, what requires one, the mode, and the default type, in which PyHessian draws vectors."""
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
