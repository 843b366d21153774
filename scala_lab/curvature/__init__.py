"""How sharp a loss is: the Hessian as an operator, and what can be asked of it."""

from __future__ import annotations

from scala_lab.curvature.eigensolvers import EigenResult, top_eigenpairs
from scala_lab.curvature.operator import HessianOperator

__all__ = ["EigenResult", "HessianOperator", "top_eigenpairs"]
