"""Everything a run needs from outside, loaded and checked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scala_lab.models.fit import check_rows, check_tokens
from scala_lab.models.loading import load_classifier, load_tokenizer, quiet_transformers
from scala_lab.models.locate import locate_model, model_fingerprint
from scala_lab.spec import DataSpec, RunSpec
from scala_lab.tasks.registry import Task
from scala_lab.tasks.selection import select_rows
from scala_lab.tasks.sources import load_task
from scala_lab.tasks.tokens import TokenSplit, data_fingerprint, tokenise
from scala_lab.training.kept import kept, own_copy

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Prepared:
    """A run's data, tokenised, and what tells its inputs apart from others of the same name."""

    task: Task
    tokenizer: PreTrainedTokenizerBase
    train: TokenSplit
    evals: Mapping[str, TokenSplit]
    heldout: TokenSplit | None
    fingerprints: dict[str, str]
    skipped_rows: dict[str, int]

    @property
    def splits(self) -> dict[str, TokenSplit]:
        """All rows by split."""
        return {"train": self.train, **self.evals, **({"heldout": self.heldout} if self.heldout else {})}


def prepare(spec: RunSpec) -> Prepared:
    """Load and tokenise a run's data."""
    return prepare_data(spec.data, spec.encoder.model)


@kept(most=8)
def prepare_data(data: DataSpec, model: str) -> Prepared:
    """Load a task's rows and tokenise them for a model; tokens come from the cache where they are known."""
    quiet_transformers()
    location = locate_model(model)
    loaded = load_task(data)
    chosen = select_rows(loaded, data)
    tokenizer = load_tokenizer(model)
    train = tokenise(loaded.train, tokenizer, data.max_length)
    evals = {name: tokenise(rows, tokenizer, data.max_length) for name, rows in loaded.evals.items()}
    for name, split, rows in (
        ("train", train, chosen.train),
        ("train", train, chosen.heldout),
        *((name, split, chosen.evals[name]) for name, split in evals.items()),
    ):
        check_tokens(split, rows, name)
    return Prepared(
        task=loaded.task,
        tokenizer=tokenizer,
        train=train.take(chosen.train),
        evals={name: split.take(chosen.evals[name]) for name, split in evals.items()},
        heldout=train.take(chosen.heldout) if len(chosen.heldout) else None,
        fingerprints={"data": data_fingerprint(loaded), "model": model_fingerprint(location)},
        skipped_rows=dict(loaded.skipped),
    )


def load_model(spec: RunSpec, prepared: Prepared) -> PreTrainedModel:
    """The run's encoder with its new head, checked against the run's rows; regression starts at the mean score."""
    mean = float(prepared.train.labels.mean()) if prepared.task.regression else None
    names, dropout = spec.data.label_names, spec.encoder.dropout
    model = own_copy(_load_classifier(spec.encoder.model, prepared.task, spec.seed, dropout, mean, names))
    check_rows(model, prepared.splits.values(), spec.encoder.model)
    return model


@kept(most=2)
def _load_classifier(
    model: str,
    task: Task,
    seed: int,
    dropout: float | None,
    first_guess: float | None,
    label_names: tuple[str, ...],
) -> PreTrainedModel:
    return load_classifier(model, task, seed=seed, dropout=dropout, first_guess=first_guess, label_names=label_names)
