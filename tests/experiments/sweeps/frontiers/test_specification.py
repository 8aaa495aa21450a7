"""What a study is: tasks, configurations, seeds; how a configuration trains; its memory."""

from pathlib import Path

import numpy as np
import pytest

from lpkernels.experiments.sweeps.frontiers.specification import (
    FrontierSpec,
    read_frontier_spec,
    settings_of,
)
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.workloads.registry import find
from lpkernels.techniques.pareto import FormatSpace, count_tensors, training_memory
from tests.experiments.sweeps.frontiers.synthetic import SPACE, spec
from tests.loops import each

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


def test_a_file_holds_a_study(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(TOML)
    found = read_frontier_spec(path)
    assert found.space == FormatSpace(["e4m2_sat", "e5m2_sat"], ["e6m9_sat", "bf16"])
    assert (list(found.tasks), found.seeds) == (["clean", "noisy"], [3, 5])
    assert found.base == {"data": "wine", "epochs": 3, "lr": 0.02}
    assert found.sweep([("noisy", 1)]).cell_seconds == 60
    assert FrontierSpec.from_dict(found.to_dict()) == found
    config = found.sweep([("noisy", 1)]).cells()[1].config
    assert (config.seed, config.workload.label_noise, config.optimizer.lr) == (5, 0.4, 0.02)
    assert config.flat()["ends"] == "e8m7:stochastic"
    assert config.name == "noisy: e4m2_sat e8m7" and config.threads == 1


def test_without_axes_and_tasks_it_is_one_task_in_the_papers_configurations() -> None:
    found = FrontierSpec.from_dict({"base": {"data": "iris"}})
    assert (len(found.space), list(found.tasks), found.seeds) == (99, ["task"], [0, 1])


@each(
    "values, message",
    [
        ({"taks": {}}, "specification: unknown field taks; did you mean tasks"),
        ({"low": ["e4m3"]}, "expected low and high, lists of formats, got low alone"),
        ({"low": ["e4m3", "e4m3"], "high": ["fp16"]}, "low has e4m3 twice"),
        ({"base": []}, r"base: expected a table \[base\]"),
        ({"base": {"master": "fp32"}}, r"\[base\]: master: the configuration says it"),
        ({"tasks": {"a": {"tensors": "e4m3"}}}, r"\[tasks.a\]: tensors: the configuration says it"),
        ({"tasks": {"a": {"epochz": 3}}}, r"\[tasks.a\]: RunConfig: unknown field epochz"),
        ({"tasks": {"a": {}, "b": {}}}, "the same cell twice"),
    ],
)
def test_wrong_specifications_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        FrontierSpec.from_dict(values)


def test_the_memory_of_a_task_is_that_of_its_model_and_batch() -> None:
    found = spec(0.0)
    work = find(found.config("noise 0.0").workload)
    batch = work.train.plan(0, 0).batch(0, 32)
    counts = count_tensors(work.model(), batch[0])
    expected = training_memory(counts, SPACE.low_bits, SPACE.high_bits)
    np.testing.assert_array_equal(found.memory("noise 0.0"), expected)
    with pytest.raises(ValueError, match=r"task: expected one of noise 0.0, got 'other'"):
        found.config("other")
