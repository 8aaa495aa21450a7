"""Accumulators with operands, and their operands, for the tests of every backend."""

import torch
from torch import Tensor

from lpkernels.arithmetic import UNITS, Accumulator
from lpkernels.rounding import ROUNDINGS

#: The arithmetic of every named unit, by its first name.
UNIT_ACCUMULATORS: dict[str, Accumulator] = {}
for _name, _unit in UNITS.items():
    if _unit.accumulator.operands and _unit.accumulator not in UNIT_ACCUMULATORS.values():
        UNIT_ACCUMULATORS[_name] = _unit.accumulator

#: Every mode, with blocks in turns and not, with chunks and without; operands of two kinds;
#: overflow of each kind.
MODES = [
    Accumulator(
        "e4m3", mode, block=4, aligned_bits=6, operands=("e5m2", "e4m3fn"), chunk=8, outer="e5m5",
        interleaved=2, random_bits=13,
    )
    for mode in ROUNDINGS
] + [
    Accumulator(fmt, mode, block=3, aligned_bits=bits, operands="fp32", least_exponent=least)
    for fmt, mode, bits, least in (
        ("e5m4", "stochastic", 40, None),
        ("e4m3fn", "toward_positive", 24, -20),
        ("e4m3none_sat", "to_odd", 1, 4),
        ("e8m0", "toward_negative", 30, -300),
        ("e5m2_nosub", "nearest_away", 9, None),
    )
]  # fmt: skip

#: Every mode, in cases that float32 can compute, and one that it cannot.
SHORT_MODES = [
    Accumulator(
        "e5m4", mode, block=4, aligned_bits=6, operands=("e5m2", "e4m3fn"), random_bits=9,
        least_exponent=least,
    )
    for mode, least in zip(ROUNDINGS, (None, -14, 0, None, -200, -3, None), strict=True)
] + [
    # Sums of it count with exponents for which float32 has no room.
    Accumulator("e2m5_b-117", "toward_positive", block=4, aligned_bits=13, operands="e5m2")
]  # fmt: skip

#: For passes of convolutions: one accumulator for each kernel.
CONVOLVED = [
    UNIT_ACCUMULATORS["hopper_fp8"],
    Accumulator("e8m13", "toward_zero", block=5, aligned_bits=7, operands=("e5m2", "e4m3fn")),
    Accumulator("bf16", "stochastic", block=3, aligned_bits=24, operands=("bf16", "e4m3fn")),
    Accumulator(
        "fp16", "stochastic", chunk=8, outer="e6m9", block=2, aligned_bits=9,
        operands=("e2m1", "fp16"), interleaved=2,
    ),
]  # fmt: skip

#: Sums that start at initial: every order, the outermost sum with chunks and without.
STARTED = [
    Accumulator("e6m9"), Accumulator("e5m4", "stochastic", random_bits=13),
    Accumulator("fp32", chunk=8, outer="e5m7", outer_rounding="stochastic"),
    Accumulator("e5m10", "toward_zero", product="e4m3"), Accumulator("fixed12_f6_wrap"),
    Accumulator("e5m7", order="pairwise", chunk=8),
    Accumulator("e5m7", "toward_negative", order="compensated"),
    Accumulator("e5m7", order="compensated", chunk=5),
    Accumulator("e8m13", "toward_zero", block=8, aligned_bits=13),
    UNIT_ACCUMULATORS["h100_fp16"], UNIT_ACCUMULATORS["h100_e4m3"],
    UNIT_ACCUMULATORS["h100_fp8_mma"], MODES[6],
]  # fmt: skip


def tensor(shape: tuple[int, ...], kind: str, generator: torch.Generator) -> Tensor:
    """Values of a kind: those of fp8 ("short"); small integers that cancel, with zeros of both
    signs; such integers with infinities, NaN and the least subnormal; values apart by 2^130."""
    if kind == "short":
        exponent = torch.randint(-8, 4, shape, generator=generator)
        return torch.randint(-7, 8, shape, generator=generator) * torch.exp2(exponent)
    x = torch.randint(-5, 6, shape, generator=generator).float() / 4
    if kind == "wide":
        return x * torch.exp2(torch.randint(-70, 60, shape, generator=generator).float())
    choice = torch.rand(shape, generator=generator)
    x[choice < 0.3] = -0.0
    if kind == "special":
        x[choice < 0.08] = 1e-45
        x[choice < 0.04] = float("inf")
        x[choice < 0.02] = -torch.tensor(float("nan"))
    return x


def rows(count: int, length: int, seed: int) -> Tensor:
    """(4 count, length): rows of every kind."""
    generator = torch.Generator().manual_seed(seed)
    kinds = ("short", "cancelling", "special", "wide")
    return torch.cat([tensor((count, length), kind, generator) for kind in kinds])


def short_rows(count: int, length: int, seed: int) -> Tensor:
    """(2 count, length): rows whose products and sums float32 holds."""
    generator = torch.Generator().manual_seed(seed)
    kinds = ("short", "cancelling")
    return torch.cat([tensor((count, length), kind, generator) for kind in kinds])
