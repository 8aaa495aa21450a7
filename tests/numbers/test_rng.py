"""The pinned hash: published vectors, frozen vectors, the array twin.

tests/rng_vectors.json holds the frozen words, draws and derived seeds for every implementation.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from lpkernels import rng as random_bits_source
from lpkernels.rng import (
    MASK64,
    RNGS,
    Role,
    check_rng,
    derive_seed,
    draw,
    draws,
    fast_word,
    mix32,
    mix64,
    philox4x32,
    philox_word,
)
from tests.compare import assert_bit_equal
from tests.support import cuda_host
from tests.support.refusals import refused

VECTORS = json.loads((Path(__file__).parents[1] / "rng_vectors.json").read_text())


def _int(value):
    return int(value, 0) if isinstance(value, str) else value


def test_philox_known_answers():
    """The known answers of Random123, the reference implementation of Salmon et al. 2011."""
    zeros, ones = philox4x32((0,) * 4, (0,) * 2), philox4x32((2**32 - 1,) * 4, (2**32 - 1,) * 2)
    assert zeros == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert ones == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
    assert philox4x32(*pi) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


def test_mix64_is_the_finaliser_of_splitmix64():
    # The first outputs of splitmix64 from the state 0: its state grows by this constant.
    step = 0x9E3779B97F4A7C15
    outputs = [mix64(i * step) for i in (1, 2, 3)]
    assert outputs == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert (mix64(0), mix32(0)) == (0, 0)


def test_roles_and_sites_are_pinned():
    sites = ("SUM", "PRODUCT", "OUTER", "BIAS", "QUANTIZE", "OUTPUT")
    assert [getattr(random_bits_source, f"SITE_{name}") for name in sites] == list(range(6))
    names = "DIRECT INPUT WEIGHT BIAS FPROP OUTPUT GRAD_OUTPUT DGRAD GRAD_INPUT WGRAD GRAD_WEIGHT"
    names += " GRAD_BIAS SIGNS DGRAD_WEIGHT WGRAD_INPUT WGRAD_GRAD_OUTPUT"
    assert [role.name for role in Role] == names.split()
    assert [int(role) for role in Role] == list(range(16))


@pytest.mark.parametrize("vector", VECTORS["words"])
def test_frozen_words(vector):
    word = {"fast": fast_word, "philox": philox_word}[vector["rng"]]
    keys = [_int(vector[name]) for name in ("seed", "site", "row", "col", "word")]
    assert f"0x{word(*keys):08x}" == vector["value"]
    array = draws(*keys, random_bits=32, rng=vector["rng"])
    assert int(array) == _int(vector["value"])


@pytest.mark.parametrize("vector", [*VECTORS["words"], *VECTORS["draws"]])
def test_frozen_draws_of_cpp(vector):
    k = vector.get("k", vector.get("word"))
    keys = [_int(x) for x in (vector["seed"], vector["site"], vector["row"], vector["col"], k)]
    drawn = cuda_host.draw(vector["rng"], *keys, vector.get("random_bits", 32))
    assert drawn == _int(vector["value"])


@pytest.mark.parametrize("vector", VECTORS["draws"])
def test_frozen_draws(vector):
    keys = [_int(vector[name]) for name in ("seed", "site", "row", "col", "k", "random_bits")]
    assert draw(*keys, vector["rng"]) == _int(vector["value"])


@pytest.mark.parametrize("vector", VECTORS["seeds"])
def test_frozen_seeds(vector):
    assert derive_seed(_int(vector["seed"]), vector["role"]) == _int(vector["value"])


def test_a_negative_seed_is_its_bit_pattern():
    for rng in RNGS:
        assert draw(-5, 0, 1, 2, 3, 32, rng) == draw(-5 & MASK64, 0, 1, 2, 3, 32, rng)
    assert derive_seed(-5, 3) == derive_seed(-5 & MASK64, 3)
    assert derive_seed(-5, 0) == -5 & MASK64


@pytest.mark.parametrize("bits", [1, 3, 8, 9, 16, 17, 24, 32])
@pytest.mark.parametrize("rng", RNGS)
def test_array_equals_scalar(rng, bits):
    source = np.random.default_rng(bits)
    row = source.integers(0, 2**41, (6, 1))
    col = source.integers(0, 2**41, (1, 5))
    k = source.integers(0, 2**40, (6, 5))
    # The keys have positions below 2^32 beside larger ones.
    row[0], col[:, 0] = 3, 5
    k[:3] = np.arange(5)
    got = draws(-7, 2, row, col, k, bits, rng)
    want = [
        [draw(-7, 2, int(row[i, 0]), int(col[0, j]), int(k[i, j]), bits, rng) for j in range(5)]
        for i in range(6)
    ]
    assert_bit_equal(got, np.array(want, dtype=np.uint32))
    assert int(got.max()) < 2**bits


REFUSED = [
    (lambda: draw(0, 0, 0, 0, 0, 0), ValueError, r"random_bits must be in 1\.\.32, got 0"),
    (lambda: draws(0, 0, 0, 0, 0, 33), ValueError, r"random_bits must be in 1\.\.32, got 33"),
    (lambda: draw(0, 0, 0, 0, 0, 8, "mt"), ValueError, "must be 'fast' or 'philox', got 'mt"),
    (lambda: check_rng(1), TypeError, r"rng must be 'fast' or 'philox', got 1 \(int\)"),
]
test_refusals_say_what_and_how = refused(REFUSED)
