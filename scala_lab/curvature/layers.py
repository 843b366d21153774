"""Top eigenvalue of each layer's diagonal block: which layers are sharp.

The convergence theorem speaks of one smoothness constant alpha_i per group of parameters and of their ratio
kappa_alpha = max alpha_i / min alpha_i. At a checkpoint, the curvature along layer i alone is bounded by the top
eigenvalue of H_ii, which is taken as alpha_i there (a local value: the theorem's holds everywhere).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from scala_lab.curvature.eigen import EigenResult
from scala_lab.curvature.operator import HessianOperator
from scala_lab.curvature.solve import Solver, top_eigenpairs
from scala_lab.optim.groups import layer_names

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class LayerResult:
    """One block per layer, each with its evidence.

    Attributes:
        names: embeddings, the numbered blocks by the start of their parameters' names, head.
        eigenvalues: alpha_i, the top eigenvalue of each H_ii.
        residuals: ||H_ii v - alpha_i v|| / |alpha_i| of each.
        hvps: Products spent on each; a block's product costs a part of a full one.
        converged: Whether each residual is within the tolerance.
        sizes: Parameters of each block.
    """

    names: tuple[str, ...]
    eigenvalues: np.ndarray
    residuals: np.ndarray
    hvps: np.ndarray
    converged: np.ndarray
    sizes: np.ndarray

    @property
    def kappa_alpha(self) -> float:
        """Largest |alpha_i| over the smallest; infinite if a layer has no curvature at all."""
        sizes = np.abs(self.eigenvalues)
        return float(sizes.max() / sizes.min()) if sizes.min() > 0 else float("inf")

    def frame(self) -> pd.DataFrame:
        """One row per layer: layer, eigenvalue, residual, hvps, converged, parameters."""
        import pandas as pd

        return pd.DataFrame(
            {
                "layer": self.names,
                "eigenvalue": self.eigenvalues,
                "residual": self.residuals,
                "hvps": self.hvps,
                "converged": self.converged,
                "parameters": self.sizes,
            }
        )


def layer_eigenvalues(
    op: HessianOperator,
    model: nn.Module,
    tol: float = 1e-3,
    *,
    solver: Solver = "lanczos",
    max_products: int = 300,
    seed: int = 0,
) -> LayerResult:
    """Top eigenvalue of the block of each transformer layer, the embeddings and the head.

    Args:
        op: Over the parameters to be split into layers, all or some; its retained graphs serve every block.
        model: The operator's model.
        tol: Largest residual of a converged block.
        solver: lanczos or power.
        max_products: For each block.
        seed: Of the random start.
    """
    found: dict[str, EigenResult] = {}
    blocks = layer_blocks(op, model)
    for name, parameters in blocks.items():
        block = op.block(parameters)
        found[name] = top_eigenpairs(block, 1, tol, solver=solver, max_products=max_products, seed=seed)
    return LayerResult(
        tuple(found),
        np.array([result.eigenvalues[0] for result in found.values()]),
        np.array([result.residuals[0] for result in found.values()]),
        np.array([result.hvps for result in found.values()]),
        np.array([result.converged for result in found.values()]),
        np.array([result.space.size for result in found.values()]),
    )


def layer_blocks(op: HessianOperator, model: nn.Module) -> dict[str, list[str]]:
    """Parameter names of each layer, of those that the operator is over, in the order of the model."""
    layers = layer_names(model)
    found: dict[str, list[str]] = {}
    for name in op.space.parameters:
        found.setdefault(layers[name], []).append(name)
    return found
