"""One tiny model of each architecture with its dense Hessian, made once for all tests."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from scala_lab.curvature import HessianOperator
from tests.curvature.dense import dense_hessian, tiny_batches, tiny_classifier
from tests.tiny import ARCHITECTURES


@dataclass(frozen=True)
class Case:
    """A model loaded with its default attention as an operator, and the matrix that torch.func makes of it."""

    op: HessianOperator
    matrix: torch.Tensor


def make_case(folder, architecture: str, labels: int = 3) -> Case:
    model, batches = tiny_classifier(folder, architecture, labels), tiny_batches(labels=labels)
    return Case(HessianOperator(model, batches), dense_hessian(folder, batches))


@pytest.fixture(scope="session", params=ARCHITECTURES)
def every(request, tmp_path_factory) -> Case:
    """Each of the architectures in turn."""
    return make_case(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="session")
def case(tmp_path_factory) -> Case:
    """BERT alone."""
    return make_case(tmp_path_factory.mktemp("bert"), "bert")
