"""What quantizers, accumulators and recipes refuse, and what they say."""

from dataclasses import replace

import pytest

from lpkernels.arithmetic import (
    NATIVE,
    Accumulator,
    Quantizer,
    Recipe,
    accumulator,
    accumulator_from_ints,
    as_accumulator,
    as_quantizer,
    quantizer_from_ints,
)
from lpkernels.formats import AffineFormat
from lpkernels.recipes import as_recipe, describe, recipe

_BLOCK = {"block": 8, "aligned_bits": 20}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Quantizer("e5m2", "nearest"), ValueError, "use 'nearest_even' or 'nearest_away'"),
        (lambda: Quantizer("e5m2", "sr"), ValueError, "got 'sr'; it is 'stochastic' here"),
        (lambda: Quantizer("e5m2", "RNE"), ValueError, "got 'RNE'; it is 'nearest_even' here"),
        (
            lambda: Quantizer("e5m2", "even"),
            ValueError,
            "Quantizer: rounding must be one of.*'even",
        ),
        (lambda: Quantizer("e5m2", None), TypeError, "Quantizer: rounding must be a str.*None"),
        (lambda: Quantizer("e5x2"), ValueError, "unknown format 'e5x2'; did you mean e5m2"),
        (lambda: Quantizer(8), TypeError, "expected a format, its name or a torch.dtype, got 8"),
        (lambda: Quantizer("e5m2", random_bits=0), ValueError, r"in 1\.\.32, got 0"),
        (lambda: Quantizer("e5m2", random_bits=33), ValueError, r"in 1\.\.32, got 33"),
        (lambda: Quantizer("e5m2", random_bits=True), TypeError, "random_bits must be an int"),
        (lambda: Quantizer("e5m2", rng="mt"), ValueError, "Quantizer: rng must be 'fast' or 'phil"),
        (lambda: Quantizer("e5m2", rng=0), TypeError, "Quantizer: rng must be 'fast' or 'philox'"),
        (lambda: as_quantizer(3), TypeError, r"expected a Quantizer, a format or text .* got 3"),
        (lambda: as_quantizer("e5m2:nearest"), ValueError, "use 'nearest_even' or 'nearest_away'"),
        (lambda: as_quantizer("e5m2:to_odd:to_odd"), ValueError, "gives its rounding twice"),
        (lambda: as_quantizer("e5m2:bits=x"), ValueError, "cannot read 'bits=x' in 'e5m2:bits=x'"),
        (
            lambda: as_quantizer("e5m2:chunk=3"),
            ValueError,
            "expected a rounding, 'philox' or bits=",
        ),
        (lambda: quantizer_from_ints((0,) * 8), ValueError, "expected the 12 or 20 integers"),
        (lambda: Accumulator("e5m2", "nearest"), ValueError, "'nearest_even' or 'nearest_away'"),
        (
            lambda: Accumulator("e5m2", product="e4m3", product_rounding="nearest"),
            ValueError,
            "Accumulator product: rounding 'nearest' does not say where ties go",
        ),
        (lambda: Accumulator(operands="fp16"), ValueError, "pass block and aligned_bits too"),
        (lambda: Accumulator(operands="fp16", order="pairwise"), ValueError, "pass block"),
        (lambda: Accumulator(operands="fp16", product="fp16", **_BLOCK), ValueError, "exact prod"),
        (lambda: Accumulator("fixed8_f3", operands="fp16", **_BLOCK), ValueError, "fmt=fixed8_f3"),
        (lambda: Accumulator(operands="fixed8_f3", **_BLOCK), ValueError, "no exponents to align"),
        (lambda: Accumulator(operands="affine8", **_BLOCK), ValueError, "no exponents to align by"),
        (lambda: Accumulator(operands="fp16,fp32,bf16", **_BLOCK), ValueError, "a format, or two"),
        (lambda: Accumulator(operands=(), **_BLOCK), ValueError, "expected a format, or two"),
        (lambda: Accumulator(operands="fp17", **_BLOCK), ValueError, "unknown format 'fp17'"),
        (lambda: Accumulator(operands=3, **_BLOCK), TypeError, "operands must be a format"),
        (
            lambda: Accumulator(operands=(8, 8), **_BLOCK),
            TypeError,
            "expected a format, its name or a torch.dtype",
        ),
        (lambda: Accumulator(least_exponent=-4), ValueError, "least_exponent=-4 needs operands"),
        (
            lambda: Accumulator(operands="fp16", least_exponent=301, **_BLOCK),
            ValueError,
            r"in -300\.\.300, got 301",
        ),
        (
            lambda: Accumulator(operands="fp16", least_exponent=1.5, **_BLOCK),
            TypeError,
            "least_exponent must be an int",
        ),
        (lambda: Accumulator(chunk=8, interleaved=2), ValueError, "interleaved=2 needs operands"),
        (
            lambda: Accumulator(operands="fp16", interleaved=2, **_BLOCK),
            ValueError,
            "needs chunk, a multiple of 16, got chunk=None; pass chunk=16",
        ),
        (
            lambda: Accumulator(operands="fp16", interleaved=2, chunk=24, **_BLOCK),
            ValueError,
            "a multiple of 16, got chunk=24",
        ),
        (
            lambda: Accumulator(operands="fp16", interleaved=2, chunk=6, block=3, aligned_bits=9),
            ValueError,
            "in pairs, got block=3; use an even block",
        ),
        (lambda: Accumulator(interleaved=0), ValueError, "interleaved must be at least 1, got 0"),
        (
            lambda: accumulator("fp32:least_exponent=x"),
            ValueError,
            "cannot read 'least_",
        ),
        (lambda: accumulator("h100_fp17"), ValueError, "did you mean h100_fp16"),
        (lambda: Accumulator("e6m9", chunk=0), ValueError, "chunk must be at least 1, got 0"),
        (lambda: Accumulator("e6m9", chunk=2**63), ValueError, r"chunk must be at most 2\^62"),
        (lambda: Accumulator("e6m9", chunk=True), TypeError, "chunk must be an int, got True"),
        (lambda: Accumulator("e6m9", chunk=64.0), TypeError, r"chunk must be an int, got 64\.0"),
        (
            lambda: Accumulator("e6m9", outer="fp32"),
            ValueError,
            "outer=e8m23 needs chunk.*chunk=64",
        ),
        (
            lambda: Accumulator("e6m9", product_rounding="to_odd"),
            ValueError,
            "product_rounding='to_odd' needs product",
        ),
        (lambda: Accumulator("e6m9", order="tree"), ValueError, "one of sequential, native, pair"),
        (lambda: Accumulator("e6m9", order=1), TypeError, "order must be a str"),
        (lambda: Accumulator("fp16", order="native"), ValueError, "sums in fp32, got fmt=e5m10"),
        (
            lambda: Accumulator("fp32", order="native", product="e4m3"),
            ValueError,
            "exact products, got product=e4m3; use order='sequential'",
        ),
        (
            lambda: Accumulator("fp32", "to_odd", order="native"),
            ValueError,
            "without chunk rounds as the hardware does, got rounding='to_odd'",
        ),
        (
            lambda: Accumulator("fp32", order="native", chunk=4, outer_rounding="to_odd"),
            ValueError,
            "rounds the outer sum alone, got rounding='nearest_even' and outer_rounding='to_odd'",
        ),
        (
            lambda: Accumulator("e6m9", outer_rounding="to_odd"),
            ValueError,
            "outer_rounding=to_odd needs chunk.*or drop outer_rounding",
        ),
        (
            lambda: Accumulator("e6m9", chunk=2, outer_rounding="up"),
            ValueError,
            "Accumulator outer: rounding must be one of",
        ),
        (lambda: Accumulator(block=8), ValueError, "block=8 and aligned_bits=None go together"),
        (lambda: Accumulator(aligned_bits=8), ValueError, "block=None and aligned_bits=8 go toge"),
        (lambda: Accumulator(block=257, aligned_bits=8), ValueError, r"block must be in 1\.\.256"),
        (lambda: Accumulator(block=8, aligned_bits=41), ValueError, r"aligned_bits .* 1\.\.40"),
        (
            lambda: Accumulator(block=8, aligned_bits=13, order="pairwise"),
            ValueError,
            "block=8 adds whole blocks one after the other, got order='pairwise'",
        ),
        (
            lambda: Accumulator(order="compensated", rounding="stochastic"),
            ValueError,
            "order='compensated' has no rounding='stochastic'",
        ),
        (lambda: accumulator("fp32:block=x"), ValueError, "cannot read 'block=x'"),
        (lambda: Accumulator("affine8"), ValueError, "fmt=affine8 takes its scale from a whole"),
        (
            lambda: Accumulator("e6m9", product="block32_e4m3"),
            ValueError,
            "product=block32_e4m3 takes its scale .* use a FloatFormat or a FixedFormat",
        ),
        (
            lambda: Accumulator("e6m9", chunk=2, outer=AffineFormat(8)),
            ValueError,
            "outer=affine8 takes its scale",
        ),
        (lambda: Accumulator("e6m9", random_bits=25), ValueError, r"in 1\.\.24, got 25"),
        (lambda: Accumulator("e6m9", rng="x"), ValueError, "Accumulator: rng must be 'fast' or"),
        (lambda: accumulator("e6m9_chunk0"), ValueError, "chunk must be at least 1, got 0"),
        (
            lambda: accumulator("fp8"),
            ValueError,
            r"unknown name 'fp8'\. Names are .*unknown format 'fp8'; it is 'fp8_e4m3' or 'fp8",
        ),
        (
            lambda: accumulator("lba_m7e5"),
            ValueError,
            "unknown name 'lba_m7e5'; did you mean lba_m",
        ),
        (
            lambda: accumulator("e6m9:sum=3"),
            ValueError,
            "cannot read 'sum=3' in 'e6m9:sum=3'; expec",
        ),
        (lambda: accumulator(NATIVE), TypeError, "name must be a str.*use as_accumulator"),
        (
            lambda: as_accumulator(32),
            TypeError,
            r"expected an Accumulator, a format or a name, got",
        ),
        (lambda: accumulator_from_ints((0,) * 8), ValueError, "expected the 35 integers"),
        (lambda: Recipe(input="e5m2:near"), ValueError, "Recipe: input: Quantizer: rounding must"),
        (lambda: Recipe(activation="e5m2"), TypeError, "no field 'activation'; it is 'input' here"),
        (lambda: Recipe(weights="e5m2"), TypeError, "no field 'weights'; did you mean weight"),
        (lambda: replace(Recipe(), acc="e5m2"), TypeError, "'acc'; it is 'fprop' or 'dgrad' or"),
        (lambda: Recipe(weight=3), TypeError, "Recipe: weight: expected a Quantizer"),
        (lambda: Recipe(fprop=None), TypeError, "Recipe: fprop: expected an Accumulator.*'native'"),
        (
            lambda: Recipe(dgrad="e5m2_chonk"),
            ValueError,
            "Recipe: dgrad: accumulator: unknown name",
        ),
        (
            lambda: recipe("fp8_wang2019"),
            ValueError,
            "unknown name 'fp8_wang2019'; did you mean fp8_",
        ),
        (lambda: recipe(None), TypeError, "recipe: the name must be a str, got None"),
        (lambda: describe("x"), ValueError, "unknown name 'x'. Names are fp32"),
        (
            lambda: as_recipe(1),
            TypeError,
            r"expected a Recipe or its name, got 1 \(int\); names are",
        ),
    ],
)
def test_refusals_say_what_and_how(call, error, message):
    with pytest.raises(error, match=message):
        call()
