"""Single values through a format, the speed of a product, and the description of the machine."""

import math
import re

import pytest

from lpkernels import backends, formats
from lpkernels.experiments.measuring import machine
from lpkernels.experiments.measuring.probe import Probe, code_bits, probe
from lpkernels.experiments.measuring.speed import Speed, shape_from
from tests.loops import each
from tests.support.commands import assert_refused, done
from tests.support.refusals import rejects


def test_probe_rounds_straight_from_float64_and_draws_repeat_with_their_seed() -> None:
    # 464 is a tie of e4m3fn; the second lies above it by less than float32 can hold.
    assert probe([464.0, 464.0 + 2.0**-40], formats.E4M3FN, "nearest_even")[0].result == 448.0
    assert math.isnan(probe([464.0 + 2.0**-40], formats.E4M3FN, "nearest_even")[0].result)
    assert probe([0.1], formats.E4M3FN, "nearest_even") == [Probe(0.1, 0.1015625, "0 0011 101")]
    one, again = (probe([0.1] * 20, formats.E4M3FN, "stochastic", seed=3) for _ in range(2))
    assert one == again and {p.result for p in one} == {0.09375, 0.1015625}


def test_an_error_a_ratio_a_shape_and_the_machine_and_a_wrong_option() -> None:
    assert Probe(464.0, 448.0, "").error == -16.0
    assert shape_from("960X4x7") == (960, 4, 7)
    assert Speed(emulated=3.0, torch_float32=12.0).ratio == 0.25
    assert machine.device_name("cpu") and machine.cuda_status()
    assert_refused(("bench", "--shape", "4x4"), "--shape")


@each(
    "value, name, bits",
    [
        (-0.0, "e4m3fn", "1 0000 000"), (math.inf, "e5m2", "0 11111 00"),
        (math.inf, "e4m3none", ""), (-0.5, "fixed8_f4", "11111000"), (1.0, "affine8", ""),
        (1.0, "e5m0", "0 01111"),
    ],
)  # fmt: skip
def test_code_bits(value: float, name: str, bits: str) -> None:
    assert code_bits(value, formats.parse_format(name)) == bits


needs_cpu = pytest.mark.skipif(
    backends.status()["cpu"] != "available", reason=f"cpu backend: {backends.status()['cpu']}"
)


@needs_cpu
def test_bench_explains_the_kernels() -> None:
    args = ("--shape", "24x32x40", "--operands", "fp32", "--accumulator", "fixed24_f12")
    said = done("bench", *args, "--repeats", 1, "--explain")
    assert "torch fp32" in said
    assert "100.0%" in next(line for line in said.splitlines() if "double" in line)
    rows = [" ".join(re.findall(r"\w+", line)) for line in said.splitlines()]
    for operation, order in backends.gpu_orders().items():
        assert f"{operation} {order[0]} instructions counted not measured" in rows


test_shape_from_rejects = rejects(
    shape_from,
    [
        (text, "expected MxKxN, three positive integers")
        for text in ("960", "4x4", "4x0x4", "ax4x4", "4x4x4x4")
    ],
)


@needs_cpu
def test_take_tiers_clears() -> None:
    backends.take_tiers()
    assert set(backends.take_tiers().values()) == {0.0}
