"""NaNs of every kind as operands of the cuda adapter: none is taken for an absent tap, and every
result is 0x7fc00000. The tests run on the host by the kernels' own code, and on a device where
there is one. The PTX of the kernels is read as well."""

import itertools
import re

import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels.backends import Fused
from lpkernels.backends.cuda import BACKEND
from tests import cases
from tests.backends import sass
from tests.cases import ConvCase
from tests.compare import assert_bit_equal
from tests.support.cuda_host import needs_device
from tests.support.products import (
    KERNELS,
    assert_pass,
    assert_product,
    few_bits,
    in_sequence,
    tensors_of,
)

NAN = 0x7FC00000
#: The NaN of absent taps: csrc/cuda/product/sums.h has the same value.
ABSENT = 0x7FC0DEAD


def of_bits(bits: list[int], as_integer: torch.dtype, as_float: torch.dtype) -> Tensor:
    size = 8 * torch.empty(0, dtype=as_integer).element_size()
    signed = [b - (1 << size) if b >> (size - 1) else b for b in bits]
    return torch.tensor(signed, dtype=as_integer).view(as_float).float()


#: Quiet and signalling NaNs of both signs, those that processors make, and the absent tap's own.
FLOAT32 = [
    NAN, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFF800001, 0x7FBFFFFF, 0x7FA00000, ABSENT,
    ABSENT | 1 << 31, ABSENT & ~(1 << 22), ABSENT + 1,
]  # fmt: skip
NANS = {
    "float32": of_bits(FLOAT32, torch.int32, torch.float32),
    "float16": of_bits([0x7E00, 0xFE00, 0x7FFF, 0xFFFF, 0x7C01, 0xFC01], torch.int16, torch.half),
    "bfloat16": of_bits(
        [0x7FC0, 0xFFC0, 0x7FFF, 0xFFFF, 0x7F81, 0xFF81], torch.int16, torch.bfloat16
    ),
}
QUANTIZERS = [None, "e5m2", "e4m3fn", "fixed8_f4", "e5m10:toward_negative"]

#: Of the sums of the first accumulator the operands are rounded, too.
ROUNDED = lp.accumulator("e6m9_chunk5")


def ints(quantizer: str | None) -> tuple[int, ...]:
    return lp.arithmetic.as_quantizer(quantizer).to_ints() if quantizer else ()


def with_nans(x: Tensor, nans: Tensor) -> Tensor:
    """A copy of x with every one of the NaNs somewhere, also in the first place and in the last."""
    x = x.contiguous().clone()
    at = torch.linspace(0, x.numel() - 1, len(nans)).long()
    x.view(-1).view(torch.int32)[at] = nans.view(torch.int32)
    return x


IN_SEQUENCE = [ROUNDED, *filter(in_sequence, cases.ACCUMULATORS)]


@pytest.mark.parametrize("acc", IN_SEQUENCE, ids=str)
def test_matmul_matches_the_reference(acc, device):
    for kind, nans in NANS.items():
        a, b, bias = few_bits((5, 19)).float(), few_bits((19, 6)).float(), few_bits((6,)).float()
        a[:3], b[:, 3:] = with_nans(a[:3], nans), with_nans(b[:, 3:], nans)
        for quantizer in QUANTIZERS if acc == ROUNDED else QUANTIZERS[:1]:
            fused = Fused(ints(quantizer), ints(quantizer))
            assert_product(BACKEND, a, b, acc, device, bias=bias, fused=fused, name=kind)


@pytest.mark.parametrize(
    "acc, kind, quantizer",
    [*itertools.product(KERNELS, NANS, [None]),
     *((ROUNDED, "float32", quantizer) for quantizer in QUANTIZERS[1:])],
    ids=str,
)  # fmt: skip
def test_convolutions_match_the_reference(acc, kind, quantizer, device):
    """Every pass, with NaNs in one of its operands and in the other."""
    case = ConvCase((2, 3, 5, 6), (4, 3, 3, 2), (2, 1), (2, 1), (1, 2))
    plain = tensors_of(case, few_bits)
    for place, passes in enumerate((("fprop", "wgrad"), ("fprop", "dgrad"), ("dgrad", "wgrad"))):
        tensors = list(plain)
        tensors[place] = with_nans(tensors[place], NANS[kind])
        x, w, dy, bias = tensors
        fused = Fused(ints(quantizer), ints(quantizer))
        for name in passes:
            assert_pass(BACKEND, name, case, (x, w, dy, bias), acc, device, fused=fused)


@needs_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_public_functions_widen_them(dtype: torch.dtype):
    nans = NANS[str(dtype).removeprefix("torch.")]
    x = with_nans(few_bits((2, 3, 5, 6)).float(), nans).to(dtype)
    w = few_bits((4, 3, 3, 3)).to(dtype)
    recipe = lp.Recipe(fprop="e5m10")
    got = lp.functional.conv2d(x.cuda(), w.cuda(), padding=2, recipe=recipe, backend="cuda")
    want = lp.functional.conv2d(x, w, padding=2, recipe=recipe, backend="reference")
    assert_bit_equal(got, want)


def conversions_of_nan(kernel: str) -> set[str]:
    """Registers that hold a NaN chosen by the code, converted to float32, and that are not used
    merely in a choice of the canonical NaN."""
    nan = "0d7FF8000000000000"
    chosen = {nan, *re.findall(rf"\.f64\s+(%fd\d+), [^;]*{nan}", kernel)}
    pairs = re.findall(r"cvt\.rn\.f32\.f64\s+(%f\d+), (%fd\d+|\w+);", kernel)
    converted = {to for to, source in pairs if source in chosen}
    elsewhere = [
        line
        for line in kernel.splitlines()
        if not re.search(r"cvt\.rn\.f32\.f64|selp\.f32.* 0f7FC00000|\.reg ", line)
    ]
    return converted & set(re.findall(r"%f\d+", "\n".join(elsewhere)))


@pytest.mark.slow
@pytest.mark.skipif(bool(sass.reason()), reason=sass.reason())
def test_no_nan_is_what_a_conversion_makes_of_one():
    """The instruction set leaves open which NaN a conversion makes; the contract has one."""
    kernels = sass.ptx(sass.library())
    if not kernels:
        pytest.skip("lpkernels._C was built without PTX")
    assert {name: found for name, k in kernels.items() if (found := conversions_of_nan(k))} == {}
