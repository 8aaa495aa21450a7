"""bench.fp8_units: its records of emulated units, and the units that it asks of a GPU."""

from __future__ import annotations

import json

import pytest
import torch

import lpkernels as lp
from bench import fp8_units, unit_probes
from bench.fp8_units import GPUS, Candidate, candidates, disagreement, named, report
from bench.unit_findings import Inputs
from lpkernels.arithmetic import UNITS
from lpkernels.formats import E4M3FN, E5M2

E4M3 = Inputs.of("e4m3fn")
OLD = "e8m13_chunk128:toward_zero:outer=fp32:outer_rounding=nearest_even:block=32:aligned_bits=13"


@pytest.fixture(autouse=True)
def small_searches(monkeypatch):
    monkeypatch.setattr(unit_probes, "_SIDE", 1)
    monkeypatch.setattr(unit_probes, "_LONGEST_BLOCK", 64)
    monkeypatch.setattr(unit_probes, "_LONGEST_CHUNK", 192)
    monkeypatch.setattr(fp8_units, "SHAPES", ((5, 200, 3),))


def unit_of(acc: str):
    return lambda a, b: lp.matmul(a, b, acc)


def test_another_accumulator_disagrees():
    differ, results = disagreement(
        unit_of("hopper_fp8"), lp.accumulator(OLD), (9, 300, 7), E4M3, seed=1
    )
    assert 20 < differ <= results


def test_the_report_holds_the_found_and_the_named_model_against_the_unit():
    records = list(report(Candidate("emulated", unit_of("hopper_fp8"), E4M3, "h100_e4m3")))
    assert [r["type"] for r in records] == ["unit", "agreement", "agreement"]
    assert records[0]["fits"] and records[0]["by_operands"]
    assert [r["model"] for r in records[1:]] == ["found", "h100_e4m3"]
    assert records[1]["differ"] == 0 and records[2]["differ"] > 0
    assert records[1]["accumulator"] == str(lp.accumulator("hopper_fp8"))
    json.dumps(records)


def test_a_unit_that_fits_no_accumulator_is_held_against_the_named_one_alone():
    apart = unit_of("e8m20_chunk16:toward_zero:outer=e8m13:block=16:aligned_bits=13")
    records = list(report(Candidate("emulated", apart, E4M3, "ada_e4m3")))
    assert [r.get("model") for r in records] == [None, "ada_e4m3"] and not records[0]["fits"]


def test_the_named_accumulator_has_the_formats_at_hand():
    mixed = named("hopper_fp8", Inputs.of("e5m2", "e4m3fn"))
    assert mixed.operands == (E5M2, E4M3FN)
    assert str(mixed).replace("e5m2,e4m3fn", "e4m3fn") == str(UNITS["hopper_fp8"].accumulator)
    assert named("h100_bf16", Inputs.of("bf16")) == UNITS["h100_bf16"].accumulator


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
    def refused(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("not on this GPU\nand more")

    records = list(fp8_units._tried(Candidate("refused", refused, E4M3, None)))
    assert records == [{"type": "failure", "name": "refused", "error": "not on this GPU"}]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys, tmp_path):
    assert fp8_units.main(["--out", str(tmp_path)]) == 0
    assert "no GPU with matrix units" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
