"""fnuz and P3109 on the CPU: rounding, counts and codes of every format of at most 8 bits, against
the oracle of tests/oracles/one_zero.py."""

import itertools

import numpy as np
import pytest
import torch

import lpkernels as lp
from lpkernels.formats import parse_format
from lpkernels.reference.packing import pack
from tests.cases import DETERMINISTIC
from tests.compare import assert_bit_equal
from tests.oracles.one_zero import SMALL, Small, decoded, hard, rounded
from tests.support.processor import Isas

EVERY_SMALL = pytest.mark.parametrize("fmt", SMALL, ids=lambda fmt: fmt.name)


@EVERY_SMALL
def test_rounding_and_counts(fmt: Small, isas: Isas) -> None:
    with np.errstate(over="ignore"):
        x = hard(fmt).astype(np.float32)
    wide = x.astype(np.float64)
    for overflow, mode in itertools.product(("saturate", "nan"), DETERMINISTIC):
        ours = parse_format(f"{fmt.name}_{overflow[:3]}")
        want, beyond = rounded(wide, fmt, mode, overflow)
        lost = np.isfinite(x) & (x != 0) & (want == 0) & ~beyond
        zeros, others = (x == 0).sum(), (~np.isfinite(x)).sum()
        for isa in isas:
            for values in (x, wide):
                counts = torch.zeros(4, dtype=torch.int64)
                call = (torch.from_numpy(values), ours, mode)
                got = lp.quantize(*call, backend="cpu", counts=counts)
                where = f"{isa} {mode} to {ours}"
                assert_bit_equal(got.double(), want, where)
                assert counts.tolist() == [beyond.sum(), lost.sum(), zeros, others], where
            one = lp.quantize(torch.from_numpy(x), ours, mode, backend="cpu")
            assert_bit_equal(one, want.astype(np.float32), where)


@EVERY_SMALL
def test_codes(fmt: Small, isas: Isas) -> None:
    ours, values = parse_format(fmt.name), torch.from_numpy(decoded(fmt)).float()
    # Twice, so that codes fill whole vectors.
    both = torch.cat([values, values.flip(0), torch.tensor([-0.0])])
    for isa in isas:
        codes = lp.pack(both, ours)
        assert_bit_equal(lp.unpack(codes, ours, both.shape), both + 0.0, f"{isa} {ours}")
        assert codes.tolist() == pack(both.numpy(), ours).tolist(), f"{isa} {ours}"


@pytest.mark.parametrize(
    "name, dtype",
    [("tensor_e4m3fnuz", torch.float8_e4m3fnuz),
     ("block32_e5m2fnuz_sfp32", torch.float8_e5m2fnuz), ("block32_p3109_k8p3se_up", torch.uint8)],
)  # fmt: skip
def test_elements_of_blocks(name: str, dtype: torch.dtype, isas: Isas) -> None:
    """Codes have no -0, whatever a block's zeros are, and torch's own types hold them."""
    x = torch.randn(6, 64, generator=torch.Generator().manual_seed(3))
    x[0], x[1, ::2], x[2] = -0.0, -1e-30, -x[2].abs() * 1e-6
    for isa in isas:
        q = lp.scaled(x, name, backend="cpu")
        want = lp.scaled(x, name, backend="reference")
        assert_bit_equal(q.values, want.values, f"{isa} {name}")
        assert_bit_equal(q.scale, want.scale, f"{isa} {name}")
        assert not (q.values.signbit() & (q.values == 0)).any()
        elements = q.tensors()[0]
        assert elements.dtype == dtype
        if dtype != torch.uint8:
            assert_bit_equal(elements.float(), q.values, f"{isa} {name}")
