"""`lpkernels accumulate` in pieces; values through a format, speeds and the machine."""

from typing import Any

import pytest
import torch

from lpkernels import backends
from lpkernels.experiments.measuring import accumulate as work
from lpkernels.experiments.measuring import machine
from lpkernels.experiments.measuring.accumulate import AccumulateConfig
from lpkernels.experiments.measuring.speed import Speed
from tests.support.commands import assert_refused, done
from tests.support.refusals import rejects

TINY = AccumulateConfig(model="cnn1", width=2, batch=16, sample=16)


def tiny_model() -> tuple[torch.nn.Module, Any, Any]:
    model = torch.nn.Linear(64, 4)
    return model, torch.ones(2, 64), lambda y: y.square().mean()


def not_a_workload() -> int:
    return 3


def test_a_function_can_bring_the_model() -> None:
    config = AccumulateConfig(model=f"{__name__}:tiny_model")
    rows = work.make_plan(config, work.find_network(config)).rows
    assert [row.gemm for row in rows] == ["fprop", "wgrad"]
    assert rows[1].length == 2, "the function's own sample counts, not --batch"


test_a_network_is_refused = rejects(
    lambda settings: work.find_network(AccumulateConfig(**settings)),
    [
        ({"model": f"{__name__}:nothing"}, "cannot be called"),
        ({"model": "no.such.module:f"}, "cannot be called"),
        ({"model": f"{__name__}:not_a_workload"}, r"return \(model, sample, loss\), got int"),
        ({"model": "vgg"}, "or module:function"),
        ({"model": f"{__name__}:tiny_model", "sample": 3}, "sample: the function .* brings a"),
        ({"model": "cnn1", "sample": 10**4}, r"sample: expected at most the \d+ training ex"),
    ],
)


@pytest.mark.parametrize(
    "data, model, lengths",
    [("text", "lstm1", {512, 39}), ("mnist1d", "cnn1", {8, 80})],
    ids=["text", "signals"],
)
def test_a_network_for_any_data_is_planned(data: str, model: str, lengths: set[int]) -> None:
    config = AccumulateConfig(data=data, model=model, width=4, batch=8)
    rows = work.make_plan(config, work.find_network(config)).rows
    assert lengths <= {row.length for row in rows}


def test_without_a_sample_the_plan_is_of_shapes_alone() -> None:
    shapes, small, whole = (
        work.make_plan(config, work.find_network(config)).rows
        for config in (TINY.replace(sample=0), TINY.replace(sample=4), TINY)
    )
    lengths = [[row.length for row in rows] for rows in (shapes, small, whole)]
    assert lengths[0] == lengths[1] == lengths[2]
    measured = [{row.growth is not None for row in rows} for rows in (shapes, small, whole)]
    assert measured == [{False}, {True}, {True}]
    bundled = AccumulateConfig(model="resnet20-cifar", sample=1, batch=4)
    for config in (bundled, bundled.replace(sample=0)):
        rows = work.make_plan(config, work.find_network(config)).rows
        assert rows[-1].gemm == "wgrad" and rows[-1].length == 4


def test_a_ratio_and_the_machine_and_a_wrong_option() -> None:
    assert Speed(emulated=3.0, torch_float32=12.0).ratio == 0.25
    assert machine.device_name("cpu") and machine.cuda_status()
    assert_refused(("bench", "--shape", 4, 0, 4), "--shape")


needs_cpu = pytest.mark.skipif(
    backends.status()["cpu"] != "available", reason=f"cpu backend: {backends.status()['cpu']}"
)


@needs_cpu
def test_bench_explains_the_kernels() -> None:
    args = ("--shape", 24, 32, 40, "--operands", "fp32", "--accumulator", "fixed24_f12")
    said = done("bench", *args, "--repeats", 1, "--explain")
    assert "torch fp32" in said
    assert "100.0%" in next(line for line in said.splitlines() if "double" in line)
