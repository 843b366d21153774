"""A good command, and ways to spoil what it is given."""

from __future__ import annotations

import json
from pathlib import Path

from tests.command_line import train_flags


def train(**changes) -> list[str]:
    return train_flags(Path("./model"), Path("rows.csv"), **changes)


def truncate(file: Path, share: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])


def rewrite_config(**changes: object) -> None:
    file = Path("model/config.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def save_pickle(content: object) -> None:
    import torch

    Path("model/model.safetensors").unlink()
    torch.save(content, "model/pytorch_model.bin")


def save_weights(change) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file("model/model.safetensors")
    change(weights)
    save_file(weights, "model/model.safetensors", metadata={"format": "pt"})


LAYER = "bert.encoder.layer.1.output.dense.weight"
