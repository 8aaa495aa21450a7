"""Products of the cuda adapter: the calls that it makes to its kernels are tested anywhere, its
bits where a device is.

Anywhere, kernels of Python stand in for csrc/cuda, read the same pointers and lines, and do every
sum by the exact reference, so that a wrong offset, key or size shows.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import numpy as np
import pytest
import torch

import lpkernels as lp
from lpkernels import rng as draws
from lpkernels.arithmetic import Quantizer, accumulator_from_ints, quantizer_from_ints
from lpkernels.backends import Fused
from lpkernels.backends.cuda import BACKEND, _products, _quantize
from lpkernels.reference import exact
from lpkernels.rounding import round_array
from tests import cases
from tests.compare import assert_bit_equal
from tests.support import cuda_host
from tests.support.conv_frames import ABSENT

REASON = BACKEND.why_not()
REFERENCE = lp.backends.get("reference")


def memory(address: int, kind: Any) -> Any:
    return ctypes.cast(address, ctypes.POINTER(kind))


class Lines:
    def __init__(self, ints: list[int]) -> None:
        self.pairs = list(zip(ints[::2], ints[1::2], strict=True))

    def at(self, line: int, i: int) -> int:
        table, step = self.pairs[line]
        return memory(table, ctypes.c_int64)[i] if table else i * step


class PythonKernels:
    """The functions of lpkernels._C that begin with ``cuda_``, carried out element by element on
    the host."""

    def cuda_pack_operand(self, source, sizes, strides, to, facts, quantizer, stream) -> None:
        count, lanes, steps, padded = sizes
        values, out = memory(source, ctypes.c_float), memory(to, ctypes.c_float)
        for g in range(count):
            for step in range(steps):
                for lane in range(padded):
                    x = 0.0
                    if lane < lanes:
                        at = g * strides[0] + lane * strides[1] + step * strides[2]
                        x = values[at]
                        if quantizer:
                            q = quantizer_from_ints(tuple(quantizer))
                            x = float(round_array(np.float64([x]), q.fmt, q.rounding)[0])
                    out[(g * steps + step) * padded + lane] = x

    def cuda_scratch_bytes(self, sizes, steps, accumulator) -> int:
        assert len(sizes) == 6 and len(accumulator) in (35, 54) and min(steps) >= 0
        return 16

    def cuda_accumulate(
        self,
        total,
        addend,
        sizes,
        strides,
        accumulator,
        seed,
        device_seed,
        role,
        key,
        stream,
    ) -> None:
        assert not device_seed
        values, out = memory(addend, ctypes.c_float), memory(total, ctypes.c_float)
        rows, cols = sizes
        row, col, site, k = key
        for r in range(rows):
            for c in range(cols):
                one = torch.tensor([[out[r * cols + c]]])
                more = torch.tensor([[values[r * strides[0] + c * strides[1]]]])
                where = (row + r, col + c)
                drawn = torch.tensor(seed)
                REFERENCE.accumulate(one, more, where, tuple(accumulator), drawn, role, site, k)
                out[r * cols + c] = float(one)

    def cuda_multiply(
        self,
        left,
        right,
        tensors,
        lines,
        sizes,
        accumulator,
        result,
        seed,
        device_seed,
        role,
        scratch,
        stream,
    ) -> None:
        acc = accumulator_from_ints(tuple(accumulator))
        seed = draws.derive_seed(
            memory(device_seed, ctypes.c_int64)[0] if device_seed else seed, role
        )
        out, bias, positions, starts, chunks, initial = tensors
        places = Lines(lines)
        count, m, n, k = sizes
        steps = [memory(positions, ctypes.c_int64)[i] if positions else i for i in range(k)]
        if starts:
            first = memory(starts, ctypes.c_int64)
            chunk = acc.chunk
            assert [first[c] for c in range(chunks + 1)] == [
                sum(p < c * chunk for p in steps) for c in range(chunks + 1)
            ]
        for g in range(count):
            for i in range(m):
                for j in range(n):
                    products = [None] * (steps[-1] + 1 if steps else 0)
                    for step, position in enumerate(steps):
                        products[position] = self.product(left, right, g, i, j, step)
                    row = places.at(3, g) + places.at(4, i)
                    col = places.at(5, g) + places.at(6, j)
                    at = places.at(0, g) + places.at(1, i) + places.at(2, j)
                    added = memory(bias, ctypes.c_float)[col] if bias else None
                    start = memory(initial, ctypes.c_float)[at] if initial else None
                    value = exact.accumulate(
                        products, acc, seed=seed, row=row, col=col, bias=added, initial=start
                    )
                    if result:
                        q = quantizer_from_ints(tuple(result))
                        value = float(round_array(np.float64([value]), q.fmt, q.rounding)[0])
                    memory(out, ctypes.c_float)[at] = value

    def product(self, left, right, g: int, i: int, j: int, step: int) -> Any:
        a, b = self.element(left, g, i, step), self.element(right, g, j, step)
        return None if a is None or b is None else exact.product(a, b)

    def element(self, operand: list[int], g: int, lane: int, step: int) -> float | None:
        places = Lines(operand[4:])
        at = places.at(0, g) + places.at(1, lane) + places.at(2, step)
        bits = memory(operand[0], ctypes.c_uint32)[at]
        if operand[2] and bits == ABSENT:
            return None
        return memory(operand[0], ctypes.c_float)[at]


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter's products run on the host, by `PythonKernels`."""
    for part in (_products, _quantize):
        monkeypatch.setattr(part, "module", PythonKernels)
        monkeypatch.setattr(part, "on_device", lambda x: contextlib.nullcontext())
        monkeypatch.setattr(part, "stream", lambda x: 0)


