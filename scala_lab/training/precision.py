"""What a run computes in: which precisions a device has, exact or TF32 products, and fp16's dynamic loss scale.

| `--precision` | weights, optimizer | products | |
|---|---|---|---|
| float32 | float32 | float32 | also where torch was told to round them |
| tf32 | float32 | 10 bits of mantissa | NVIDIA GPUs of compute capability 8.0 or newer |
| bf16 | float32 | 7 bits of mantissa, range of float32 | autocast |
| fp16 | float32 | 10 bits of mantissa, 6e-8 to 65504 | autocast; the loss is scaled so that gradients fit |
| float64 | float64 | float64 | |
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from scala_lab.errors import UserError

if TYPE_CHECKING:
    from scala_lab.config import MachineSpec


AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""What matrix products are rounded to, under precisions that round them in the model alone."""

TF32_CAPABILITY = (8, 0)


def precisions(device_type: str, number: int | None = None) -> list[str]:
    """The precisions that a device has.

    Args:
        device_type: cpu or cuda.
        number: Of the GPU; default the current one.
    """
    if device_type == "cpu":
        return ["float32", "bf16", "fp16", "float64"]
    with nullcontext() if number is None else torch.cuda.device(number):
        tf32 = torch.cuda.get_device_capability() >= TF32_CAPABILITY
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return ["float32", *["tf32"] * tf32, *["bf16"] * bf16, "fp16", "float64"]


def check_precision(machine: MachineSpec) -> None:
    """Refuse a precision that the device of a resolved spec does not have, or only emulates."""
    there = precisions(machine.device)
    if machine.precision in there:
        return
    if machine.device == "cpu":
        lack = "is for GPUs"
    elif machine.precision == "tf32":
        lack = "needs a GPU of compute capability 8.0 or newer"
    else:
        lack = "is only emulated by this GPU"
    raise UserError(f"--precision {machine.precision} {lack}; this device has {', '.join(there)}")


@contextmanager
def matrix_products(precision: str) -> Iterator[None]:
    """For a block: products of float32 matrices in TF32 if that is the precision, else exact; then as before."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    tf32 = precision == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


@dataclass
class LossScale:
    """The factor by which fp16's loss is raised, so that small gradients do not vanish in the backward pass.

    A step whose gradient overflows is not taken and halves the scale; after some steps in a row that fit, it is
    doubled. All workers see the same summed gradient, so they agree. Its fields are plain, so that a saved run goes on
    with them. As `torch.amp.GradScaler`, for a gradient that is already summed.

    Attributes:
        value: The scale, a power of two: scaling back is exact.
        fitting: Steps in a row that fitted.
        exhausted: Whether a gradient was not finite at the smallest scale; then it is not the scale's fault.
    """

    value: float = 2.0**16
    fitting: int = 0
    exhausted: bool = False

    def observe(self, norm: float) -> None:
        """Adapt the scale to the norm of a step's gradient."""
        if math.isfinite(norm):
            self.fitting += 1
            if self.fitting == GROWTH_STEPS:
                self.value, self.fitting = 2 * self.value, 0
            return
        self.exhausted = self.value <= SMALLEST_SCALE
        self.value, self.fitting = max(SMALLEST_SCALE, self.value / 2), 0


GROWTH_STEPS = 2000
SMALLEST_SCALE = 1.0
