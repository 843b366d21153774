"""Loading encoders with a classification or regression head, and their tokenizers."""

from __future__ import annotations

import functools
import json
import pickle
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from scala_lab.errors import UserError
from scala_lab.hub import hub_reachable
from scala_lab.models.dropout import dropout_rates, jitter_rates, set_dropout
from scala_lab.models.fit import check_complete, check_finite, has_fresh_head
from scala_lab.models.labels import Order, given_order, kept_head_order, order_outputs, output_order
from scala_lab.models.locate import locate_model, weight_files
from scala_lab.tasks.registry import Task

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

T = TypeVar("T")


def load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """The tokenizer that belongs to a model."""
    from transformers import AutoConfig, AutoTokenizer, TokenizersBackend
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    location = locate_model(model)
    # read first, because the tokenizer's loader reads it too and would put its faults down to the tokenizer
    _from_pretrained(AutoConfig.from_pretrained, location, "config.json")
    tokenizer = _from_pretrained(AutoTokenizer.from_pretrained, location, "its tokenizer")
    settings = _from_pretrained(get_tokenizer_config, location, "tokenizer_config.json")
    if (
        settings.get("tokenizer_class") in ("TokenizersBackend", "PreTrainedTokenizerFast")
        and type(tokenizer) is not TokenizersBackend
    ):
        # for some model types AutoTokenizer takes their usual class, which does not know the words of the file
        tokenizer = _from_pretrained(TokenizersBackend.from_pretrained, location, "its tokenizer")
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):  # what transformers makes up where the files are missing
        raise UserError(f"{model} has no tokenizer: expected tokenizer.json or the vocabulary beside config.json")
    return tokenizer


def load_classifier(
    model: str,
    task: Task,
    *,
    seed: int = 0,
    dropout: float | None = None,
    new_head: bool = True,
    first_guess: float | None = None,
    label_names: Sequence[str] = (),
) -> PreTrainedModel:
    """An encoder with a head for the task, its outputs in the order of the task's classes.

    Args:
        model: What `--model` says.
        task: Decides the number of outputs and the label names.
        seed: Seed of the weights that the checkpoint does not hold.
        dropout: Sets all dropout rates; 0 also turns off the jitter of routers to experts.
        new_head: Whether weights missing from the checkpoint, or a head of another size, start fresh. False
            (for evaluation) makes both an error.
        first_guess: What a fresh regression head says before it has learned anything; default 0.
        label_names: The task's classes in the order of the checkpoint's outputs; default as its config names them.
    """
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    location = locate_model(model)
    config = _from_pretrained(AutoConfig.from_pretrained, location, "config.json")
    if not new_head:
        _check_head(config, task, model)
    order = _order(config, task, model, label_names, new_head=new_head)
    config.num_labels = task.outputs
    config.problem_type = "regression" if task.regression else "single_label_classification"
    if task.labels:
        config.id2label = dict(enumerate(task.labels))
        config.label2id = {name: index for index, name in enumerate(task.labels)}
    if dropout is not None:
        for name in [*dropout_rates(config), *(jitter_rates(config) if dropout == 0 else ())]:
            setattr(config, name, dropout)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        loaded, report = _from_pretrained(
            AutoModelForSequenceClassification.from_pretrained,
            location,
            ", ".join(file.name for file in weight_files(Path(location))) or "its weights",
            config=config,
            ignore_mismatched_sizes=True,  # check_complete decides which
            output_loading_info=True,
            dtype=torch.float32,
        )
    check_complete(loaded, report, model, with_head=not new_head)
    check_finite(loaded, model)
    if order is not None and not has_fresh_head(loaded, report):
        order_outputs(loaded, order, model)
    elif label_names:
        raise UserError(f"{model} has no trained head for {task.outputs} classes: leave out --label-names")
    if task.regression and first_guess is not None:
        _start_at(loaded, report["missing_keys"], first_guess)
    if dropout is not None:
        set_dropout(loaded, dropout)
    return loaded


def _start_at(model: PreTrainedModel, fresh: Collection[str], value: float) -> None:
    """Set the output bias of a fresh regression head, the one fresh bias of a single number.

    Scores are far from 0, and a few large-batch steps are too few for the bias to get there by itself.
    """
    import torch

    for name, parameter in model.named_parameters():
        if name in fresh and name.endswith("bias") and parameter.numel() == 1:
            torch.nn.init.constant_(parameter, value)


def to_float64(model: torch.nn.Module) -> torch.nn.Module:
    """Turn a model's weights into float64; mixtures of experts take the implementation that has float64 products."""
    if getattr(getattr(model, "config", None), "_experts_implementation", None) not in (None, "eager"):
        model.set_experts_implementation("eager")  # type: ignore[operator]
    return model.double()


def hidden_size(model: torch.nn.Module) -> int:
    """Width of the encoder."""
    config: Any = model.config
    text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
    for name in ("hidden_size", "d_model", "n_embd", "dim", "emb_dim"):
        if getattr(text_config, name, None):
            return int(getattr(text_config, name))
    return int(model.get_input_embeddings().weight.shape[-1])  # type: ignore[operator]


def _from_pretrained(load: Callable[..., T], location: str, what: str, **options: Any) -> T:
    """Call a transformers loader without remote code, and turn its failures into one sentence."""
    local = Path(location).is_dir()
    try:
        return load(location, trust_remote_code=False, local_files_only=local or not hub_reachable(), **options)
    except Exception as error:  # tokenizers raises plain Exception for a damaged file, so nothing narrower will do
        if local:
            raise UserError(f"{location}: {what} cannot be read: {_reason(error)}") from error
        if not hub_reachable():
            raise UserError(
                f"{location!r} is no folder here and the hub cannot be reached: give --model a folder with config.json "
                "and model.safetensors, a model in the hub cache (HF_HOME), or use --model embedded"
            ) from error
        raise UserError(f"model {location!r} cannot be loaded from the hub: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Why a file does not load, in a few words."""
    from safetensors import SafetensorError

    text = str(error).strip()
    lines = text.replace(":\n", ": ").splitlines() or [""]
    if isinstance(error, (SafetensorError, json.JSONDecodeError, EOFError)):
        return f"cut short or damaged ({lines[0]})"
    if isinstance(error, pickle.UnpicklingError):
        return "it is damaged or holds more than tensors, which could run code; save the model as safetensors"
    if isinstance(error, (OSError, ValueError, RuntimeError)) and len(lines[0]) > 10:
        return lines[0]
    return f"cut short or damaged ({type(error).__name__}: {lines[0]})"


def _check_head(config: Any, task: Task, model: str) -> None:
    regression = config.problem_type == "regression" or config.num_labels == 1
    if config.num_labels != task.outputs or regression != task.regression:
        kind = "a regression head" if regression else f"a head for {config.num_labels} classes"
        wanted = "a regression head" if task.regression else f"{task.outputs} classes"
        raise UserError(f"{model} has {kind}, but task {task.name} needs {wanted}")


def _order(config: Any, task: Task, model: str, label_names: Sequence[str], *, new_head: bool) -> Order | None:
    """The order that the outputs of a trained head are to be put into; None for a head that has no names to match."""
    given = given_order(task, label_names) if label_names else None
    if task.regression or config.problem_type == "regression" or config.num_labels != task.outputs:
        return given
    return (kept_head_order if new_head else output_order)(config, task, model, label_names)


@functools.cache
def quiet_transformers() -> None:
    """Keep transformers' load reports and progress bars off the screen."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
