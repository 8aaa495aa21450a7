"""What Quantizer, Accumulator, Recipe and the functions that read their names refuse."""

from dataclasses import replace

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
from lpkernels.formats import AffineFormat, FloatFormat
from lpkernels.recipes import as_recipe, describe, recipe
from tests.support.refusals import refused


def aligned(fmt="fp32", **options):
    """An accumulator of aligned blocks; its operands are fp16 unless options say otherwise."""
    return Accumulator(fmt, **{"operands": "fp16", "block": 8, "aligned_bits": 20, **options})


def grouped(**options):
    given = {"operands": "fp4_e2m1", "block": 64, "aligned_bits": 35, "group": 16}
    return Accumulator("fp32", **{"rounding": "toward_zero", **given, **options})


def native(rounding="nearest_even", **options):
    return Accumulator("fp32", rounding, order="native", **options)


OPERANDS = ("input", "weight", "grad_output")
WRONG_VALUES = [
    (lambda: Quantizer("e5m2", "nearest"), "use 'nearest_even' or 'nearest_away'"),
    (lambda: Quantizer("e5m2", "RNE"), "got 'RNE'; it is 'nearest_even' here"),
    (lambda: Quantizer("e5x2"), "unknown format 'e5x2'; expected one of .*e5m2"),
    (lambda: Quantizer("e5m2", random_bits=33), r"in 1\.\.32, got 33"),
    (lambda: Quantizer("e5m2", rng="mt"), "Quantizer: rng must be 'fast' or 'phil"),
    (lambda: Quantizer("nvfp4_te", "to_odd"), "is nearest_even or stochastic, as te has them, got"),
    (lambda: as_quantizer("e5m2:to_odd:to_odd"), "gives its rounding twice"),
    (lambda: as_quantizer("e5m2:bits=x"), "cannot read 'bits=x' in 'e5m2:bits=x'"),
    (lambda: as_quantizer("e5m2:chunk=3"), "expected a rounding, 'philox' or bits="),
    (lambda: quantizer_from_ints((0,) * 8), "expected the 12, 20 or 28 integers"),
    (lambda: Accumulator("e5m2", "nearest"), "'nearest_even' or 'nearest_away'"),
    (lambda: Accumulator("e5m2", product="e4m3", product_rounding="up"), "Accumulator product: "),
    (lambda: Accumulator(chunk=2, outer_rounding="up"), "Accumulator outer: rounding must be one "),
    (lambda: Accumulator("affine8"), "fmt=affine8 takes its scale from a whole"),
    (lambda: Accumulator("e6m9", chunk=2, outer=AffineFormat(8)), "outer=affine8 takes its scale"),
    (lambda: Accumulator("e6m9", random_bits=25), r"in 1\.\.24, got 25"),
    (lambda: Accumulator("e6m9", rng="x"), "Accumulator: rng must be 'fast' or"),
    (lambda: Accumulator("e6m9", chunk=2**63), r"chunk must be at most 2\^62"),
    (lambda: Accumulator("e6m9", order="tree"), "one of sequential, native, pair"),
    (lambda: Accumulator(interleaved=0), "interleaved must be at least 1, got 0"),
    (lambda: Accumulator(block=257, aligned_bits=8), r"block must be in 1\.\.256"),
    (lambda: Accumulator(block=8, aligned_bits=41), r"aligned_bits .* 1\.\.40"),
    (lambda: Accumulator("e6m9", outer="fp32"), "outer=e8m23 needs chunk; pass chunk=64"),
    (lambda: Accumulator(outer_rounding="to_odd"), "outer_rounding=to_odd needs chunk"),
    (lambda: Accumulator("e6m9", product_rounding="to_odd"), "rounding=to_odd needs product"),
    (lambda: Accumulator(scale_order="left"), "scale_order='left' needs chunk='scale'"),
    (lambda: Accumulator(block=8), "block=8 needs aligned_bits"),
    (lambda: Accumulator(aligned_bits=8), "aligned_bits=8 needs block"),
    (lambda: Accumulator(operands="fp16", order="pairwise"), "operands=e5m10 needs block"),
    (lambda: Accumulator(least_exponent=-4), "least_exponent=-4 needs operands"),
    (lambda: Accumulator(chunk=8, interleaved=2), "interleaved=2 needs operands"),
    (lambda: Accumulator(group=16), "group=16 needs operands"),
    (
        lambda: Accumulator(block=8, aligned_bits=13, order="pairwise"),
        "block=8 .* order='pairwise'",
    ),
    (lambda: Accumulator("fp32", "stochastic", order="compensated"), "has no rounding='stochastic"),
    (lambda: Accumulator("fp16", order="native"), "in fp32, got fmt=e5m10"),
    (lambda: native(product="e4m3"), "exact products .*product=e4m3; use order='sequential'"),
    (lambda: native("to_odd"), "rounds as the hardware does.*rounding='to_odd'"),
    (lambda: native(chunk=4, outer_rounding="to_odd"), "outer_rounding='to_odd'; use order="),
    (lambda: aligned(product="fp16"), "align exact products"),
    (lambda: aligned("fixed8_f3"), "fmt=fixed8_f3"),
    (lambda: aligned(operands="fixed8_f3"), "no exponents to align by"),
    (lambda: aligned(operands="fp16,fp32,bf16"), "a format, or two"),
    (lambda: aligned(operands="fp17"), "unknown format 'fp17'"),
    (lambda: aligned(least_exponent=301), r"in -300\.\.300, got 301"),
    (lambda: aligned(interleaved=2), "chunk, a multiple of 16, got chunk=None; pass chunk=16"),
    (lambda: aligned(interleaved=2, chunk=24), "a multiple of 16, got chunk=24"),
    (lambda: aligned(interleaved=2, chunk=6, block=3), "in pairs, got block=3; use an even block"),
    (lambda: grouped(group=24), "must divide the block, got block=64"),
    (lambda: grouped(chunk="scale"), "brings scales into every block .* got chunk=scale"),
    (lambda: grouped(rounding="stochastic"), "draws no random bits"),
    (lambda: grouped(operands="fp16", group=1), "8 bits or fewer, got operands=e5m10"),
    (lambda: grouped(operands="e4m3fn"), "aligned_bits up to 37, got operands=e4m3fn"),
    (lambda: grouped(aligned_bits=38), "aligned_bits=38; use group=1"),
    (lambda: accumulator("fp32:block=x"), "cannot read 'block=x'"),
    (lambda: accumulator("e6m9_chunk0"), "chunk must be at least 1, got 0"),
    (lambda: accumulator("fp8"), r"name 'fp8'; it is 'fp8_e4m3' or 'f"),
    (lambda: accumulator("lba_m7e5"), "unknown name 'lba_m7e5'; expected one of lba_m"),
    (lambda: accumulator("e6m9:sum=3"), "cannot read 'sum=3' in 'e6m9:sum=3'; expec"),
    (lambda: accumulator_from_ints((0,) * 8), "expected the 35 integers"),
    (lambda: Recipe(input="e5m2:near"), "Recipe: input: Quantizer: rounding must"),
    (lambda: Recipe(output="block32_k_e4m3"), "output: block32_k_e4m3 has axis='k', the summed"),
    (lambda: Recipe(weight="fp8_row"), "weight: row_e4m3 .*'row_k_e4m3'.*'tensor_e4m3'"),
    (lambda: Recipe(output="e2m1:rht16"), "Recipe: output: .* without a Hadamard transform"),
    (lambda: Recipe("e2m1:rht16", "e2m1"), "fprop reads input='e2m1:rht16', weight='e2m1'"),
    (
        lambda: Recipe(wgrad_input="fp32:rht16=1", wgrad_grad_output="fp32:rht16"),
        "wgrad reads wgrad_grad_output='e8m23:rht16', wgrad_input='e8m23:rht16=1': a Hadamard",
    ),
    (
        lambda: Recipe(**dict.fromkeys(OPERANDS, "fp32:rht16"), requantize="codes"),
        "takes the values of input's codes for other products, but 'e8m23:rht16' transforms them",
    ),
    (lambda: Recipe(fprop="fp32_chunkscale"), "neither of input and weight has scales; give one"),
    (
        lambda: Recipe(input="block128_k_e4m3_sfp32", fprop="fp32"),
        "input: codes of block128_k_e4m3_sfp32 times their float32 .* fprop='fp32_chunkscale', or",
    ),
    (lambda: Recipe(requantize="x"), "requantize must be one of source, codes; got .x."),
    (lambda: Recipe(scaling="x"), "Recipe: scaling: .* got 'x'"),
    (lambda: Recipe(dgrad="e5m2_chonk"), "Recipe: dgrad: accumulator: unknown name"),
    (lambda: recipe("fp8_wang2019"), "unknown name 'fp8_wang2019'; expected one of fp8_"),
    (lambda: recipe("ada_bf61"), "expected one of ada_bf16.*lpkernels units"),
    (lambda: describe("x"), "unknown name 'x'; expected one of .*lp.recipes"),
]
WRONG_TYPES = [
    (lambda: Quantizer("e5m2", None), "Quantizer: rounding must be a str.*None"),
    (lambda: Quantizer(8), "expected a format, its name or a torch.dtype, got 8"),
    (lambda: Quantizer("e5m2", random_bits=True), "random_bits must be an int"),
    (lambda: Quantizer("e5m2", rng=0), "Quantizer: rng must be 'fast' or 'philox'"),
    (lambda: as_quantizer(3), r"expected a Quantizer, a format or text .* got 3"),
    (lambda: aligned(operands=3), "operands must be a format"),
    (lambda: aligned(operands=(8, 8)), "expected a format, its name or a torch.dtype"),
    (lambda: aligned(least_exponent=1.5), "least_exponent must be an int"),
    (lambda: Accumulator("e6m9", chunk=64.0), r"chunk must be an int, got 64\.0"),
    (lambda: Accumulator("e6m9", order=1), "order must be a str"),
    (lambda: accumulator(NATIVE), "name must be a str.*use as_accumulator"),
    (lambda: as_accumulator(32), r"expected an Accumulator, a format or a name, got"),
    (lambda: Recipe(activation="e5m2"), "no field 'activation'; it is 'input' here"),
    (lambda: Recipe(weights="e5m2"), "no field 'weights'; expected one of weight"),
    (lambda: replace(Recipe(), acc="e5m2"), "'acc'; it is 'fprop' or 'dgrad' or"),
    (lambda: Recipe(weight=3), "Recipe: weight: expected a Quantizer"),
    (lambda: Recipe(fprop=None), "Recipe: fprop: expected an Accumulator.*'native'"),
    (lambda: recipe(None), "recipe: the name must be a str, got None"),
    (lambda: as_recipe(1), r"expected a Recipe or its name, got 1 \(int\); expected one of"),
    (lambda: as_recipe(FloatFormat(4, 3)), "it is a format, for operands as lp.Recipe"),
    (lambda: as_recipe(NATIVE), "it is an accumulator, for lp.Recipe.fprop='native', d"),
]
test_wrong_values_are_refused = refused(WRONG_VALUES, ValueError)
test_wrong_types_are_refused = refused(WRONG_TYPES, TypeError)
