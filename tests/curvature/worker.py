"""One of two workers that multiply a vector, each with its own batches: `python -m tests.curvature.worker JOB`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from scala_lab.curvature import HessianOperator
from tests.curvature.dense import tiny_batches


def main(folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    model = AutoModelForSequenceClassification.from_pretrained(Path(folder) / "model").double()
    mine = tiny_batches((4, 3, 1))[:1] if rank == 0 else tiny_batches((4, 3, 1))[1:]
    op = HessianOperator(model, mine, group=dist.group.WORLD)
    product = op @ load_file(Path(folder) / "vector.safetensors")["vector"]
    gradient, loss = op.space.full(op.gradient()), op.loss()
    if rank == 0:
        save_file({"product": product, "gradient": gradient}, Path(folder) / "product.safetensors")
        (Path(folder) / "facts.json").write_text(json.dumps({"samples": op.samples, "loss": loss}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
