"""`make prove` proves the kernel's own rule, and its proofs are on record."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lpkernels as lp
from proofs.rule import MODES, rounded

RESULTS = Path(__file__).resolve().parents[2] / "proofs" / "results.jsonl"
FORMATS = ("e5m2", "e4m3", "fp16", "e6m9", "bf16", "e8m10", "fp32")


class NumpyNumbers:
    of = staticmethod(np.float64)
    where = staticmethod(np.where)
    both = staticmethod(np.logical_and)
    either = staticmethod(np.logical_or)
    negated = staticmethod(np.logical_not)
    equal = staticmethod(np.equal)

    def last_bit(self, x: Any) -> Any:
        return np.asarray(x).view(np.int64) & 1 != 0


def values(exponent: int, f: lp.FloatFormat, generator: np.random.Generator) -> np.ndarray:
    """Doubles of a binade: random ones, and values of the format with ties and their neighbours."""
    mantissas = generator.integers(0, 2**52, 64)
    step = 52 - f.man_bits
    grid = generator.integers(0, 2 ** (f.man_bits + 1), 32) << (step - 1)
    near = np.concatenate([grid, grid + 1, np.maximum(grid - 1, 0)])
    whole = np.concatenate([mantissas, near]) % 2**52
    x = (whole | (exponent + 1023) << 52).view(np.float64)
    return np.concatenate([x, -x])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FORMATS)
def test_the_lines_are_those_of_the_kernel(name: str, mode: str) -> None:
    f = lp.parse_format(name)
    assert isinstance(f, lp.FloatFormat)
    generator = np.random.default_rng(5)
    smallest = f.emin - f.man_bits
    exponents = {*range(smallest - 3, smallest + 4), *range(f.emin - 3, f.emin + 4), 0, 1, 127}
    for exponent in sorted(exponents | set(range(f.emax - 2, f.emax + 3))):
        x = values(exponent, f, generator)
        r = rounded(NumpyNumbers(), np.abs(x), 2.0**exponent, x < 0, f, mode)
        got = lp.quantize(torch.from_numpy(x), f, mode).numpy()
        np.testing.assert_array_equal(got.view(np.int64), np.copysign(r, x).view(np.int64))


def test_the_record_is_of_all_formats_and_modes() -> None:
    header, *rows = map(json.loads, RESULTS.read_text().splitlines())
    assert header["kind"] == "proofs" and header["solver"].startswith("z3 ")
    assert [row["format"] for row in rows] == list(FORMATS)
    for row in rows:
        assert row["proved"] and row["modes"] == list(MODES)
        assert row["float32_binades"] == [-149, 127]
