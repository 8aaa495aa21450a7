"""The folder of a study: what may join it, and which folders hold no study."""

from dataclasses import replace
from pathlib import Path

import pytest

from lpkernels.experiments.sweeps.frontiers.measuring import run_study
from lpkernels.experiments.sweeps.frontiers.store import (
    FILE,
    joined_spec,
    read_measured,
    write_study_spec,
)
from lpkernels.techniques.pareto import FormatSpace
from tests.experiments.sweeps import toy
from tests.experiments.sweeps.frontiers.synthetic import ENGINE, spec


def test_tasks_and_seeds_may_join(tmp_path: Path) -> None:
    run_study(spec(0.1), tmp_path, everything=True, engine=ENGINE)
    found = run_study(spec(0.3, seeds=2), tmp_path, everything=True, engine=ENGINE)
    assert found.matrix.tasks == ("noise 0.1", "noise 0.3")
    assert found.spec.seeds == [0, 1]
    # The second seed of the first task was not asked for.
    missing = (found.matrix.errors != found.matrix.errors).sum(axis=(1, 2))
    assert list(missing) == [12, 0]


def test_the_specification_comes_back(tmp_path: Path) -> None:
    write_study_spec(tmp_path, spec(0.1, 0.4))
    found = read_measured(tmp_path)
    assert found.spec == spec(0.1, 0.4)
    assert found.asked == {"noise 0.1": [], "noise 0.4": []}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"space": FormatSpace(["e4m3"], ["fp16"])}, "its configurations are e3m1_sat .*; here e4"),
        ({"base": {"data": "wine"}}, r"its \[base\] is \{'data': 'iris'.*; here"),
        ({"tasks": {"noise 0.1": {"width": 9}}}, r"its \[tasks.noise 0.1\] is .*0.1.*; here"),
    ],
    ids=["space", "base", "task"],
)
def test_another_study_is_refused(change: dict[str, object], message: str, tmp_path: Path) -> None:
    write_study_spec(tmp_path, spec(0.1))
    with pytest.raises(ValueError, match=f"holds another study; choose another .*: {message}"):
        joined_spec(tmp_path, replace(spec(0.1), **change))  # type: ignore[arg-type]


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="expected the folder of a study at"):
        read_measured(tmp_path)
    toy.run(toy.spec(), tmp_path)
    with pytest.raises(ValueError, match="holds a sweep; choose another folder"):
        joined_spec(tmp_path, spec(0.1))
    (tmp_path / FILE).write_text('{"kind": "frontier curves"}')
    with pytest.raises(ValueError, match="expected a study of frontiers, got 'frontier curves'"):
        read_measured(tmp_path)
