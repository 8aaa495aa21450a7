"""Calls of the backend that launch every kernel of elements in every way in which it is compiled:
rounding, counting, codes, additions and updates."""

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from lpkernels.arithmetic import Accumulator, Quantizer
from lpkernels.arithmetic.hadamard import HADAMARD_SIZES
from lpkernels.backends.triton import BACKEND
from lpkernels.backends.triton.elementwise.quantize import way
from lpkernels.backends.triton.rounding.rule import rule_of
from lpkernels.formats import AffineFormat, BlockFormat, FloatFormat, parse_format
from lpkernels.formats.grids import grid_shape
from lpkernels.rounding import ROUNDINGS
from tests.backends import by_hand
from tests.backends.triton.every.rules import FEW, SEED, Call, all_formats, drawn, kinds, some_rules
from tests.backends.triton.kernel_keys import float32_key
from tests.support.updates import FORMATS, STEPS, rounding_of, tensors_of


def _quantize(quantizer: Quantizer, source: torch.dtype, shape: tuple[int, ...] = (64, 256)) -> Any:
    target = torch.float64 if source == torch.float64 else torch.float32
    out = torch.zeros(shape, dtype=target)
    by_hand.quantize(
        BACKEND, torch.zeros(shape, dtype=source), quantizer.to_ints(), SEED, 1, 4, out
    )


_TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def _in_float32() -> list[Quantizer]:
    """A quantizer for each way of rounding in float32 and each `float32_key`."""
    found: dict[Any, Quantizer] = {}
    even = [f for f in all_formats() if isinstance(f, FloatFormat) and f.exp_bits == 8]
    even = [f for f in even if f.man_bits in (0, 3, 4, 7)]
    for fmt, mode, bits in itertools.product((*kinds(), *even), ROUNDINGS, (8, 32)):
        if isinstance(fmt, FloatFormat):
            quantizer = Quantizer(fmt, mode, random_bits=bits if mode == "stochastic" else None)
            ints = quantizer.to_ints()
            by = way(ints[:-4], torch.float32, torch.float32)
            if by:
                found.setdefault((by, float32_key(rule_of(ints[:-4], *ints[-4:-1])[0])), quantizer)
    return list(found.values())


def quantize_calls() -> Iterator[Call]:
    """Every rule of elements, in float32 and in float64, and every type."""
    for quantizer in _in_float32():
        yield partial(_quantize, quantizer, torch.float32)
    for fmt, mode in itertools.product(FEW, ROUNDINGS):
        yield partial(_quantize, Quantizer(fmt, mode), torch.float64)
    for source in _TYPES:
        yield partial(_quantize, Quantizer("e5m2"), source)
        for draws in (*drawn(), {"random_bits": 32, "rng": "fast"}):
            yield partial(_quantize, Quantizer("e5m2", "stochastic", **draws), source)
            if source != torch.float16:
                yield partial(_quantize, Quantizer("e8m7", "stochastic", **draws), source)


#: Affine formats and blocks.
_SCALED = (
    AffineFormat(8), AffineFormat(8, symmetric=True), AffineFormat(4, axis=1), BlockFormat("e4m3"),
    BlockFormat("e2m1", 7, axis=0), BlockFormat("e5m2", 4096), parse_format("nvfp4_2d"),
)  # fmt: skip
#: A format for each way in which scales are made.
_SCALES = (
    "block32_e4m3_ceil", "block32_e4m3_even", "block32_e4m3_up", "block32_int8f6", "row_e4m3",
    "block16_e4m3_sbf16_up", "block16_e2m1_se4m3fn_t", "block16_e2m1_se4m3fn_t_te",
    "block32_e4m3_up_te", "block128_e4m3_up_te", "row_e4m3_te", "block16_e2m1_se4m3fn_t_torchao",
    "block16_e2m1_se4m3fn_torchao", "block32_e2m1_torchao", "row_e4m3_torchao",
    "tile128x128_e4m3_up_torchao", "row_int8_torchao", "row_int8_to127.5_torchao",
    "block128_e4m3_sfp32_deepgemm", "block128_e4m3_up_deepgemm", "block32_e2m1_sfp32_deepgemm",
)  # fmt: skip


def _scaled(quantizer: Quantizer, source: torch.dtype, amax: torch.Tensor | None) -> None:
    x = torch.zeros(64, 4000, dtype=source)
    parts = by_hand.scaled(BACKEND, x, quantizer.to_ints(), SEED, 1, 4, amax)
    by_hand.dequantize(BACKEND, *parts, quantizer.fmt.to_ints())