SHAPES = {
    "matrix": ((3, 5), (5, 4)),
    "batch": ((2, 3, 4), (2, 4, 2)),
    "one left": ((1, 2, 4), (3, 4, 2)),
    "one right": ((2, 2, 3, 4), (4, 2)),
    "both broadcast": ((2, 1, 2, 3), (1, 3, 3, 2)),
    "table": ((3, 2, 2, 3), (3, 1, 3, 2)),
    "no products": ((2, 0), (0, 3)),
}


def operands(shape: str, transposed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = (torch.randn(s) for s in SHAPES[shape])
    if transposed:
        a, b = (x.mT.contiguous().mT for x in (a, b))
    return a, b


@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("shape", SHAPES)
def test_matmul_asks_for_every_element(on_host, shape: str, transposed: bool):
    a, b = operands(shape, transposed)
    seed, bias = torch.tensor(-7), torch.randn(b.shape[-1])
    acc = lp.Accumulator("e5m4", "stochastic", chunk=3).to_ints()
    got = BACKEND.matmul(a, b, bias, acc, seed, 4)
    assert_bit_equal(got, lp.backends.get("reference").matmul(a, b, bias, acc, seed, 4))


def test_matmul_rounds_operands_and_result(on_host):
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    acc = lp.Accumulator("e5m10").to_ints()
    fused = Fused(*(Quantizer(*q).to_ints() for q in (("e4m3",), ("e5m2",), ("e3m4",))))
    got = BACKEND.matmul(a, b, None, acc, None, 0, fused)
    want = lp.quantize(lp.matmul(lp.quantize(a, "e4m3"), lp.quantize(b, "e5m2"), "e5m10"), "e3m4")
    assert_bit_equal(got, want)


@pytest.mark.parametrize("shape", [(3, 4), (1, 4), (3, 1), (1, 1)], ids=str)
def test_accumulate_asks_for_every_element(on_host, shape: tuple[int, int]):
    total, addend, seed = torch.randn(3, 4), torch.randn(shape), torch.tensor(5)
    acc = lp.Accumulator("fp32", "stochastic", order="native", chunk=4, outer="e5m4").to_ints()
    want = total.clone()
    REFERENCE.accumulate(want, addend, (7, 2), acc, seed, 4, draws.SITE_OUTER, 3)
    BACKEND.accumulate(total, addend, (7, 2), acc, seed, 4, draws.SITE_OUTER, 3)
    assert_bit_equal(total, want)


@pytest.mark.parametrize(
    "acc",
    ["e5m10:order=pairwise", "e5m10:order=compensated", "fp32:block=4:aligned_bits=24"],
)
def test_matmul_takes_every_order(on_host, acc: str):
    a, b = torch.randn(2, 3, 5), torch.randn(5, 4)
    ints = lp.accumulator(acc).to_ints()
    got = BACKEND.matmul(a, b, None, ints, None, 4)
    assert_bit_equal(got, REFERENCE.matmul(a, b, None, ints, None, 4))


@pytest.mark.parametrize("acc", ["e5m4:stochastic", "e6m9_chunk2:outer=e5m3"])
def test_matmul_says_where_sums_start(on_host, acc: str):
    a, b, initial = torch.randn(2, 3, 5), torch.randn(5, 4), torch.randn(4, 3, 2).permute(2, 1, 0)
    call = (lp.accumulator(acc).to_ints(), torch.tensor(3), 4)
    got = BACKEND.matmul(a, b, None, *call, initial=initial)
    assert_bit_equal(got, REFERENCE.matmul(a, b, None, *call, initial=initial))


ALL_ORDERS = [acc for acc in cases.ACCUMULATORS if acc.order != "native"]


NATIVE = [
    lp.Accumulator("fp32", order="native", chunk=8, outer=outer)
    for outer in ("fp32", "bf16", "e6m9", "e5m4_sat")
]


def sums_in_float32(acc: lp.Accumulator) -> lp.Accumulator:
    """The same chunks in sequence have the same bits where chunks are exact in float32."""
    return lp.Accumulator("fp32", chunk=acc.chunk, outer=acc.outer, outer_rounding=acc.rounding)


@pytest.mark.skipif(bool(cuda_host.reason()), reason=cuda_host.reason())
class TestOnHost:
    """The adapter runs its kernels' own code on the host, thread by thread."""

    @pytest.fixture(autouse=True)
    def kernels(self):
        with cuda_host.on_host() as loaded:
            self.loaded = loaded
            yield

    @pytest.mark.parametrize("acc", ALL_ORDERS, ids=cases.ids)
    def test_matmul_matches_the_reference(self, acc: lp.Accumulator):
        a, b, bias = torch.randn(2, 3, 37), torch.randn(37, 5), torch.randn(5)
        call = (bias, acc.to_ints(), torch.tensor(-7), 4)
        assert_bit_equal(BACKEND.matmul(a, b, *call), REFERENCE.matmul(a, b, *call))

    @pytest.mark.parametrize("scale", [1.0, 2.0**-60], ids=["half", "bfloat16"])
    @pytest.mark.parametrize("acc", NATIVE, ids=cases.ids)
    def test_native_chunks_run_on_tensor_cores(self, acc: lp.Accumulator, scale: float):
        a, b = torch.randint(-7, 8, (3, 45)) * scale, torch.randint(-7, 8, (45, 5)) / scale
        a, b, bias = a.float(), b.float(), torch.randn(5)
        got = BACKEND.matmul(a, b, bias, acc.to_ints(), None, 0)
        want = REFERENCE.matmul(a, b, bias, sums_in_float32(acc).to_ints(), None, 0)
        assert_bit_equal(got, want)
        kernels = self.loaded
        tier = kernels.tensor_half if scale == 1.0 else kernels.tensor_bfloat16
        assert kernels.last_tier() == (tier, False)

    @pytest.mark.parametrize("rounding", ["nearest_even", "toward_zero", "stochastic"])
    def test_other_native_chunks_are_sums_in_sequence(self, rounding: str):
        a, b, seed = torch.randn(3, 45), torch.randn(45, 5), torch.tensor(3)
        acc = lp.Accumulator("fp32", rounding, order="native", chunk=8, outer="e5m4")
        got = BACKEND.matmul(a, b, None, acc.to_ints(), seed, 2)
        want = REFERENCE.matmul(a, b, None, sums_in_float32(acc).to_ints(), seed, 2)
        assert_bit_equal(got, want)


def random_case(number: int) -> dict[str, Any]:
    """One of the 500 cases (shape, strides, recipe) that a GPU is checked on."""
    source = np.random.default_rng(number)
    m, n = (int(x) for x in source.integers(1, 300, 2))
    k = int(source.integers(0, 400))
    batch = [(), (1,), (3,), (2, 2)][source.integers(4)]
    acc = ALL_ORDERS[source.integers(len(ALL_ORDERS))]
    fmt = [None, "e5m2", "e4m3", "bf16", "e5m10", "fixed8_f4"][source.integers(6)]
    return {
        "left": (*batch, m, k),
        "right": (k, n) if source.integers(2) else (*batch, k, n),
        "acc": acc,
        "fmt": fmt,
        "transposed": bool(source.integers(2)),
        "scale": float(2.0 ** source.integers(-12, 12)),
        "bias": bool(source.integers(2)),
        "output": [None, "e5m2"][source.integers(2)],
    }


def run_case(case: dict[str, Any], device: str) -> torch.Tensor:
    torch.manual_seed(3)
    a = torch.randn(case["left"]) * case["scale"]
    b = torch.randn(case["right"])
    if case["fmt"]:
        a, b = lp.quantize(a, case["fmt"]), lp.quantize(b, case["fmt"])
    if case["transposed"]:
        a, b = (x.mT.contiguous().mT for x in (a, b))
    bias = torch.randn(b.shape[-1]) if case["bias"] else None
    fused = Fused(result=Quantizer(case["output"]).to_ints() if case["output"] else ())
    backend = lp.backends.get("cuda" if device == "cuda" else "cpu")
    seed = torch.tensor(11, device=device)
    tensors = [None if x is None else x.to(device) for x in (a, b, bias)]
    return backend.matmul(*tensors, case["acc"].to_ints(), seed, 4, fused)


@pytest.mark.cuda
@pytest.mark.skipif(bool(REASON), reason=f"cuda: {REASON}")
class TestOnDevice:
    @pytest.mark.parametrize("shape", cases.MATMUL_SHAPES, ids=cases.ids)
    @pytest.mark.parametrize("acc", ALL_ORDERS, ids=cases.ids)
    def test_matmul_matches_the_cpu(self, acc: lp.Accumulator, shape: tuple[int, int, int]):
        m, k, n = shape
        a, b, bias = torch.randn(m, k), torch.randn(k, n), torch.randn(n)
        torch.manual_seed(2)
        got = lp.matmul(a.cuda(), b.cuda(), acc, backend="cuda")
        torch.manual_seed(2)
        assert_bit_equal(got, lp.matmul(a, b, acc, backend="cpu"))
        seed = torch.tensor(9)
        got = BACKEND.matmul(a.cuda(), b.cuda(), bias.cuda(), acc.to_ints(), seed.cuda(), 2)
        assert_bit_equal(got, lp.backends.get("cpu").matmul(a, b, bias, acc.to_ints(), seed, 2))

    @pytest.mark.parametrize("acc", ALL_ORDERS, ids=cases.ids)
    def test_hard_values_match_the_cpu(self, acc: lp.Accumulator):
        values = torch.from_numpy(cases.hard_values(acc.fmt, 30).astype(np.float32)).flatten()
        a = values[torch.randint(len(values), (70, 41))]
        b = values[torch.randint(len(values), (41, 150))]
        torch.manual_seed(2)
        got = lp.matmul(a.cuda(), b.cuda(), acc, backend="cuda")
        torch.manual_seed(2)
        assert_bit_equal(got, lp.matmul(a, b, acc, backend="cpu"))

    @pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
    def test_native_chunks_add_as_on_the_cpu(self, rounding: str):
        total, addend, seed = torch.randn(70, 90), torch.randn(90), torch.tensor(5)
        acc = lp.Accumulator("fp32", rounding, order="native", chunk=4, outer="e5m4")
        call = ((7, 2), acc.to_ints(), seed, 4, draws.SITE_OUTER, 3)
        got = total.cuda()
        BACKEND.accumulate(got, addend.cuda(), *call)
        lp.backends.get("cpu").accumulate(total, addend, *call)
        assert_bit_equal(got, total)

    @pytest.mark.parametrize("acc", NATIVE, ids=cases.ids)
    def test_native_chunks_are_exact_where_their_sums_are(self, acc: lp.Accumulator):
        for scale in (1.0, 2.0**-60):
            a = torch.randint(-7, 8, (2, 150, 333)) * scale
            b = torch.randint(-7, 8, (333, 131)) / scale
            got = lp.matmul(a.cuda(), b.cuda(), acc, backend="cuda")
            assert_bit_equal(got, lp.matmul(a, b, sums_in_float32(acc), backend="cpu"))

    @pytest.mark.parametrize("first", range(0, 500, 50))
    def test_random_cases_match_the_cpu(self, first: int):
        for number in range(first, first + 50):
            case = random_case(number)
            assert_bit_equal(
                run_case(case, "cuda"), run_case(case, "cpu"), f"case {number}: {case}"
            )
