"""TableFormat: its values, codes, names and handles, and every refusal."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import lpkernels as lp
from lpkernels.formats import format_from_ints, parse_format
from lpkernels.formats.integers import TABLE, code_bits, has_table
from tests.compare import assert_bit_equal
from tests.numbers.exact_tables import table_named
from tests.support.processor import flushed

OWN = lp.TableFormat([-1, 0, 2.5, 4], "tables_own", codes=[3, 0, 2, 1], nan_code=9)


def test_a_table_has_values_codes_and_integers():
    assert (OWN.bits, OWN.min, OWN.max, OWN.nan_code, OWN.infinity) == (4, -1.0, 4.0, 9, None)
    assert OWN.to_ints() == (TABLE, OWN.handle, 4, 4, 0, 9, 0, 0) and 0 < OWN.handle < 2**62
    assert code_bits(OWN.to_ints()) == 4 and has_table((), OWN.to_ints())
    values, boundaries, lower_is_even, codes, decoded = OWN.tensors()
    assert values.tolist() == [-1, 0, 2.5, 4] and codes.tolist() == [3, 0, 2, 1]
    assert boundaries.tolist() == [-0.5, 1.25, 3.25]
    # 0 and 2.5 have even codes both: 0 is nearer zero.
    assert lower_is_even.tolist() == [False, True, True]
    expected = np.full(16, np.nan)
    expected[[3, 0, 2, 1]] = [-1, 0, 2.5, 4]
    assert_bit_equal(decoded, expected)
    with pytest.raises(ValueError, match="read-only"):
        values[0] = 1
    with pytest.raises(AttributeError, match="does not change"):
        OWN.bits = 3
    assert str(OWN) == "tables_own" and "4 values -1.0 .. 4.0" in repr(OWN)
    default = lp.TableFormat([0.0, 1.0], "tables_default")
    assert (default.bits, default.tensors().codes.tolist()) == (1, [0, 1])
    assert default.to_ints()[5] == -1


def test_a_table_is_known_by_its_name_and_by_its_handle():
    again = lp.TableFormat(np.array([-1, 0, 2.5, 4]), "tables_own", codes=(3, 0, 2, 1), nan_code=9)
    assert again == OWN and hash(again) == hash(OWN)
    assert parse_format("tables_own") == OWN == format_from_ints(OWN.to_ints())
    assert OWN != lp.TableFormat([-1, 0, 2.5, 4], "tables_same_values")
    assert OWN != "tables_own"
    for copied in (copy.copy(OWN), copy.deepcopy(OWN), pickle.loads(pickle.dumps(OWN))):
        assert copied is OWN


HERE = "import sys, pickle, torch, lpkernels as lp\n"


def elsewhere(code: str) -> list[str]:
    """The lines that another process prints."""
    done = subprocess.run([sys.executable, "-c", HERE + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_another_process_asks_for_tables_that_it_lacks_and_reads_pickles_and_files(tmp_path):
    q = lp.scaled(torch.randn(2, 64), lp.BlockFormat(OWN, 32, scale="fp32"))
    layer = lp.nn.Linear(4, 4, recipe=lp.Recipe(input="tables_own:stochastic", fprop="tables_own"))
    scaled, every = tmp_path / "scaled.pt", tmp_path / "all.pt"
    torch.save(q, scaled)
    torch.save({"fmt": OWN, "layer": layer, "acc": lp.Accumulator(OWN)}, every)
    pickled = pickle.dumps((OWN, lp.posit(6, 1)))
    recipe = "Recipe(input='tables_own')"
    said = elsewhere(f"""
read, parse = lp.formats.format_from_ints, lp.Recipe.parse
for ask in (lambda: read({OWN.to_ints()}), lambda: parse({recipe!r})):
    try:
        ask()
    except ValueError as error:
        print(error)
