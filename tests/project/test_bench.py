"""The runner of the benchmarks: measured results are checked first, and reports are records."""

import json
import re
from unittest.mock import Mock

import pytest

from bench import gate as gate_module
from bench import ops, run
from bench.accumulation import simulate
from bench.gpu_cases import GPU_CASES
from bench.registry import CASES, Case, gate_case
from lpkernels import FloatFormat, backends
from lpkernels.techniques.accumulation import accumulator_of, nmse

ONE_OF_EACH = list({case.op: case for case in CASES}.values())
needs_cpu_kernels = pytest.mark.skipif(
    not backends.get("cpu").available(), reason=backends.get("cpu").why_not()
)


@needs_cpu_kernels
@pytest.mark.parametrize("case", [*ONE_OF_EACH, *GPU_CASES], ids=lambda case: case.name)
def test_gate_passes_what_is_right(case):
    if case.isa and not ops._runs(case.isa):
        pytest.skip(f"this module does not run {case.isa}")
    gate_module.gate(case, "cpu", "cpu")


def test_gate_refuses_what_is_wrong(monkeypatch):
    def build(case: Case, device: str, backend: str) -> ops.Job:
        job = ops.build(case, device, "reference")
        if backend == "reference":
            return job
        return ops.Job(lambda: [job.run()[0] + 1], {}, job.work, job.unit)

    monkeypatch.setattr(gate_module, "build", build)
    with pytest.raises(AssertionError, match=r"matmul 9x300x21 e6m9 .* on cpu, result 0: 189 of"):
        gate_module.gate(CASES[0], "cpu", "cpu")


def test_main_reports_a_closed_gate(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(run, "gate", Mock(side_effect=AssertionError("bits differ")))
    monkeypatch.setattr(run, "isa", lambda device: "none")
    assert run.main(["--filter", "16x16x16", "--out", str(tmp_path)]) == 1
    assert "WRONG, not timed: bits differ" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@needs_cpu_kernels
@pytest.mark.parametrize("case", ONE_OF_EACH, ids=lambda case: case.op)
def test_measure_gives_a_record_and_a_line(case):
    if case.isa and not ops._runs(case.isa):
        pytest.skip(f"this module does not run {case.isa}")
    small = gate_case(case)
    record = json.loads(json.dumps(run.measure(small, "cpu", "cpu", 1, 0.0)))
    assert record["case"] == small.name and record["seed"] == ops.SEED
    assert record["samples"] >= 5 and record["baselines"]["torch"]["ratio"] > 0
    assert {"load", "others", "threads", "rate", "unit"} <= set(record)
    assert re.match(re.escape(small.name) + r" +\d+ ", run.line(record))


@pytest.mark.parametrize(
    "rounding, chunk", [("nearest_even", None), ("stochastic", 16), ("aligned_truncation", None)]
)
def test_a_simulated_sum_has_its_law(rounding: str, chunk: int | None) -> None:
    name = str(accumulator_of(FloatFormat(8, 5), rounding, chunk=chunk))
    record = simulate(256, name, side=32)
    assert record["law"] == nmse(5, 256, chunk=chunk, rounding=rounding)
    assert record["nmse"] == pytest.approx(record["law"], rel=0.3)
