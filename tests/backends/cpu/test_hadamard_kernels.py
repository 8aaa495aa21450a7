"""The cpu backend's Hadamard transforms: instruction sets, types, layouts, threads, flushing."""

import pytest
import torch

from lpkernels.arithmetic.hadamard import HADAMARD_SIZES, signs_of
from lpkernels.backends import cpu
from tests.backends.cpu_products import REFERENCE, assert_same
from tests.compare import assert_bit_equal
from tests.support.elements import hard_runs
from tests.support.processor import Isas, Threads, flushed


def transformed(x: torch.Tensor, *rest: object) -> torch.Tensor:
    got = cpu.BACKEND.hadamard(x, *rest)
    assert got.is_contiguous()
    return got


@pytest.mark.parametrize("size", HADAMARD_SIZES)
def test_hard_runs(size: int, isas: Isas) -> None:
    signs = signs_of(size, 3)
    x = torch.cat([torch.from_numpy(x) for _, x in hard_runs(size, signs)])
    want = REFERENCE.hadamard(x, size, signs, 1)
    side_by_side = x.t().contiguous()
    for isa in isas:
        alone = torch.cat([transformed(run[None], size, signs, 1) for run in x])
        assert_bit_equal(alone, want, f"{isa} one by one")
        results = [(transformed(x, size, signs, 1), transformed(side_by_side, size, signs, 0))]
        with flushed():
            results += [(transformed(x, size, signs, 1), transformed(side_by_side, size, signs, 0))]
        for along, across in results:
            assert_bit_equal(along, want, isa)
            assert_bit_equal(across, want.t(), f"{isa} across")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_types_and_layouts(dtype: torch.dtype, isas: Isas) -> None:
    for size, shape in ((16, (3, 48, 5)), (32, (7, 64)), (64, (2, 64, 18))):
        x = torch.randn(shape).mul(2.0 ** torch.randint(-30, 15, shape)).to(dtype)
        order = tuple(range(len(shape)))[::-1]
        turned = x.permute(order).contiguous().permute(order)
        for view in (x, turned, torch.stack((x, x), dim=-1)[..., 0]):
            assert_same(isas, "hadamard", view, size, signs_of(size, 1), 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bit_patterns(dtype: torch.dtype) -> None:
    bits = torch.arange(-(2**15), 2**15, 3, dtype=torch.int32).to(torch.int16)
    x = torch.zeros(len(bits), 16, dtype=torch.int16)
    x[:, 9] = bits
    assert_same([""], "hadamard", x.view(dtype), 16, signs_of(16, "te"), 1)


@pytest.mark.parametrize("size", [16, 128])
def test_threads_and_streams(size: int, threads: Threads) -> None:
    """Large results go past the caches; a piece of them has an infinity, and is made once more."""
    x, signs = torch.randn(1040, 2048), signs_of(size, 9)
    x[5, 77] = torch.inf
    want = torch.cat([transformed(part, size, signs, 1) for part in x.split(80)])
    assert_bit_equal(want[:8], REFERENCE.hadamard(x[:8], size, signs, 1))
    for count in threads:
        assert_bit_equal(transformed(x, size, signs, 1), want, count)
