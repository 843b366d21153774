"""Gradients and weights of every recipe, computed by one process or by two; also run as a worker of two.

As a script, `python -m tests.training.recipe_runs JOB` under torchrun's variables, with JOB a JSON object of model,
files of rows and out folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from scala_lab.config import RunSpec
from scala_lab.machine import end_process
from scala_lab.methods.recipes import RECIPES
from scala_lab.training.distributed import World, join_world
from scala_lab.training.preparation import prepare
from scala_lab.training.trainer import Training

BATCH = 16
STEPS = 5


def recipe_spec(method: str, model: Path, rows: Path, precision: str, micro_batch: int, workers: int) -> RunSpec:
    """A short run without dropout in which the noise, where the recipe has any, acts from the first step."""
    values = {
        "task": str(rows),
        "text_columns": ("text",),
        "label_column": "label",
        "eval_file": rows,
        "model": str(model),
        "method": method,
        "dropout": 0.0,
        "batch_size": BATCH,
        "micro_batch": micro_batch,
        "precision": precision,
        "workers": workers,
        "threads": 1,
        "lr": 0.02,
    }
    if "delay" in RECIPES[method].option_values():
        values["delay"] = 0.0
    return RunSpec.of(**values).resolved()


def precision_of(method: str) -> str:
    """Of gradients that are compared: in float32, rounding can turn the sign of a normalized ascent."""
    return "float64" if RECIPES[method].option_values().get("ascent") == "normalized" else "float32"


def gradient(spec: RunSpec, world: World, step: int = 0) -> torch.Tensor:
    """The flat mean gradient of a step."""
    training = Training(spec, prepare(spec), world)
    training.model.train()
    training.accumulate(step)
    return training.gradient.gradients.clone()


def weights(spec: RunSpec, world: World) -> torch.Tensor:
    """All weights, flat, after STEPS steps."""
    training = Training(spec, prepare(spec), world)
    training.model.train()
    for step in range(STEPS):
        training.accumulate(step)
        training.update(step)
    return torch.cat([parameter.detach().flatten() for parameter in training.model.parameters()])


def main(model: str, rows: list[str], out: str) -> None:
    """Compute everything as one of two workers; the first one writes it."""
    world = join_world(recipe_spec("plain", Path(model), Path(rows[0]), "float64", 2, 2).machine)
    for file in map(Path, rows):
        found = {}
        for method in RECIPES:
            spec = recipe_spec(method, Path(model), file, precision_of(method), 2, 2)
            found[f"{method} gradient"] = gradient(spec, world)
            found[f"{method} last gradient"] = gradient(spec, world, step=2)
            found[f"{method} weights"] = weights(recipe_spec(method, Path(model), file, "float64", 2, 2), world)
        if world.leads:
            save_file(found, Path(out) / f"{file.stem}.safetensors")
    world.leave()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
    end_process(0)
