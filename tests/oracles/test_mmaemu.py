"""Chains of fp8 tensor cores against mmaemu, which has recordings of an H100 PCIe and an RTX 4060.

One known difference: mmaemu's NaN is 0x7fffffff, the hardware's, and here every NaN is 0x7fc00000.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lpkernels.arithmetic import UNITS, Accumulator
from lpkernels.reference import twin
from tests.compare import assert_bit_equal

mmaemu = pytest.importorskip("mmaemu")

PRESETS = {"hopper": "h100_e4m3", "ada": "ada_e4m3"}
TYPES = {"e4m3fn": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
PAIRS = [(left, right) for left in TYPES for right in TYPES]
LENGTHS = (32, 64, 96, 256, 1000, 1024)


def codes(rng: np.random.Generator, shape: tuple[int, int], fmt: str, every: bool) -> torch.Tensor:
    """Values of normal(0, 1), or, with `every`, of every code but infinities and NaN."""
    if not every:
        return torch.from_numpy(rng.standard_normal(shape)).to(TYPES[fmt])
    x = torch.from_numpy(rng.integers(0, 256, shape).astype(np.uint8)).view(TYPES[fmt])
    return torch.where(x.float().isfinite(), x.float(), 0.0).to(TYPES[fmt])


def chains(a: torch.Tensor, b: torch.Tensor, acc: Accumulator, c: np.ndarray) -> np.ndarray:
    """Row i of a times row i of b, summed from c[i] on."""
    left, right = a.float().numpy()[:, None, :], b.float().numpy()[:, :, None]
    return twin.matmul(left, right, None, acc, initial=c[:, None, None])[:, 0, 0]


@pytest.mark.parametrize("every", [False, True], ids=["normal", "every code"])
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("operands", PAIRS, ids=str)
def test_chains_are_those_of_mmaemu(preset: str, operands: tuple[str, str], every: bool) -> None:
    acc = replace(UNITS[PRESETS[preset]].accumulator, operands=operands)
    # initial is rounded to e8m13 first, toward zero, which takes the same bits as the cut would.
    scales = np.repeat([0.0, 1.0, 2.0**-30, 2.0**20], 50)
    for length in LENGTHS:
        rng = np.random.default_rng(length)
        a, b = (codes(rng, (len(scales), length), fmt, every) for fmt in operands)
        c = (rng.standard_normal(len(scales)) * scales).astype(np.float32)
        want = mmaemu.model.chain.dot(a, b, torch.from_numpy(c), preset=preset)
        assert_bit_equal(chains(a, b, acc, c), want.numpy(), f"{preset} {operands} {length}")


def test_promoted_sums_are_those_of_mmaemu() -> None:
    acc = UNITS["hopper_fp8"].accumulator
    rng = np.random.default_rng(1)
    for length in (96, 128, 160, 1024):
        a, b = (codes(rng, (rows, length), "e4m3fn", False) for rows in (7, 9))
        want = mmaemu.accumulate(a, b, use_fast_accum=False, profile="hopper", splitk=1)
        got = twin.matmul(a.float().numpy(), b.float().T.numpy(), None, acc)
        assert_bit_equal(got, want.numpy(), str(length))
