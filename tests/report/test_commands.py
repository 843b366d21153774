"""The commands that a report shows bring back what it shows."""

from __future__ import annotations

import json
import shlex

import pytest

from scala_lab.commands.train import parse
from scala_lab.config import RunSpec
from scala_lab.methods.recipes import RECIPES
from scala_lab.report.build import study_command
from scala_lab.report.chapter import Manifest
from scala_lab.report.page import train_command

SPECS = [
    *(RunSpec.of(method=method, batch_size=256, lr=1 / 3, threads=1) for method in RECIPES),
    RunSpec.of(method="scala", optimizer="adamw", label_gradient=True, delay=2.5, lambda_=0.0, threads=2),
    RunSpec.of(method="freelb", task="mini-qqp", adv_max_norm=0.0, adapt_all=True, max_weight_norm=float("inf")),
    RunSpec.of(method="plain", task="my rows.csv", text_columns=("a", "b b"), label_column="y", regression=True),
    RunSpec.of(method="lamb", lr=1e-5, lr_scaling="sqrt", seed=2**62, device="cpu", precision="bf16", workers=2),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_train_command_gives_the_run_of_that_id(spec):
    record = json.loads(json.dumps(spec.resolved().to_dict()))
    words = shlex.split(train_command(record))
    assert words[:2] == ["scala-lab", "train"]
    assert parse(words[2:]).spec.run_id == spec.run_id


def test_train_command_leaves_out_what_is_default():
    record = RunSpec.of(method="lamb", task="mini-sst2", batch_size=512, threads=1, device="cpu").resolved().to_dict()
    assert train_command(record) == (
        "scala-lab train --task mini-sst2 --method lamb --batch-size 512 --threads 1 --device cpu"
    )


def test_study_command_names_all_that_decides_the_cells():
    manifest = Manifest("laptop", data_dir="my glue", model="models/l3", seeds=(3, 4), tasks=("sst2",))
    assert study_command(manifest, "sharpness") == (
        "scala-lab study sharpness --profile laptop --data-dir 'my glue' --model models/l3 --seeds 3 4 --tasks sst2"
    )
