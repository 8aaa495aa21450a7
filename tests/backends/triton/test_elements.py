"""Rounding, counting, codes and rounded additions of every kind of format on the triton backend, to
the bit."""

import re
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels.arithmetic import Accumulator, Quantizer
from lpkernels.backends import _reference
from lpkernels.backends.triton import BACKEND
from lpkernels.backends.triton.elementwise import (
    accumulate,
    affine,
    counts,
    packing,
    quantize,
    tiles,
)
from lpkernels.backends.triton.rounding.rule import rule_of
from lpkernels.formats import AffineFormat, BlockFormat, FloatFormat, parse_format
from lpkernels.rng import SITE_BIAS, SITE_OUTER
from lpkernels.rounding import ROUNDINGS
from tests.backends import by_hand
from tests.backends.triton.launches import EVERY as EVERY_TARGET
from tests.backends.triton.launches import compiled
from tests.cases import DETERMINISTIC, EVERY_ACCUMULATOR, EVERY_FORMAT, hard_values
from tests.compare import assert_bit_equal
from tests.support import elements
from tests.support.elements import (
    END_FORMATS,
    TENSOR_FORMATS,
    Format,
    assert_codes,
    assert_counted,
    assert_quantized,
    quantized,
    ranges,
    tensor_values,
)

ALL = [*EVERY_FORMAT, *END_FORMATS]
NO_MANTISSA = FloatFormat(1, 3, specials="none")
#: Formats with a scale. The last block's steps lie far above those of a mantissa, so no 32-bit rule
#: takes it.
SCALED = [
    *TENSOR_FORMATS, AffineFormat(1), AffineFormat(16, axis=1), BlockFormat("fp8_e4m3", 32, axis=0),
    BlockFormat(NO_MANTISSA, 1), BlockFormat(FloatFormat(4, 3, specials="none", bias=-112), 8),
]  # fmt: skip
SHAPES = [(1, 1, 1), (2, 70, 3), (3, 2, 66), (2, 40, 1)]
MODES = ["stochastic", "nearest_even", *DETERMINISTIC[1:]]
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.float16]
check_quantized = partial(assert_quantized, BACKEND)
check_counted = partial(assert_counted, BACKEND)


