"""`lpkernels accumulate` in pieces: workloads, points, studies that go on, training runs."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import lpkernels as lp
from lpkernels import schemas
from lpkernels.experiments import records
from lpkernels.experiments.measuring.accumulator_speed import speed_over_length
from lpkernels.experiments.sweeps import accumulate as work
from lpkernels.experiments.sweeps.accumulate import AccumulateConfig, Point, Study, read_study
from lpkernels.experiments.training.arithmetic import layer_recipes
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.interrupts import Interrupted
from lpkernels.techniques.accumulation import accumulator_of, nmse

TINY = AccumulateConfig(model="cnn1", width=2, batch=16, sample=16, longest=256, epochs=1, seeds=1)


def tiny_model() -> tuple[torch.nn.Module, Any, Any]:
    model = torch.nn.Linear(64, 4)
    return model, torch.ones(2, 64), lambda y: y.square().mean()


def not_a_workload() -> int:
    return 3


def test_a_function_can_bring_the_model() -> None:
    config = AccumulateConfig(model=f"{__name__}:tiny_model")
    rows = work.make_plan(config, work.find_workload(config)).rows
    assert [row.gemm for row in rows] == ["fprop", "wgrad"]
    assert rows[1].length == 2, "the function's own sample counts, not --batch"
    for name, message in (
        (f"{__name__}:nothing", "cannot be called"),
        ("no.such.module:f", "cannot be called"),
        (f"{__name__}:not_a_workload", r"must return \(model, sample, loss\), got int"),
        ("vgg", "or module:function"),
    ):
        with pytest.raises(ValueError, match=message):
            work.find_workload(AccumulateConfig(model=name))
    with pytest.raises(ValueError, match=r"sample: the function .* brings a"):
        work.find_workload(replace(config, sample=3))
    with pytest.raises(ValueError, match=r"sample: expected at most the \d+ training images of"):
        work.find_workload(replace(TINY, sample=10**4))
    with pytest.raises(ValueError, match="has no data for 'tiny-gpt'"):
        work.check_trainable(AccumulateConfig(model="tiny-gpt"))


def test_without_a_sample_the_plan_is_of_shapes_alone() -> None:
    shapes, small, whole = (
        work.make_plan(config, work.find_workload(config)).rows
        for config in (replace(TINY, sample=0), replace(TINY, sample=4), TINY)
    )
    lengths = [[row.length for row in rows] for rows in (shapes, small, whole)]
    assert lengths[0] == lengths[1] == lengths[2]
    measured = [{row.growth is not None for row in rows} for rows in (shapes, small, whole)]
    assert measured == [{False}, {True}, {True}]
    bundled = AccumulateConfig(model="tiny-gpt", sample=1, batch=4)
    for config in (bundled, replace(bundled, sample=0)):
        rows = work.make_plan(config, work.find_workload(config)).rows
        assert rows[-1].gemm == "wgrad" and rows[-1].length == 4 * 128


def test_points_are_the_planned_sums_and_one_bit_fewer_rounded_as_asked() -> None:
    made = work.make_plan(TINY, work.find_workload(TINY))
    assert all(row.accumulator.chunk is None for row in made.rows)
    points = work.points(made, TINY)
    widths = {row.format.man_bits for row in made.rows}
    simulated = {lp.accumulator(p.accumulator).fmt.man_bits for p in points}
    assert widths | {max(1, w - 1) for w in widths} == simulated
    assert max(p.length for p in points) == TINY.longest
    assert len(set(points)) == len(points)
    config = replace(TINY, rounding="aligned_truncation", chunk=16)
    made = work.make_plan(config, work.find_workload(TINY))
    accs = [lp.accumulator(p.accumulator) for p in work.points(made, config)]
    assert {acc.block for acc in accs} == {1}
    assert all(acc.aligned_bits == acc.fmt.man_bits for acc in accs)
    record = work.simulate(Point(4096, str(accs[0]), "e5m2"), side=8)
    assert 0 < record["vrr"] < 1
    # Accumulators become text and are read from it again, as training runs read theirs.
    for _, fprop, _, wgrad in work.layer_accs(made, 1):
        assert lp.accumulator(fprop).block == lp.accumulator(wgrad).block == 1


def test_a_simulated_sum_has_its_theory_and_a_length_its_speed() -> None:
    record = work.simulate(Point(256, "e8m5", "e5m2"), side=16)
    assert record["theory"] == pytest.approx(0.959837, abs=1e-6)
    assert record["vrr"] == pytest.approx(0.993, abs=0.03)
    assert "theory" not in work.simulate(Point(256, "e8m5_chunk16", "e5m2"), side=16)
    for name, rounding, chunk in (
        ("e8m5", "nearest_even", None),
        ("e8m5_chunk16:stochastic", "stochastic", 16),
        (
            str(accumulator_of(lp.FloatFormat(8, 5), "aligned_truncation")),
            "aligned_truncation",
            None,
        ),
    ):
        record = work.simulate(Point(256, name, "e5m2"), side=32)
        assert record["law"] == nmse(5, 256, chunk=chunk, rounding=rounding)
        assert record["nmse"] == pytest.approx(record["law"], rel=0.3)
    # Nothing is predicted of a rounding that the law does not know.
    assert "law" not in work.simulate(Point(256, "e8m5:toward_zero", "e5m2"), side=16)
    found = list(speed_over_length("e5m2", lp.accumulator("e8m6"), longest=8, repeats=1))
    assert {record["length"] for record in found} == {64, 256}
    assert all(record["rate"] > 0 and record["nmse"] > 0 for record in found)
    with pytest.raises(ValueError, match=r"longest must be in 6\.\.24"):
        next(speed_over_length("e5m2", lp.accumulator("e8m6"), longest=25))


def test_a_stopped_simulation_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [Point(64, "e8m4", "e5m2"), Point(128, "e8m4", "e5m2")]
    simulate = work.simulate

    def simulate_and_signal(point: Point, **options: Any) -> dict[str, Any]:
        signal.raise_signal(signal.SIGINT)
        return simulate(point, **options)

    study = Study(tmp_path, TINY, resume=False)
    with monkeypatch.context() as patch:
        patch.setattr(work, "simulate", simulate_and_signal)
        with pytest.raises(Interrupted, match="simulated sums are saved"):
            work.simulate_study(study, points)
    assert len(study.of("simulation")) == 1
    again = Study(tmp_path, TINY, resume=True)
    work.simulate_study(again, points)
    assert [r["length"] for r in again.of("simulation")] == [64, 128]
    assert read_study(again.path) == again.records


def test_training_runs_have_the_accumulators_of_the_plan(tmp_path: Path) -> None:
    made = work.make_plan(TINY, work.find_workload(TINY))
    configs = work.training_configs(made, TINY)
    names = ["fp32", "fp32 sums", "1 more", "planned", "1 fewer", "2 fewer", "3 fewer", "4 fewer"]
    assert [c.name for c in configs] == names
    model = work.find_workload(TINY).model
    planned, narrower = (layer_recipes(c.arithmetic, model) for c in configs[3:5])
    assert isinstance(planned, dict) and isinstance(narrower, dict)
    rows = {row.gemm: row.accumulator for row in made.rows if row.layer == "stem"}
    assert planned["stem"].wgrad == rows["wgrad"]
    bits = rows["wgrad"].fmt.man_bits
    assert narrower["stem"].wgrad.fmt.man_bits == max(1, bits - 1)
    # The images enter in 16 bits, as in the recipe these runs start from.
    assert str(planned["stem"].input) == "e6m9"
    assert RunConfig.from_dict(configs[3].to_dict()) == configs[3]
    study = Study(tmp_path, TINY, resume=False)
    runs = work.train_study(study, made)
    assert [run.name for run in runs] == names
    assert all(run.finished for run in runs)


def test_a_study_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    study = Study(tmp_path, TINY, resume=False)
    study.add({"type": "answer", "value": 1})
    study.add({"type": "other"})
    again = Study(tmp_path, TINY, resume=True)
    assert again.of("answer") == [{"type": "answer", "value": 1}]
    assert again.records == study.records == read_study(tmp_path / "accumulate.jsonl")
    header = again.records[0]
    assert (header["kind"], header["config"]) == ("accumulate", TINY.to_dict())
    assert Study(tmp_path, TINY, resume=False).of("answer") == []


def test_another_question_or_another_kind_is_refused(tmp_path: Path) -> None:
    Study(tmp_path, TINY, resume=False)
    with pytest.raises(ValueError, match="the answer to another question; resume with the options"):
        Study(tmp_path, AccumulateConfig(), resume=True)
    records.write_records(tmp_path / "accumulate.jsonl", [schemas.header("run")])
    with pytest.raises(ValueError, match="expected the records of `lpkernels accumulate`"):
        Study(tmp_path, TINY, resume=True)
