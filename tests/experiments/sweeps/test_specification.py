"""Specifications of sweeps, and wrong ones."""

import math
from pathlib import Path

import pytest

from lpkernels.experiments.sweeps.results import read_results
from lpkernels.experiments.sweeps.specification import SweepSpec, merged, read_spec
from lpkernels.experiments.training.config import RunConfig
from tests.loops import each
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


def written(folder: Path, text: str) -> Path:
    path = folder / "sweep.toml"
    path.write_text(text)
    return path


def test_a_file_makes_arms_times_axes_times_seeds(tmp_path: Path) -> None:
    spec = read_spec(written(tmp_path, TOML))
    cells = spec.cells()
    assert len(cells) == 2 * 2 * 2 * 3
    first = cells[0]
    assert (first.arm, first.axes, first.seed) == ("fp32", (("lr", 0.01), ("width", 8)), 0)
    assert first.config == RunConfig.of(
        name="fp32", data="mnist1d", epochs=24, optimizer="adam", lr=0.01, width=8, threads=1
    )
    assert [cell.seed for cell in cells] == sorted(cell.seed for cell in cells)
    assert first.label() == "fp32, lr 0.01, width 8, seed 0"
    assert SweepSpec(**spec.to_dict()) == spec
    assert spec.compare == "affine4"


@each("path", sorted((ROOT / "bench/sweeps").glob("*.toml")))
def test_a_committed_specification_has_the_arms_of_its_record(path: Path) -> None:
    record = ROOT / f"bench/results/sweep-{path.stem}.jsonl"
    if not record.exists():
        return
    here, there = read_spec(path), read_results(record).spec
    assert here.base == there.base
    shared = here.arms.keys() & there.arms.keys()
    assert shared and all(here.arms[arm] == there.arms[arm] for arm in shared)


def test_defaults_are_one_arm_one_seed_one_thread_and_a_limit_is_no_part_of_a_cell() -> None:
    spec = SweepSpec()
    assert [(c.arm, c.seed, c.config.threads) for c in spec.cells()] == [("base", 0, 1)]
    assert SweepSpec(base={"threads": 4}).cells()[0].config.threads == 4
    assert SweepSpec(arms={"a": {}, "b": {"lr": 1}}).compare == "a"
    without, limited = SweepSpec(seeds=2), SweepSpec(seeds=2, cell_seconds=60)
    assert SweepSpec(**limited.to_dict()) == limited
    assert limited.cells() == without.cells()
    assert merged([without, limited]).cell_seconds == 60


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
test_a_limit_that_is_none = rejects(
    lambda seconds: SweepSpec(cell_seconds=seconds),
    [
        (seconds, "cell_seconds: expected .*, got")
        for seconds in (0, -1, "10 min", math.inf, math.nan, True, 10**9)
    ],
    (TypeError, ValueError),
)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="expected a specification"):
        read_spec(tmp_path / "none.toml")
    for text, message in (("name = \n", ".*line 1"), ("seeds = 0\n", "seeds: expected")):
        with pytest.raises(ValueError, match=f"sweep.toml: .*{message}"):
            read_spec(written(tmp_path, text))


def test_sweeps_merge() -> None:
    first = SweepSpec(base={"epochs": 2}, arms={"a": {}}, axes={"lr": [0.1]}, seeds=2)
    more = SweepSpec(
        base={"epochs": 2}, arms={"b": {"batch": 8}}, axes={"lr": [0.2, 0.1]}, seeds=[1, 5]
    )
    both = merged([first, more])
    assert (list(both.arms), both.axes, both.seeds) == (["a", "b"], {"lr": [0.1, 0.2]}, [0, 1, 5])


test_specifications_of_other_sweeps_do_not = rejects(
    lambda other: merged([SweepSpec(base={"epochs": 2}, arms={"a": {}}), other]),
    [
        (SweepSpec(base={"epochs": 3}, arms={"a": {}}), r"another base .*: 2\} there, .* 3\} here"),
        (
            SweepSpec(base={"epochs": 2}, arms={"a": {}}, axes={"lr": [1]}),
            "other axes .*: none there, lr here",
        ),
        (SweepSpec(base={"epochs": 2}, arms={"a": {"batch": 8}}), "arm 'a' is another one there"),
    ],
)
