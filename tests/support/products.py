"""Operands on which sums go wrong first, accumulators with operands of their own format, and
convolutions whose phases differ; products and passes of convolutions, and the bits that a backend
gives."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic import UNITS, Accumulator, accumulator
from lpkernels.arithmetic.products import output_size
from lpkernels.backends import NOT_FUSED, Fused
from lpkernels.rounding import ROUNDINGS
from tests.cases import ConvCase, accumulators_named
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


#: Accumulators of blocks unlike those of the units: other modes, formats that end otherwise, cut
#: sums, long runs, draws.
ODD_BLOCKS = accumulators_named("""
    e5m10:toward_negative:block=8:aligned_bits=12:operands=e5m2,e4m3fn
    e4m3fn:toward_positive:block=3:aligned_bits=9:operands=e5m2
    e5m2:to_odd:block=2:aligned_bits=3:operands=e5m2
    e8m10:nearest_away:block=16:aligned_bits=15:operands=e4m3fn
    e4m3fn:block=7:aligned_bits=9:operands=e5m2,e4m3fn
    e8m0:block=5:aligned_bits=9:operands=e5m2
    fp32:toward_zero:block=256:aligned_bits=40:operands=bf16
    fp32:toward_zero:block=8:aligned_bits=11:operands=e4m3fn
    e8m13:toward_zero:block=8:aligned_bits=13:operands=e4m3fn:least_exponent=6
    e5m4:stochastic:block=4:aligned_bits=6:operands=e4m3fn,e5m2
    e5m6_chunk24:stochastic:outer=e6m9:block=6:aligned_bits=13:operands=e5m2:interleaved=2:bits=13:philox
    e5m4:stochastic:block=3:aligned_bits=40:operands=fp32
    e4m3fn:toward_positive:block=3:aligned_bits=24:operands=fp32:least_exponent=-20
    e4m3none_sat:to_odd:block=3:aligned_bits=1:operands=fp32:least_exponent=4
    e8m0:toward_negative:block=3:aligned_bits=30:operands=fp32:least_exponent=-300
    e5m2_nosub:nearest_away:block=3:aligned_bits=9:operands=fp32
    e2m5_b-117:toward_positive:block=4:aligned_bits=13:operands=e5m2
    fp32_chunk768:toward_zero:outer=e6m9:outer_rounding=nearest_even:block=128:aligned_bits=24:operands=fp16:interleaved=3
""")
#: Blocks that are added exactly: by operands or not, in turns, chunks, every mode, with draws.
EXACT_BLOCKS = accumulators_named("""
    fp32:block=4 e5m10:toward_negative:block=3 e8m13:to_odd:block=8:operands=bf16
    e4m3fn_sat:nearest_away:block=5:product=e5m6 e5m4_chunk12:stochastic:block=4:operands=fp16
    e5m6_chunk7:toward_zero:outer=e5m5:block=3 e8m22:toward_positive:block=64:operands=fp16
    fp32_chunk8:outer=bf16:block=4:operands=fp16:interleaved=2 e4m3fnuz:stochastic:block=2:philox
    e8m23_sat:block=4:operands=bf16 e8m23_nosub:block=2:operands=bf16
""")
#: Adders of AMD's cores in chunks, in fewer bits, and of two formats.
CORES = EXACT_BLOCKS + accumulators_named("""
    fp32_chunk12:outer=bf16:block=4:operands=bf16:adder=tree
    fp32_chunk5:outer=e6m9:block=4:aligned_bits=13:operands=bf16:adder=floored
    fp32:block=16:aligned_bits=32:operands=e5m2fnuz,e4m3fnuz:adder=floored_halves
    fp32_chunk3:block=2:aligned_bits=11:operands=bf16:adder=opposed
    fp32_chunk24:block=4:aligned_bits=9:operands=fp16:adder=pairs_swapped
