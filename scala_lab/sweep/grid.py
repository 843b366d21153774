"""Grids: every combination of values of some settings, each with several seeds, as the runs of one folder.

The settings with several values are the axes of a grid, all others are fixed. An option that a combination's method
does not have is left out there, so that `method=lamb,scala delay=3,5` is three combinations: LAMB has no delay.

A sweep's folder holds `sweep.json`, which says what its grids are, and the store of their runs. A further grid adds its
points to those of before, as long as the settings that no axis varies are the same.

Example:
    >>> grid = Grid.of(RunSpec(), {"method": ["lamb", "scala"], "delay": [3, 5]}, seeds=2)
    >>> [point.words for point in grid.points]
    ['method=lamb', 'method=scala delay=3', 'method=scala delay=5']
    >>> len(grid.points[0].specs)
    2
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scala_lab.config import RunSpec, as_type, check_noise_starts, flat_settings, setting_types
from scala_lab.errors import UserError, nearest
from scala_lab.files import check_writable, write_json
from scala_lab.methods.recipes import RECIPES, STEP_DEFAULTS, find_recipe
from scala_lab.sweep.cells import Cell
from scala_lab.sweep.engine import Executor, run_sweep
from scala_lab.sweep.store import ENDED, RunStore

if TYPE_CHECKING:
    pass

SWEEP_FILE = "sweep.json"

PATHS = ("task", "eval_file", "model")  # of which a run's id covers the names, not the folders


@dataclass(frozen=True)
class Point:
    """A combination of the axes' values, and its runs, one per seed."""

    values: Mapping[str, Any]  # by setting, without the options that its method does not have
    specs: tuple[RunSpec, ...]

    @property
    def words(self) -> str:
        """The combination as it is written: `lr=0.001 method=lamb`."""
        return " ".join(f"{name}={setting_text(value)}" for name, value in self.values.items())


