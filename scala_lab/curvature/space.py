"""The space that Hessian products live in: flat vectors over chosen parameters, and its touched part.

The Hessian is exactly zero on rows of the word-embedding table that no sample uses. Solvers therefore work on
"touched" vectors, in which the table is replaced by its used rows; `full` and `touched` go between the two.
"""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from scala_lab.errors import UserError


class ParameterSpace:
    """Flat vectors over a model's trainable parameters, in the order of `named_parameters`.

    Args:
        model: The model; parameters with `requires_grad` off are left out.
        patterns: Shell patterns of parameter names; None for all.
        table_name: Name of the word-embedding table, if it is looked up by token ids alone.
        used_ids: Sorted ids of the tokens that occur.
    """

    def __init__(
        self,
        model: nn.Module,
        patterns: Sequence[str] | None = None,
        table_name: str | None = None,
        used_ids: Tensor | None = None,
    ) -> None:
        trainable = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self.parameters = {
            name: value
            for name, value in trainable.items()
            if patterns is None or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        }
        if not self.parameters:
            some = ", ".join(list(trainable)[:3])
            raise UserError(f"no trainable parameter matches {', '.join(patterns or ())}: the model has {some}, ...")
        self.table_name = table_name
        self.used_ids = used_ids
        self._measure()

    def part(self, names: Sequence[str]) -> ParameterSpace:
        """The space over some of these parameters, in their order here."""
        found = copy.copy(self)
        found.parameters = {name: value for name, value in self.parameters.items() if name in set(names)}
        found._measure()
        return found

    def _measure(self) -> None:
        """Shapes and sizes of the chosen parameters."""
        used_ids = self.used_ids
        self.table_name = self.table_name if self.table_name in self.parameters else None
        self.size = sum(value.numel() for value in self.parameters.values())
        self.shapes = {name: tuple(value.shape) for name, value in self.parameters.items()}
        if self.table_name is not None and used_ids is not None:
            self.shapes[self.table_name] = (len(used_ids), *self.shapes[self.table_name][1:])
        self.touched_size = sum(_product(shape) for shape in self.shapes.values())

    @property
    def compact(self) -> bool:
        """Whether touched vectors are shorter than full ones."""
        return self.table_name is not None and self.used_ids is not None

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters."""
        return next(iter(self.parameters.values())).dtype

    def place_of(self, ids: Tensor) -> Tensor:
        """Where token ids stand among the used rows."""
        assert self.used_ids is not None
        return torch.searchsorted(self.used_ids, ids)

    def pieces(self, touched: Tensor) -> list[Tensor]:
        """A touched vector as views shaped like the parameters."""
        found, start = [], 0
        for shape in self.shapes.values():
            size = _product(shape)
            found.append(touched[start : start + size].view(shape))
            start += size
        return found

    def touched(self, full: Tensor) -> Tensor:
        """The touched part of a full vector."""
        if not self.compact:
            return full
        parts, start = [], 0
        for name, value in self.parameters.items():
            part = full[start : start + value.numel()]
            start += value.numel()
            parts.append(part.view_as(value)[self.used_ids].flatten() if name == self.table_name else part)
        return torch.cat(parts)

    def full(self, touched: Tensor) -> Tensor:
        """A touched vector, or several as rows, in full length, 0 on rows of the table that are not touched."""
        if not self.compact:
            return touched
        result = touched.new_zeros(*touched.shape[:-1], self.size)
        start, taken = 0, 0
        for name, value in self.parameters.items():
            shape = self.shapes[name]
            part, piece = result[..., start : start + value.numel()], touched[..., taken : taken + _product(shape)]
            start, taken = start + value.numel(), taken + _product(shape)
            if name == self.table_name:
                part.unflatten(-1, value.shape)[..., self.used_ids, :] = piece.unflatten(-1, shape)
            else:
                part.copy_(piece)
        return result


def _product(shape: Sequence[int]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
