"""How sharp a loss is: the Hessian as an operator, and what can be asked of it."""

from __future__ import annotations

from scala_lab.curvature.eigen import EigenResult
from scala_lab.curvature.operator import HessianOperator
from scala_lab.curvature.solve import top_eigenpairs

__all__ = ["EigenResult", "HessianOperator", "top_eigenpairs"]
