"""Matrix products of the triton backend against the reference, to the bit."""

import itertools

import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels import backends, ops
from lpkernels.arithmetic import Accumulator
from lpkernels.backends import NOT_FUSED, Fused, _reference
from tests.cases import ACCUMULATORS, MATMUL_SHAPES, ids
from tests.compare import assert_bit_equal

# The interpreter computes with NumPy, which warns of every infinity less itself.
pytestmark = [pytest.mark.triton, pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")]
backend = pytest.importorskip("lpkernels.backends.triton").BACKEND
_layout = pytest.importorskip("lpkernels.backends.triton._layout")

PLAIN = Accumulator("e5m4")
SEED = torch.tensor(-1234567890123456789)
ROLE = 4
IN_SEQUENCE = [acc for acc in ACCUMULATORS if acc.in_sequence]
#: An accumulator with draws of sums and products, a chunk that ends within a word, and another
#: rounding outside.
DRAWN = Accumulator(
    "e5m5", "stochastic", product="e4m4", product_rounding="stochastic", random_bits=5, chunk=6,
    outer="e5m3",
)  # fmt: skip


def operand(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Values whose lanes of the last but one dimension are, in turn, moderate, 2^80 apart, huge and
    special."""
    x = torch.randn(shape, generator=generator)
    lanes = x.unsqueeze(0) if x.dim() == 1 else x
    wide = torch.randint(-40, 40, lanes.shape, generator=generator).float()
    lanes[..., 1::4, :] *= torch.exp2(wide)[..., 1::4, :]
    lanes[..., 2::4, :] *= 3e37
    special = lanes[..., 3::4, :]
    choice = torch.rand(special.shape, generator=generator)
    for limit, value in ((0.5, -0.0), (0.3, 1e-45), (0.2, float("inf")), (0.1, float("nan"))):
        special[choice < limit] = value
    return x


def check(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    acc: Accumulator,
    device: str,
    fused: Fused = NOT_FUSED,
) -> None:
    """The backend's product on device has the bits of the reference's."""
    on = [None if x is None else x.to(device) for x in (a, b, bias)]
    seed = SEED.to(device)
    got = backend.matmul(*on, acc.to_ints(), seed, ROLE, fused)
    want = ops.matmul(a, b, bias, acc.to_ints(), SEED, ROLE, "reference", fused)
    assert got.device.type == device
    assert_bit_equal(got, want, f"{tuple(a.shape)} @ {tuple(b.shape)} {acc} {fused}")


@pytest.mark.parametrize("acc", IN_SEQUENCE, ids=ids)
def test_sums_in_sequence(acc: Accumulator, device: str) -> None:
    generator = torch.Generator().manual_seed(1)
    a, b = operand((12, 15), generator), operand((9, 15), generator).mT
    check(a, b, operand((9,), generator), acc, device)


@pytest.mark.parametrize("shape", MATMUL_SHAPES[:6], ids=ids)
def test_shapes(shape: tuple[int, int, int], device: str) -> None:
    generator = torch.Generator().manual_seed(2)
    m, k, n = shape
    a, b, bias = (operand(s, generator) for s in ((m, k), (k, n), (n,)))
    for acc in (DRAWN, Accumulator("e5m4", "toward_negative", chunk=3)):
        check(a, b, bias, acc, device)
    check(a, b, None, PLAIN, device)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 4, 5), (3, 5, 6)),
        ((3, 4, 5), (5, 6)),
        ((4, 5), (3, 5, 6)),
        ((2, 1, 4, 5), (1, 3, 5, 2)),
        ((1, 3, 5), (2, 5, 4)),
        ((0, 3, 5), (5, 4)),
    ],
    ids=ids,
)
def test_batches(left: tuple[int, ...], right: tuple[int, ...], device: str) -> None:
    generator = torch.Generator().manual_seed(3)
    a, b = operand(left, generator), operand(right, generator)
    check(a, b, None, Accumulator("e5m3", "stochastic"), device)


def test_strides(device: str) -> None:
    generator = torch.Generator().manual_seed(4)
    a, b = operand((2, 8, 5), generator), operand((2, 5, 9), generator)
    for x, y in (
        (a.mT.contiguous().mT, b.mT.contiguous().mT),
        (a[:, ::2], b[..., ::3]),
        (a.flip(0).permute(1, 0, 2)[:2, :, 1:], b[:, 1:]),
        (a[:1].expand_as(a), b[1]),
    ):
        check(x, y, None, PLAIN, device)


def test_operands_and_results_are_rounded(device: str) -> None:
    texts = ("e5m2", "e4m3fn:to_odd", "fixed8_f4_wrap", "e3m4:toward_negative")
    one, two, three, four = (lp.arithmetic.as_quantizer(text).to_ints() for text in texts)
    generator = torch.Generator().manual_seed(5)
    a, b, bias = (operand(s, generator) for s in ((6, 5), (5, 4), (4,)))
    for fused in (
        Fused(one, two, three), Fused(three, four, one), Fused(left=four), Fused(right=one),
        Fused(result=two),
    ):  # fmt: skip
        check(a, b, bias, PLAIN, device, fused)


def test_a_nan_of_any_kind_becomes_the_canonical_one(device: str) -> None:
    for bits in (0x7FC00000, 0x7FFFFFFF, -1, 0x7F800001, -0x7FFFFF, _layout.ABSENT):
        a = torch.full((2, 3), bits, dtype=torch.int32).view(torch.float32)
        check(a, torch.ones(3, 4), None, Accumulator("e5m4"), device)


@pytest.mark.parametrize("acc", ["e8m10", "e8m20_sat_chunk2", "e8m13:product=e8m10", "e3m3_b-100"])
def test_both_ends_of_the_exponents(acc: str, device: str) -> None:
    for left, right in ((60, 44), (112, -8), (-77, -78), (-119, -119)):
        a, b = (torch.randint(-255, 256, shape).double() for shape in ((3, 5), (5, 4)))
        a, b = (a * 2.0**left).float(), (b * 2.0**right).float()
        check(a, b, None, lp.accumulator(acc), device)


def test_the_seed_of_a_role(device: str) -> None:
    a, b = torch.randn(4, 9), torch.randn(9, 5)
    acc = Accumulator("e5m3", "stochastic").to_ints()
    for seed, role in itertools.product((0, -1, 2**63 - 1), (0, 1, 11)):
        seeds = torch.tensor(seed)
        got = backend.matmul(a.to(device), b.to(device), None, acc, seeds, role)
        want = _reference.BACKEND.matmul(a, b, None, acc, seeds, role)
        assert_bit_equal(got, want, f"seed {seed}, role {role}")


def test_the_public_function_and_its_gradients(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(backends._checked, "triton", "")
    pair = torch.randn(2, 3, 4), torch.randn(4, 3)
    results = []
    for name, home in (("triton", device), ("reference", "cpu")):
        a, b = (x.detach().to(home).requires_grad_() for x in pair)
        y = lp.matmul(
            a, b, "e5m5:stochastic", output="e4m3", generator=torch.tensor(7), backend=name
        )
        y.sum().backward()
        results.append((y, a.grad, b.grad))
    for got, want in zip(*results, strict=True):
        assert_bit_equal(got, want)


def test_events_are_counted_elsewhere(device: str) -> None:
    reason = backend.unsupported("matmul_events", torch.device(device))
    assert reason == "its kernels count no events; those of the cpu backend do"
