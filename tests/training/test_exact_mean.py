"""The gradient is the exact mean over the global batch, however it is cut and dealt."""

from __future__ import annotations

from functools import partial

import pytest
from safetensors.torch import load_file

from scala_lab.config import MachineSpec
from scala_lab.methods.recipes import RECIPES
from scala_lab.training.distributed import run_workers
from tests.tiny import write_rows
from tests.training.recipe_runs import (
    BATCH,
    compute_all,
    difference,
    gradient,
    make_training,
    precision_of,
    recipe_spec,
    take_steps,
)

# 41 rows: the third batch has 9; 33 rows: it has 1, fewer than the two workers
ROWS = (41, 33)

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def two_workers(tiny_bert, tmp_path_factory):
    """What two processes computed, by number of rows, and the files of rows."""
    folder = tmp_path_factory.mktemp("two")
    files = {count: write_rows(folder / f"rows{count}.csv", count) for count in ROWS}
    job = partial(compute_all, tiny_bert, list(files.values()), folder)
    run_workers(job, MachineSpec(workers=2, threads=1, device="cpu"))
    return {count: (file, load_file(folder / f"{file.stem}.safetensors")) for count, file in files.items()}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("method", RECIPES)
def test_every_recipe_is_the_same_however_cut(method, rows, tiny_bert, two_workers):
    file, pair = two_workers[rows]
    precision = precision_of(method)
    tolerance = {"float64": 1e-9, "float32": 1e-5}[precision]
    whole, eighths = (recipe_spec(method, tiny_bert, file, micro_batch=size) for size in (BATCH, BATCH // 8))
    for name, step in (("gradient", 0), ("last gradient", 2)):
        reference, cut = (gradient(spec.override(precision=precision), step=step) for spec in (whole, eighths))
        assert reference.norm() > 1e-3
        assert difference(cut, reference) < tolerance
        assert difference(pair[f"{method} {name}"], reference) < tolerance

    reference, cut = (take_steps(make_training(spec)) for spec in (whole, eighths))
    assert difference(cut, reference) < 1e-9
    assert difference(pair[f"{method} weights"], reference) < 1e-9
