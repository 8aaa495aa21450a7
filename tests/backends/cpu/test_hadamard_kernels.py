"""The cpu backend's Hadamard transforms: instruction sets, types, layouts, threads, flushing."""

import torch

from lpkernels.arithmetic.hadamard import HADAMARD_SIZES, signs_of
from lpkernels.backends import cpu
from tests.backends.cpu_products import REFERENCE
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.elements import hard_runs
from tests.support.processor import Isas, Threads, flushed

BACKEND = cpu.BACKEND


@each("size", HADAMARD_SIZES)
def test_hard_runs(size: int, isas: Isas) -> None:
    signs = signs_of(size, 3)
    x = torch.cat([torch.from_numpy(x) for _, x in hard_runs(size, signs)])
    want = REFERENCE.hadamard(x, size, signs, 1)
    side_by_side = x.t().contiguous()
    for isa in isas:
        assert_bit_equal(BACKEND.hadamard(x, size, signs, 1), want, isa)
        alone = torch.cat([BACKEND.hadamard(run[None], size, signs, 1) for run in x])
        assert_bit_equal(alone, want, f"{isa} one by one")
        assert_bit_equal(BACKEND.hadamard(side_by_side, size, signs, 0), want.t(), f"{isa} across")
        with flushed():
            assert_bit_equal(BACKEND.hadamard(x, size, signs, 1), want, f"{isa} flushed")
            got = BACKEND.hadamard(side_by_side, size, signs, 0)
            assert_bit_equal(got, want.t(), f"{isa} across, flushed")


@each("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_types_and_layouts(dtype: torch.dtype, isas: Isas) -> None:
    for size, shape, axis in ((16, (3, 48, 5), 1), (32, (7, 64), 1), (64, (2, 64, 18), 1)):
        x = torch.randn(shape).mul(2.0 ** torch.randint(-30, 15, shape)).to(dtype)
        signs = signs_of(size, 1)
        want = REFERENCE.hadamard(x, size, signs, axis)
        order = tuple(range(len(shape)))[::-1]
        turned = x.permute(order).contiguous().permute(order)
        apart = torch.stack((x, x), dim=-1)[..., 0]
        for isa in isas:
            for name, view in (("dense", x), ("turned", turned), ("apart", apart)):
                got = BACKEND.hadamard(view, size, signs, axis)
                assert got.is_contiguous()
                assert_bit_equal(got, want, f"{isa} {size} {name}")


def test_16_bit_patterns() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        bits = torch.arange(-(2**15), 2**15, 3, dtype=torch.int32).to(torch.int16)
        x = torch.zeros(len(bits), 16, dtype=torch.int16)
        x[:, 9] = bits
        x = x.view(dtype)
        signs = signs_of(16, "te")
        want = REFERENCE.hadamard(x, 16, signs, 1)
        assert_bit_equal(BACKEND.hadamard(x, 16, signs, 1), want, str(dtype))


def test_threads_and_streams(threads: Threads) -> None:
    """Large results go past the caches; a piece of them has an infinity, and is made once more."""
    x = torch.randn(1040, 2048)
    x[5, 77] = torch.inf
    for size in (16, 128):
        signs = signs_of(size, 9)
        want = torch.cat([BACKEND.hadamard(part, size, signs, 1) for part in x.split(80)])
        assert_bit_equal(want[:8], REFERENCE.hadamard(x[:8], size, signs, 1))
        for count in threads:
            assert_bit_equal(BACKEND.hadamard(x, size, signs, 1), want, f"{size}, {count}")
