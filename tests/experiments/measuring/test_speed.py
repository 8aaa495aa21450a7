"""`lpkernels bench`: what it prints, not how fast it is."""

import pytest

from lpkernels import backends
from lpkernels.experiments.measuring.speed import Speed, shape_from
from tests.support.commands import assert_refused, done
from tests.support.refusals import rejects

needs_cpu = pytest.mark.skipif(
    backends.status()["cpu"] != "available", reason=f"cpu backend: {backends.status()['cpu']}"
)


@needs_cpu
def test_bench_explains_the_kernels() -> None:
    args = ("--shape", "24x32x40", "--operands", "fp32", "--accumulator", "fixed24_f12")
    said = done("bench", *args, "--repeats", 1, "--explain")
    assert "torch fp32" in said
    assert "100.0%" in next(line for line in said.splitlines() if "double" in line)
    assert said.count("counted, not measured") == len(backends.gpu_choices())
    assert f"matmul {backends.gpu_orders()['matmul'][0]}" in " ".join(said.split())


test_shape_from_rejects = rejects(
    shape_from,
    [
        (text, "expected MxKxN, three positive integers")
        for text in ("960", "4x4", "4x0x4", "ax4x4", "4x4x4x4")
    ],
)


def test_bench_names_the_wrong_option() -> None:
    assert_refused(("bench", "--shape", "4x4"), "--shape")


def test_shape_and_ratio() -> None:
    assert shape_from("960X4x7") == (960, 4, 7)
    assert Speed(emulated=3.0, torch_float32=12.0).ratio == 0.25


@needs_cpu
def test_take_tiers_clears() -> None:
    backends.take_tiers()
    assert set(backends.take_tiers().values()) == {0.0}