def quantizers(fmt: Format) -> list[Quantizer]:
    """Every mode; stochastic with few bits, with all, and with the other generator."""
    drawn = [(8, "fast"), (32, "fast"), (17, "philox")]
    return [
        *(Quantizer(fmt, mode) for mode in DETERMINISTIC),
        *(Quantizer(fmt, "stochastic", random_bits=bits, rng=rng) for bits, rng in drawn),
    ]


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices and blocks are spread over programs; parts of a block follow each other."""
    monkeypatch.setattr(affine, "_RANGE_TILE", 16)
    monkeypatch.setattr(affine, "_LINE_TILE", 8)
    monkeypatch.setattr(affine, "_COLUMNS", 4)
    monkeypatch.setattr(tiles, "_ELEMENTS", 8)
    monkeypatch.setattr(quantize, "_BLOCK", 16)


EVERY = pytest.mark.parametrize("fmt", ALL, ids=str)


@EVERY
def test_floats(fmt: Format, device: str, monkeypatch) -> None:
    """float32 in every mode. float64 goes straight to the format, never through float32."""
    monkeypatch.setattr(quantize, "_BLOCK", 1 << 13)
    x, chosen = elements.float32_values(fmt, 12), quantizers(fmt)
    for quantizer in chosen:
        got = quantized(torch.from_numpy(x), quantizer, BACKEND, device)
        assert_bit_equal(got, elements.expected(x, quantizer), f"{quantizer}")
    x = hard_values(fmt, 20)
    for quantizer in {chosen[0], chosen[ALL.index(fmt) % len(chosen)]}:
        want, call = elements.expected(x, quantizer), (torch.from_numpy(x), quantizer, BACKEND)
        assert_bit_equal(quantized(*call, device), want, f"{quantizer}")
        if isinstance(fmt, FloatFormat):
            got = quantized(*call, device, torch.float64)
            wide = np.where(np.isnan(want), np.nan, want.astype(np.float64))
            assert_bit_equal(got, wide, f"{quantizer} to float64")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["e4m3", "e5m2_sat", "e3m2_nosub", "e5m0", "fixed8_f4_wrap"])
def test_16_bit_patterns(name: str, dtype: torch.dtype, device: str, monkeypatch) -> None:
    """Into the same type and into float32; every NaN in a result has the same bits."""
    monkeypatch.setattr(quantize, "_BLOCK", 1 << 16)
    fmt, x = parse_format(name), elements.patterns(dtype)
    for quantizer in quantizers(fmt):
        want = elements.expected(x.float().numpy(), quantizer)
        assert_bit_equal(quantized(x, quantizer, BACKEND, device), want, f"{quantizer}")
        if isinstance(fmt, FloatFormat):
            got = quantized(x, quantizer, BACKEND, device, dtype).cpu().view(torch.int16)
            assert_bit_equal(got, elements.narrowed(want, dtype), f"{quantizer}")
    check_counted(x, Quantizer(fmt, "stochastic"), device)


@EVERY
def test_counts(fmt: Format, device: str, monkeypatch) -> None:
    monkeypatch.setattr(quantize, "_BLOCK", 1 << 13)
    x, turn = torch.from_numpy(elements.float32_values(fmt, 3)), ALL.index(fmt)
    # Every mode meets every kind of format, and every format three modes in the interpreter.
    for i in range(len(ROUNDINGS)) if device == "cuda" else (turn, turn + 2, turn + 4):
        quantizer = Quantizer(fmt, ROUNDINGS[i % len(ROUNDINGS)])
        check_counted(x.to(DTYPES[(turn + i) % len(DTYPES)]), quantizer, device)


@pytest.mark.parametrize("fmt", SCALED, ids=str)
def test_scaled_formats(fmt: AffineFormat | BlockFormat, device: str) -> None:
    """Every shape meets every kind of values; formats take turns with the combinations."""
    turn = SCALED.index(fmt)
    for i, (shape, kind) in enumerate(product(SHAPES, elements.KINDS)):
        x = tensor_values(shape, kind).to(DTYPES[i // 2 % len(DTYPES)])
        quantizer = Quantizer(fmt, MODES[i % len(MODES)])
        if i % 2 == turn % 2:
            check_quantized(x, quantizer, device, kind)
        if i % 5 == turn % 5:
            check_counted(x, quantizer, device, name=kind)
            if isinstance(fmt, AffineFormat):
                check_counted(x, quantizer, device, ranges(x, fmt), kind)


@pytest.mark.parametrize("fmt", [*SCALED, parse_format("e5m2")], ids=str)
def test_tiles_and_strides_leave_no_trace(fmt, device: str, small_tiles: None) -> None:
    x = tensor_values((2, 6, 9), "special")
    check_quantized(x, Quantizer(fmt, "stochastic", random_bits=8), device)
    for view in (x.transpose(0, 2), x[:, ::2], x[:, :1].expand(2, 6, 9), x[:, :0]):
        check_quantized(view, Quantizer(fmt), device)
    check_counted(x.transpose(0, 2)[:, ::2], Quantizer(fmt), device)
    out = torch.empty(x.shape[::-1], device=device).permute(2, 1, 0)
    lp.quantize(x.to(device), fmt, out=out, backend="triton")
    assert_bit_equal(out.contiguous(), quantized(x, Quantizer(fmt)))


@EVERY_TARGET
@pytest.mark.parametrize("mode", ["nearest_even", "to_odd", "stochastic"])
def test_narrow_inputs_need_no_float64(mode: str, target: str) -> None:
    """The kernels also flush no subnormals and contract no product with a sum."""
    quantizer = Quantizer("e4m3", mode, random_bits=8 if mode == "stochastic" else None)
    ints = quantizer.to_ints()
    rule, numbers = rule_of(ints[:-4], *ints[-4:-1])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        by = quantize.way(ints[:-4], dtype, dtype)
        result = compiled(
            quantize.quantize_kernel, target, x_ptr=dtype, out_ptr=dtype, counts_ptr=None,
            count=1 << 20, N=numbers, U=numbers, seed_ptr=torch.int64, role=0, site=4, R=rule,
            RU=rule, BY=by, W=counts.Wanted(True, False, False), BLOCK=1024,
        )  # fmt: skip
        text = result.asm.get("ptx") or result.asm["amdgcn"]
        assert not any(word in text for word in (".f64", "_f64", ".ftz", "fma.rn")), str(dtype)


@pytest.mark.parametrize("fmt", ["e4m3", "e7m0_b-1"])
def test_float64_beyond_float32_shares_a_scale(fmt: str, device: str) -> None:
    """A block holds magnitudes that only float64 has, large and tiny, beside ordinary ones."""
    values = [2.0**1000, 1.0, 2.0**100, -(2.0**80), 2.0**-1060, -0.0, 1e-320, -3.0]
    x = torch.tensor(values, dtype=torch.float64).repeat(2, 1)
    x[1, :4] = torch.tensor([2.0**-140, -(2.0**-300), 2.0**-149, 2.0**-600], dtype=torch.float64)
    for rounding in MODES:
        check_quantized(x, Quantizer(BlockFormat(fmt, 4), rounding), device, rounding)
        check_quantized(x, Quantizer("affine8", rounding), device, rounding)


BLOCKS = [
    BlockFormat("e4m3", 32), BlockFormat("e2m1", 5, axis=0), BlockFormat("e2m3", 7, axis=1),
    BlockFormat("e5m2", 1), BlockFormat(NO_MANTISSA, 3, axis=1),
]  # fmt: skip


def check_codes(x: Tensor, fmt: Format | BlockFormat, device: str) -> None:
    """Codes and values, or the error, are the reference's."""
    ints = fmt.to_ints()
    try:
        _reference.BACKEND.pack(x, ints)
    except ValueError as error:
        place = [int(i) for i in re.findall(r"\d+", re.search(r"index (\(.*?\))", str(error))[1])]
        index = int(np.ravel_multi_index(place, x.shape))
        value = re.escape(str(x.view(-1)[index].item()))
        match = rf"element {index} \(in row-major order\) is {value}, for which the format has no"
        with pytest.raises(ValueError, match=match):
            BACKEND.pack(x.to(device), ints)
        return
    assert_codes(BACKEND, x, fmt, device)


