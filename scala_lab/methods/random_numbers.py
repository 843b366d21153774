"""Random numbers that are a function of (seed, step, sample, position) and of nothing else.

A sequential stream would make a sample's noise depend on its neighbours, the micro-batch size and the number
of workers. Here every number is the hash of its coordinates: the seed, step, row and position are mixed into
one key per token (splitmix64), and each coordinate of the token's vector is a 32-bit finaliser of key and
index (murmur3). The same coordinates give the same number on every worker and in every batch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MASK64 = (1 << 64) - 1


def mix(*numbers: int) -> int:
    """Hash integers into one of 63 bits (splitmix64 over the sequence)."""
    state = 0
    for number in numbers:
        state = _splitmix((state ^ (number & _MASK64)) + _GOLDEN & _MASK64)
    return state >> 1


def _splitmix(state: int) -> int:
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _MASK64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK64
    return state ^ (state >> 31)


def uniform_noise(
    seed: int, step: int, samples_B: Tensor, positions_BL: Tensor, width: int, dtype: torch.dtype
) -> Tensor:
    """Numbers in (-1, 1), shape (samples, length, width).

    Args:
        seed: The run's seed.
        step: Global step.
        samples_B: Row number of each sample in the training set.
        positions_BL: Place of each token in its row, counted without padding; (1, length) serves all samples.
        width: Numbers per token.
        dtype: Of the result.
    """
    bits_BLD = _bits(mix(seed, step), samples_B, positions_BL, width)
    # 32 bits as a signed integer, moved by half a step so that neither end nor 0 is hit
    return (bits_BLD.to(dtype) + 0.5) * (1.0 / 2**31)


def normal_noise(
    seed: int, step: int, samples_B: Tensor, positions_BL: Tensor, width: int, dtype: torch.dtype
) -> Tensor:
    """Standard normal numbers, by inverting the error function; see `uniform_noise`."""
    uniform_BLD = uniform_noise(seed, step, samples_B, positions_BL, width, dtype)
    limit = 1.0 - torch.finfo(dtype).eps
    return uniform_BLD.clamp_(-limit, limit).erfinv_().mul_(math.sqrt(2.0))


def _bits(key: int, samples_B: Tensor, positions_BL: Tensor, width: int) -> Tensor:
    """32 hashed bits per coordinate, as int32."""
    device = samples_B.device
    keys_BL = _splitmix_tensor(samples_B.to(torch.int64).unsqueeze(1) * _signed(_GOLDEN) + key)
    keys_BL = _splitmix_tensor(keys_BL + positions_BL * _signed(_GOLDEN))
    low_BL, high_BL = keys_BL.to(torch.int32), (keys_BL >> 32).to(torch.int32)
    coordinates_D = torch.arange(width, device=device, dtype=torch.int32) * -1640531535
    bits = low_BL.unsqueeze(-1) + coordinates_D
    bits.bitwise_xor_(_shifted(bits, 16)).mul_(-2048144789)
    bits.bitwise_xor_(_shifted(bits, 13)).add_(high_BL.unsqueeze(-1)).mul_(-1028477387)
    return bits.bitwise_xor_(_shifted(bits, 16))


def _splitmix_tensor(state: Tensor) -> Tensor:
    state = (state ^ _shifted(state, 30)) * _signed(0xBF58476D1CE4E5B9)
    state = (state ^ _shifted(state, 27)) * _signed(0x94D049BB133111EB)
    return state ^ _shifted(state, 31)


def _shifted(bits: Tensor, places: int) -> Tensor:
    """Logical shift to the right: torch's own keeps the sign."""
    width = 32 if bits.dtype == torch.int32 else 64
    return (bits >> places).bitwise_and_((1 << (width - places)) - 1)


def _signed(number: int) -> int:
    """An unsigned 64-bit constant as the int64 of the same bits."""
    return number - (1 << 64) if number >> 63 else number
