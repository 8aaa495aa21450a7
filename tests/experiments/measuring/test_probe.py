"""Single values through a format."""

import math

from lpkernels import formats
from lpkernels.experiments.measuring.probe import Probe, code_bits, probe
from tests.loops import each


def test_probe_rounds_straight_from_float64() -> None:
    # 464 is a tie of e4m3fn; the second lies above it by less than float32 can hold
    assert probe([464.0, 464.0 + 2.0**-40], formats.E4M3FN, "nearest_even")[0].result == 448.0
    assert math.isnan(probe([464.0 + 2.0**-40], formats.E4M3FN, "nearest_even")[0].result)
    assert probe([0.1], formats.E4M3FN, "nearest_even") == [Probe(0.1, 0.1015625, "0 0011 101")]


def test_probe_stochastic_repeats_with_its_seed() -> None:
    values = [0.1] * 20
    one = probe(values, formats.E4M3FN, "stochastic", seed=3)
    assert one == probe(values, formats.E4M3FN, "stochastic", seed=3)
    assert {p.result for p in one} == {0.09375, 0.1015625}


def test_probe_error_is_result_minus_value() -> None:
    assert Probe(464.0, 448.0, "").error == -16.0


@each(
    "value, name, bits",
    [
        (-0.0, "e4m3fn", "1 0000 000"),
        (math.inf, "e5m2", "0 11111 00"),
        (math.inf, "e4m3none", ""),
        (-0.5, "fixed8_f4", "11111000"),
        (1.0, "affine8", ""),
        (1.0, "e5m0", "0 01111"),
    ],
)
def test_code_bits(value: float, name: str, bits: str) -> None:
    assert code_bits(value, formats.parse_format(name)) == bits
