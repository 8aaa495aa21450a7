"""Machine code of csrc/cuda for sm_90: nothing is contracted. Registers are looked at for every
architecture in the module.

The kernels whose modules take seconds to disassemble are looked at with pytest -m slow.
"""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.backends import sass
from tests.backends.sass import Kernels

pytestmark = pytest.mark.skipif(bool(sass.reason()), reason=sass.reason())


#: Instructions of a stage of 8 steps for 8 x 8 outputs. Veltkamp's splitting has its product and
#: both its additions.
STEPS = {
    "StochasticTile<false, false>": {"FFMA": 512, "IDP": 512},
    "StochasticTile<true, false>": {"FFMA": 512, "IDP": 512},
    "CertifiedTile<SplitRule<NearestSum, 0>, true, false>": {
        "FFMA": 512,
        "FMUL": 512,
        "FADD": 1024,
    },
    "CertifiedTile<FloorRule<NearestSum, 0>, true, false>": {"FFMA": 1536},
}


@pytest.mark.parametrize(
    "tile",
    [pytest.param(name, marks=[pytest.mark.slow] if "Certified" in name else []) for name in STEPS],
)
def test_nothing_is_contracted_away(kernels: Kernels, tile: str):
    (name,) = [name for name in kernels if f", {tile} >" in name]
    found = Counter(instruction.name.split(".")[0] for instruction in kernels[name].code)
    assert {n for n, count in STEPS[tile].items() if found[n] < count} == set()


def test_no_kernel_spills_or_uses_local_memory(tmp_path: Path):
    found = sass.in_library("all", tmp_path)
    assert found
    for cubin in found:
        usage = sass.usage(cubin)
        assert set(re.findall(r"STACK:(\d+)", usage)) <= {"0"}, usage
        assert set(re.findall(r"LOCAL:(\d+)", usage)) <= {"0"}, usage


@pytest.mark.parametrize(
    ("name", "count"),
    [("exact_kernel<4, 6,", 1), pytest.param("exact_kernel<", 14, marks=pytest.mark.slow)],
)
def test_sums_that_are_not_certified_are_rounded_in_double(kernels: Kernels, name: str, count: int):
    found = [kernels[n] for n in kernels if name in n]
    assert len(found) == count
    for function in found:
        names = {i.name.split(".")[0] for i in function.code}
        # Two-sum and the rules are separate additions; a division would contract as DFMA.
        assert {"DADD", "DMUL"} <= names


def conversions_of_nan(kernel: str) -> set[str]:
    """Registers that hold a NaN chosen by the code, converted to float32, and that are not used
    merely in a choice of the canonical NaN."""
    nan = "0d7FF8000000000000"
    chosen = {nan, *re.findall(rf"\.f64\s+(%fd\d+), [^;]*{nan}", kernel)}
    pairs = re.findall(r"cvt\.rn\.f32\.f64\s+(%f\d+), (%fd\d+|\w+);", kernel)
    converted = {to for to, source in pairs if source in chosen}
    elsewhere = [
        line
        for line in kernel.splitlines()
        if not re.search(r"cvt\.rn\.f32\.f64|selp\.f32.* 0f7FC00000|\.reg ", line)
    ]
    return converted & set(re.findall(r"%f\d+", "\n".join(elsewhere)))


@pytest.mark.slow
def test_no_nan_is_what_a_conversion_makes_of_one():
    """The instruction set leaves open which NaN a conversion makes; the contract has one."""
    kernels = sass.ptx(sass.library())
    if not kernels:
        pytest.skip("lpkernels._C was built without PTX")
    assert {name: found for name, k in kernels.items() if (found := conversions_of_nan(k))} == {}