@dataclass(frozen=True)
class Grid:
    """Fixed settings, the values of each axis, and the seeds."""

    fixed: RunSpec
    axes: Mapping[str, tuple[Any, ...]]
    seeds: tuple[int, ...]

    @classmethod
    def of(cls, fixed: RunSpec, axes: Mapping[str, Any], seeds: int | Sequence[int] | None = None) -> Grid:
        """Return a grid of checked values: those of an axis are a list or a single one, `seeds` are a number or a list.

        Without seeds there is one, that of the fixed settings. Runs have one thread unless the fixed settings say
        otherwise: that suits runs side by side, and their results do not depend on the machine's cores.
        """
        values = {name: _checked(name, given) for name, given in axes.items()}
        values = {name.replace("-", "_").rstrip("_"): given for name, given in values.items()}
        own = values.pop("seed", None)
        if own is not None and seeds is not None:
            raise UserError("the seeds are given twice, as an axis and by --seeds")
        if isinstance(seeds, int):
            if seeds < 1:
                raise UserError(f"--seeds must be at least 1, not {seeds}")
            seeds = range(seeds)
        if seeds is not None:
            own = _checked("seed", list(seeds))
        threads = 1 if fixed.machine.threads is None else fixed.machine.threads
        fixed = replace(fixed, machine=replace(fixed.machine, threads=threads).resolved())
        return cls(fixed, values, own or (fixed.seed,))

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that it compares."""
        return self.axes.get("method", (self.fixed.recipe.method,))

    def left_out(self) -> dict[str, list[str]]:
        """Return the options of the grid that some of its methods do not have, each with these methods.

        An option that none of them has is an error.
        """
        fixed = {name.rstrip("_"): value for name, value in self.fixed.recipe.options.items()}
        found = {}
        for name in dict.fromkeys([*self.axes, *fixed]):
            lacking = [method for method in self.methods if not _takes(method, name)]
            if len(lacking) == len(self.methods):
                takers = ", ".join(method for method in RECIPES if _takes(method, name))
                raise UserError(
                    f"no method of this grid ({', '.join(self.methods)}) has the option {name!r}; "
                    f"methods that have it: {takers}"
                )
            if lacking:
                found[name] = lacking
        return found

    @functools.cached_property
    def points(self) -> list[Point]:
        """Return all combinations in order, those that are the same without the options left out once."""
        self.left_out()
        found: dict[tuple[str, ...], Point] = {}
        for combination in itertools.product(*self.axes.values()):
            values = dict(zip(self.axes, combination, strict=True))
            method = values.get("method", self.fixed.recipe.method)
            values = {name: value for name, value in values.items() if _takes(method, name)}
            options = {name: value for name, value in vars(self.fixed.recipe).items() if _takes(method, name)}
            base = replace(self.fixed, recipe=type(self.fixed.recipe)(**options)).override(**values)
            point = Point(values, tuple(base.override(seed=seed) for seed in self.seeds))
            try:
                key = tuple(spec.run_id for spec in point.specs)
            except UserError as error:
                raise UserError(f"{point.words}: {error}" if values else str(error)) from None
            _refuse_namesake(found.setdefault(key, point), point)
        return list(found.values())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        axes = {name: [_plain(value) for value in values] for name, values in self.axes.items()}
        return {"fixed": self.fixed.to_dict(), "grid": axes, "seeds": list(self.seeds)}


def left_out_text(left_out: Mapping[str, Sequence[str]]) -> str:
    """Say which options some methods of a grid do not have.

    >>> left_out_text({"delay": ["lamb", "freelb"]})
    'Left out for methods that have no such option: delay (lamb, freelb).'
    """
    listed = "; ".join(f"{name} ({', '.join(methods)})" for name, methods in left_out.items())
    return f"Left out for methods that have no such option: {listed}."


def _takes(method: str, name: str) -> bool:
    """Whether a setting is none of the options of methods, or one that this method has."""
    name = name.rstrip("_")
    is_option = setting_types()[name][0].startswith("recipe.") and name != "method"
    return not is_option or name in STEP_DEFAULTS[find_recipe(method).step]


def _refuse_namesake(first: Point, second: Point) -> None:
    """Refuse two files or models of one name in different folders: their runs would count as the same."""
    one, other = flat_settings(first.specs[0]), flat_settings(second.specs[0])
    for name in PATHS:
        if str(one[name]) != str(other[name]):
            raise UserError(f"{name} {one[name]} and {other[name]} would be the same run: rename one of them")


def _checked(given: str, values: Any) -> tuple[Any, ...]:
    """Return the values of an axis as the type of its setting; a text is one value, and `none` is None."""
    names = setting_types()
    name = given.replace("-", "_").rstrip("_")
    if name not in names:
        raise UserError(f"unknown setting {given!r}: {nearest(name, names)}")
    if name == "data_dir":
        raise UserError("data_dir cannot be an axis: runs are told apart by the names of files, not by their folders")
    listed = values if isinstance(values, (list, tuple, range)) else [values]
    if not len(listed):
        raise UserError(f"{name} has no values")
    hint = names[name][1]
    optional = type(None) in typing.get_args(hint)
    return tuple(as_type(None if optional and is_none(value, hint) else value, hint, name) for value in listed)


def read_axis(text: str) -> tuple[str, list[Any]]:
    """Return the name and values of an axis as written on the command line, `lr=1e-3,1e-2`.

    A value is read as the flag of `scala-lab train` reads it, with the same sentence on a mistake. `none` leaves a
    setting to its default; true and false are those of a switch; several words in a value are separated by spaces.

    >>> read_axis("text-columns=title,title body")
    ('text_columns', [('title',), ('title', 'body')])
    """
    given, sign, listed = text.partition("=")
    names, name = setting_types(), given.replace("-", "_").strip("_")
    if not sign or not given:
        raise UserError(f"--grid takes name=a,b,c, not {text!r}")
    if name not in names:
        raise UserError(f"--grid: unknown setting {given!r}: {nearest(name, names)}")
    hint = names[name][1]
    return name, [_read_value(f"--{name.replace('_', '-')}", value.strip(), hint) for value in listed.split(",")]


def _read_value(flag: str, text: str, hint: Any) -> Any:
    arguments = typing.get_args(hint)
    if type(None) in arguments and is_none(text, hint):
        return None
    if type(None) in arguments:
        (hint,) = (argument for argument in arguments if argument is not type(None))
    if not text:
        raise UserError(f"{flag} has an empty value in --grid")
    if typing.get_origin(hint) is tuple:
        return tuple(text.split())
    choices = {"false": False, "true": True} if hint is bool else {}
    if typing.get_origin(hint) is typing.Literal:
        choices = {str(choice): choice for choice in typing.get_args(hint)}
    if choices:
        if text not in choices:
            raise UserError(f"{flag} must be one of {', '.join(sorted(choices))}, not {text!r}")
        return choices[text]
    try:
        return hint(text)
    except ValueError:
        raise UserError(f"{flag} must be {'a whole number' if hint is int else 'a number'}, not {text!r}") from None


def is_none(value: Any, hint: Any) -> bool:
    """Whether a value stands for an unset setting of that type; `none` of --noise is a value of its own."""
    return value is None or (value in ("none", "None") and "'none'" not in str(hint))


def setting_text(value: Any) -> str:
    """Write the value of a setting as on the command line."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _plain(value: Any) -> Any:
    value = list(value) if isinstance(value, tuple) else value
    return str(value) if isinstance(value, Path) or value == math.inf else value


