"""Tables on the CPU's kernels against the reference, to the bit: rounding, counts, codes, sums,
events, blocks, updates. Every instruction set."""

import pytest
import torch

import lpkernels as lp
from lpkernels.arithmetic import Quantizer
from lpkernels.backends import Fused, cpu
from lpkernels.formats import TableFormat
from lpkernels.rounding import ROUNDINGS
from tests.backends import by_hand
from tests.backends.cpu_products import REFERENCE, ROLE, SEED, assert_same
from tests.backends.table_cases import tables, values_of
from tests.cases import DETERMINISTIC
from tests.compare import assert_bit_equal
from tests.support.elements import assert_codes, assert_counted, quantized
from tests.support.processor import Isas, Threads, flushed
from tests.support.updates import STEPS, Formats, run, tensors_of
from tests.support.updates import assert_same as assert_updated

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
EVERY_TABLE = pytest.mark.parametrize("table", tables(), ids=str)


@EVERY_TABLE
def test_rounding_and_counts(table: TableFormat, isas: Isas) -> None:
    drawn = [Quantizer(table, "stochastic", random_bits=bits) for bits in (3, 12, 32)]
    quantizers = [*(Quantizer(table, mode) for mode in DETERMINISTIC), *drawn]
    for dtype in DTYPES:
        x = values_of(table, dtype)
        for quantizer in quantizers:
            want = quantized(x, quantizer)
            for isa in isas:
                got = quantized(x, quantizer, cpu.BACKEND)
                assert_bit_equal(got, want, f"{isa} {quantizer} {dtype}")
        assert_counted(cpu.BACKEND, x, quantizers[-1], on=isas)


@pytest.mark.parametrize("table", [tables()[0], tables()[6]], ids=str)
def test_tails_strides_threads_and_flushed_denormals_change_no_bit(
    table: TableFormat, isas: Isas, threads: Threads
) -> None:
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


@EVERY_TABLE
def test_codes(table: TableFormat, isas: Isas) -> None:
    x = quantized(values_of(table, torch.float32), Quantizer(table))
    x = x[~x.isnan()] if table.nan_code is None else x
    codes = torch.randint(0, 256, (3000,), generator=torch.Generator().manual_seed(1)).byte()
    count = codes.numel() * 8 // table.bits
    codes = codes[: (count * table.bits + 7) // 8]
    assert_same(isas, "unpack", codes, table.to_ints(), [count])
    for _ in isas:
        assert_codes(cpu.BACKEND, x, table)
        with pytest.raises(ValueError, match="the format has no code"):
            cpu.BACKEND.pack(torch.tensor([0.0, 0.12]), table.to_ints())


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


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_blocks_of_a_table(rounding: str, isas: Isas) -> None:
    x = torch.randn(3, 200, generator=torch.Generator().manual_seed(3)) * 5
    x[0, :70], x[1, 3], x[2, 150] = 0.0, float("nan"), 1e30
    for fmt in ("block64_linear4_sfp32", "tile2x64_linear4_sfp32", "block64_nf4_sfp32"):
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            quantizer = Quantizer(fmt, rounding)
            want = quantized(x.to(dtype), quantizer)
            for isa in isas:
                got = quantized(x.to(dtype), quantizer, cpu.BACKEND)
                assert_bit_equal(got, want, f"{isa} {dtype} {fmt}")
    assert_counted(cpu.BACKEND, x, quantizer, on=isas)


def test_masters_and_states_in_tables(isas: Isas) -> None:
    named = ("posit8es1", "posit8es1:stochastic", "posit16es1", "posit16es2:to_odd", "posit8es0")
    for step in (STEPS["adam"], STEPS["momentum"]):
        call = (tensors_of(step, Formats(*named), [(70,), (5, 3)], special=True), step)
        want = run(*call, Formats(*named), "reference")
        for _ in isas:
            assert_updated(run(*call, Formats(*named), "cpu"), want)


def test_a_handle_that_the_process_has_not_made_is_refused() -> None:
    ints = tables()[0].to_ints()
    with pytest.raises(ValueError, match=r"handle 12345: make the format first"):
        cpu.BACKEND.pack(torch.zeros(3), (ints[0], 12345, *ints[2:]))
