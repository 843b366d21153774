"""Whether two commits compute the same: final weights of every recipe, curvature of a checkpoint, tables of the report.

    python benchmarks/compare_commits.py OLD NEW [--workers 1 2] [--threads 1]

Both commits are checked out side by side and driven by their command lines alone, so that nothing is assumed of their
modules. Weights are compared by the hash of `model.safetensors` after a short run on embedded tasks, curvature by every
digit that `sharpness --json` writes, and reports by the bytes of their CSV files and claims after `scala-lab report`
has drawn the committed records again. The exit code is 1 if anything differs.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

ROOT = Path(__file__).parents[1]
SHORT = "--train-samples 256 --eval-samples 64 --batch-size 64 --micro-batch 16 --epochs 1 --lr 1e-3"
FROM_THE_START = {"scala", "scala-effective", "two-draws", "gaussian"}
"""Recipes whose noise is delayed by default."""
SHARPNESS = "--samples 128 --top-k 3 --repeats 2 --trace --layers --smallest"


@dataclass(frozen=True)
class Options:
    """Whether two commits compute the same."""

    old: tyro.conf.Positional[str]
    """A commit."""
    new: tyro.conf.Positional[str]
    """Another one."""
    workers: tuple[int, ...] = (1, 2)
    """Numbers of workers that every recipe is trained with."""
    threads: int = 1
    """CPU threads of each worker."""
    report: str = "reports/embedded"
    """The report that is drawn again."""


def recipes() -> list[str]:
    """Names of all recipes."""
    from scala_lab.methods.recipes import RECIPES

    return list(RECIPES)


def scala_lab(tree: Path, *words: object, accepted: tuple[int, ...] = (0,)) -> None:
    """Run a command of a commit."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", "scala_lab", *map(str, words)]
    ended = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if ended.returncode not in accepted:
        raise SystemExit(f"{' '.join(map(str, words))} failed in {tree.name}:\n{ended.stderr[-2000:]}")


def train(tree: Path, out: Path, task: str, recipe: str, workers: int, threads: int) -> str:
    """The hash of the final weights of a short run."""
    delay = ["--delay", "0"] if recipe in FROM_THE_START else []
    machine = ["--workers", workers, "--threads", threads]
    scala_lab(tree, "train", "--task", task, "--method", recipe, *SHORT.split(), *delay, *machine, "--out", out)
    return hashlib.sha256((out / "checkpoint" / "model.safetensors").read_bytes()).hexdigest()[:16]


def sharpness(tree: Path, run: Path, threads: int) -> str:
    """Every number about the curvature of a run's checkpoint, but for seconds."""
    file = run.with_suffix(".json")
    words = ("sharpness", run, *SHARPNESS.split(), "--threads", threads, "--json", file)
    scala_lab(tree, *words, accepted=(0, 1))  # 1: something has not converged, which the record says
    (record,) = json.loads(file.read_text())
    return json.dumps(_without(record, "checkpoint", "seconds"), sort_keys=True)


def _without(value: Any, *names: str) -> Any:
    """The value without some entries of its dicts, however deep they are."""
    if isinstance(value, dict):
        return {name: _without(entry, *names) for name, entry in value.items() if name not in names}
    return [_without(entry, *names) for entry in value] if isinstance(value, list) else value


def report(tree: Path, folder: str, copy: Path) -> dict[str, str]:
    """Hashes of the tables and claims of a report that was drawn again."""
    shutil.copytree(tree / folder, copy)
    for table in (copy / "tables").glob("*.csv"):
        table.unlink()
    scala_lab(tree, "report", copy)
    files = [*sorted((copy / "tables").glob("*.csv")), copy / "claims.json"]
    return {f"report {file.name}": hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in files}


def results(tree: Path, folder: Path, options: Options) -> dict[str, str]:
    """All that is compared, of one commit."""
    found = {}
    runs = [(f"weights {recipe}, mini-sst2", "mini-sst2", recipe) for recipe in recipes()]
    runs += [(f"weights scala-effective, {task}", task, "scala-effective") for task in ("mini-mnli", "mini-stsb")]
    for workers in options.workers:
        for name, task, recipe in runs:
            out = folder / f"{recipe}-{task}-{workers}"
            found[f"{name}, workers={workers}"] = train(tree, out, task, recipe, workers, options.threads)
            print(".", end="", flush=True)
    for recipe in ("scala-effective", "plain"):
        run = folder / f"{recipe}-mini-sst2-{options.workers[0]}"
        found[f"curvature {recipe}"] = sharpness(tree, run, options.threads)
        print(".", end="", flush=True)
    return found | report(tree, options.report, folder / "report")


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> int:
    """Print what is equal and what is not; returns how many differ."""
    differing = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    tables = [name for name in old if name.startswith("report ") and name not in differing]
    for name in old:
        if name not in tables and name not in differing:
            print(f"equal      {name}: {old[name] if name.startswith('weights') else 'every digit'}")
    print(f"equal      {len(tables)} tables and claims of the report")
    for name in differing:
        print(f"DIFFERENT  {name}: {old.get(name, 'absent')} | {new.get(name, 'absent')}")
    return len(differing)


def _commit(name: str) -> str:
    """The hash that a name stands for now, before hours pass in which a branch may move."""
    found = subprocess.run(["git", "rev-parse", name], cwd=ROOT, check=True, capture_output=True, text=True)
    return found.stdout.strip()


def main(options: Options) -> int:
    """Check out both commits, compute, compare."""
    commits = {name: _commit(getattr(options, name)) for name in ("old", "new")}
    with tempfile.TemporaryDirectory() as temporary:
        found = []
        for name, commit in commits.items():
            tree, folder = Path(temporary, name), Path(temporary, f"{name}-results")
            folder.mkdir()
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tree)], check=True)
            subprocess.run(["git", "checkout", "--quiet", commit], cwd=tree, check=True)
            found.append(results(tree, folder, options))
            print()
        return 1 if compare(*found) else 0


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Options, description=__doc__)))
