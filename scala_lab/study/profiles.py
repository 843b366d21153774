"""Profiles: the same studies at three sizes. A profile is data: no study depends on its name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scala_lab.config import RunSpec
from scala_lab.errors import UserError, nearest
from scala_lab.files import read_toml
from scala_lab.study.tuning import Choice, Choices, rounded
from scala_lab.study.verdicts import SINGLE_LOOK, level_for

PLAIN_RECIPES = {"adamw": "plain", "lamb": "lamb", "ngd": "ngd"}
"""The recipe without noise of each optimizer: its runs tune the rate that all methods of the optimizer train with."""


@dataclass(frozen=True)
class CurvaturePlan:
    """How sharpness is measured: on `sets` disjoint fixed sets of `samples` rows, to a relative tolerance `tol`."""

    samples: int
    sets: int
    tol: float = 1e-3
    threads: int = 1
    flatness_samples: int = 256  # rows of the study `flatness`: it measures several times as many models
    matched_loss: float | None = None  # share of chance's loss at which it compares them too; None: at the end alone


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Which models, tasks, batch sizes, grids and seeds the studies run with."""

    name: str  # as in `--profile NAME`
    summary: str  # one line: for whom, and what it needs
    demonstration: str = ""  # what its figures say on their face, where nothing in them is to be quoted
    models: tuple[str, ...]  # values of `--model`; single-model studies use the first
    tasks: tuple[str, ...]  # of the tables
    pair: tuple[str, ...]  # those of them that the figures and side studies show
    small_batch: int = 32  # of the small-batch baseline
    large_batch: int  # of the large-batch tables
    batch_sizes: tuple[int, ...]  # of the heat map and of accuracy over batch sizes, the small one first
    start_rates: Mapping[str, float]  # centre of the first grid of rates at the large batch size, by optimizer
    start_radii: Mapping[str, float]  # the same of a method's own radius, by its setting (`omega rho`: both)
    grid_points: int  # trials of a first grid, the same for every method
    seeds: tuple[int, ...]  # paired over methods
    tuning_seed: int = 100  # of all trials
    looks: bool = False  # whether results are looked at after 4, 6 and 8 seeds, at the levels of `level_for`
    delays: tuple[float, ...] = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)  # t_s of the study of switch points, in epochs
    early_delay: float = 3.0  # the two t_s of the paper, 3 and 5 of 6 epochs: tuning rows decide between them
    late_delay: float = 5.0
    ascent_steps: tuple[int, ...]  # T of the study of perturbation steps
    strengths: tuple[float, ...]  # omega of the study of noise strength
    seen_tasks: tuple[str, ...] = ()  # tasks of whose rows its encoders have seen some in pretraining
    longer: int = 2  # how many times the epochs the baseline trains that "trains longer"
    longer_batch: int = 0  # its batch size; 0 for the large one
    workers: tuple[int, ...]  # numbers of workers that timings are taken at
    curvature: CurvaturePlan  # how sharpness is measured
    settings: Mapping[str, Any]  # all other settings of a spec
    choices: Choices = field(default_factory=Choices, compare=False, repr=False)  # what the trials have decided

    def spec(self, task: str, method: str, batch_size: int, rate: float | None = None, **overrides: Any) -> RunSpec:
        """Return the spec of a run of a recipe; overrides are settings as in `RunSpec.of`.

        The rate defaults to the rule of `scala-lab train`, the model to the first of `models`.
        """
        values = {**self.settings, **overrides}
        values["micro_batch"] = min(values.get("micro_batch", 64), batch_size)
        values["model"] = values.get("model") or self.models[0]
        return RunSpec.of(task=task, method=method, batch_size=batch_size, lr=rate, **values)

    def tuned_rate(self, task: str, optimizer: str, batch_size: int, model: str = "") -> Choice:
        """Return the rate of an optimizer at a batch size, tuned without noise on the task's tuning rows."""
        spec = self.spec(task, PLAIN_RECIPES[optimizer], batch_size, seed=self.tuning_seed, model=model)
        centre = self.start_rates[optimizer] * math.sqrt(batch_size / self.large_batch)
        return self.choices.choose(spec, "lr", self._grid(centre))

    def rate_trials(self, task: str, optimizer: str, batch_size: int) -> dict[float, RunSpec]:
        """Return the trials that `tuned_rate` was chosen from, by rate."""
        spec = self.spec(task, PLAIN_RECIPES[optimizer], batch_size, seed=self.tuning_seed)
        return {rate: spec.override(lr=rate) for rate in sorted(self.tuned_rate(task, optimizer, batch_size).scores)}

    def tuned_radius(
        self, setting: str, task: str, method: str, batch_size: int, model: str = "", **overrides: Any
    ) -> Choice:
        """Return a method's own radius (a key of `start_radii`), tuned at its optimizer's tuned rate."""
        spec = self.spec(task, method, batch_size, seed=self.tuning_seed, model=model, **overrides)
        rate = self.tuned_rate(task, spec.resolved().optim.optimizer or "", batch_size, model)
        grid = self._grid(self.start_radii[setting])
        return self.choices.choose(spec.override(lr=rate.value), setting, grid, after=rate, radius=True)

    def tuned_delay(self, task: str, model: str = "") -> Choice:
        """Return which of the paper's two t_s is better on the tuning rows, at the large batch size."""
        rate = self.tuned_rate(task, "lamb", self.large_batch, model)
        spec = self.spec(task, "scala", self.large_batch, rate.value, seed=self.tuning_seed, model=model)
        return self.choices.choose(spec, "delay", (self.early_delay, self.late_delay), after=rate, extend=False)

    def _grid(self, centre: float) -> list[float]:
        """Return the first grid of trials, each twice the one before."""
        return [rounded(centre * 2.0 ** (index - self.grid_points // 2)) for index in range(self.grid_points)]

    def rule_rate(self, rate: float, batch_size: int) -> float:
        """Carry a rate of the small batch size b over by the square-root rule, lr(B) = lr(b) * sqrt(B / b)."""
        return rounded(rate * math.sqrt(batch_size / self.small_batch))

    def with_data(self, data_dir: Path | None, model: str | None) -> Profile:
        """Return this profile on data and an encoder from folders, where the hub cannot be reached."""
        data = {} if data_dir is None else {"data_dir": data_dir}
        return replace(self, settings={**self.settings, **data}, models=(model,) if model else self.models)

    def with_choices(self, choices: Choices) -> Profile:
        """Return this profile with what the trials have decided."""
        return replace(self, choices=choices)

    def restricted(self, seeds: tuple[int, ...] = (), tasks: tuple[str, ...] = ()) -> Profile:
        """Return this profile with other seeds, or other tasks of the same family, where they are given."""
        pair = tuple(task for task in self.pair if task in tasks) or tasks[:2]
        changed = replace(self, tasks=tasks, pair=pair) if tasks else self
        return replace(changed, seeds=seeds) if seeds else changed

    @property
    def level(self) -> float:
        """The level of intervals: by the number of seeds where results are looked at more than once."""
        return level_for(len(self.seeds)) if self.looks else SINGLE_LOOK


def _read_profiles() -> dict[str, Profile]:
    """Read profiles.toml: a table per profile, the fields of `Profile` and `CurvaturePlan`."""
    profiles = {}
    for name, table in read_toml(Path(__file__).with_suffix(".toml")).items():
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in table.items()
        }
        values["curvature"] = CurvaturePlan(**values["curvature"])
        profiles[name] = Profile(name=name, **values)
    return profiles


PROFILES = _read_profiles()
EMBEDDED, LAPTOP, PAPER = PROFILES.values()


def find_profile(name: str) -> Profile:
    """Return the profile of that name; an error names the closest one."""
    if name not in PROFILES:
        raise UserError(f"unknown profile {name!r}: {nearest(name, PROFILES)}")
    return PROFILES[name]
