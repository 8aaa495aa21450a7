"""The probes of units recover parameters chosen here, and bench.fp8_units records the finds."""

import json
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

import lpkernels as lp
from bench import fp8_units, unit_probes
from bench.fp8_units import GPUS, Candidate, candidates, disagreement, named, report
from bench.unit_findings import Found, Inputs
from bench.unit_probes import probe
from lpkernels.arithmetic import UNITS
from lpkernels.formats import E4M3FN, E5M2

E4M3 = Inputs.of("e4m3fn")


@pytest.fixture(autouse=True)
def small_searches(monkeypatch):
    monkeypatch.setattr(unit_probes, "_SIDE", 1)
    monkeypatch.setattr(unit_probes, "_LONGEST_BLOCK", 64)
    monkeypatch.setattr(unit_probes, "_LONGEST_CHUNK", 192)
    monkeypatch.setattr(fp8_units, "SHAPES", ((5, 200, 3),))


def unit_of(acc: str | lp.Accumulator):
    return lambda a, b: lp.matmul(a, b, acc)


def inputs_of(name: str) -> Inputs:
    kind = UNITS[name].inputs
    half = name.endswith("_fp16") and name.count("_") > 1
    return Inputs.of({"e4m3": "e4m3fn", "fp8": "e4m3fn"}.get(kind, kind), half=half)


@pytest.mark.parametrize("name", UNITS)
def test_of_named_units_all_is_recovered_that_their_operands_can_show(name: str):
    """FP8 in two steps of FP16 has bounds of fp16 and a least exponent that it cannot show."""
    inputs = inputs_of(name)
    acc, want = probe(unit_of(name), inputs).accumulator(inputs), UNITS[name].accumulator
    if "mma" in name:
        want = replace(want, operands=(inputs.left, inputs.right), least_exponent=None)
        assert disagreement(unit_of(name), acc, (9, 300, 7), inputs, seed=1) == (0, 2 * 63)
    assert acc == want


def products(bits: int, cut: str, block: int, man_bits: int, rounding: str, *more: object) -> Found:
    """Findings on a unit with blocks of neighbours aligned by products; 2^-9 counts as itself."""
    chunk, outer = more or (0, "unseen")
    bounds, least = (None, None), None
    values = (bits, cut, False, bounds, least, block, 1, man_bits, rounding, True, chunk, 23, outer)
    return Found(*values)  # type: ignore[arg-type]


BY_PRODUCTS = {
    "e8m13_chunk128:toward_zero:outer=fp32:outer_rounding=nearest_even:block=32:aligned_bits=13":
        products(13, "toward_zero", 32, 13, "toward_zero", 128, "nearest_even"),
    "e8m13:toward_zero:block=16:aligned_bits=13":
        products(13, "toward_zero", 16, 13, "toward_zero"),
    # The sums are wider than what alignment keeps, and are rounded when they are written.
    "e8m15:nearest_even:block=32:aligned_bits=14":
        products(14, "toward_zero", 32, 15, "nearest_even"),
    # The sums are narrower than what alignment keeps.
    "e8m10_chunk64:toward_negative:outer=fp32:outer_rounding=toward_zero:block=8:aligned_bits=12":
        products(12, "toward_zero", 8, 10, "toward_negative", 64, "toward_zero"),
    "fp32:toward_zero:block=16:aligned_bits=25":
        products(25, "toward_zero", 16, 23, "toward_zero"),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_PRODUCTS)
def test_alignment_by_products_is_told_apart(name: str):
    found = probe(unit_of(name), E4M3)
    assert replace(found, bounds=(None, None)) == BY_PRODUCTS[name]
    assert found.accumulator(E4M3) == lp.accumulator(name)


def test_bounds_of_operands_are_seen_and_what_is_never_rounded_is_not():
    found = probe(unit_of("fp32:toward_zero:block=4:aligned_bits=18:operands=e4m3fn"), E4M3)
    assert (found.man_bits, found.rounding) == (23, "unseen")
    inputs = Inputs.of("e5m2", "e4m3fn")
    acc = lp.accumulator("e8m13:toward_zero:block=16:aligned_bits=13:operands=e5m2,e4m3fn")
    found = probe(unit_of(acc), inputs)
    assert found.bounds == (-14, -6) and found.accumulator(inputs) == acc
    acc = lp.accumulator("e8m13:toward_zero:block=16:aligned_bits=13:operands=e5m3")
    found = probe(unit_of(acc), E4M3)
    assert found.bounds == (-9, -9)
    got = found.accumulator(E4M3)
    assert disagreement(unit_of(acc), got, (9, 300, 7), E4M3, seed=1) == (0, 2 * 63)


