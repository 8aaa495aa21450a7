"""fnuz and P3109 on the CPU: rounding, counts and codes of every format of at most 8 bits, against
the oracle of tests/oracles/one_zero.py."""

import itertools

import numpy as np
import torch

import lpkernels as lp
from lpkernels.formats import parse_format
from lpkernels.reference.packing import pack
from lpkernels.rounding import ROUNDINGS
from tests.backends.cpu_products import assert_matmul
from tests.backends.zero_sums import zero_sums
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.oracles.one_zero import SMALL, Small, decoded, hard, rounded, signed_zeros
from tests.support.processor import Isas

DETERMINISTIC = [mode for mode in ROUNDINGS if mode != "stochastic"]


@each("fmt", SMALL)
def test_rounding_and_counts(fmt: Small, isas: Isas) -> None:
    with np.errstate(over="ignore"):
        x = hard(fmt).astype(np.float32)
    wide = x.astype(np.float64)
    for overflow, mode in itertools.product(("saturate", "nan"), DETERMINISTIC):
        ours = parse_format(f"{fmt.name}_{overflow[:3]}")
        want, beyond = rounded(wide, fmt, mode, overflow)
        for isa in isas:
            where = f"{isa} {mode} to {ours}"
            counts = torch.zeros(4, dtype=torch.int64)
            one = lp.quantize(torch.from_numpy(x), ours, mode, backend="cpu")
            assert_bit_equal(one, want.astype(np.float32), where)
            two = lp.quantize(torch.from_numpy(wide), ours, mode, backend="cpu", counts=counts)
            assert_bit_equal(two.double(), want, where)
            lost = np.isfinite(x) & (x != 0) & (want == 0) & ~beyond
            zeros, others = (x == 0).sum(), (~np.isfinite(x)).sum()
            assert counts.tolist() == [beyond.sum(), lost.sum(), zeros, others], where
            counts.zero_()
            lp.quantize(torch.from_numpy(x), ours, mode, backend="cpu", counts=counts)
            assert counts.tolist() == [beyond.sum(), lost.sum(), zeros, others], where


@each("fmt", SMALL)
def test_codes(fmt: Small, isas: Isas) -> None:
    ours, values = parse_format(fmt.name), torch.from_numpy(decoded(fmt)).float()
    # Twice, so that codes fill whole vectors.
    both = torch.cat([values, values.flip(0), torch.tensor([-0.0])])
    for isa in isas:
        codes = lp.pack(both, ours)
        again = lp.unpack(codes, ours, both.shape)
        assert_bit_equal(again, both + 0.0, f"{isa} {ours}")
        assert codes.tolist() == pack(both.numpy(), ours).tolist(), f"{isa} {ours}"


@each("name", ["tensor_e4m3fnuz", "block32_e5m2fnuz_sfp32", "block32_p3109_k8p3se_up"])
def test_elements_of_blocks(name: str, isas: Isas) -> None:
    """Codes have no -0, whatever a block's zeros are, and torch's own types hold them."""
    x = torch.randn(6, 64, generator=torch.Generator().manual_seed(3))
    x[0], x[1, ::2], x[2] = -0.0, -1e-30, -x[2].abs() * 1e-6
    dtypes = {"e4": torch.float8_e4m3fnuz, "e5": torch.float8_e5m2fnuz, "p3": torch.uint8}
    for isa in isas:
        q = lp.scaled(x, name, backend="cpu")
        want = lp.scaled(x, name, backend="reference")
        assert_bit_equal(q.values, want.values, f"{isa} {name}")
        assert_bit_equal(q.scale, want.scale, f"{isa} {name}")
        assert not (q.values.signbit() & (q.values == 0)).any()
        assert_bit_equal(
            lp.quantize(x, name, backend="cpu"), lp.quantize(x, name, backend="reference"), name
        )
        elements = q.tensors()[0]
        assert elements.dtype == dtypes[name.split("_")[1][:2]]
        if elements.dtype != torch.uint8:
            assert_bit_equal(elements.float(), q.values, f"{isa} {name}")


#: Zeros at every place: inner, outer and product formats with one zero beside those with two, each
#: way of adding, and formats without a sign.
SUMS = [
    f"{sums}{mode}{order}{rest}"
    for sums, rest in (
        ("e5m2fnuz", ""), ("p3109_k12p9se", ""), ("p3109_k8p1se", ""), ("e4m3fnuz_sat", ""),
        ("p3109_k8p3se_chunk5", ":outer=e5m4"), ("e5m4_chunk7", ":outer=e5m2fnuz"),
        ("e5m4", ":product=e4m3fnuz"), ("e5m2fnuz", ":product=e5m3"),
        ("e5m3_chunk4", ":product=p3109_k8p4se:outer=e6m9"),
        ("p3109_k9p4ue", ""), ("e6m4", ":product=p3109_k8p3uf_sat"),
        ("e6m5_chunk6", ":outer=p3109_k10p4ue_sat"),
    )
    for mode in ("", ":toward_negative", ":to_odd", ":stochastic")
    for order in ("", ":order=pairwise", ":block=4:aligned_bits=9")
]  # fmt: skip


@each("name", SUMS)
def test_sums(name: str, isas: Isas) -> None:
    generator = torch.Generator().manual_seed(len(name))
    acc = lp.accumulator(name)
    for rows, scale in ((5, 1.0), (3, 2.0**-9), (4, 0.0)):
        a = signed_zeros((rows, 23), generator) * scale
        b = signed_zeros((23, 19), generator)
        a[0] = -a[0].abs()
        b[:, 0] = b[:, 0].abs()
        seed = torch.Generator().manual_seed(1)
        want = lp.matmul(a, b, acc, generator=seed, backend="reference")
        for isa in isas:
            seed = torch.Generator().manual_seed(1)
            got = lp.matmul(a, b, acc, generator=seed, backend="cpu")
            assert_bit_equal(got, want, f"{isa} {name} scale {scale}")


def test_zeros_have_the_sign_that_their_format_gives_them(isas: Isas) -> None:
    for case in zero_sums():
        name, acc, a, b, bias, initial = case
        sums = assert_matmul(isas, a, b, acc, name, bias=bias, initial=initial)
        negative = sums.signbit() & (sums == 0)
        assert not (case.has_one_zero and negative.any()), f"{name} {acc}"
