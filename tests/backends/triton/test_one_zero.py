"""fnuz and P3109 on the triton backend, against the oracle of tests/oracles/one_zero.py and, in
sums, the reference."""

import itertools

import numpy as np
import torch

import lpkernels as lp
from lpkernels.backends import get
from lpkernels.formats import parse_format
from lpkernels.rounding import ROUNDINGS
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.oracles.one_zero import SMALL, Small, decoded, hard, rounded, signed_zeros
from tests.support.elements import assert_codes

#: Each kind of format with few bits, and the formats of 8 bits that are used most.
SOME = [fmt for fmt in SMALL if (fmt.k, fmt.p) in ((4, 2), (4, 1), (8, 3), (8, 4))]


@each("fmt", SOME)
def test_rounding_and_counts(fmt: Small, device: str) -> None:
    with np.errstate(over="ignore"):
        x = hard(fmt).astype(np.float32)
    wide, x32 = x.astype(np.float64), torch.from_numpy(x).to(device)
    for overflow, mode in itertools.product(("saturate", "nan"), ROUNDINGS[:-1]):
        ours = parse_format(f"{fmt.name}_{overflow[:3]}")
        want, beyond = rounded(wide, fmt, mode, overflow)
        counts = torch.zeros(4, dtype=torch.int64, device=device)
        got = lp.quantize(x32, ours, mode, backend="triton", counts=counts)
        assert_bit_equal(got.cpu(), want.astype(np.float32), f"{mode} to {ours}")
        lost = np.isfinite(x) & (x != 0) & (want == 0) & ~beyond
        assert counts.tolist()[:2] == [beyond.sum(), lost.sum()], f"{mode} to {ours}"
        got = lp.quantize(x32.double(), ours, mode, backend="triton")
        assert_bit_equal(got.double().cpu(), want, f"{mode} to {ours}")


@each("fmt", SOME)
def test_codes(fmt: Small, device: str) -> None:
    values = torch.from_numpy(decoded(fmt)).float()
    assert_codes(
        get("triton"), torch.cat([values, torch.tensor([-0.0])]), parse_format(fmt.name), device
    )


@each(
    "name",
    ["e5m2fnuz", "p3109_k8p3se_chunk5:outer=e5m4", "e5m4:product=e4m3fnuz", "p3109_k8p1se:to_odd",
     "e5m3_chunk4:product=p3109_k8p4se:outer=e6m9", "e5m4_chunk7:toward_negative:outer=e5m2fnuz",
     "p3109_k9p4ue", "e6m4:product=p3109_k8p3uf_sat", "e6m5_chunk6:outer=p3109_k10p4ue_sat",
     "p3109_k8p3se_chunk5:toward_negative:outer=fp32:order=pairwise", "e4m3fnuz_sat:stochastic",
     "e5m2fnuz:toward_negative:block=4:aligned_bits=9"],
)  # fmt: skip
def test_sums(name: str, device: str) -> None:
    generator = torch.Generator().manual_seed(len(name))
    acc = lp.accumulator(name)
    a, b = signed_zeros((6, 17), generator), signed_zeros((17, 9), generator)
    a[0], a[1:3] = -a[0].abs(), a[1:3] * 2.0**-9
    b[:, 0] = b[:, 0].abs()
    want = lp.matmul(a, b, acc, generator=torch.Generator().manual_seed(1), backend="reference")
    got = lp.matmul(
        a.to(device), b.to(device), acc,
        generator=torch.Generator().manual_seed(1), backend="triton",
    )  # fmt: skip
    assert_bit_equal(got.cpu(), want, name)
