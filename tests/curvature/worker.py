"""One of two workers that multiply a vector, each with its own batches."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from scala_lab.curvature import HessianOperator, top_eigenpairs
from tests.curvature.dense import tiny_batches


def main(folder: str, sizes: list[int]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    mine = tiny_batches(sizes)[4 * rank : 4 * rank + 4]
    for dtype in (torch.float64, torch.float32):
        model = AutoModelForSequenceClassification.from_pretrained(Path(folder) / "model").to(dtype)
        op = HessianOperator(model, mine, group=dist.group.WORLD)
        found = {
            "product": op @ load_file(Path(folder) / "vector.safetensors")["vector"].to(dtype),
            "gradient": op.space.full(op.gradient()),
            "eigenvalues": torch.as_tensor(top_eigenpairs(op, 2).eigenvalues),
        }
        loss = op.loss()
        if rank == 0:
            save_file(found, Path(folder) / f"{dtype}.safetensors")
            (Path(folder) / f"{dtype}.json").write_text(json.dumps({"samples": op.samples, "loss": loss}))
    dist.destroy_process_group()
