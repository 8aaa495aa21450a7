"""What AMD's matrix cores return, by hardware, by MMA-Sim and by rocjitsu: every group of the
sample through the public product and through exact fractions."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import lpkernels as lp
from lpkernels.arithmetic import Accumulator
from lpkernels.reference import exact
from tests.oracles.recordings import Group, amd_groups

GROUPS = {group.name: group for group in amd_groups()}


def differing(group: Group, acc: Accumulator, backend: str = "auto") -> int:
    """How many results are others; the signs of zeros, and NaNs, count as equal."""
    a, b = group.a[:, None, :], group.b[:, :, None]
    if backend == "exact":
        got = exact.matmul(a, b, None, acc, initial=group.c[:, None, None])
    else:
        x, y, start = map(torch.from_numpy, (a.copy(), b.copy(), group.c[:, None, None].copy()))
        got = lp.matmul(x, y, acc, initial=start, backend=backend).numpy()
    return int((~np.isclose(got[:, 0, 0], group.d, rtol=0, atol=0, equal_nan=True)).sum())


@pytest.mark.parametrize("name", GROUPS)
def test_products_return_what_the_core_did(name: str) -> None:
    group = GROUPS[name]
    assert len(group.d) >= 6 and differing(group, group.accumulator) == 0


@pytest.mark.parametrize("name", GROUPS)
def test_exact_fractions_return_it_too(name: str) -> None:
    group = GROUPS[name]
    few = group._replace(**{x: getattr(group, x)[::5] for x in "abcd"})
    assert differing(few, group.accumulator, "exact") == 0


@pytest.mark.parametrize("name, wrong", [
    ("mi100_fp16.k16", {"adder": "tree"}), ("mi250_fp16.k16", {"adder": "aligned"}),
    ("mi300_fp16.k16", {"block": 4}), ("mi300_bf16.k16", {"aligned_bits": 23}),
    ("hw.mi300_e4m3fnuz.k32", {"aligned_bits": 25}), ("rdna4_fp16.k16", {"adder": "pairs"}),
    ("hw.rdna3_bf16.k2", {"aligned_bits": 23}),
])  # fmt: skip
def test_another_accumulator_does_not(name: str, wrong: dict) -> None:
    group = GROUPS[name]
    assert differing(group, replace(group.accumulator, **wrong)) > 0
