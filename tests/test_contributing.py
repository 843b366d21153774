"""CONTRIBUTING.md: a method, a task and a study, added to a copy of the package as it says, work."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import made_up
import pytest
import torch
from safetensors.torch import load_file

from scala_lab.study.profiles import EMBEDDED
from tests.studies import accuracy_cases

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
MAX_LINES = 60


def section(title):
    return GUIDE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def blocks(title, language):
    return re.findall(rf"```{language}\n(.*?)```", section(title), flags=re.DOTALL)


@pytest.fixture
def copy(tmp_path):
    """The package and the studies, to be changed."""
    for name in ("scala_lab", "studies"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def follow(title, folder):
    """Write the files of a section and apply its diffs; returns how many lines were written."""
    written = 0
    for code in blocks(title, "python"):
        name, rest = code.split("\n", 1)
        (folder / name.removeprefix("# ")).write_text(rest)
        written += len(rest.splitlines())
    for diff in blocks(title, "diff"):
        for part in diff.split("--- ")[1:]:
            name, *hunks = part.split("@@\n")
            file = folder / name.strip()
            for hunk in hunks:
                lines = hunk.splitlines()
                old, new = ("\n".join(line[1:] for line in lines if line[0] in kept) for kept in (" ", " +"))
                text = file.read_text()
                assert text.count(old + "\n") == 1, f"{name}: {old!r}"
                file.write_text(text.replace(old + "\n", new + "\n"))
                written += sum(line.startswith("+") for line in lines)
    return written


def scala_lab(folder, *words):
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "scala_lab", *map(str, words)]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


@pytest.mark.long
def test_a_method(copy):
    assert follow("Add a method", copy) < MAX_LINES
    flags = "train --task mini-sst2 --method smoothing --smoothing 0.2 --max-steps 2 --train-samples 64 --batch-size 32"
    weights = []
    for micro_batch in (32, 8):
        out = copy / str(micro_batch)
        more = ["--dropout", 0, "--precision", "float64", "--micro-batch", micro_batch, "--threads", 1, "--out", out]
        scala_lab(copy, *flags.split(), *more)
        weights.append(load_file(out / "checkpoint" / "model.safetensors"))
    for name, whole in weights[0].items():  # stored in float32
        assert torch.allclose(whole, weights[1][name], rtol=1e-6, atol=1e-7), name


@pytest.mark.long
def test_a_task(copy):
    assert follow("Add a task", copy) < MAX_LINES
    rows = [f"{n}\tthe dog barked at it {n}\tthe dog barked\t{n % 2}" for n in range(16)]
    (copy / "glue" / "WNLI").mkdir(parents=True)
    for split in ("train", "dev"):
        text = "\n".join(["index\tsentence1\tsentence2\tlabel", *rows])
        (copy / "glue" / "WNLI" / f"{split}.tsv").write_text(text + "\n")
    flags = ["--method", "plain", "--batch-size", 8, "--max-steps", 1, "--threads", 1]
    scala_lab(copy, "train", "--task", "wnli", "--data-dir", copy / "glue", *flags, "--out", copy / "run")
    run = json.loads((copy / "run" / "run.json").read_text())
    assert run["status"] == "finished"
    assert 0 <= run["metrics"]["dev"]["accuracy"] <= 1


def test_a_study(copy):
    assert follow("Add a study", copy) < MAX_LINES
    (copy / "weight_decay.py").rename(copy / "studies" / "weight_decay.py")
    assert "weight_decay" in scala_lab(copy, "study", "--list")
    assert "0 of 9 are done" in scala_lab(copy, "study", "weight_decay", "--dry-run")  # 2 settings x 3 seeds, 3 trials
    spec = importlib.util.spec_from_file_location("weight_decay", copy / "studies" / "weight_decay.py")
    study = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study)
    frame = accuracy_cases.frame([made_up.arm(study.SOME, 1.0), made_up.arm(study.NONE)]).assign(dev=90.0, f1=math.nan)
    (claim,) = study.analyse(EMBEDDED.restricted(tasks=accuracy_cases.TASKS), frame).claims
    assert claim.verdict == "supported"


@pytest.mark.parametrize("guide", ["CONTRIBUTING.md", "README.md", "docs/add-a-study.md", "docs/scaling.md"])
def test_files_that_are_named_exist(guide):
    text, folder = (ROOT / guide).read_text(), (ROOT / guide).parent
    linked = [name for name in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in name]
    named = re.findall(r"`((?:scala_lab|studies)/[\w/]+\.py)`", text)
    assert linked
    for file in [folder / name for name in linked] + [ROOT / name for name in named]:
        assert file.exists(), file