def slice_calls() -> Iterator[Call]:
    """Affine formats and blocks: every mode, type, scale and shape of a tile."""
    for fmt, mode in itertools.product(_SCALED, ROUNDINGS):
        yield partial(_quantize, Quantizer(fmt, mode), torch.float32, (64, 4000))
    for fmt, source in itertools.product(_SCALED, _TYPES):
        yield partial(_quantize, Quantizer(fmt, "stochastic"), source, (64, 4000))
    for name, mode in itertools.product(_SCALES, ("nearest_even", "stochastic")):
        yield partial(_scaled, Quantizer(name, mode), torch.float32, None)
    for name, source in itertools.product(("mxfp8", "nvfp4", "nvfp4_te", "fp8_tensor"), _TYPES):
        for amax in (None, torch.ones(1, dtype=torch.float64)):
            yield partial(_scaled, Quantizer(name), source, amax)


def counting_calls() -> Iterator[Call]:
    """Calls that count alone and beside values, with a histogram or without; given ranges."""
    x, counts = torch.zeros(64, 4000), torch.zeros(260, dtype=torch.int64)
    for fmt, mode in itertools.product((*_SCALED, *FEW), ROUNDINGS):
        ints = Quantizer(fmt, mode).to_ints()
        yield partial(by_hand.quantize, BACKEND, x, ints, SEED, 1, 2, x.clone(), counts[:4], None)
    for fmt, source in itertools.product((_SCALED[0], _SCALED[3], FEW[0]), _TYPES):
        ints, out = Quantizer(fmt).to_ints(), torch.zeros(64, 4000)
        for into, added in ((out, counts), (None, counts), (None, counts[:4])):
            call = (x.to(source), ints, None, 1, 2, into, added, None)
            yield partial(by_hand.quantize, BACKEND, *call)
    limits = torch.zeros(2, 1, dtype=torch.float64)
    ints = Quantizer(_SCALED[0]).to_ints()
    yield partial(by_hand.quantize, BACKEND, x, ints, None, 1, 2, x.clone(), None, limits)


def hadamard_calls() -> Iterator[Call]:
    """Transforms of every size and type."""
    for size, source in itertools.product(HADAMARD_SIZES, _TYPES[:3]):
        x = torch.zeros(4, 3 * size, dtype=source)
        yield partial(BACKEND.hadamard, x, size, (1,) * size, 1)


def code_calls() -> Iterator[Call]:
    """pack and unpack."""
    floats = ("e2m1none", "e8m23", "e5m2", "e4m3fn", "e5m2_nosub", "e8m0")
    for name in (
        *floats,
        "fixed24_f10",
        "ufixed8_f4",
        "block32_e4m3",
        "block7_axis0_e2m1",
        "block32_int8f6",
    ):
        ints, x = parse_format(name).to_ints(), torch.zeros(64, 4000)
        yield partial(BACKEND.pack, x, ints)
        if name.startswith("block"):
            scale = torch.zeros(grid_shape(x.shape, ints))
            yield partial(by_hand.pack_scaled, BACKEND, x, scale, ints)
        yield partial(BACKEND.unpack, torch.zeros(10**6, dtype=torch.uint8), ints, [64, 4000])


def accumulate_calls() -> Iterator[Call]:
    """One rounded addition: every rule, every field of draws."""
    accs = [Accumulator(fmt, mode) for fmt, mode in some_rules()]
    accs += [Accumulator("e5m4", "stochastic", **draws) for draws in drawn()]
    for acc in accs:
        arguments = ((0, 0), acc.to_ints(), SEED, 1, 2, 3)
        yield partial(
            by_hand.accumulate, BACKEND, torch.zeros(64, 256), torch.zeros(64, 256), *arguments
        )


def update_calls() -> Iterator[Call]:
    """Every kind of step, with every way to round and to keep values."""
    cases = [(step, FORMATS["fp32_master"], begins) for step in STEPS.values() for begins in (0, 1)]
    cases += [(STEPS["adamw"], formats, 0) for formats in FORMATS.values()]
    for step, formats, begins in cases:
        tensors = tensors_of(step, formats, [(64, 33)])
        rounding, numbers = rounding_of(formats).to_ints(), step.to_numbers()
        found, scale = torch.tensor(False), torch.tensor(2.0)
        rest = ([3], [0], rounding, numbers, bool(begins))
        yield partial(by_hand.update, BACKEND, tensors, SEED, found, scale, *rest)
    yield partial(by_hand.update, BACKEND, tensors, None, None, None, *rest)
