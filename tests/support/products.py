"""Operands on which sums go wrong first, accumulators with operands of their own format, and
convolutions whose phases differ; products and passes of convolutions, and the bits that a backend
gives."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic import UNITS, Accumulator
from lpkernels.arithmetic.products import output_size
from lpkernels.backends import NOT_FUSED, Fused
from lpkernels.rounding import ROUNDINGS
from tests.cases import CONV_CASES, ConvCase, accumulators_named
from tests.compare import assert_bit_equal

#: Kinds of operands; see operand().
KINDS = ("plain", "wide", "cancelling", "ties", "subnormal", "huge", "special")
_SPECIALS = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, -1.0, 3e38], dtype=np.float32)


def operand(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """float32 values of one kind.

    "plain" has 24 significant bits around 1; "wide" magnitudes up to 2^40 apart; "cancelling" few
    values of both signs, so sums return to zero; "ties" short significands that meet halfway;
    "subnormal" values of float32 below and near 2^-126; "huge" near its maximum; "special" mixes
    infinities, NaN and both zeros in; "rare" has many zeros of one sign and few other such values,
    so that long sums stay finite in places.
    """
    plain = rng.standard_normal(shape)
    if kind == "wide":
        plain = plain * 2.0 ** rng.integers(-20, 21, shape)
    elif kind == "cancelling":
        plain = rng.choice([-1.0, 1.0, 0.5, -0.5, 0.0, -0.0], shape)
    elif kind == "ties":
        plain = rng.integers(-9, 10, shape) * 2.0 ** rng.integers(-7, 3, shape)
    elif kind == "subnormal":
        # Half of them scale a subnormal back into reach of the narrow formats.
        scale = rng.choice([2.0**-149, 2.0**-140, 2.0**-126, 2.0**120], shape)
        plain = rng.integers(-9, 10, shape) * scale
    elif kind == "huge":
        plain = plain * 2.0 ** rng.integers(100, 126, shape)
    x = plain.astype(np.float32)
    if kind == "special":
        x = np.where(rng.random(shape) < 0.2, rng.choice(_SPECIALS, shape), x).astype(np.float32)
    elif kind == "rare":
        chance = rng.random(shape)
        x[chance < 0.3] = -0.0
        x[chance < 0.04] = 1e-45
        x[chance < 0.01] = np.inf
        x[chance < 0.005] = np.nan
    return x


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


#: Convolutions whose phases differ in their taps, reach no output or have no taps.
_PHASES: dict[str, ConvCase] = {
    "stride_beyond_kernel": ConvCase((2, 3, 9, 8), (5, 3, 1, 2), (2, 3), (0, 1), (1, 1)),
    "stride_4_dilation_2": ConvCase((1, 2, 11, 13), (3, 2, 3, 3), (4, 4), (3, 2), (2, 2)),
    "stride_3_dilation_2": ConvCase((1, 2, 11, 10), (3, 2, 3, 4), (3, 2), (3, 2), (2, 3)),
    "stride_beyond_image": ConvCase((1, 2, 3, 4), (3, 2, 3, 3), (5, 7), (1, 1), (1, 1)),
    "padding_beyond_stride": ConvCase((1, 2, 3, 3), (3, 2, 2, 2), (2, 1), (5, 4), (1, 1)),
    "many_channels": ConvCase((2, 2, 3), (34, 1, 2), (1,), (0,), (1,), 2),
    "groups_stride": ConvCase((2, 6, 5, 6), (9, 2, 2, 3), (2, 2), (1, 0), (1, 1), 3),
}
ALL_CASES = CONV_CASES | _PHASES


SEED, ROLE = torch.tensor(-1234567890123456789), 4
PASSES = ("fprop", "dgrad", "wgrad")
#: One accumulator for every family of kernels of the cuda backend.
KERNELS = accumulators_named("""
    fp32 e5m10 e6m9_chunk5:outer=e5m7 e4m3fn_sat e5m7_chunk16:toward_zero e6m9_chunk8:stochastic
    e6m9_chunk8:stochastic:outer_rounding=nearest_even
    e5m5_chunk7:stochastic:product=e4m3:product_rounding=stochastic
