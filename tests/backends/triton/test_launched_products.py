"""The kernels of products: their launches are recorded and bound as Triton binds them, but not
started."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from lpkernels.arithmetic import Accumulator, as_quantizer
from lpkernels.backends import NOT_FUSED, Fused

pytestmark = pytest.mark.triton
pytest.importorskip("triton")

from lpkernels.backends.planning import triton_tiers as _tiers  # noqa: E402
from lpkernels.backends.triton import BACKEND  # noqa: E402
from tests.backends.triton.ahead_of_time import TARGETS  # noqa: E402
from tests.backends.triton.launches import keys, recorded  # noqa: E402

E5M2, FIXED = (as_quantizer(text).to_ints() for text in ("e5m2", "fixed8_f4_wrap:to_odd"))
#: Every branch of the kernels: modes, products, chunks, both generators, fixed point.
CASES = {
    "nearest": (Accumulator("e5m10"), Fused(E5M2, FIXED, E5M2)),
    "directed": (Accumulator("fp32", "toward_negative"), NOT_FUSED),
    "stochastic": (
        Accumulator(
            "e5m6", "stochastic", product="e4m3", product_rounding="stochastic", random_bits=13,
            chunk=7, outer="fixed12_f6",
        ),
        NOT_FUSED,
    ),
    "philox": (
        Accumulator("fixed12_f6", "stochastic", product="fixed9_f4_wrap", rng="philox"),
        NOT_FUSED,
    ),
}  # fmt: skip


@pytest.fixture
def launches() -> Iterator[list[Any]]:
    """Every launch of a product."""
    with recorded() as calls:
        yield calls


def multiply(
    acc: Accumulator,
    *,
    shape: tuple[int, int, int] = (300, 40, 300),
    seed: int = 5,
    role: int = 1,
    fused: Fused = NOT_FUSED,
) -> None:
    m, k, n = shape
    a, b, bias = torch.zeros(m, k), torch.zeros(k, n), torch.zeros(n)
    BACKEND.matmul(a, b, bias, acc.to_ints(), torch.tensor(seed), role, fused)


def test_one_kernel_for_formats_of_one_rule_and_for_all_seeds(launches: list[Any]) -> None:
    acc = Accumulator("e5m4", "stochastic", chunk=4, outer="e6m9")
    multiply(acc)
    first = keys(launches)
    assert len(first) == 4
    multiply(Accumulator("e4m7", "stochastic", chunk=20, outer="e5m3"))
    assert keys(launches) == first
    multiply(acc, seed=-1, role=9, shape=(1000, 17, 515))
    assert keys(launches) == first
    multiply(Accumulator("e5m4", "stochastic"))
    assert keys(launches) != first


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_every_launch_is_expected(
    case: str, target: str, launches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    acc, fused = CASES[case]
    nvidia = target != "gfx942"
    if not nvidia:
        monkeypatch.setattr(torch.version, "hip", "6.0")
    multiply(acc, fused=fused)
    kinds = _tiers.tiers(acc.to_ints(), nvidia=nvidia)
    certified = ["certified_kernel"] * len(_tiers.groups(kinds))
    assert [launch.name for launch in launches] == [
        "pack_operand_kernel", "pack_operand_kernel", *certified, "exact_kernel",
    ]  # fmt: skip
