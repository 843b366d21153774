"""Profiles: the same studies at three sizes. A profile is data; no study depends on which one it runs under."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from scala_lab.config import RunSpec
from scala_lab.errors import UserError, nearest
from scala_lab.methods.recipes import find_recipe


@dataclass(frozen=True)
class CurvaturePlan:
    """How sharpness is measured: on `sets` disjoint fixed sets of `samples` rows, to a relative tolerance `tol`."""

    samples: int
    sets: int
    tol: float = 1e-3
    threads: int = 1


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Which models, tasks, batch sizes, rates and seeds the studies run with; defaults are those for GLUE."""

    name: str  # as in `--profile NAME`
    summary: str  # one line: for whom, and what it needs
    models: tuple[str, ...]  # values of `--model`; single-model studies use the first
    tasks: tuple[str, str, str, str] = ("mnli", "qnli", "qqp", "sst2")  # of the paper's tables, in its order
    pair: tuple[str, str] = ("mnli", "sst2")  # the two of them that the paper's figures show
    small_batch: int = 32  # of the small-batch baseline
    large_batch: int = 1024  # of the large-batch tables
    batch_sizes: tuple[int, ...]  # rows of the heat map of batch size against rate
    small_rates: tuple[float, ...]  # rates tried with adamw at the small batch size
    large_rates: Mapping[str, tuple[float, ...]]  # rates tried at the large batch size, by optimizer; of one length
    heat_rates: tuple[float, ...] = (1e-4, 3e-4, 5e-4, 7e-4, 9e-4, 1e-3, 3e-3)  # columns of the heat map
    scale_rates: bool  # whether `rates` moves the large grid by the square-root rule for other batch sizes
    seeds: tuple[int, ...]  # paired over methods
    side_seeds: tuple[int, ...]  # those of them that studies beside the main tables run with
    side_points: int  # how many rates, about the middle of the grid, those studies try
    delays: tuple[float, ...] = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)  # t_s of the study of switch points, in epochs
    ascent_steps: tuple[int, ...]  # T of the study of perturbation steps
    radii: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # omega of the study of noise strength
    longer: int = 2  # how many times the epochs the baseline trains that "trains longer"
    workers: tuple[int, ...]  # numbers of workers that timings are taken at
    curvature: CurvaturePlan  # how sharpness is measured
    settings: Mapping[str, Any] = field(default_factory=dict)  # all other settings of a spec

    def spec(
        self,
        task: str,
        method: str,
        batch_size: int,
        rate: float | None = None,
        *,
        seed: int = 0,
        model: str | None = None,
        **overrides: Any,
    ) -> RunSpec:
        """Return the spec of a run of a recipe; overrides are settings as in `RunSpec.of`.

        The rate defaults to the rule of `scala-lab train`, the model to the first of `models`.
        """
        values = {**self.settings, **overrides}
        values["micro_batch"] = min(values.get("micro_batch", 64), batch_size)
        return RunSpec.of(
            task=task, method=method, batch_size=batch_size, lr=rate, seed=seed, model=model or self.models[0], **values
        )

    def rates(self, method: str, batch_size: int, optimizer: str | None = None) -> tuple[float, ...]:
        """Return the grid of rates for a method, whose optimizer decides unless another is given, at a batch size.

        The small batch size has a grid of its own for adamw, and where optimizers share grids; other sizes take the
        large one's, moved by the square-root rule if `scale_rates`.
        """
        name = optimizer or find_recipe(method).optimizer
        if batch_size == self.small_batch and (name == "adamw" or not self.scale_rates):
            return self.small_rates
        factor = math.sqrt(batch_size / self.large_batch) if self.scale_rates else 1.0
        return tuple(_three_digits(rate * factor) for rate in self.large_rates[name])

    def side_rates(self, method: str, batch_size: int, optimizer: str | None = None) -> tuple[float, ...]:
        """Return the `side_points` rates about the middle of the grid of `rates`."""
        grid = self.rates(method, batch_size, optimizer)
        first = max(0, (len(grid) - self.side_points) // 2)
        return grid[first : first + self.side_points]

    def rule_rate(self, rate: float, method: str, batch_size: int) -> float:
        """Carry a rate of the small batch size b over by the square-root rule, lr(B) = lr(b) * sqrt(B / b).

        A rate of the method's grid within 2% of the result is returned in its place, so that its runs serve both.
        """
        ruled = _three_digits(rate * math.sqrt(batch_size / self.small_batch))
        near = [known for known in self.rates(method, batch_size) if math.isclose(known, ruled, rel_tol=0.02)]
        return near[0] if near else ruled

    def with_data(self, data_dir: Path | None, model: str | None) -> Profile:
        """Return this profile on data and an encoder from folders, where the hub cannot be reached."""
        data = {} if data_dir is None else {"data_dir": data_dir}
        return replace(self, settings={**self.settings, **data}, models=(model,) if model else self.models)


def _three_digits(rate: float) -> float:
    return float(f"{rate:.3g}")


def _grids(adamw: tuple[float, ...], group_wise: tuple[float, ...]) -> Mapping[str, tuple[float, ...]]:
    """Return grids by optimizer; those with group-wise rates share one."""
    return MappingProxyType({"adamw": adamw, "lamb": group_wise, "ngd": group_wise})


EMBEDDED = Profile(
    name="embedded",
    summary="the embedded encoder and tasks: no download, no GPU, about a quarter of an hour on two cores",
    models=("embedded",),
    tasks=("mini-mnli", "mini-qnli", "mini-qqp", "mini-sst2"),
    pair=("mini-mnli", "mini-sst2"),
    large_batch=128,
    batch_sizes=(64, 128, 256, 512),
    small_rates=(2.5e-4, 5e-4, 1e-3),
    large_rates=_grids((5e-4, 1e-3, 2e-3), (2e-3, 4e-3, 8e-3)),
    heat_rates=(2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3),
    scale_rates=True,
    seeds=(0, 1, 2),
    side_seeds=(0, 1),
    side_points=1,
    delays=(0.0, 2.0, 3.0, 4.0, 5.0),
    ascent_steps=(1, 2, 4),
    radii=(1e-5, 1e-1, 1.0),
    workers=(1, 2),
    curvature=CurvaturePlan(samples=128, sets=3),
    settings=MappingProxyType({"train_samples": 576, "eval_samples": 512, "epochs": 6, "threads": 1}),
)

LAPTOP = Profile(
    name="laptop",
    summary="a small pretrained encoder on GLUE, from folders or the hub: hours to days on two cores, resumable",
    models=("sentence-transformers/paraphrase-MiniLM-L3-v2",),
    batch_sizes=(512, 1024, 2048, 4096),
    small_rates=(5e-5, 1e-4, 2e-4),
    large_rates=_grids((3e-4, 1e-3, 2e-3), (3e-3, 1e-2, 2e-2)),
    scale_rates=True,
    seeds=(0, 1, 2),
    side_seeds=(0, 1, 2),
    side_points=1,
    ascent_steps=(1, 2, 3, 5),
    workers=(1, 2),
    curvature=CurvaturePlan(samples=256, sets=3, threads=2),
    settings=MappingProxyType({"train_samples": 8192, "heldout_samples": 5000, "epochs": 6, "threads": 1}),
)

_PAPER_LARGE = (5.6e-5, 8e-5, 1e-4, 1.7e-4, 2.4e-4, 2.8e-4, 4e-4, 5.6e-4, 1e-3)

PAPER = Profile(
    name="paper",
    summary="BERT-base and RoBERTa-large on all of GLUE from the hub, the paper's grids: a cluster with 32 GPUs",
    models=("bert-base-uncased", "roberta-large"),
    batch_sizes=(1024, 2048, 4096, 8192),
    small_rates=(1e-5, 3e-5, 5e-5, 7e-5, 9e-5, 1e-4, 3e-4),
    large_rates=_grids(_PAPER_LARGE, _PAPER_LARGE),
    scale_rates=False,
    seeds=(0, 1, 2, 3, 4),
    side_seeds=(0, 1, 2, 3, 4),
    side_points=len(_PAPER_LARGE),
    ascent_steps=(1, 2, 3, 4, 5),
    workers=(1, 2, 4, 8, 16, 32),
    curvature=CurvaturePlan(samples=1024, sets=5),
    settings=MappingProxyType(
        {"epochs": 6, "workers": 32, "micro_batch": 8, "threads": 1, "device": "cuda", "precision": "bf16"}
    ),
)

PROFILES: Mapping[str, Profile] = MappingProxyType({profile.name: profile for profile in (EMBEDDED, LAPTOP, PAPER)})


def find_profile(name: str) -> Profile:
    """Return the profile of that name; an error names the closest one."""
    if name not in PROFILES:
        raise UserError(f"unknown profile {name!r}: {nearest(name, PROFILES)}")
    return PROFILES[name]
