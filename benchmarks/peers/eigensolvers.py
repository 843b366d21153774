"""Top eigenpairs of a classifier's Hessian by scala_lab and by its peers, each as its users call it.

All take the same model, the same length-sorted batches and torch's plain attention, without which the peers crash.
"""

from __future__ import annotations

import time
from collections import UserDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from scala_lab.curvature import HessianOperator, top_eigenpairs
from scala_lab.curvature.pyhessian_check import pyhessian_top


@dataclass(frozen=True)
class Question:
    """What every solver is asked.

    Attributes:
        model: In eval mode.
        batches: Dicts with labels, of one size.
        k: How many of the largest eigenvalues.
        tol: Largest residual ||Hv - lambda v|| / |lambda|.
        seed: Of the random start.
    """

    model: nn.Module
    batches: list[dict[str, Tensor]]
    k: int = 5
    tol: float = 1e-3
    seed: int = 0


@dataclass(frozen=True)
class Answer:
    """What a solver found, and what it took.

    Attributes:
        seconds: From nothing but model and batches to eigenvectors.
        products: With the Hessian.
        eigenvalues: Largest first; empty if it was stopped.
        vectors: Over all parameters, one per row.
    """

    seconds: float
    products: int
    eigenvalues: np.ndarray
    vectors: Tensor | None = None

    def residuals(self, op: HessianOperator) -> list[float]:
        """||Hv - lambda v|| / |lambda| of each pair by products with one common operator."""
        if self.vectors is None:
            return []
        pairs = zip(self.vectors, self.eigenvalues.tolist(), strict=True)
        return [float((op @ vector - value * vector).norm() / vector.norm()) / abs(value) for vector, value in pairs]


def ours(question: Question) -> Answer:
    """scala_lab, operator and all."""
    started = time.perf_counter()
    op = HessianOperator(question.model, question.batches)
    found = top_eigenpairs(op, question.k, question.tol, seed=question.seed)
    vectors = found.eigenvectors
    return Answer(time.perf_counter() - started, found.hvps, found.eigenvalues, vectors)


class EigenthingsLanczos:
    """hessian-eigenthings' Lanczos with the fewest iterations that bring every residual below the tolerance.

    It takes the number of iterations beforehand and does not look at residuals on the way. The number is found with
    its own code and our faster operator, outside the measured time.
    """

    name = "hessian-eigenthings"

    def __init__(self, question: Question, op: HessianOperator) -> None:
        from hessian_eigenthings import HessianOperator as TheirOperator

        self.question = question
        self.operator = TheirOperator(question.model, question.batches, _mean_loss)
        self.iterations = self._fewest(op)

    def _fewest(self, op: HessianOperator, most: int = 60) -> int:
        from hessian_eigenthings import LambdaOperator, lanczos_tridiagonal

        theirs = LambdaOperator(lambda vector: op @ vector, op.space.size, device=op.device, dtype=op.dtype)
        start = torch.randn(op.space.size, generator=torch.Generator().manual_seed(self.question.seed))
        found = lanczos_tridiagonal(theirs, start, most)
        alphas, betas = found.alphas.double().numpy(), found.betas.double().numpy()
        for size in range(self.question.k, len(betas)):
            values, vectors = np.linalg.eigh(np.diag(alphas[:size]) + np.diag(betas[: size - 1], -1))
            residuals = np.abs(betas[size - 1] * vectors[-1, -self.question.k :] / values[-self.question.k :])
            if (residuals < self.question.tol).all():
                return size
        raise RuntimeError(f"{self.name} does not reach the tolerance within {most} iterations")

    def solve(self) -> Answer:
        """One run of its Lanczos."""
        from hessian_eigenthings import lanczos

        question, started = self.question, time.perf_counter()
        with sdpa_kernel(SDPBackend.MATH):
            found = lanczos(
                self.operator,
                k=question.k,
                max_iter=self.iterations,
                tol=question.tol,
                reorthogonalize=True,
                which="LA",
                seed=question.seed,
            )
        seconds = time.perf_counter() - started
        return Answer(seconds, found.iterations, found.eigenvalues.numpy(), found.eigenvectors)


class CurvlinopsEigsh:
    """curvlinops' Hessian in scipy's eigsh, whose tolerance is on the same residual as ours."""

    name = "curvlinops + eigsh"

    def __init__(self, question: Question) -> None:
        self.question = question
        self.data = [(UserDict(_inputs(batch)), batch["labels"]) for batch in question.batches]

    def solve(self) -> Answer:
        """One run of eigsh."""
        from curvlinops import HessianLinearOperator
        from scipy.sparse.linalg import LinearOperator, eigsh

        question, started = self.question, time.perf_counter()
        model = _Logits(question.model)
        with sdpa_kernel(SDPBackend.MATH):
            operator = HessianLinearOperator(
                model,
                nn.CrossEntropyLoss(),
                [parameter for parameter in model.parameters() if parameter.requires_grad],
                self.data,
                check_deterministic=False,
                batch_size_fn=lambda inputs: len(inputs["input_ids"]),
            ).to_scipy()
            counted = _Counted(operator.matvec)
            start = np.random.default_rng(question.seed).standard_normal(operator.shape[0]).astype(np.float32)
            values, vectors = eigsh(
                LinearOperator(operator.shape, counted, dtype=np.float32),
                k=question.k,
                which="LA",
                tol=question.tol,
                v0=start,
            )
        seconds = time.perf_counter() - started
        order = np.argsort(-values)
        return Answer(seconds, counted.calls, values[order], torch.from_numpy(vectors.T[order].copy()))


class PyHessianPower:
    """PyHessian's power iteration at its own tolerance: the change of an eigenvalue between two iterations."""

    name = "PyHessian"

    def __init__(self, question: Question, op: HessianOperator) -> None:
        self.question, self.op = question, op

    def solve(self, stop_after: float) -> Answer:
        """One run; cut off after that many seconds."""
        question, products = self.question, [time.perf_counter()]

        def look_at_the_clock() -> None:
            products.append(time.perf_counter())
            if products[-1] - products[0] > stop_after:
                raise _TimeIsUp

        try:
            found = pyhessian_top(
                question.model,
                question.batches,
                question.k,
                question.tol,
                seed=question.seed,
                op=self.op,
                on_product=look_at_the_clock,
            )
        except _TimeIsUp:
            return Answer(products[-1] - products[0], len(products) - 1, np.empty(0))
        return Answer(products[-1] - products[0], found.hvps, found.eigenvalues, found.eigenvectors)


class _TimeIsUp(Exception):
    """PyHessian was stopped."""


class _Counted:
    """A function that counts its calls."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function, self.calls = function, 0

    def __call__(self, vector: Any) -> Any:
        self.calls += 1
        return self.function(vector)


class _Logits(nn.Module):
    """A transformers classifier as a function from inputs to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return self.model(**inputs).logits


def _inputs(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in batch.items() if name != "labels"}


def _mean_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    return functional.cross_entropy(model(**_inputs(batch)).logits, batch["labels"])
