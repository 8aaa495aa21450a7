"""`lpkernels bench`: what it prints, not how fast it is."""

import re

import pytest

from lpkernels import backends
from lpkernels.experiments.measuring.speed import Speed, shape_from
from tests.loops import each
from tests.support.commands import call

needs_cpu = pytest.mark.skipif(
    backends.status()["cpu"] != "available", reason=f"cpu backend: {backends.status()['cpu']}"
)


@needs_cpu
def test_bench_explains_the_kernels() -> None:
    args = ("--shape", "24x32x40", "--operands", "fp32", "--accumulator", "fixed24_f12")
    result = call("bench", *args, "--repeats", 1, "--explain")
    assert result.exit_code == 0, result.output
    assert "torch fp32" in result.output
    assert "100.0%" in next(line for line in result.output.splitlines() if "double" in line)
    rows = [" ".join(re.findall(r"\w+", line)) for line in result.output.splitlines()]
    for operation, order in backends.gpu_orders().items():
        assert f"{operation} {order[0]} instructions counted not measured" in rows


@each("text", ["960", "4x4", "4x0x4", "ax4x4", "4x4x4x4"])
def test_shape_from_rejects(text: str) -> None:
    with pytest.raises(ValueError, match="expected MxKxN, three positive integers"):
        shape_from(text)


def test_bench_names_the_wrong_option() -> None:
    result = call("bench", "--shape", "4x4")
    assert result.exit_code == 2
    assert "--shape" in result.output


def test_shape_and_ratio() -> None:
    assert shape_from("960X4x7") == (960, 4, 7)
    assert Speed(emulated=3.0, torch_float32=12.0).ratio == 0.25


@needs_cpu
def test_take_tiers_clears() -> None:
    backends.take_tiers()
    assert set(backends.take_tiers().values()) == {0.0}
