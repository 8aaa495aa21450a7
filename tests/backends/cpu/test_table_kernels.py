"""Tables on the CPU's kernels against the reference, to the bit: rounding, counts, codes, sums,
events, blocks, updates. Every instruction set."""

from typing import Any

import pytest
import torch

import lpkernels as lp
from lpkernels.arithmetic import Quantizer, Recipe
from lpkernels.backends import Fused, How, cpu, matmul_of
from lpkernels.formats import TableFormat
from lpkernels.rounding import ROUNDINGS
from tests.backends import by_hand
from tests.backends.cpu_products import REFERENCE, ROLE, SEED, assert_matmul
from tests.backends.table_cases import accumulators, operands, tables, values_of
from tests.cases import DETERMINISTIC
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.elements import assert_codes, assert_counted, quantized
from tests.support.processor import Isas, Threads, flushed
from tests.support.updates import STEPS, Formats, assert_same, call_of, copied, tensors_of

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def quantizers(table: TableFormat) -> list[Quantizer]:
    drawn = [Quantizer(table, "stochastic", random_bits=bits) for bits in (3, 12, 32)]
    return [*(Quantizer(table, mode) for mode in DETERMINISTIC), *drawn]


@each("table", tables())
def test_every_mode_and_type_rounds_and_counts_as_the_reference(
    table: TableFormat, isas: Isas
) -> None:
    for dtype in DTYPES:
        x = values_of(table, dtype)
        for quantizer in quantizers(table):
            want = quantized(x, quantizer)
            for isa in isas:
                got = quantized(x, quantizer, cpu.BACKEND)
                assert_bit_equal(got, want, f"{isa} {quantizer} {dtype}")
        assert_counted(cpu.BACKEND, x, quantizer, on=isas)


def test_tails_strides_threads_and_flushed_denormals_change_no_bit(
    isas: Isas, threads: Threads
) -> None:
    for table in tables()[:1] + tables()[6:7]:
        quantizer = Quantizer(table)
        x = values_of(table, torch.float32).repeat(60)
        want = quantized(x, quantizer)
        for isa in isas:
            for start in (0, 1, 5):
                for count in (0, 1, 15, 17, 40):
                    part = slice(start, start + count)
                    got = quantized(x[part], quantizer, cpu.BACKEND)
                    assert_bit_equal(got, want[part], f"{isa} {part}")
        for way in threads:
            assert_bit_equal(quantized(x, quantizer, cpu.BACKEND), want, way)
        strided = lp.quantize(x[:120].view(10, 12).T, quantizer, backend="cpu")
        assert_bit_equal(strided, want[:120].view(10, 12).T, "strides")
        with flushed():
            assert_bit_equal(quantized(x, quantizer, cpu.BACKEND), want, "flushed")