@dataclass(frozen=True)
class SweepFolder:
    """The folder of a sweep: its grids in the order in which they were added, how it is shown, and the last command."""

    folder: Path
    grids: tuple[Grid, ...] = ()
    view: Mapping[str, Any] = field(default_factory=dict)  # see `scala_lab.report.sweep.View`
    command: str = ""

    @classmethod
    def read(cls, folder: Path) -> SweepFolder | None:
        """Read what a folder says of its sweep; None if it holds none."""
        file = folder / SWEEP_FILE
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            grids = tuple(
                Grid.of(RunSpec.from_dict(grid["fixed"]), grid["grid"], grid["seeds"]) for grid in content["grids"]
            )
            return cls(folder, grids, content["view"], content["command"])
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, UserError) as error:
            raise UserError(f"{file} is damaged or was written by another version ({error})") from None

    @classmethod
    def open(cls, folder: Path) -> SweepFolder:
        """Return the sweep of a folder, which has no grids yet if the folder is new; refuse one that holds others."""
        check_writable(folder, "a sweep is a folder")
        present = cls.read(folder)
        if present is None and folder.is_dir() and any(folder.iterdir()):
            raise UserError(f"{folder} is not empty and holds no {SWEEP_FILE}: choose another --out")
        return present or cls(folder)

    @property
    def store(self) -> RunStore:
        """The store of its runs."""
        return RunStore(self.folder / "store")

    @property
    def axes(self) -> list[str]:
        """The settings that differ between its points, in the order in which the grids name them."""
        names = dict.fromkeys(name for grid in self.grids for name in grid.axes)
        settings = [flat_settings(point.specs[0].resolved()) for point in self.points]
        return [name for name in names if len({setting_text(values[name]) for values in settings}) > 1]

    def left_out(self) -> dict[str, list[str]]:
        """Return the options that some methods of its grids do not have, each with these methods."""
        found: dict[str, dict[str, None]] = {}
        for name, methods in (item for grid in self.grids for item in grid.left_out().items()):
            found.setdefault(name, {}).update(dict.fromkeys(methods))
        return {name: list(methods) for name, methods in found.items()}

    @functools.cached_property
    def points(self) -> list[Point]:
        """Return the points of all grids, each once with all of its seeds."""
        found: dict[str, dict[str, RunSpec]] = {}
        values: dict[str, Mapping[str, Any]] = {}
        for point in (point for grid in self.grids for point in grid.points):
            key = point.specs[0].override(seed=0).run_id
            values.setdefault(key, point.values)
            found.setdefault(key, {}).update((spec.run_id, spec) for spec in point.specs)
        return [Point(values[key], tuple(specs.values())) for key, specs in found.items()]

    def cells(self) -> list[Cell]:
        """Return the runs of all points."""
        return [Cell(spec, **point.values, seed=spec.seed) for point in self.points for spec in point.specs]

    def add(self, grid: Grid) -> SweepFolder:
        """Return the sweep with one more grid; refuse one whose fixed settings are others."""
        axes = {name for one in (*self.grids, grid) for name in one.axes} | {"seed", "data_dir"}
        old, new = (_named(one.fixed) for one in ((self.grids or (grid,))[-1], grid))
        changed = [name for name in new if name not in axes and old[name] != new[name]]
        if changed:
            pairs = [f"{name} {setting_text(old[name])} -> {setting_text(new[name])}" for name in changed]
            axis = f"{changed[0]}={setting_text(new[changed[0]])}"
            raise UserError(
                f"{self.folder} holds a sweep with other fixed settings ({'; '.join(pairs)}): choose another --out, "
                f"or make it an axis (--grid {axis})"
            )
        # what is called the same lies where the newest grid says
        paths = {name: value for name, value in flat_settings(grid.fixed).items() if name in {*PATHS} - axes}
        paths["data_dir"] = grid.fixed.data.data_dir
        grids = [replace(one, fixed=one.fixed.override(**paths)) for one in self.grids]
        return replace(self, grids=(*(one for one in grids if one.to_dict() != grid.to_dict()), grid))

    def check_inputs(self) -> None:
        """Load the model and the rows of each run that is still to be trained, and refuse what cannot be trained."""
        from scala_lab.data.sources import load_task, select_rows
        from scala_lab.models.loading import load_tokenizer

        store, loaded, rows = self.store, {}, {}
        for point in self.points:
            specs = [spec.resolved() for spec in point.specs if store.status(spec) not in ENDED]
            for spec in specs[:1]:
                if spec.encoder.model not in loaded:
                    loaded[spec.encoder.model] = load_tokenizer(spec.encoder.model)
                if spec.data not in rows:
                    rows[spec.data] = len(select_rows(load_task(spec.data), spec.data).train)
                try:
                    check_noise_starts(spec, rows[spec.data])
                except UserError as error:
                    raise UserError(f"{point.words}: {error}" if point.values else str(error)) from None

    def write(self) -> None:
        """Write `sweep.json`."""
        grids = [grid.to_dict() for grid in self.grids]
        write_json(self.folder / SWEEP_FILE, {"grids": grids, "view": dict(self.view), "command": self.command})

    def run(self, executor: Executor, **options: Any) -> None:
        """Train what its store lacks, with the options of `run_sweep`."""
        self.write()
        run_sweep(self.cells(), self.store, executor, **options)


def _named(spec: RunSpec) -> dict[str, Any]:
    """Return all settings by name, without the folders of files."""
    settings = flat_settings(spec)
    return settings | {name: settings[name] and Path(settings[name]).name for name in PATHS}