q = torch.load({str(scaled)!r})
print(q.fmt, q.dequantize().sum().item())
own, posit = pickle.loads({pickled!r})
assert own.to_ints() == {OWN.to_ints()} and lp.parse_format('tables_own') == own
assert lp.posit(6, 1) == posit
every = torch.load({str(every)!r}, weights_only=False)
assert every['acc'].fmt == every['fmt'] == own
every['layer'](torch.ones(1, 4))
print(every['layer'].recipe)
""")
    by_handle, by_name, loaded, text = said
    assert f"the handle {OWN.handle}" in by_handle and "make the format first" in by_handle
    assert "'tables_own'" in by_name and "once its TableFormat is" in by_name
    assert loaded == f"block32_tables_own_sfp32 {q.dequantize().sum().item()}"
    assert text == str(layer.recipe)


def test_a_process_that_flushes_denormals_makes_the_same_table():
    values = [-1e-45, 0.0, 3e-42, 1e-39, 1e-36]
    kept = lp.TableFormat(values, "tables_denormal").values()
    with flushed():
        again = lp.TableFormat(values, "tables_denormal")
    assert_bit_equal(again.values(), kept)
    exact = np.array(values, np.float32).astype(np.float64)
    assert_bit_equal(kept, exact)


def test_values_are_rounded_to_float32_ties_to_even():
    rng = np.random.default_rng(0)
    x = np.sort(rng.standard_normal(3000) * 2.0 ** rng.integers(-150, 127, 3000))
    # Numbers of 25 bits are ties.
    ties = (1 + np.arange(1, 200, 2) * 2.0**-24) * 2.0 ** rng.integers(-120, 120, 100)
    x = np.unique(np.concatenate([x, ties, -ties, [0.0, 2.0**-150, 3 * 2.0**-150]]))
    narrow = x.astype(np.float32)
    x, narrow = x[np.append(True, np.diff(narrow) > 0)], np.unique(narrow)
    wide = np.unique(narrow).astype(np.float64)
    # Midpoints of such values have too many bits; each boundary is the upper value.
    made = lp.TableFormat(x, "tables_rounded", boundaries=wide[1:])
    assert_bit_equal(made.values(), wide + 0.0)


@pytest.mark.parametrize("name, widths, fits", [
    ("posit8es1", (5, 10), True), ("posit8es1", (8, 7), True), ("posit16es2", (5, 10), False),
    ("nf4", (5, 10), False), ("nf4", (8, 23), True), ("supernormal_e4m3_1_1", (5, 10), True),
    ("supernormal_e5m2_1_1", (5, 10), False), ("posit8es4", (8, 7), True),
])  # fmt: skip
def test_a_dtype_is_kept_where_it_holds_every_value(name, widths, fits):
    fmt = parse_format(name)
    assert fmt.fits_in(*widths) is fits
    dtype = {(5, 10): torch.float16, (8, 7): torch.bfloat16, (8, 23): torch.float32}[widths]
    x = torch.randn(20).to(dtype)
    got = lp.quantize(x, name)
    assert got.dtype == (dtype if fits else torch.float32)
    assert torch.equal(got.float(), lp.quantize(x.float(), name))
    assert lp.quantize(x.double(), name).dtype == torch.float64


def test_codes_are_packed_and_unpacked_and_values_without_one_refused():
    bits = np.unpackbits(
        lp.pack(torch.tensor([-1.0, 4.0, torch.nan]), OWN).numpy(), bitorder="little"
    )
    assert bits.tolist() == [1, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0]
    unused = lp.unpack(torch.tensor([0x9F], dtype=torch.uint8), OWN, (2,))
    assert_bit_equal(unused, torch.tensor([torch.nan, torch.nan]))
    assert lp.unpack(lp.pack(torch.tensor([-0.0]), "nf4"), "nf4", (1,)).signbit().tolist() == [
        False
    ]
    for value in (torch.nan, 0.5, torch.inf):
        with pytest.raises(ValueError, match="has no code"):
            lp.pack(torch.tensor([0.0, value]), "nf4")


@pytest.mark.parametrize("name", [
    "supernormal_e4m3_1_1", "supernormal_e4m3_2_3", "supernormal_e3m2_0_2", "supernormal_e2m1_1_0",
    "supernormal_e5m0_3_1", "supernormal_e5m2_1_1", "log8s8", "log8s1", "log6s7", "log10s3", "nf4",
    *(f"posit{n}es{es}" for n in range(3, 9) for es in range(5)),
])  # fmt: skip
def test_values_and_codes_are_those_of_the_definition(name):
    fmt, exact = parse_format(name), table_named(name)
    values, boundaries, _, codes, _ = fmt.tensors()
    assert values.tolist() == [float(v) for v in exact.values]
    assert boundaries.tolist() == [float(v) for v in exact.boundaries]
    assert codes.tolist() == list(exact.codes)
    numbers = re.findall(r"\d+", name)
    assert fmt.bits == (
        1 + int(numbers[0]) + int(numbers[1]) if "super" in name else int(numbers[0])
    )
    assert "posit" not in name or fmt.nan_code == 2 ** (fmt.bits - 1)