def test_blocks_that_are_added_to_the_sum_afterwards_are_told_apart():
    # Each chunk is one block, so the running sum is no part of the alignment.
    apart = "e8m20_chunk16:toward_zero:outer=e8m13:block=16:aligned_bits=13:operands=e4m3fn"
    found = probe(unit_of(apart), E4M3)
    assert (found.aligned_bits, found.block, found.sum_is_aligned) == (13, 16, False)
    assert not found.fits
    with pytest.raises(ValueError, match="no Accumulator sums like"):
        found.accumulator(E4M3)


def test_products_in_an_order_of_their_own_are_no_block_and_nothing_is_refused():
    order = torch.arange(512).reshape(-1, 2, 16).transpose(1, 2).flatten()

    def unit(a: Tensor, b: Tensor) -> Tensor:
        mine = order[order < a.shape[1]]
        return lp.matmul(a[:, mine], b[mine], "e8m13:toward_zero:block=16:aligned_bits=13")

    assert probe(unit, E4M3).block == 0
    with pytest.raises(ValueError, match="nothing is left"):
        probe(lambda a, b: torch.zeros(len(a), b.shape[1]), E4M3)


def test_a_unit_that_rounds_when_it_aligns_fits_no_accumulator():
    def unit(a: Tensor, b: Tensor) -> Tensor:
        # The unit rounds products to nearest, at the place 13 below the largest one.
        products = a[:1, :, None].double() * b[None, :, :1]
        place = torch.frexp(products.abs().amax())[1] - 14
        total = (products * 2.0**-place).round().sum() * 2.0**place
        return total.float().reshape(1, 1)

    found = probe(unit, E4M3)
    assert (found.aligned_bits, found.cut) == (13, "nearest_even")
    assert not found.fits


OLD = "e8m13_chunk128:toward_zero:outer=fp32:outer_rounding=nearest_even:block=32:aligned_bits=13"


def test_another_accumulator_disagrees_and_the_named_one_has_the_formats_at_hand():
    differ, results = disagreement(
        unit_of("hopper_fp8"), lp.accumulator(OLD), (9, 300, 7), E4M3, seed=1
    )
    assert 20 < differ <= results
    mixed = named("hopper_fp8", Inputs.of("e5m2", "e4m3fn"))
    assert mixed.operands == (E5M2, E4M3FN)
    assert str(mixed).replace("e5m2,e4m3fn", "e4m3fn") == str(UNITS["hopper_fp8"].accumulator)
    assert named("h100_bf16", Inputs.of("bf16")) == UNITS["h100_bf16"].accumulator


def test_a_report_holds_the_models_it_has_against_the_unit():
    records = list(report(Candidate("emulated", unit_of("hopper_fp8"), E4M3, "h100_e4m3")))
    assert [r["type"] for r in records] == ["unit", "agreement", "agreement"]
    assert records[0]["fits"] and records[0]["by_operands"]
    assert [r["model"] for r in records[1:]] == ["found", "h100_e4m3"]
    assert records[1]["differ"] == 0 and records[2]["differ"] > 0
    assert records[1]["accumulator"] == str(lp.accumulator("hopper_fp8"))
    json.dumps(records)
    apart = unit_of("e8m20_chunk16:toward_zero:outer=e8m13:block=16:aligned_bits=13")
    records = list(report(Candidate("emulated", apart, E4M3, "ada_e4m3")))
    assert [r.get("model") for r in records] == [None, "ada_e4m3"] and not records[0]["fits"]


@pytest.mark.parametrize("capability", [*GPUS, (12, 0)])
def test_every_gpu_is_asked_for_the_units_that_have_names(capability: tuple[int, int]):
    found = list(candidates(capability))
    expected = {c.named for c in found if c.named is not None}
    assert expected <= set(UNITS)
    gpu = GPUS.get(capability)
    own = {name for name in UNITS if name.split("_")[0] == gpu and name.count("_") == 1}
    own -= {"ada_e5m2", "h100_e5m2"}
    assert expected == own | ({"hopper_fp8"} if gpu == "h100" else set())
    assert any("_scaled_mm" in c.name for c in found) == (capability >= (8, 9))


def test_what_cannot_run_is_a_record_too():
    refused = Mock(side_effect=RuntimeError("not on this GPU\nand more"))
    records = list(fp8_units._tried(Candidate("refused", refused, E4M3, None)))
    assert records == [{"type": "failure", "name": "refused", "error": "not on this GPU"}]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys, tmp_path):
    assert fp8_units.main(["--out", str(tmp_path)]) == 0
    assert "no GPU with matrix units" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
