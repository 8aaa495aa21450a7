"""Recipes for the tests of layers: every place has a format of its own."""

import lpkernels as lp

FORMATS = {
    "input": "e4m3", "weight": "e5m2", "bias": "e5m4", "output": "e5m6", "grad_output": "e4m2",
    "grad_input": "e5m5", "grad_weight": "e5m3",
}  # fmt: skip
DETERMINISTIC = lp.Recipe(
    **FORMATS, fprop="e5m7", dgrad="e6m9_chunk2:outer=e6m6", wgrad="e5m8:toward_zero:product=e6m5"
)
STOCHASTIC = lp.Recipe(
    **{name: f"{fmt}:stochastic" for name, fmt in FORMATS.items()},
    fprop="e5m7:stochastic",
    dgrad="e6m9_chunk2:stochastic",
    wgrad="e5m8:stochastic:product=e6m5:product_rounding=stochastic",
)
ACCUMULATORS_ONLY = lp.Recipe(fprop="e5m7", dgrad="e4m6", wgrad="e5m5")
# Products apply some of these quantizers themselves; they cannot apply the others.
MIXED = lp.Recipe(
    input="block4_e4m3",
    weight="fixed8_f4:toward_negative",
    bias="e5m4:to_odd",
    output="e5m6:toward_positive",
    grad_output="e4m3fn_sat:nearest_away",
    grad_input="e5m5:stochastic",
    grad_weight="fixed12_f6:toward_zero",
    fprop="e5m7:stochastic",
    dgrad="fixed16_f8",
    wgrad="fp32_chunk3:outer=bf16",
)
RECIPES = {
    "mixed": MIXED, "deterministic": DETERMINISTIC, "stochastic": STOCHASTIC,
    "accumulators only": ACCUMULATORS_ONLY,
}  # fmt: skip
