"""The checks of techniques: the values that pass, their types, and the text of every
error."""

import math

import numpy as np
import pytest

from lpkernels.techniques import checks
from lpkernels.techniques.pareto.completion import without_nan
from lpkernels.techniques.pareto.selection import configurations
from tests.support.refusals import refused


def test_a_check_returns_a_plain_number_or_a_new_array() -> None:
    assert [type(checks.whole("n", n, 0)) for n in (3, np.int64(3))] == [int, int]
    assert checks.number("x", np.float32(0.5), above=0, below=1) == 0.5
    assert checks.real("x", math.inf) == math.inf
    array = np.array([1.0, 2.0])
    checked = checks.positive("x", array, 1)
    assert checked.dtype == np.float64 and checked is not array
    assert checks.wholes("n", 3, 1, 4, "a number").ndim == 0
    assert configurations("i", [], 3).dtype == np.int64
    with pytest.warns(UserWarning, match="errors: 1 of 2 measured errors are NaN"):
        assert without_nan("errors", np.array([1.0, math.nan])).tolist() == [True, False]


WRONG = [
    (lambda: checks.whole("f: n", True, 1), TypeError, "^f: n: expected an int, got bool True$"),
    (lambda: checks.whole("n", 0, 1), ValueError, "^n: expected at least 1, got 0$"),
    (lambda: checks.whole("n", 9, 2, 8), ValueError, "^n: expected 2 to 8, got 9$"),
    (lambda: checks.real("x", "1"), TypeError, "^x: expected a number, got str '1'$"),
    (lambda: checks.number("x", math.nan, least=0), ValueError,
     "^x: expected a finite number of at least 0, got nan$"),
    (lambda: checks.number("x", 1, above=0, below=1), ValueError,
     "^x: expected a finite number above 0 and below 1, got 1$"),
    (lambda: checks.number("x", 2, above=0, most=1), ValueError, "and of at most 1, got 2$"),
    (lambda: checks.choice("c", "x", ("a", "b")), ValueError, "^c: expected one of a, b, got 'x'$"),
    (lambda: checks.function("f", 3, "f(x)"), TypeError, r"^f: expected a function f\(x\)"),
    (lambda: checks.numbers("x", ["1"]), TypeError, "^x: expected real numbers, got <U1"),
    (lambda: checks.numbers("x", [], 1), ValueError, r"expected 1 dimension\(s\) .* shape \(0,\)$"),
    (lambda: checks.finite("x", [[1, math.inf]], 2, "drop it"), ValueError,
     "^x: expected finite numbers, got inf at row 0, column 1; drop it$"),
    (lambda: checks.positive("x", [1, 0]), ValueError, "above 0, got 0.0 at index 1$"),
    (lambda: checks.wholes("n", 0.5, 0, 1, "a bit"), TypeError, "^n: expected an int or an array"),
    (lambda: checks.wholes("n", [0, 2], 0, 1, "a bit"), ValueError, "^n: expected a bit, got 2 at"),
    (lambda: configurations("i", [0.5], 3), TypeError, "^i: expected an int or an array of ints"),
    (lambda: configurations("i", [3], 3), ValueError, r"^i: expected configurations in 0\.\.2"),
    (lambda: configurations("i", [1, 1], 3), ValueError, "^i: expected each configuration once"),
    (lambda: without_nan("e", np.array([math.inf])), ValueError, "got inf at index 0$"),
]  # fmt: skip
test_wrong_arguments_are_refused = refused(WRONG)
