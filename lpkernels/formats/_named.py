"""The named float formats, and the grammar of float format names.

DLFloat16 here (``dlfloat16``, e6m9) follows IEEE rules with subnormals. The format of Agrawal et
al. 2019 ("DLFloat: A 16-b floating point format designed for deep learning training and
inference", ARITH-26) has no subnormals, one code shared by infinity and NaN, and rounds to
nearest with ties up. Its exponent code 0 holds normal values beside the zero, which a FloatFormat
cannot express, so it has no alias; ``e6m9fn_nosub`` with rounding "nearest_away" is the nearest
expression of it and lacks only that lowest binade.
"""

import re

from lpkernels.formats._float import FloatFormat

FP32 = FloatFormat(8, 23)
TF32 = FloatFormat(8, 10)
BF16 = FloatFormat(8, 7)
FP16 = FloatFormat(5, 10)
DLFLOAT16 = FloatFormat(6, 9)

E5M2 = FloatFormat(5, 2)
E4M3 = FloatFormat(4, 3)
E4M3FN = FloatFormat(4, 3, specials="fn")
E3M2 = FloatFormat(3, 2)
E2M3 = FloatFormat(2, 3)
E2M1 = FloatFormat(2, 1)

# OCP 8-bit Floating Point Specification (OFP8) v1.0; OCP Microscaling Formats (MX) v1.0, 5.3.
FP8_E5M2 = E5M2
FP8_E4M3 = E4M3FN
FP6_E3M2 = FloatFormat(3, 2, specials="none", overflow="saturate")
FP6_E2M3 = FloatFormat(2, 3, specials="none", overflow="saturate")
FP4_E2M1 = FloatFormat(2, 1, specials="none", overflow="saturate")

# FP(e, m, b) of Lee, Sharma, Aiken 2023 (arXiv 2301.13464): no code is reserved and every value is
# divided by 2^b, so bias = 2^(e-1) - 1 + b. Forward tensors saturate, backward ones overflow to
# infinity for the loss scaler to see. FP_4_3_4 and FP_5_2_0 are those of Sun et al. 2019 (HFP8).
FP_4_3_4 = FloatFormat(4, 3, bias=11, specials="none", overflow="saturate")
FP_5_2_0 = FloatFormat(5, 2, specials="none", overflow="saturate")
FP_6_9_0 = FloatFormat(6, 9, specials="none", overflow="saturate")
FP_4_3_4_BACKWARD = FloatFormat(4, 3, bias=11, specials="none", overflow="infinity")
FP_5_2_0_BACKWARD = FloatFormat(5, 2, specials="none", overflow="infinity")
FP_6_9_0_BACKWARD = FloatFormat(6, 9, specials="none", overflow="infinity")

#: Every named float format by its name in text, the widest first.
NAMED: dict[str, FloatFormat] = {
    "fp32": FP32,
    "tf32": TF32,
    "bf16": BF16,
    "fp16": FP16,
    "dlfloat16": DLFLOAT16,
    "e5m2": E5M2,
    "e4m3": E4M3,
    "e4m3fn": E4M3FN,
    "e3m2": E3M2,
    "e2m3": E2M3,
    "e2m1": E2M1,
    "fp8_e5m2": FP8_E5M2,
    "fp8_e4m3": FP8_E4M3,
    "fp6_e3m2": FP6_E3M2,
    "fp6_e2m3": FP6_E2M3,
    "fp4_e2m1": FP4_E2M1,
    "fp_4_3_4": FP_4_3_4,
    "fp_5_2_0": FP_5_2_0,
    "fp_6_9_0": FP_6_9_0,
    "fp_4_3_4_backward": FP_4_3_4_BACKWARD,
    "fp_5_2_0_backward": FP_5_2_0_BACKWARD,
    "fp_6_9_0_backward": FP_6_9_0_BACKWARD,
}

#: The meaning of a BlockFormat's short element names: the OCP types.
OCP_ELEMENTS: dict[str, FloatFormat] = {
    "e5m2": FP8_E5M2,
    "e4m3": FP8_E4M3,
    "e3m2": FP6_E3M2,
    "e2m3": FP6_E2M3,
    "e2m1": FP4_E2M1,
}

_FLOAT_NAME = re.compile(r"e(\d+)m(\d+)(ieee|fn|none)?((?:_[a-z0-9-]+)*)")
_OVERFLOW_OF_SUFFIX = {"inf": "infinity", "sat": "saturate", "nan": "nan"}


def parse_float_name(name: str) -> FloatFormat | None:
    """The FloatFormat of a name or alias; None if the text is not of that grammar.

    Raises:  ValueError: it is of that grammar, but a suffix is unknown or repeated, or the format
        itself is refused.
    """
    if name in NAMED:
        return NAMED[name]
    match = _FLOAT_NAME.fullmatch(name)
    if match is None:
        return None
    exp_bits, man_bits, specials, suffixes = match.groups()
    bias: int | None = None
    subnormals = True
    overflow: str | None = None
    seen: set[str] = set()
    for suffix in suffixes.split("_")[1:]:
        if re.fullmatch(r"b-?\d+", suffix):
            kind, bias = "bias", int(suffix[1:])
        elif suffix == "nosub":
            kind, subnormals = "nosub", False
        elif suffix in _OVERFLOW_OF_SUFFIX:
            kind, overflow = "overflow", _OVERFLOW_OF_SUFFIX[suffix]
        else:
            raise ValueError(
                f"parse_format: unknown suffix '_{suffix}' in {name!r}; known are _b<bias>, "
                "_nosub, _inf, _sat and _nan"
            )
        if kind in seen:
            raise ValueError(f"parse_format: {name!r} gives its {kind} twice; write it once")
        seen.add(kind)
    return FloatFormat(
        int(exp_bits),
        int(man_bits),
        bias=bias,
        specials=specials or "ieee",
        subnormals=subnormals,
        overflow=overflow,
    )
