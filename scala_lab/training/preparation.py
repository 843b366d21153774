"""Load and check a run's data and model, before anything is written."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from scala_lab.config import DataSpec, RunSpec
from scala_lab.data.sources import load_task, select_rows
from scala_lab.data.tasks import Task
from scala_lab.data.tokens import TokenSplit, data_fingerprint, tokenise
from scala_lab.errors import UserError
from scala_lab.models import loading
from scala_lab.models.admission import Admission, Use, admit

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_caching = False


def cache_inputs() -> None:
    """Cache what this process loads from now on: for workers of a sweep, whose files do not change under them."""
    global _caching
    _caching = True


@dataclass(frozen=True)
class Prepared:
    """A run's data, tokenised."""

    task: Task
    tokenizer: PreTrainedTokenizerBase
    train: TokenSplit
    evals: Mapping[str, TokenSplit]
    kept_apart: Mapping[str, TokenSplit]  # train rows to evaluate on at the end: `tuning` and `heldout`
    fingerprints: dict[str, str]  # hashes of the contents of the data and the model
    skipped_rows: dict[str, int]  # malformed rows, by file
    admissions: dict[tuple[str, float | None], Admission] = field(default_factory=dict, compare=False)
    """By use and dropout rate: runs that share these inputs share them, as only the model's structure decides."""

    @property
    def splits(self) -> dict[str, TokenSplit]:
        """All rows by split."""
        return {"train": self.train, **self.evals, **self.kept_apart}


def prepare(spec: RunSpec) -> Prepared:
    """Load and tokenise a run's data."""
    return prepare_data(spec.data, spec.encoder.model)


def prepare_data(data: DataSpec, model: str) -> Prepared:
    """Load a task's rows and tokenise them for a model, or read the tokens from the cache on disk."""
    return (_load_data_cached if _caching else _load_data)(data, model)


def _load_data(data: DataSpec, model: str) -> Prepared:
    loading.quiet_transformers()
    location = loading.locate_model(model)
    loaded = load_task(data)
    chosen = select_rows(loaded, data)
    tokenizer = loading.load_tokenizer(model)
    train = tokenise(loaded.train, tokenizer, data.max_length)
    return Prepared(
        task=loaded.task,
        tokenizer=tokenizer,
        train=_take(train, chosen.train, "train"),
        kept_apart={name: _take(train, rows, "train") for name, rows in chosen.kept_apart.items()},
        evals={
            name: _take(tokenise(rows, tokenizer, data.max_length), chosen.evals[name], name)
            for name, rows in loaded.evals.items()
        },
        fingerprints={"data": data_fingerprint(loaded), "model": loading.model_fingerprint(location)},
        skipped_rows=dict(loaded.skipped),
    )


def _take(split: TokenSplit, chosen: np.ndarray, name: str) -> TokenSplit:
    """Return the chosen rows of a split, all of which must have a token: a model would predict from nothing."""
    empty = np.sort(chosen[split.lengths[chosen] == 0])
    if len(empty):
        more = f" and of {len(empty) - 1} more" if len(empty) > 1 else ""
        row = f"row {empty[0] + 1} of the {name} rows{more}"
        raise UserError(f"the tokenizer makes no token of {row}: give it a text or leave it out")
    return split.take(chosen)


_load_data_cached = functools.lru_cache(maxsize=8)(_load_data)
_load_classifier_cached = functools.lru_cache(maxsize=2)(loading.load_classifier)


def load_model(spec: RunSpec, prepared: Prepared) -> tuple[PreTrainedModel, Admission]:
    """Load the run's model with its new head and admit it on the run's rows; regression starts at the mean score."""
    dropout, mean = spec.encoder.dropout, float(prepared.train.labels.mean()) if prepared.task.regression else None
    options: dict[str, Any] = {"seed": spec.seed, "dropout": dropout, "first_guess": mean}
    load = _load_classifier_cached if _caching else loading.load_classifier
    model = load(spec.encoder.model, prepared.task, label_names=spec.data.label_names, **options)
    if _caching:
        model = copy.deepcopy(model)
    admission = admit_model(model, prepared, spec.encoder.model, dropout=dropout)
    if dropout == 0 and admission.stochastic:
        raise UserError(f"--dropout 0: {spec.encoder.model} stays random in training mode all the same")
    return model, admission


def admit_model(
    model: PreTrainedModel, prepared: Prepared, name: str, use: Use = "train", dropout: float | None = None
) -> Admission:
    """Check that a model fits its rows and runs as transformers runs it; see `admission.admit`."""
    loading.check_rows(model, prepared.splits.values(), name)
    pad_token = loading.settle_pad_token(model, prepared.tokenizer, prepared.splits.values())
    if (use, dropout) not in prepared.admissions:
        prepared.admissions[use, dropout] = admit(model, prepared.train, pad_token, name, use)
    return prepared.admissions[use, dropout]
