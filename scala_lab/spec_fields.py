"""Reading and setting the leaves of nested frozen dataclasses by flat name, with errors for people."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from scala_lab.errors import UserError, nearest

S = TypeVar("S")


class Leaf(NamedTuple):
    """One setting of a spec: the part it stands in ('' at the top), its flat name, its field and its value."""

    part: str
    name: str
    attribute: str
    value: Any


def leaves(spec: Any) -> list[Leaf]:
    """All settings of a spec, in order. A trailing underscore (`lambda_`) is not part of the flat name."""
    found: list[Leaf] = []
    for attribute, name in _names(type(spec)):  # type: ignore[arg-type]  # a class is hashable
        value = getattr(spec, attribute)
        if dataclasses.is_dataclass(value):
            found += [Leaf(attribute, leaf.name, leaf.attribute, leaf.value) for leaf in leaves(value)]
        else:
            found.append(Leaf("", name, attribute, value))
    return found


@functools.cache
def _names(kind: type) -> list[tuple[str, str]]:
    """The fields of a part and their flat names."""
    return [(field.name, field.name.rstrip("_")) for field in dataclasses.fields(kind)]


def set_leaves(spec: S, values: Mapping[str, Any], source: str) -> S:
    """A copy of `spec` with settings changed; keys are flat names or parts that hold a table of them."""
    by_name = {leaf.name: leaf for leaf in leaves(spec)}
    parts = {leaf.part for leaf in by_name.values() if leaf.part}
    changes: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        if key in parts and isinstance(value, Mapping):
            inner = {leaf.name for leaf in by_name.values() if leaf.part == key}
            for name in value:
                if name.rstrip("_") not in inner:
                    raise UserError(f"{source}: unknown key {name!r} in [{key}]: {nearest(name, inner)}")
            flat = dict(value)
        else:
            flat = {key: value}
        for name, setting in flat.items():
            leaf = by_name.get(name.rstrip("_"))
            if leaf is None:
                raise UserError(f"{source}: unknown key {name!r}: {nearest(name, [*by_name, *parts])}")
            owner = getattr(spec, leaf.part) if leaf.part else spec
            hint = _type_hints(type(owner))[leaf.attribute]  # type: ignore[arg-type]
            changes.setdefault(leaf.part, {})[leaf.attribute] = _as_type(setting, hint, f"{source}: {leaf.name}")
    top = changes.pop("", {})
    nested = {part: dataclasses.replace(getattr(spec, part), **change) for part, change in changes.items()}
    return dataclasses.replace(spec, **nested, **top)  # type: ignore[type-var]


@functools.cache
def _type_hints(owner: type) -> dict[str, Any]:
    """Types of the fields; finding them anew for each setting is most of what resolving a spec would cost."""
    return typing.get_type_hints(owner)


def _as_type(value: Any, hint: Any, where: str) -> Any:
    """The value as its field's type, or an error that says what was expected."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        (hint,) = (argument for argument in arguments if argument is not type(None))
        return _as_type(value, hint, where)
    if origin is Literal:
        if value not in arguments:
            raise UserError(f"{where} is {value!r}: {nearest(str(value), arguments)}")
        return value
    if origin is tuple:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)):
            raise UserError(f"{where} must be a list of strings, not {value!r}")
        return tuple(_as_type(item, arguments[0], where) for item in items)
    if hint is Path and isinstance(value, (str, Path)):
        return Path(value)
    if hint is str and isinstance(value, Path):
        return str(value)
    if hint is float and (value == "inf" or (isinstance(value, int) and not isinstance(value, bool))):
        return float(value)
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    expected = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}[hint]
    raise UserError(f"{where} must be {expected}, not {value!r}")
