"""Specifications of sweeps, and wrong ones."""

from pathlib import Path

import pytest

from lpkernels.experiments.sweeps.results import read_results
from lpkernels.experiments.sweeps.specification import (
    SweepSpec,
    read_spec,
    settings_of,
)
from lpkernels.experiments.training.config import RunConfig
from lpkernels.techniques.pareto import FormatSpace
from tests.support.refusals import rejects

ROOT = Path(__file__).parents[3]

TOML = """
name = "mnist1d"
seeds = 3
compare = "affine4"
[base]
data = "mnist1d"
epochs = 24
[base.optimizer]
optimizer = "adam"
[arms.fp32]
[arms.affine4]
operands = "affine4"
[axes]
lr = [0.01, 0.003]
[axes.workload]
width = [8, 16]
"""


#: The axes of a study of frontiers.
FORMATS = {"low": ["e4m2_sat", "e5m2_sat"], "high": ["e6m9_sat", "bf16"]}


def written(folder: Path, text: str) -> Path:
    path = folder / "sweep.toml"
    path.write_text(text)
    return path


def test_a_file_makes_arms_times_axes_times_seeds(tmp_path: Path) -> None:
    spec = read_spec(written(tmp_path, TOML))
    cells = spec.cells()
    assert len(cells) == 2 * 2 * 2 * 3
    first = cells[0]
    assert (first.arm, first.axes, first.seed) == ("fp32", {"lr": 0.01, "width": 8}, 0)
    assert first.config == RunConfig.of(
        name="fp32", data="mnist1d", epochs=24, optimizer="adam", lr=0.01, width=8, threads=1
    )
    assert [cell.seed for cell in cells] == sorted(cell.seed for cell in cells)
    assert first.label() == "fp32, lr 0.01, width 8, seed 0"
    assert SweepSpec(**spec.to_dict()) == spec
    assert spec.compare == "affine4"


SPECIFICATIONS = {
    path: ROOT / f"bench/results/sweep-{path.stem}.jsonl"
    for path in sorted((ROOT / "bench/sweeps").glob("*.toml"))
}


@pytest.mark.parametrize(
    "path", [path for path in SPECIFICATIONS if SPECIFICATIONS[path].exists()], ids=lambda p: p.stem
)
def test_a_committed_specification_has_the_arms_of_its_record(path: Path) -> None:
    record = SPECIFICATIONS[path]
    here, there = read_spec(path), read_results(record).spec
    # Earlier versions could look at the errors of layers, which changed no run.
    assert here.base == {k: v for k, v in there.base.items() if k != "layer_errors"}
    shared = here.arms.keys() & there.arms.keys()
    assert shared and all(here.arms[arm] == there.arms[arm] for arm in shared)


def test_defaults_are_one_arm_one_seed_one_thread() -> None:
    spec = SweepSpec()
    assert [(c.arm, c.seed, c.config.threads) for c in spec.cells()] == [("base", 0, 1)]
    assert SweepSpec(base={"threads": 4}).cells()[0].config.threads == 4
    assert SweepSpec(arms={"a": {}, "b": {"lr": 1}}).compare == "a"


def test_a_configuration_sets_layers_masters_and_the_loss_scale() -> None:
    low, high = "e3m1_sat:stochastic", "e6m7_sat:stochastic"
    expected = {"tensors": low, "ends": high, "working": low, "master": high}
    expected |= {"opt_state": high, "opt_grad": low}
    assert settings_of(FormatSpace.peppp()[0]) == {**expected, "loss_scale": 1000.0}
    # Every configuration makes a run of its own.
    assert len({RunConfig.of(**settings_of(one)) for one in FormatSpace.peppp()}) == 99


def test_a_study_has_tasks_times_configurations_times_seeds_or_those_that_are_chosen() -> None:
    tasks = {"clean": {}, "noisy": {"label_noise": 0.4}}
    spec = SweepSpec(**FORMATS, arms=tasks, base={"data": "wine", "lr": 0.02}, seeds=[3, 5])
    assert spec.space == FormatSpace(**FORMATS) and len(spec.cells()) == 2 * 4 * 2
    few = spec.replace(chosen={"noisy": ["e4m2_sat e8m7"], "clean": []})
    assert SweepSpec(**few.to_dict()) == few
    _, cell = few.cells()
    assert cell.label() == "noisy, configuration e4m2_sat e8m7, seed 5"
    assert (cell.config.name, cell.config.workload.label_noise) == ("noisy", 0.4)
    assert (cell.config.optimizer.lr, cell.config.threads) == (0.02, 1)
    assert cell.config.flat()["ends"] == "e8m7:stochastic"
    # The paper's configurations are those of a specification without formats.
    assert len(SweepSpec().space) == 99