""")
Make = Callable[[tuple[int, ...]], Tensor]
#: x, w, dy and the bias of a convolution.
Tensors = tuple[Tensor, Tensor, Tensor, Tensor]


def in_sequence(acc: Accumulator) -> bool:
    """Whether products are added in sequence and in chunks: csrc/cuda makes these sums alone."""
    return acc.order == "sequential" and acc.block is None


def few_bits(shape: tuple[int, ...]) -> Tensor:
    return torch.randint(-7, 8, shape) * torch.exp2(torch.randint(-4, 3, shape))


def special(shape: tuple[int, ...]) -> Tensor:
    """Values of few bits, zeros of both signs, an infinity, a NaN, a subnormal."""
    x = few_bits(shape).float()
    if x.numel() > 8:
        at = torch.randint(0, x.numel(), (4,))
        x.view(-1)[at] = torch.tensor([-0.0, float("inf"), -float("nan"), 1e-45])
    return x


def lanes_of_all_kinds(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Values in lanes that are, in turn, moderate, 2^80 apart, huge and special."""
    x = torch.randn(shape, generator=generator)
    lanes = x.unsqueeze(0) if x.dim() == 1 else x
    wide = torch.randint(-40, 40, lanes.shape, generator=generator).float()
    lanes[..., 1::4, :] *= torch.exp2(wide)[..., 1::4, :]
    lanes[..., 2::4, :] *= 3e37
    special = lanes[..., 3::4, :]
    choice = torch.rand(special.shape, generator=generator)
    for limit, value in ((0.5, -0.0), (0.3, 1e-45), (0.2, float("inf")), (0.1, float("nan"))):
        special[choice < limit] = value
    return x


def sums_in_float32(acc: Accumulator) -> Accumulator:
    """An accumulator in sequence with the same bits as exact native chunks."""
    return Accumulator("fp32", chunk=acc.chunk, outer=acc.outer, outer_rounding=acc.rounding)


def assert_product(
    backend: Any, a: Tensor, b: Tensor, acc: Accumulator, device: str = "cpu", *,
    bias: Tensor | None = None, initial: Tensor | None = None, fused: Fused = NOT_FUSED,
    seed: Tensor | None = SEED, role: int = ROLE, by: str = "reference",
    like: Accumulator | None = None, name: str = "",
) -> None:  # fmt: skip
    """The backend's product of a and b on a device has the bits of the product that another backend
    makes on the CPU, with the accumulator `like` if there is one."""
    product, how = ops.matmul_of(a, b, bias, initial), ops.How(acc.to_ints(), seed, role, fused)
    want = ops.multiply(product, how._replace(acc=(like or acc).to_ints()), by)
    *tensors, seed = (None if x is None else x.to(device) for x in (a, b, bias, initial, seed))
    got = backend.multiply(ops.matmul_of(*tensors), how._replace(seed=seed))
    assert got.device == tensors[0].device
    assert_bit_equal(got, want, f"{name} {tuple(a.shape)} @ {tuple(b.shape)} {acc} {fused}")


def output_shape(case: ConvCase) -> tuple[int, ...]:
    x, w, *geometry, _ = case
    return (x[0], w[0], *output_size(x[2:], w[2:], *geometry))


def tensors_of(case: ConvCase, make: Make = special) -> Tensors:
    shapes = (case.input_shape, case.weight_shape, output_shape(case), case.weight_shape[:1])
    x, w, dy, bias = (make(shape).float() for shape in shapes)
    return x, w, dy, bias


def convolve(
    backend: Any, name: str, case: ConvCase, tensors: Tensors, acc: Accumulator,
    fused: Fused = NOT_FUSED, seed: Tensor | None = SEED,
) -> Tensor:  # fmt: skip
    """A pass by a backend, or by the operators if `backend` is a name."""
    x, w, dy, bias = tensors
    conv = ops.Convolution(case.stride, case.padding, case.dilation, case.groups)
    product = {
        "fprop": lambda: ops.fprop_of(x, w, bias, conv),
        "dgrad": lambda: ops.Product("conv_dgrad", dy, w, case.input_shape, conv),
        "wgrad": lambda: ops.Product("conv_wgrad", x, dy, case.weight_shape, conv),
    }[name]()
    how = ops.How(acc.to_ints(), seed, ROLE, fused)
    if isinstance(backend, str):
        return ops.multiply(product, how, backend)
    return backend.multiply(product, how)


def assert_pass(
    backend: Any, name: str, case: ConvCase, tensors: Tensors, acc: Accumulator,
    device: str = "cpu", *, fused: Fused = NOT_FUSED, by: str = "reference",
    like: Accumulator | None = None,
) -> None:  # fmt: skip
    """The backend's pass on a device has the bits of the pass that another backend makes of
    contiguous copies on the CPU, with the accumulator `like` if there is one."""
    x, w, dy, bias = (t.contiguous() for t in tensors)
    want = convolve(by, name, case, (x, w, dy, bias), like or acc, fused)
    x, w, dy, bias = (t.to(device) for t in tensors)
    got = convolve(backend, name, case, (x, w, dy, bias), acc, fused, SEED.to(device))
    assert got.device == x.device
    assert_bit_equal(got, want, f"{name} {case} {acc} {fused}")