@pytest.mark.parametrize("fmt", [*EVERY_FORMAT, *END_FORMATS[::2], *elements.WIDTHS[::2]], ids=str)
def test_codes_match_reference(fmt: Format, device: str, monkeypatch) -> None:
    monkeypatch.setattr(packing, "_WORDS", 256)
    for count in (7, 300):
        check_codes(elements.codable(fmt, count), fmt, device)


@pytest.mark.parametrize("fmt", [f for f in EVERY_FORMAT if f.bits <= 10], ids=str)
def test_every_code_unpacks_as_the_reference(fmt: Format, device: str) -> None:
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(0, 256, (500 * fmt.bits,), dtype=torch.uint8, generator=generator)
    want = _reference.BACKEND.unpack(codes, fmt.to_ints(), (4000,))
    assert_bit_equal(BACKEND.unpack(codes.to(device), fmt.to_ints(), [4000]), want)


@pytest.mark.parametrize("fmt", [*EVERY_FORMAT[::3], *END_FORMATS[::3]], ids=str)
def test_pack_refuses_what_the_reference_refuses(fmt: Format, device: str, monkeypatch) -> None:
    """A value without a code is refused, and of several the first, across programs."""
    monkeypatch.setattr(packing, "_WORDS", 4)
    good, hard = elements.codable(fmt, 1), torch.from_numpy(elements.float32_values(fmt, 2))
    for value in [*hard[:2], torch.tensor(float("nan"))]:
        x = torch.cat([good.repeat(20), value.view(1), good, value.view(1)])
        check_codes(x, fmt, device)


@pytest.mark.parametrize("fmt", BLOCKS, ids=str)
@pytest.mark.parametrize("tile", [8, 1024])
def test_codes_of_blocks_match_reference(fmt: BlockFormat, tile: int, device: str, monkeypatch):
    """There are short last blocks, blocks of NaN, and values whose scale leaves no code."""
    monkeypatch.setattr(tiles, "_ELEMENTS", tile)
    for shape in ((1, 1, 1), (2, 5, 33 if tile > 8 else 9), (0, 3, 2)):
        x = tensor_values(shape, "special")
        tiny = quantized(x.nan_to_num(1.0, -2.0, -3.0), Quantizer(fmt)) * 2.0**-126
        for values in (quantized(x, Quantizer(fmt)), x, torch.full(shape, float("nan")), tiny):
            check_codes(values, fmt, device)


SEED = torch.tensor(-77)
# Each addition occurs once: accumulators with equal ones would repeat it.
ADDITIONS = {
    (a.outermost, a.outermost_rounding, a.random_bits, a.rng): a for a in EVERY_ACCUMULATOR
}


def operands_of(acc: Accumulator) -> tuple[Tensor, Tensor]:
    """Values of the format, with hard ones beside them, as matrices of 9 columns."""
    with np.errstate(all="ignore"):
        hard = torch.from_numpy(hard_values(acc.outermost, 5).astype(np.float32))
    total = quantized(hard.flip(0).roll(37), Quantizer(acc.outermost))
    rows = hard.numel() // 9
    return total[: rows * 9].view(rows, 9), hard[: rows * 9].view(rows, 9)


@pytest.mark.parametrize("acc", ADDITIONS.values(), ids=str)
def test_additions_match_reference(acc: Accumulator, device: str) -> None:
    total, addend = operands_of(acc)
    for site, k, x in (
        (SITE_OUTER, 6, addend),
        (SITE_BIAS, 0, addend[1]),
        (SITE_OUTER, 2**33, total),
    ):
        want, got = total.clone(), total.to(device, copy=True)
        rest = ((5, 2**33 + 7), acc.to_ints(), SEED, 4, site, k)
        by_hand.accumulate(_reference.BACKEND, want, x.expand_as(total), *rest)
        by_hand.accumulate(BACKEND, got, x.to(device), *rest)
        assert_bit_equal(got, want, f"site {site}")


def test_strides_and_tiles_leave_no_trace_in_additions(device: str, monkeypatch) -> None:
    acc = lp.accumulator("e5m6:stochastic:bits=13")
    total, addend = operands_of(acc)
    want = total.clone()
    rest = ((0, 0), acc.to_ints(), SEED, 4, SITE_OUTER, 3)
    by_hand.accumulate(_reference.BACKEND, want, addend, *rest)
    for values, columns in ((8, 4), (64, 16)):
        monkeypatch.setattr(accumulate, "_ELEMENTS", values)
        monkeypatch.setattr(accumulate, "_COLUMNS", columns)
        got = total.to(device, copy=True)
        by_hand.accumulate(BACKEND, got, addend.t().contiguous().t().to(device), *rest)
        assert_bit_equal(got, want)
    empty = torch.empty(0, 3, device=device)
    by_hand.accumulate(BACKEND, empty, empty, *rest)
