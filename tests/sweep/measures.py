"""Measurements and cells for tests of sweeps; some misbehave on purpose."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from scala_lab.config import RunSpec


def tiny_spec(model: Path, rows: Path, **changes) -> RunSpec:
    """A run of a fraction of a second: 48 rows, 2 epochs of 3 steps."""
    values = {
        "task": str(rows),
        "text_columns": ("text",),
        "label_column": "label",
        "eval_file": rows,
        "model": str(model),
        "method": "scala-effective",
        "epochs": 2,
        "batch_size": 16,
        "micro_batch": 8,
        "threads": 1,
        "device": "cpu",
        "lr": 0.01,
    }
    if changes.get("method", "scala-effective") == "scala-effective":
        values["delay"] = 1.0
    return RunSpec.of(**{**values, **changes})


def weight_sum(runs, power=1):
    """Sum of all weights of the runs, exact enough to tell one checkpoint from another."""
    from safetensors.torch import load_file

    weights = [load_file(run.checkpoint / "model.safetensors") for run in runs]
    return {"sum": sum(float(tensor.double().pow(power).sum()) for tensors in weights for tensor in tensors.values())}


def random_numbers(runs):
    import random

    import numpy as np
    import torch

    return {"python": random.random(), "numpy": float(np.random.rand()), "torch": float(torch.rand(()))}


def raises(runs, message):
    raise RuntimeError(message)


def dies(runs, marker, times):
    """Kill this process, as the system does when memory runs out, the first so many times."""
    with open(marker, "a") as file:
        file.write("x")
    if Path(marker).stat().st_size <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"attempts": Path(marker).stat().st_size}


def interval(runs, number, seconds):
    """When it began and ended, on the clock all processes of a host share."""
    began = time.monotonic()
    time.sleep(seconds)
    return {"began": began, "ended": time.monotonic()}
