"""Everything a run needs from outside, loaded and checked before anything is written.

Inputs that a process trains many runs on: loaded once, where the process asked for that.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from scala_lab.config import DataSpec, RunSpec
from scala_lab.data.sources import load_task, select_rows
from scala_lab.data.tasks import Task
from scala_lab.data.tokens import TokenSplit, data_fingerprint, tokenise
from scala_lab.errors import UserError
from scala_lab.models.admission import Admission, Use, admit
from scala_lab.models.loading import (
    check_rows,
    check_tokens,
    load_classifier,
    load_tokenizer,
    locate_model,
    model_fingerprint,
    quiet_transformers,
    settle_pad_token,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


P = ParamSpec("P")
R = TypeVar("R")

_keeping = False


def cache_inputs() -> None:
    """From now on keep what this process loads: for workers of a sweep, whose files do not change under them."""
    global _keeping
    _keeping = True


def cached_loader(most: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a loader return what it returned before for the same arguments, once `keep_inputs` was called.

    Args:
        most: How many results are kept; the ones longest unused go first.
    """

    def decorate(load: Callable[P, R]) -> Callable[P, R]:
        remembered = functools.lru_cache(maxsize=most)(load)

        @functools.wraps(load)
        def loaded(*args: P.args, **kwargs: P.kwargs) -> R:
            return remembered(*args, **kwargs) if _keeping else load(*args, **kwargs)  # type: ignore[arg-type]

        return loaded

    return decorate


def own_copy(value: R) -> R:
    """What a kept loader returned, to be changed freely: a copy where the original is kept."""
    return copy.deepcopy(value) if _keeping else value


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
    admissions: dict[tuple[str, float | None], Admission] = field(default_factory=dict, compare=False)
    """By use and dropout rate: the structure of a model decides them, so runs that share these inputs share them."""

    @property
    def splits(self) -> dict[str, TokenSplit]:
        """All rows by split."""
        return {"train": self.train, **self.evals, **({"heldout": self.heldout} if self.heldout else {})}


def prepare(spec: RunSpec) -> Prepared:
    """Load and tokenise a run's data."""
    return prepare_data(spec.data, spec.encoder.model)


@cached_loader(most=8)
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


def load_model(spec: RunSpec, prepared: Prepared) -> tuple[PreTrainedModel, Admission]:
    """The run's model with its new head, admitted on the run's rows; regression starts at the mean score."""
    mean = float(prepared.train.labels.mean()) if prepared.task.regression else None
    names, dropout = spec.data.label_names, spec.encoder.dropout
    model = own_copy(_load_classifier(spec.encoder.model, prepared.task, spec.seed, dropout, mean, names))
    admission = admit_model(model, prepared, spec.encoder.model, dropout=dropout)
    if dropout == 0 and admission.stochastic:
        raise UserError(f"--dropout 0: {spec.encoder.model} stays random in training mode all the same")
    return model, admission


def admit_model(
    model: PreTrainedModel, prepared: Prepared, name: str, use: Use = "train", dropout: float | None = None
) -> Admission:
    """Check that a model fits its rows and runs as transformers runs it; see `admission.admit`."""
    check_rows(model, prepared.splits.values(), name)
    pad_token = settle_pad_token(model, prepared.tokenizer, prepared.splits.values())
    if (use, dropout) not in prepared.admissions:
        prepared.admissions[use, dropout] = admit(model, prepared.train, pad_token, name, use)
    return prepared.admissions[use, dropout]


@cached_loader(most=2)
def _load_classifier(
    model: str,
    task: Task,
    seed: int,
    dropout: float | None,
    first_guess: float | None,
    label_names: tuple[str, ...],
) -> PreTrainedModel:
    return load_classifier(model, task, seed=seed, dropout=dropout, first_guess=first_guess, label_names=label_names)
