"""What a run leaves on disk: the model anyone can load, and the state to go on from."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from scala_lab.errors import UserError
from scala_lab.files import new_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def save_checkpoint(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write what `AutoModelForSequenceClassification.from_pretrained` loads, tokenizer included."""
    with new_folder(folder) as temporary:
        model.save_pretrained(temporary, safe_serialization=True)
        _with_pad_token(tokenizer, model).save_pretrained(temporary)


def _with_pad_token(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> PreTrainedTokenizerBase:
    """The tokenizer; one without a pad token as a copy that has the model's, so that both pad alike."""
    pad_token = model.config.get_text_config().pad_token_id
    if tokenizer.pad_token_id is not None or pad_token is None:
        return tokenizer
    padded = copy.deepcopy(tokenizer)
    padded.pad_token = padded.convert_ids_to_tokens(pad_token)
    return padded


def save_state(
    folder: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer, position: dict[str, Any]
) -> None:
    """Write weights, optimizer state and position after a step; only then drop the state before it.

    Args:
        folder: The run's `state/`; each state is a sub-folder named by its step, complete or absent.
        step: Steps done.
        model: Weights are stored under their names.
        optimizer: Its tensors are stored under `number.name`; plain numbers go into the position file.
        position: Whatever else is needed to go on, as JSON.
    """
    from safetensors.torch import save_file

    state = optimizer.state_dict()["state"]
    tensors = {f"{number}.{name}": value for number, entry in state.items() for name, value in entry.items()}
    numbers = {name: value for name, value in tensors.items() if not isinstance(value, torch.Tensor)}
    tensors = {name: value.contiguous() for name, value in tensors.items() if isinstance(value, torch.Tensor)}
    with new_folder(folder / f"{step:08d}") as temporary:
        weights = {name: value.contiguous() for name, value in _weights(model).items()}
        save_file(weights, temporary / "weights.safetensors")
        save_file(tensors, temporary / "optimizer.safetensors")
        (temporary / "position.json").write_text(json.dumps({**position, "optimizer_numbers": numbers}))
    for outdated in folder.iterdir():
        if outdated.name != f"{step:08d}":
            shutil.rmtree(outdated, ignore_errors=True)


def load_state(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Restore weights and optimizer in place; returns the position."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        position: dict[str, Any] = json.loads((folder / "position.json").read_text())
        weights = load_file(folder / "weights.safetensors")
        tensors: dict[str, Any] = dict(load_file(folder / "optimizer.safetensors"))
        tensors.update(position.pop("optimizer_numbers"))
        if set(weights) != set(_weights(model)):
            raise ValueError("its weights are those of another model")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise UserError(
            f"the saved state in {folder} is cut short or damaged ({error}): delete that folder to start the run again"
        ) from None
    with torch.no_grad():
        for name, tensor in _weights(model).items():
            tensor.copy_(weights[name])
    state: dict[int, dict[str, Any]] = {}
    for key, value in tensors.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    return position


def latest_state(folder: Path) -> Path | None:
    """The newest complete state of a run, or None."""
    states = sorted(path for path in folder.glob("[0-9]*") if path.is_dir())
    return states[-1] if states else None


def drop_state(folder: Path) -> None:
    """Remove the state of a run that has ended."""
    shutil.rmtree(folder, ignore_errors=True)


def _weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name, each tensor once (tied ones share a name)."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