""")
#: Every mode, with blocks in turns and chunks, and short ones.
BLOCKS = ODD_BLOCKS + [
    accumulator(text.format(mode=mode))
    for mode in ROUNDINGS
    for text in (
        "e4m3_chunk8:{mode}:outer=e5m5:block=4:aligned_bits=6:operands=e5m2,e4m3fn:interleaved=2",
        "e5m4:{mode}:block=4:aligned_bits=6:operands=e5m2,e4m3fn:least_exponent=-14",
    )
]
#: Sums in which positions count, in every way: chunks that a phase of a stride leaves empty or that
#: end within a block, draws of sums, of products and of the outer sums, zeros of both signs.
POSITIONED = accumulators_named("""
    e6m9_chunk1 e6m9_chunk4:outer=e4m3 e6m9_chunk64 e5m10_chunk2:outer=e5m2
    e5m2_chunk3:toward_negative:outer=e4m3 e5m3_chunk5:to_odd:outer=e4m2none_nosub_sat
    fp32_chunk3:outer=e5m4 e5m4_chunk3:stochastic:outer=e5m2 e5m4:stochastic:bits=13:philox
    e5m4:stochastic:bits=24 e6m9_chunk6:product=e4m2:product_rounding=stochastic:bits=3
    e5m6:stochastic:product=e4m2:product_rounding=stochastic:bits=5 fixed10_f4_chunk4
    fixed10_f4_wrap_chunk2:outer=fixed9_f3
""")
#: Draws of sums and products, a chunk that ends within a word, and another rounding outside.
(DRAWN,) = accumulators_named(
    "e5m5_chunk6:stochastic:product=e4m4:product_rounding=stochastic:outer=e5m3:bits=5"
)

#: csrc/cuda/product/sums.h has the same value.
ABSENT = 0x7FC0DEAD
#: Quiet and signalling NaNs of both signs, those that processors make, and the absent tap's own.
NAN_BITS = (
    0x7FC00000, 0x7FFFFFFF, -1, 0x7F800001, -0x7FFFFF, 0x7FBFFFFF, ABSENT, ABSENT - 2**31,
    ABSENT & ~(1 << 22), ABSENT + 1,
)  # fmt: skip


SEED, ROLE = torch.tensor(-1234567890123456789), 4
PASSES = ("fprop", "dgrad", "wgrad")


Make = Callable[[tuple[int, ...]], Tensor]
#: x, w, dy and the bias of a convolution.
Tensors = tuple[Tensor, Tensor, Tensor, Tensor | None]


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
    like: Accumulator | None = None, name: str = "", ways: Iterable[str] = ("",),
) -> Tensor:  # fmt: skip
    """The backend's product of a and b on a device has the bits of the product that another backend
    makes on the CPU, with the accumulator `like` if there is one. ways: a loop over instruction
    sets, or over threads.

    Returns: the product.
    """
    product, how = ops.matmul_of(a, b, bias, initial), ops.How(acc.to_ints(), seed, role, fused)
    want = ops.multiply(product, how._replace(acc=(like or acc).to_ints()), by)
    *tensors, seed = (None if x is None else x.to(device) for x in (a, b, bias, initial, seed))
    for way in ways:
        got = backend.multiply(ops.matmul_of(*tensors), how._replace(seed=seed))
        assert got.device == tensors[0].device
        label = f"{way} {name} {tuple(a.shape)} @ {tuple(b.shape)} {acc} {fused}"
        assert_bit_equal(got, want, label)
    return want


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
    like: Accumulator | None = None, ways: Iterable[str] = ("",),
) -> None:  # fmt: skip
    """The backend's pass on a device has the bits of the pass that another backend makes of
    contiguous copies on the CPU, with the accumulator `like` if there is one; ways as above."""
    x, w, dy, bias = (t if t is None else t.contiguous() for t in tensors)
    want = convolve(by, name, case, (x, w, dy, bias), like or acc, fused)
    x, w, dy, bias = (t if t is None else t.to(device) for t in tensors)
    for way in ways:
        got = convolve(backend, name, case, (x, w, dy, bias), acc, fused, SEED.to(device))
        assert got.device == x.device
        assert_bit_equal(got, want, f"{way} {name} {case} {acc} {fused}")
