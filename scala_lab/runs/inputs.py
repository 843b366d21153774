"""Whether runs that are there already were on the data and the model that their names stand for now.

A run's id covers the names of its task and model, not where they lie or what is in them. A run that is trained or
resumed compares contents by itself; this is for runs that a sweep would only read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache

from scala_lab.errors import UserError
from scala_lab.runs.store import RunStore, What
from scala_lab.spec import DataSpec, RunSpec


def check_same_inputs(store: RunStore, whats: Iterable[What]) -> None:
    """Refuse a store with runs of these specs on other data or another model than those at hand.

    What is not at hand cannot be compared: reports can be drawn without the data.
    """
    fingerprints = {"data": cache(_data_fingerprint), "model": cache(_model_fingerprint)}
    for spec in (what for what in whats if isinstance(what, RunSpec)):
        run = store.run(spec)
        rows = replace(spec.data, train_samples=None, eval_samples=None, heldout_samples=0, data_seed=0)
        for name, key in (("data", rows), ("model", spec.encoder.model)):
            now, then = fingerprints[name](key), run.record["fingerprints"].get(name) if run is not None else None
            if None not in (now, then) and now != then:
                raise UserError(f"{store.run_folder(spec)} holds this run on another {name}: use a new store")


def _data_fingerprint(data: DataSpec) -> str | None:
    from scala_lab.tasks.sources import load_task
    from scala_lab.tasks.tokens import data_fingerprint

    try:
        return data_fingerprint(load_task(data))
    except UserError:
        return None


def _model_fingerprint(model: str) -> str | None:
    from scala_lab.models.locate import locate_model, model_fingerprint

    try:
        return model_fingerprint(locate_model(model))
    except UserError:
        return None
