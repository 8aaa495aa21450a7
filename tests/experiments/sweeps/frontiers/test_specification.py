"""The specification of a study: tasks, configurations, seeds, memory, its file, and its folder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpkernels.experiments.sweeps.frontiers.specification import (
    FILE,
    FrontierSpec,
    joined_spec,
    read_frontier_spec,
    settings_of,
    write_study_spec,
)
from lpkernels.experiments.sweeps.frontiers.study import read_measured, run_study
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.workloads.registry import find
from lpkernels.techniques.pareto import FormatSpace, count_tensors, training_memory
from tests.experiments.sweeps import toy
from tests.experiments.sweeps.frontiers.synthetic import HOW, SPACE, spec
from tests.loops import rows
from tests.support.refusals import rejects

TOML = """
name = "two"
cell_seconds = 60
seeds = [3, 5]
low = ["e4m2_sat", "e5m2_sat"]
high = ["e6m9_sat", "bf16"]
[base]
data = "wine"
epochs = 3
[base.optimizer]
lr = 0.02
[tasks.clean]
[tasks.noisy]
label_noise = 0.4
"""


def test_a_configuration_sets_layers_masters_and_the_loss_scale() -> None:
    low, high = "e3m1_sat:stochastic", "e6m7_sat:stochastic"
    expected = {"tensors": low, "ends": high, "tensor_sums": "", "working": low, "master": high}
    expected |= {"opt_state": high, "opt_grad": low}
    assert settings_of(FormatSpace.peppp()[0]) == {**expected, "loss_scale": 1000.0}
    with_sums = FormatSpace(["e4m3"], ["fp16"], ["e6m5_chunk16"])[0]
    assert settings_of(with_sums)["tensor_sums"] == "e6m5_chunk16"
    # Every configuration makes a run of its own.
    assert len({RunConfig.of(**settings_of(one)) for one in FormatSpace.peppp()}) == 99


def test_a_file_holds_a_study_whose_defaults_are_the_papers_configurations(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(TOML)
    found = read_frontier_spec(path)
    assert found.space == FormatSpace(["e4m2_sat", "e5m2_sat"], ["e6m9_sat", "bf16"])
    assert (list(found.tasks), found.seeds) == (["clean", "noisy"], [3, 5])
    assert found.base == {"data": "wine", "epochs": 3, "lr": 0.02}
    assert found.sweep([("noisy", 1)]).cell_seconds == 60
    assert FrontierSpec(**found.to_dict()) == found
    config = found.sweep([("noisy", 1)]).cells()[1].config
    assert (config.seed, config.workload.label_noise, config.optimizer.lr) == (5, 0.4, 0.02)
    assert config.flat()["ends"] == "e8m7:stochastic"
    assert config.name == "noisy: e4m2_sat e8m7" and config.threads == 1
    found = FrontierSpec(base={"data": "iris"})
    assert (len(found.space), list(found.tasks), found.seeds) == (99, ["task"], [0, 1])


test_wrong_specifications_are_refused = rejects(
    lambda values: FrontierSpec(**values),
    [
        ({"taks": {}}, "unknown field taks; expected one of tasks"),
        ({"low": ["e4m3"]}, "expected low and high, lists of formats, got low alone"),
        ({"low": ["e4m3", "e4m3"], "high": ["fp16"]}, "low must be distinct entries"),
        ({"base": []}, "base: expected a valid dictionary"),
        ({"base": {"master": "fp32"}}, r"\[base\]: master: the configuration says it"),
        ({"tasks": {"a": {"tensors": "e4m3"}}}, r"\[tasks.a\]: tensors: the configuration says it"),
        ({"tasks": {"a": {"epochz": 3}}}, r"\[tasks.a\]: RunConfig: unknown field epochz"),
        ({"tasks": {"a": {}, "b": {}}}, "the same cell twice"),
    ],
    (TypeError, ValueError),
)


def test_the_memory_of_a_task_is_that_of_its_model_and_batch() -> None:
    found = spec(0.0)
    work = find(found.config("noise 0.0").workload)
    batch = work.train.plan(0, 0).batch(0, 32)
    counts = count_tensors(work.model(), batch[0])
    expected = training_memory(counts, SPACE.low_bits, SPACE.high_bits)
    np.testing.assert_array_equal(found.memory("noise 0.0"), expected)
    with pytest.raises(ValueError, match=r"task: expected one of noise 0.0, got 'other'"):
        found.config("other")


def test_tasks_and_seeds_may_join(tmp_path: Path) -> None:
    run_study(spec(0.1), tmp_path, everything=True, **HOW)
    found = run_study(spec(0.3, seeds=2), tmp_path, everything=True, **HOW)
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


@rows(
    "change, message",
    ({"low": ["e4m3"], "high": ["fp16"]}, "its configurations are e3m1_sat .*; here e4"),
    ({"base": {"data": "wine"}}, r"its \[base\] is \{'data': 'iris'.*; here"),
    ({"tasks": {"noise 0.1": {"width": 9}}}, r"its \[tasks.noise 0.1\] is .*0.1.*; here"),
)
def test_another_study_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_study_spec(tmp_path, spec(0.1))
    with pytest.raises(ValueError, match=f"holds another study; choose another .*: {message}"):
        joined_spec(tmp_path, spec(0.1).replace(**change))


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="expected the folder of a study at"):
        read_measured(tmp_path)
    toy.run(toy.spec(), tmp_path)
    with pytest.raises(ValueError, match="holds a sweep; choose another folder"):
        joined_spec(tmp_path, spec(0.1))
    (tmp_path / FILE).write_text('{"kind": "frontier choices"}')
    with pytest.raises(ValueError, match="expected a study of frontiers, got 'frontier choices'"):
        read_measured(tmp_path)
