"""fnuz and P3109: values, names, dtypes, codes and rounding, by the sentences that define them."""

import itertools

import ml_dtypes
import numpy as np
import pytest
import torch

import lpkernels as lp
from lpkernels.formats import FloatFormat, as_format, parse_format
from lpkernels.reference.packing import decode, encode
from lpkernels.rounding import ROUNDINGS, overflows_array, round_array, round_scalar
from tests.compare import assert_bit_equal
from tests.oracles.one_zero import SMALL, Small, decoded, hard, rounded


@pytest.mark.parametrize("fmt", SMALL)
def test_codes(fmt: Small) -> None:
    ours = parse_format(fmt.name)
    codes = np.arange(2**fmt.k, dtype=np.uint32)
    values = decode(codes, ours)
    assert_bit_equal(values, decoded(fmt), fmt.name)
    back, known = encode(values, ours)
    assert known.all() and (back == codes).all()
    assert encode(np.array([-0.0]), ours)[0] == 0
    assert ours.bits == fmt.k
    finite = values[np.isfinite(values)]
    assert_bit_equal(ours.values(), np.sort(finite), fmt.name)


@pytest.mark.parametrize("name", ["e5m2fnuz_nosub_sat", "p3109_k8p3se_nosub", "p3109_k6p4uf_nosub"])
def test_codes_below_the_normal_ones_are_plus_zero_without_subnormals(name: str) -> None:
    fmt = parse_format(name)
    codes = np.arange(2**fmt.bits, dtype=np.uint32)
    values, magnitudes = decode(codes, fmt), codes % 2 ** (fmt.bits - fmt.signed)
    zeros = values == 0
    assert (zeros == ((magnitudes < 2**fmt.man_bits) & ~np.isnan(values))).all()
    assert not np.signbit(values[zeros]).any()


@pytest.mark.parametrize("fmt", SMALL)
def test_every_mode_and_overflow(fmt: Small) -> None:
    x = hard(fmt)
    draws = np.random.default_rng(fmt.k).integers(0, 256, x.shape)
    overflows = ("infinity", "saturate", "nan") if fmt.extended else ("saturate", "nan")
    for overflow, mode in itertools.product(overflows, ROUNDINGS):
        ours = parse_format(f"{fmt.name}_{overflow[:3]}")
        got = round_array(x, ours, mode, draws=draws, random_bits=8)
        want, beyond = rounded(x, fmt, mode, overflow, draws)
        assert_bit_equal(got, want, f"{mode} to {ours}")
        counted = overflows_array(x, ours, mode, draws=draws, random_bits=8)
        assert (counted == beyond).all(), f"{mode} to {ours}"
        some = np.random.default_rng(1).choice(x.size, 3)
        one = [round_scalar(x[i], ours, mode, draw=int(draws[i]), random_bits=8) for i in some]
        assert_bit_equal(np.array(one), got[some], f"{mode} to {ours}")


def test_names() -> None:
    assert as_format("e4m3fnuz") == as_format("p3109_k8p4sf") == FloatFormat(4, 3, specials="fnuz")
    assert as_format("e4m3b11fnuz").name == "e4m3fnuz_b11"
    assert [as_format(f"binary8p{p}").name for p in (1, 7)] == ["p3109_k8p1se", "p3109_k8p7se"]


def test_to_odd_stops_at_the_largest_value_which_it_does_not_in_gfloat() -> None:
    x = np.array([224.0, 224.1, -239.9, 240.0, 1e300, -np.inf])
    want = [224.0, 224.0, -224.0, 224.0, 224.0, -np.inf]
    assert round_array(x, parse_format("binary8p4"), "to_odd").tolist() == want


def test_dtypes() -> None:
    assert as_format(torch.float8_e4m3fnuz) == as_format(ml_dtypes.float8_e4m3fnuz)
    assert as_format(torch.float8_e5m2fnuz) == as_format(np.dtype(ml_dtypes.float8_e5m2fnuz))
    assert as_format(ml_dtypes.float8_e4m3b11fnuz) == as_format("e4m3b11fnuz")
    for name, dtype in (
        ("tensor_e4m3fnuz", torch.float8_e4m3fnuz),
        ("block32_e5m2fnuz_sfp32", torch.float8_e5m2fnuz),
        ("block32_p3109_k8p3se_up", torch.uint8),
    ):
        elements = lp.scaled(torch.randn(6, 64), name).tensors()[0]
        assert elements.dtype == dtype
