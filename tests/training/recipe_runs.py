"""Gradients and weights of every recipe, computed by one process or by two."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from scala_lab.config import RunSpec
from scala_lab.methods.recipes import RECIPES
from scala_lab.training.distributed import World, join_world
from scala_lab.training.preparation import prepare
from scala_lab.training.trainer import Training
from tests.command_line import own_rows

ALONE = World(0, 1, torch.device("cpu"))
BATCH = 16
STEPS = 5


def recipe_spec(method: str, model: Path, rows: Path, **changes: object) -> RunSpec:
    """A short run without dropout in which the noise, where the recipe has any, acts from the first step."""
    values = own_rows(rows, model=str(model), method=method, dropout=0.0, batch_size=BATCH, micro_batch=4, lr=0.02)
    values |= {"precision": "float64", "threads": 1, "device": "cpu"}
    if "delay" in RECIPES[method].option_values():
        values["delay"] = 0.0
    return RunSpec.of(**values | changes).resolved()


def make_training(spec: RunSpec, world: World = ALONE) -> Training:
    """The trainer of a run, in training mode."""
    training = Training(spec, prepare(spec), world)
    training.model.train()
    return training


def take_steps(training: Training, steps: int = STEPS) -> torch.Tensor:
    """All weights, flat, after some steps."""
    for step in range(steps):
        training.accumulate(step)
        training.update(step)
    return flat_weights(training)


def flat_weights(training: Training) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in training.model.parameters()])


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def precision_of(method: str) -> str:
    """Of gradients that are compared: in float32, rounding can turn the sign of a normalized ascent."""
    return "float64" if RECIPES[method].option_values().get("ascent") == "normalized" else "float32"


def gradient(spec: RunSpec, world: World = ALONE, step: int = 0) -> torch.Tensor:
    """The flat mean gradient of a step."""
    training = make_training(spec, world)
    training.accumulate(step)
    return training.gradient.gradients.clone()


def compute_all(model: Path, rows: list[Path], out: Path) -> None:
    """Compute everything as one of two workers; the first one writes it."""
    world = join_world(recipe_spec("plain", model, rows[0], workers=2).machine)
    for file in rows:
        found = {}
        for method in RECIPES:
            spec = recipe_spec(method, model, file, micro_batch=2, workers=2)
            compared = spec.override(precision=precision_of(method)).resolved()
            found[f"{method} gradient"] = gradient(compared, world)
            found[f"{method} last gradient"] = gradient(compared, world, step=2)
            found[f"{method} weights"] = take_steps(make_training(spec, world))
        if world.leads:
            save_file(found, out / f"{file.stem}.safetensors")
    world.leave()
