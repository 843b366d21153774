"""What a run computes in: which precisions a device has, exact or TF32 products, and fp16's dynamic loss scale.

| `--precision` | weights, optimizer | products | |
|---|---|---|---|
| float32 | float32 | float32 | also where torch was told to round them |
| tf32 | float32 | 10 bits of mantissa | NVIDIA GPUs of compute capability 8.0 or newer |
| bf16 | float32 | 7 bits of mantissa, range of float32 | autocast |
| fp16 | float32 | 10 bits of mantissa, 6e-8 to 65504 | autocast; the loss is scaled so that gradients fit |
| float64 | float64 | float64 | |
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch

from scala_lab.config import MachineSpec
from scala_lab.errors import UserError

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Precisions that round matrix products inside the model alone, by autocast."""

GROWTH_STEPS = 2000


def precisions(device_type: str, index: int | None = None) -> list[str]:
    """List the precisions of `cpu`, or of the `cuda` device with that index, default the current one."""
    if device_type == "cpu":
        return ["float32", "bf16", "fp16", "float64"]
    with nullcontext() if index is None else torch.cuda.device(index):
        tf32 = torch.cuda.get_device_capability() >= (8, 0)
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return ["float32", *["tf32"] * tf32, *["bf16"] * bf16, "fp16", "float64"]


def check_precision(machine: MachineSpec) -> None:
    """Refuse a precision that the device of a resolved spec does not have, or only emulates."""
    available = precisions(machine.device)
    if machine.precision not in available:
        problem = "is for GPUs" if machine.device == "cpu" else "is only emulated by this GPU"
        if machine.device != "cpu" and machine.precision == "tf32":
            problem = "needs a GPU of compute capability 8.0 or newer"
        raise UserError(f"--precision {machine.precision} {problem}; this device has {', '.join(available)}")


@contextmanager
def matrix_products(precision: str) -> Iterator[None]:
    """For a block, compute products of float32 matrices in TF32 if that is the precision, else exactly."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


@dataclass
class LossScale:
    """The factor on fp16's loss that keeps small gradients from vanishing in the backward pass.

    A step whose gradient overflows is skipped and halves the scale; GROWTH_STEPS finite steps in a row double it. This
    is `torch.amp.GradScaler` for a gradient that is summed over workers already; its fields are saved with the state.
    """

    value: float = 2.0**16  # a power of two: dividing by it is exact
    fitting: int = 0  # finite steps in a row
    exhausted: bool = False  # a gradient was not finite even at scale 1

    def observe(self, norm: float) -> None:
        """Adapt the scale to the norm of a step's gradient."""
        if math.isfinite(norm):
            self.fitting += 1
            if self.fitting == GROWTH_STEPS:
                self.value, self.fitting = 2 * self.value, 0
            return
        self.exhausted = self.value <= 1
        self.value, self.fitting = max(1.0, self.value / 2), 0
