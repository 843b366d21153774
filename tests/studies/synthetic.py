"""Records of runs that were never trained, for tests of what studies make of them."""

from __future__ import annotations

import math

import numpy as np

from scala_lab.config import RunSpec
from scala_lab.methods.recipes import find_recipe
from scala_lab.study.tuning import Choices
from scala_lab.sweep.store import Records

ROWS, TUNING_ROWS, HELDOUT_ROWS = 20_000, 2000, 4000
CHANCE = {"loss": 1.0, "score": 0.4}
LEVELS = {"mini-mnli": 0.0, "mini-qnli": 4.0, "mini-qqp": 2.0, "mini-sst2": 8.0}


def run_record(spec, score, status="finished", seconds=1.0):
    """What a report keeps of a run with that final accuracy in percent; its F1 is 3 points lower."""
    spec = spec.resolved()
    epochs, steps_per_epoch = spec.optim.epochs, math.ceil(ROWS / spec.batches.batch_size)
    noisy = noisy_epochs(spec)
    record = {
        "id": spec.run_id,
        "name": spec.name,
        "status": status,
        "spec": spec.to_dict(),
        "learning_rate": spec.optim.lr,
        "steps": epochs * steps_per_epoch,
        "steps_done": epochs * steps_per_epoch,
        "samples": {"train": ROWS, "tuning": TUNING_ROWS, "heldout": HELDOUT_ROWS, "dev": 500},
        "counts": {"noised_samples": round(noisy * ROWS), "skipped_noise": 0},
        "noise_start": epochs - noisy if noisy else None,
        "metrics": {},
        "epochs": [],
    }
    if status == "finished":
        record["metrics"] = {split: metrics(spec, score) for split in ("dev", "tuning", "heldout")}
        record["losses"], record["chance"] = {"train": 0.1}, CHANCE
        record["best"] = {"epoch": epochs, "metrics": {"dev": metrics(spec, score + 0.5)}}
        record["timing"] = {"train_seconds": seconds, "samples_per_second": epochs * ROWS / seconds}
        record["epochs"] = [
            {
                "epoch": epoch,
                "loss": 1 / epoch,
                "divergence": divergence(spec) if epoch > epochs - noisy else None,
                "dev": metrics(spec, score - (epochs - epoch)),
            }
            for epoch in range(1, epochs + 1)
        ]
    return record


def metrics(spec, score):
    accuracy = {"accuracy": score / 100}
    return {**accuracy, "f1": (score - 3) / 100} if spec.data.task.endswith("qqp") else accuracy


def noisy_epochs(spec):
    """Epochs with noise: those after the delay, a settled loss counting as a delay of 2.5."""
    recipe = spec.recipe
    if find_recipe(recipe.method).step not in ("scala", "rdrop") or recipe.lambda_ == 0:
        return 0
    return max(0, spec.optim.epochs - (2.5 if recipe.delay_rule == "settled" else recipe.delay or 0.0))


def divergence(spec):
    """As measured on a real encoder: two draws give 6e-2, the paper's noise alone next to nothing."""
    recipe = spec.recipe
    if recipe.method == "rdrop":
        return 3e-2
    draws = 6e-2 if recipe.masks == "independent" else 0.0
    noise = 0.0 if recipe.noise == "none" else 1e4 * recipe.omega**2 * (recipe.ascent == "normalized") + 1e-9
    return draws + noise


def likely_score(spec: RunSpec) -> float:
    """A score that depends on task, method, batch size and rate, and a little on all else."""
    luck = np.random.default_rng(int(spec.run_id, 16)).normal(scale=0.3)
    level = 75 + LEVELS.get(spec.data.task, 0.0) - 0.4 * math.log2(spec.batches.batch_size / 32)
    step = find_recipe(spec.recipe.method).step
    grouped = (spec.optim.optimizer or find_recipe(spec.recipe.method).optimizer) == "lamb"
    best = (1e-2 if grouped else 2e-3) * math.sqrt(spec.batches.batch_size / 512)
    recipe = spec.recipe
    radii = {"scala-effective": (recipe.omega, 0.1), "freelb": (recipe.adv_scale, 1.0), "sam": (recipe.sam_rho, 0.05)}
    radius, ideal = radii.get(recipe.method, (1.0, 1.0))
    off = math.log((spec.optim.lr or best) / best) ** 2 + math.log10((radius or ideal) / ideal) ** 2
    return level + (step != "plain") - off + luck


def tuned(profile, score=likely_score, status=lambda spec: "finished"):
    """The profile with settings chosen by made-up trials, so that nothing is left to be tuned."""
    return profile.with_choices(Choices(lambda spec: run_record(spec, score(spec), status(spec))))


def records_of(cells, score=likely_score, status=lambda spec: "finished", seconds=lambda spec: 1.0):
    """Records of all runs of the cells; a status of `missing` leaves a run out."""
    records = Records()
    for cell in cells:
        for spec in cell.specs:
            if spec.run_id not in records.runs and status(spec) != "missing":
                records.runs[spec.run_id] = run_record(spec, score(spec), status(spec), seconds(spec))
    return records
