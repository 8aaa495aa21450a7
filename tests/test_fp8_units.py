"""The probes of bench.fp8_units recover the parameters of units that are chosen here."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

import lpkernels as lp
from bench import fp8_units
from bench.fp8_units import Found, disagreement, probe, report


@pytest.fixture(autouse=True)
def one_result(monkeypatch):
    monkeypatch.setattr(fp8_units, "_SIDE", 1)


def unit_of(acc: str):
    return lambda a, b: lp.matmul(a, b, acc)


UNITS = {
    "hopper_fp8": Found(13, "toward_zero", 32, 13, "toward_zero", True, 128, "nearest_even"),
    "e8m13:toward_zero:block=16:aligned_bits=13": Found(
        13, "toward_zero", 16, 13, "toward_zero", True, 0, "unseen"
    ),
    # Wider sums than alignment keeps, rounded when they are written.
    "e8m15:nearest_even:block=32:aligned_bits=14": Found(
        14, "toward_zero", 32, 15, "nearest_even", True, 0, "unseen"
    ),
    # Narrower ones.
    "e8m10_chunk64:toward_negative:outer=fp32:outer_rounding=toward_zero:block=8:aligned_bits=12":
        Found(12, "toward_zero", 8, 10, "toward_negative", True, 64, "toward_zero"),
    # What stays in fp32 is never seen to be rounded.
    "fp32:toward_zero:block=16:aligned_bits=25": Found(
        25, "toward_zero", 16, 23, "unseen", True, 0, "unseen"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNITS)
def test_the_parameters_of_a_unit_are_recovered(name: str):
    found = probe(unit_of(name))
    assert found == UNITS[name]
    acc = found.accumulator()
    operands = ("e4m3fn", "e4m3fn")
    differ, results = disagreement(unit_of(name), acc, (9, 300, 7), operands, seed=1)
    assert (differ, results) == (0, 2 * 63)


def test_another_accumulator_disagrees():
    acc = lp.accumulator("e8m13:toward_zero:block=32:aligned_bits=13")
    differ, _ = disagreement(unit_of("hopper_fp8"), acc, (9, 300, 7), ("e5m2", "e4m3fn"), seed=1)
    assert differ > 20


def test_blocks_that_are_added_to_the_sum_afterwards_are_told_apart():
    # Chunks of a block each: the running sum is no part of the alignment.
    apart = "e8m20_chunk16:toward_zero:outer=e8m13:block=16:aligned_bits=13"
    found = probe(unit_of(apart))
    assert (found.aligned_bits, found.block, found.sum_is_aligned) == (13, 16, False)
    assert not found.fits
    with pytest.raises(ValueError, match="no Accumulator sums like"):
        found.accumulator()


def test_products_in_an_order_of_their_own_are_no_block():
    order = torch.arange(512).reshape(-1, 2, 16).transpose(1, 2).flatten()

    def unit(a: Tensor, b: Tensor) -> Tensor:
        mine = order[order < a.shape[1]]
        return lp.matmul(a[:, mine], b[mine], "e8m13:toward_zero:block=16:aligned_bits=13")

    assert probe(unit).block == 0


def test_a_unit_that_rounds_when_it_aligns_fits_no_accumulator():
    def unit(a: Tensor, b: Tensor) -> Tensor:
        # To nearest, at the place 13 below the largest product.
        products = a[:1, :, None].double() * b[None, :, :1]
        place = torch.frexp(products.abs().amax())[1] - 14
        total = (products * 2.0**-place).round().sum() * 2.0**place
        return total.float().reshape(1, 1)

    found = probe(unit)
    assert (found.aligned_bits, found.cut) == (13, "nearest_even")
    assert not found.fits


def test_a_unit_that_keeps_nothing_is_refused():
    with pytest.raises(ValueError, match="nothing is left"):
        probe(lambda a, b: torch.zeros(len(a), b.shape[1]))


def test_the_report_holds_the_model_against_the_unit(monkeypatch):
    monkeypatch.setattr(fp8_units, "SHAPES", ((5, 200, 3),))
    records = report("emulated", lambda operands: unit_of("hopper_fp8"))
    assert [r["type"] for r in records] == ["unit"] + ["agreement"] * 3
    assert records[0]["fits"] and all(r["differ"] == 0 for r in records[1:])
    assert records[1]["accumulator"] == str(lp.accumulator("hopper_fp8"))
    json.dumps(records)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys, tmp_path):
    assert fp8_units.main(["--out", str(tmp_path)]) == 0
    assert "no GPU with FP8" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