test_wrong_specifications = rejects(
    lambda values: SweepSpec(**values),
    [
        ({"bases": {}}, "unknown field bases; expected one of .*base"),
        ({"base": {"lrr": 0.1}}, r"\[base\]: RunConfig: unknown field lrr; expected one of lr"),
        ({"base": {"workloads": {"data": "x"}}}, "unknown section 'workloads'"),
        ({"arms": {"a": {"lr": 0.1, "optimizer": {"lr": 1}}}}, r"\[arms.a\]: lr: given twice"),
        (
            {"axes": {"wdith": [1]}},
            r"\[axes\]: .* unknown field wdith; expected one of width",
        ),
        ({"axes": {"seed": [1, 2]}}, r"seed: give seeds = \[...\] beside \[base\]"),
        ({"base": {"name": "x"}}, "a run is called after its arm"),
        ({"axes": {"lr": []}}, "lr: expected a list of values, got"),
        ({"axes": {"lr": [0.1, 0.1]}}, "lr: expected different values"),
        ({"seeds": 0}, "seeds: expected a positive number or a list of numbers, got 0"),
        ({"seeds": [1, 1]}, "seeds: expected each once"),
        ({"seeds": 10**9}, "expected at most 100,000 cells, got 1,000,000,000"),
        ({"seeds": 60_000, "axes": {"lr": [1, 2]}}, "expected at most .*, got 120,000"),
        ({"arms": {"a": {}, "b": {}}}, "the same cell twice: a, seed 0; and b, seed 0"),
        ({"arms": {"a": {"lr": 1}}, "axes": {"lr": [2]}}, r"\[arms.a\]: lr is an axis too"),
        ({"arms": {"a": {}}, "compare": "b"}, "compare: expected one of the arms a, got 'b'"),
        ({"axes": {"batch": [0]}}, r"arm 'base' \(batch 0\): RunConfig: batch: expected greater"),
        ({"arms": {"a": {"recipe": "fp7"}}}, "arm 'a' .*fp7"),
        ({"low": ["e4m3"]}, "expected low and high, lists of formats, .* got low and no axes"),
        ({**FORMATS, "axes": {"lr": [1]}}, "and no axes; got low, high and lr"),
        ({**FORMATS, "low": ["e4m3", "e4m3"]}, "low must be distinct formats"),
        ({**FORMATS, "base": {"master": "fp32"}}, r"base\]: master: the configuration says it"),
        ({**FORMATS, "arms": {"a": {"tensors": "e4m3"}}}, "a: tensors: the configuration says it"),
        ({**FORMATS, "arms": {"a": {}, "b": {}}}, "the same cell twice"),
        (
            {**FORMATS, "chosen": {"base": ["e4m2 e8m7"]}},
            "chosen: expected one of e4m2_sat e6m9_sat, e4m2_sat e8m7",
        ),
        ({"chosen": {"base": []}}, "chosen: belongs to low and high"),
    ],
)
test_values_of_another_type = rejects(
    lambda values: SweepSpec(**values),
    [
        ({"base": 3}, "base: expected a valid dictionary, got 3"),
        ({"arms": {"a": 3}}, "arms.a: expected a valid dictionary, got 3"),
        ({"axes": {"lr": ["fast"]}}, "lr: expected a valid number, got 'fast'"),
    ],
    TypeError,
)


def test_a_specification_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="expected a specification"):
        read_spec(tmp_path / "none.toml")


@pytest.mark.parametrize(
    "text, message",
    [("name = \n", ".*line 1"), ("seeds = 0\n", "seeds: expected")],
    ids=["no TOML", "no specification"],
)
def test_a_file_of_something_else_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"sweep.toml: .*{message}"):
        read_spec(written(tmp_path, text))
