"""Loading encoders with a classification or regression head, and their tokenizers."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from scala_lab.errors import UserError
from scala_lab.hub import hub_reachable
from scala_lab.models.locate import locate_model, weight_files
from scala_lab.tasks.registry import Task

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

T = TypeVar("T")


def load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """The tokenizer that belongs to a model."""
    from transformers import AutoTokenizer

    location = locate_model(model)
    tokenizer = _from_pretrained(AutoTokenizer.from_pretrained, location)
    if tokenizer.pad_token_id is None:
        raise UserError(f"the tokenizer of {model} has no padding token: scala_lab trains encoders, which have one")
    return tokenizer


def load_classifier(
    model: str, task: Task, *, seed: int = 0, dropout: float | None = None, new_head: bool = True
) -> PreTrainedModel:
    """An encoder with a head for the task.

    Args:
        model: What `--model` says.
        task: Decides the number of outputs and the label names.
        seed: Seed of the weights that the checkpoint does not hold.
        dropout: Sets all dropout rates.
        new_head: Whether weights missing from the checkpoint, or a head of another size, start fresh. False
            (for evaluation) makes both an error.
    """
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    location = locate_model(model)
    config = _from_pretrained(AutoConfig.from_pretrained, location)
    if not new_head:
        _check_head(config, task, model)
    config.num_labels = task.outputs
    config.problem_type = "regression" if task.regression else "single_label_classification"
    if task.labels:
        config.id2label = dict(enumerate(task.labels))
        config.label2id = {name: index for index, name in enumerate(task.labels)}
    if dropout is not None:
        _set_dropout(config, dropout)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        loaded, report = _from_pretrained(
            AutoModelForSequenceClassification.from_pretrained,
            location,
            config=config,
            ignore_mismatched_sizes=new_head,
            output_loading_info=True,
            dtype=torch.float32,
        )
    if report["missing_keys"] and not new_head:
        raise UserError(
            f"{model} is not a trained classifier: its weights lack {sorted(report['missing_keys'])[0]} "
            f"and {len(report['missing_keys']) - 1} more"
        )
    _check_finite(loaded, model)
    if "inputs_embeds" not in inspect.signature(loaded.forward).parameters:
        raise UserError(f"{model} cannot run from word embeddings: scala_lab needs an encoder that takes inputs_embeds")
    return loaded


def hidden_size(model: torch.nn.Module) -> int:
    """Width of the encoder."""
    config: Any = model.config
    return int(getattr(config, "hidden_size", None) or config.dim)


def _from_pretrained(load: Callable[..., T], location: str, **options: Any) -> T:
    """Call a transformers loader without remote code, and turn its failures into one sentence."""
    from safetensors import SafetensorError

    folder = Path(location)
    local = folder.is_dir()
    try:
        return load(location, trust_remote_code=False, local_files_only=local or not hub_reachable(), **options)
    except SafetensorError as error:
        files = ", ".join(file.name for file in weight_files(folder)) or "weights"
        raise UserError(f"{location}: {files} cut short or damaged ({error})") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{location}: a JSON file is damaged ({error})") from None
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if local:
            raise UserError(f"{location} cannot be loaded: {first_line}") from None
        if not hub_reachable():
            raise UserError(
                f"{location!r} is no folder here and the hub cannot be reached: give --model a folder with config.json "
                "and model.safetensors, a model in the hub cache (HF_HOME), or use --model embedded"
            ) from None
        raise UserError(f"model {location!r} cannot be loaded from the hub: {first_line}") from None


def _check_head(config: Any, task: Task, model: str) -> None:
    if config.num_labels != task.outputs or (config.problem_type == "regression") != task.regression:
        kind = "a regression head" if config.problem_type == "regression" else f"a head for {config.num_labels} classes"
        wanted = "a regression head" if task.regression else f"{task.outputs} classes"
        raise UserError(f"{model} has {kind}, but task {task.name} needs {wanted}")


def _set_dropout(config: Any, rate: float) -> None:
    for name, value in config.to_dict().items():
        if "dropout" in name and (value is None or isinstance(value, (int, float))):
            setattr(config, name, rate)


def _check_finite(model: torch.nn.Module, source: str) -> None:
    for name, tensor in model.named_parameters():
        if not tensor.isfinite().all():
            raise UserError(f"{source} has weights that are not finite: {name}")


@functools.cache
def quiet_transformers() -> None:
    """Keep transformers' load reports and progress bars off the screen."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
