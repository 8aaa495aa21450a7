"""Rounding to tables: all values, boundaries and neighbours of both, in all modes."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import torch

import lpkernels as lp
from lpkernels.formats import TableFormat, parse_format
from lpkernels.rounding import overflows_array, round_array, round_scalar
from tests.compare import assert_bit_equal
from tests.numbers.exact_tables import MODES, Table, posit_value, table_named

POSITS = [(n, es) for n in range(3, 9) for es in range(5)]
NAMES = [f"posit{n}es{es}" for n, es in POSITS] + (
    "nf4 log3s1 log5s2 log8s8 log8s1 supernormal_e4m3_1_1 supernormal_e4m3_2_3 "
    "supernormal_e3m2_0_2 supernormal_e2m1_1_0 supernormal_e5m0_3_1 table_own table_up table_codes"
).split()


@cache
def pair(name: str) -> tuple[TableFormat, Table]:
    """A table, and the same for the oracle."""
    if name == "table_own":
        values = [-3.0, -1.5, -0.1, 0.0, 2.0**-149, 1e-3, 0.75, 1.0, 7.0]
        # Zero's boundaries are on zero, and one is a value itself.
        between = [-2.0, -1.5, 0.0, 0.0, 2.0**-20, 0.5, 0.8, 3.0]
        made = lp.TableFormat(values, name, boundaries=between)
        return made, Table.of(made.values().tolist(), boundaries=between)
    if name == "table_up":
        made = lp.TableFormat([0.0, 0.25, 1.0, 3.0, 1000.0], name, infinity="nan")
        return made, Table.of(made.values().tolist())
    if name == "table_codes":
        codes = [4, 2, 6, 1, 3, 8, 9, 5]
        made = lp.TableFormat([-4, -2, -1, 0, 1, 2, 4, 8], name, codes=codes, nan_code=31)
        return made, Table.of(made.values().tolist(), codes)
    made = parse_format(name)
    assert isinstance(made, TableFormat)
    return made, table_named(name)


def points(made: TableFormat) -> np.ndarray:
    """Values, boundaries, the numbers of float64 next to both, and numbers beyond the ends."""
    tensors = made.tensors()
    exact = np.concatenate([tensors.values, tensors.boundaries])
    ends = np.array([made.max * 1.25, made.min * 1.25 - 1e-3, 1e300, -1e300, 1e-45, -1e-45])
    around = [np.nextafter(exact, np.inf), np.nextafter(exact, -np.inf)]
    every = np.concatenate([exact, *around, ends, (exact[:-1] + exact[1:]) / 2])
    # Smaller magnitudes never reach the rule: `values.without_tiny`.
    return every[(every == 0) | (np.abs(every) > 2.0**-500)]


@pytest.mark.parametrize("name", NAMES)
def test_every_value_boundary_and_neighbour_in_all_modes(name):
    made, oracle = pair(name)
    x = points(made)
    exact = [Fraction(v) for v in x.tolist()]
    for mode in MODES:
        want = np.array([float(oracle.rounded(v, mode)) for v in exact])
        assert_bit_equal(round_array(x, made, mode), want + 0.0, f"{name} {mode}")
        some = range(0, len(x), 11)
        scalars = [round_scalar(exact[i], made, mode) for i in some]
        assert_bit_equal(np.array(scalars), want[some] + 0.0, f"{name} {mode} alone")


@pytest.mark.parametrize("name", NAMES)
def test_stochastic_rounding_follows_the_rule_for_every_draw_of_three_bits(name):
    made, oracle = pair(name)
    x = points(made)[::5]
    for draw in range(8):
        draws = np.full(x.shape, draw)
        want = [float(oracle.rounded(Fraction(v), "stochastic", draw, 3)) for v in x.tolist()]
        got = round_array(x, made, "stochastic", draws=draws, random_bits=3)
        assert_bit_equal(got, np.array(want) + 0.0, f"{name} {draw}")
        alone = [round_scalar(v, made, "stochastic", draw=draw, random_bits=3) for v in x[::9]]
        assert_bit_equal(np.array(alone), got[::9], f"{name} {draw} alone")


@pytest.mark.parametrize("name", NAMES)
def test_infinities_nan_and_zeros(name):
    made, _ = pair(name)
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0])
    ends = [np.nan] * 2 if made.infinity == "nan" else [made.max, made.min]
    for mode in (*MODES, "stochastic"):
        draws = np.full(5, 2**32 - 1)
        got = round_array(x, made, mode, draws=draws)
        assert_bit_equal(got, np.array([*ends, np.nan, 0.0, 0.0]), f"{name} {mode}")
        alone = [round_scalar(v, made, mode) for v in x.tolist()]
        assert_bit_equal(np.array(alone), got, name)


def test_what_lies_outside_of_the_ends_overflows():
    made, _ = pair("table_up")
    x = np.array([-1.0, -1e-30, 0.0, 1000.0, 1000.1, 1e300, np.inf, np.nan])
    for mode in MODES:
        want = [True, True, False, False, True, True, False, False]
        assert overflows_array(x, made, mode).tolist() == want
    counted = lp.count(torch.tensor([-1.0, 1e-9, 0.0, 1e9, math.inf, 0.3]), "table_up")
    assert counted.tolist() == [2, 1, 1, 1]


def test_wide_posits_by_the_standard_at_random_codes():
    rng = np.random.default_rng(0)
    for n, es in ((16, 1), (16, 2), (16, 3), (14, 0), (11, 2)):
        made = lp.posit(n, es)
        decoded = made.tensors().decoded
        for code in rng.integers(0, 2**n, 200).tolist():
            want = posit_value(code, n, es)
            got = decoded[code]
            assert math.isnan(got) if want is None else got == want, (n, es, code)
        # A boundary has the code behind its lower neighbour's, with one bit more.
        order = rng.integers(1, 2 ** (n - 1) - 1, 200).tolist()
        zero = int(np.searchsorted(made.values(), 0.0))
        for code in order:
            assert made.tensors().boundaries[zero + code] == posit_value(2 * code + 1, n + 1, es)