@each("table", tables())
def test_codes_are_those_of_the_reference(table: TableFormat, isas: Isas) -> None:
    x = quantized(values_of(table, torch.float32), Quantizer(table))
    x = x[~x.isnan()] if table.nan_code is None else x
    codes = torch.randint(0, 256, (3000,), generator=torch.Generator().manual_seed(1)).byte()
    count = codes.numel() * 8 // table.bits
    call = (codes[: (count * table.bits + 7) // 8], table.to_ints(), [count])
    for _ in isas:
        assert_codes(cpu.BACKEND, x, table)
        assert_bit_equal(cpu.BACKEND.unpack(*call), REFERENCE.unpack(*call), f"codes of {table}")
        with pytest.raises(ValueError, match="the format has no code"):
            cpu.BACKEND.pack(torch.tensor([0.0, 0.12]), table.to_ints())


def test_sums_with_tables_at_every_place_are_the_references(isas: Isas) -> None:
    for number, acc in enumerate(accumulators(160, seed=1)):
        a, b = operands(number)
        bias = b[0] if number % 3 == 0 else None
        initial = a @ b if number % 3 == 1 and acc.order != "pairwise" else None
        assert_matmul(isas, a, b, acc, number, bias=bias, initial=initial)


def test_a_table_of_operands_alone_takes_the_usual_tiers(isas: Isas) -> None:
    a, b = (torch.randn(16, 16, generator=torch.Generator().manual_seed(i)) for i in (1, 2))
    fused = Fused(*[Quantizer("posit8es1").to_ints()] * 2)
    acc = lp.accumulator("ibm_e6m9_chunk64").to_ints()
    left, right = (quantized(x, Quantizer("posit8es1")) for x in (a, b))
    want = by_hand.matmul(REFERENCE, left, right, None, acc, SEED, ROLE)
    for isa in isas:
        cpu.BACKEND.take_tiers()
        assert_bit_equal(by_hand.matmul(cpu.BACKEND, a, b, None, acc, SEED, ROLE, fused), want, isa)
        assert isa == "scalar" or cpu.BACKEND.take_tiers()["double"] == 0, isa


def _layer(number: int) -> tuple[torch.nn.Module, torch.Tensor]:
    """A layer whose quantizers and sums have tables, and its input."""
    places = ("fprop", "dgrad", "wgrad")
    sums = [acc for acc in accumulators(12, seed=number) if acc.order == "sequential"][:3]
    names = ("input", "weight", "grad_output", "output")
    rounds = [Quantizer(tables()[(number + i) % 6], ROUNDINGS[(number + i) % 7]) for i in range(4)]
    recipe = Recipe(**dict(zip(names, rounds, strict=True)), **dict(zip(places, sums, strict=True)))
    torch.manual_seed(number)
    if number % 2:
        return lp.nn.Conv2d(4, 6, 3, padding=1, stride=2, groups=2, recipe=recipe), torch.randn(
            2, 4, 5, 6
        )
    return lp.nn.Linear(7, 6, recipe=recipe), torch.randn(5, 7)


@each("number", range(6))
def test_layers_forward_and_backward(
    number: int, isas: Isas, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(backend: str) -> list[Any]:
        monkeypatch.setenv("LPKERNELS_BACKEND", backend)
        layer, x = _layer(number)
        x.requires_grad_()
        y = layer(x)
        y.backward(torch.full_like(y, 0.37))
        return [y.detach(), x.grad, *(p.grad for p in layer.parameters())]

    want = step("reference")
    for isa in isas:
        for i, (got, right) in enumerate(zip(step("cpu"), want, strict=True)):
            assert_bit_equal(got, right, f"{isa} {number} {i}")
    monkeypatch.delenv("LPKERNELS_BACKEND")


def test_events_are_the_references(isas: Isas) -> None:
    in_sequence = [acc for acc in accumulators(40, seed=2) if acc.in_sequence]
    for number, acc in enumerate(in_sequence):
        a, b = torch.randn(5, 19) * 3, torch.randn(19, 18)
        call = (matmul_of(a, b), How(acc.to_ints(), SEED, ROLE), torch.arange(5))
        sums, counts = REFERENCE.matmul_events(*call)
        for isa in isas:
            got = cpu.BACKEND.matmul_events(*call)
            assert tuple(got[1]) == tuple(counts), f"{isa} {number} {acc}"
            assert_bit_equal(got[0], sums, f"{isa} {number} {acc}")


@each("rounding", ROUNDINGS)
def test_blocks_of_a_table(rounding: str, isas: Isas) -> None:
    x = torch.randn(3, 200, generator=torch.Generator().manual_seed(3)) * 5
    x[0, :70], x[1, 3], x[2, 150] = 0.0, float("nan"), 1e30
    for fmt in ("block64_linear4_sfp32", "tile2x64_linear4_sfp32", "block64_nf4_sfp32"):
        quantizer = Quantizer(fmt, rounding)
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            want = quantized(x.to(dtype), quantizer)
            for isa in isas:
                got = quantized(x.to(dtype), quantizer, cpu.BACKEND)
                assert_bit_equal(got, want, f"{isa} {dtype} {fmt}")
    assert_counted(cpu.BACKEND, x, quantizer, on=isas)


def test_masters_and_states_in_tables(isas: Isas) -> None:
    named = ("posit8es1", "posit8es1:stochastic", "posit16es1", "posit16es2:to_odd", "posit8es0")
    for step in (STEPS["adam"], STEPS["momentum"]):
        tensors = tensors_of(step, Formats(*named), [(70,), (5, 3)], special=True)
        want = copied(tensors)
        by_hand.update(REFERENCE, want, *call_of(step, Formats(*named), 2))
        for _ in isas:
            got = copied(tensors)
            by_hand.update(cpu.BACKEND, got, *call_of(step, Formats(*named), 2))
            assert_same(got, want)


def test_a_handle_that_the_process_has_not_made_is_refused() -> None:
    ints = tables()[0].to_ints()
    ints = (ints[0], 12345, *ints[2:])
    with pytest.raises(ValueError, match=r"handle 12345: make the format first"):
        cpu.BACKEND.pack(torch.zeros(3), ints)
