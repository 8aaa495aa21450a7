"""The named float formats, and the grammar of float format names.

DLFloat16 here (``dlfloat16``, e6m9) follows IEEE rules with subnormals. The format of Agrawal et
al. 2019 ("DLFloat: A 16-b floating point format designed for deep learning training and
inference", ARITH-26) has no subnormals, one code shared by infinity and NaN, and rounds to
nearest with ties up. Its exponent code 0 holds normal values beside the zero, which a FloatFormat
cannot express, so it has no alias; ``e6m9fn_nosub`` with rounding "nearest_away" is the nearest
expression of it and lacks only that lowest binade.
"""

import re
from typing import Any

from lpkernels.formats._float import OVERFLOW_SUFFIX, FloatFormat

FP32 = FloatFormat(8, 23)
TF32 = FloatFormat(8, 10)
BF16 = FloatFormat(8, 7)
FP16 = FloatFormat(5, 10)

E5M2 = FloatFormat(5, 2)
E4M3 = FloatFormat(4, 3)
E4M3FN = FloatFormat(4, 3, specials="fn")

# OCP 8-bit Floating Point Specification (OFP8) v1.0; OCP Microscaling Formats (MX) v1.0, 5.3.
FP8_E5M2 = E5M2
FP8_E4M3 = E4M3FN
FP6_E3M2 = FloatFormat(3, 2, specials="none", overflow="saturate")
FP6_E2M3 = FloatFormat(2, 3, specials="none", overflow="saturate")
FP4_E2M1 = FloatFormat(2, 1, specials="none", overflow="saturate")

# AMD's formats of the MI300: torch.float8_e4m3fnuz and torch.float8_e5m2fnuz.
E4M3FNUZ = FloatFormat(4, 3, specials="fnuz")
E5M2FNUZ = FloatFormat(5, 2, specials="fnuz")

# FP(e, m, b) of Lee, Sharma, Aiken 2023 (arXiv 2301.13464): no code is reserved and every value is
# divided by 2^b, so bias = 2^(e-1) - 1 + b. Forward tensors saturate, backward ones overflow to
# infinity for the loss scaler to see. fp_4_3_4 and fp_5_2_0 are those of Sun et al. 2019 (HFP8).
_LEE = {
    f"fp_{exp}_{man}_{shift}{suffix}": FloatFormat(
        exp, man, bias=2 ** (exp - 1) - 1 + shift, specials="none", overflow=overflow
    )
    for suffix, overflow in (("", "saturate"), ("_backward", "infinity"))
    for exp, man, shift in ((4, 3, 4), (5, 2, 0), (6, 9, 0))
}

#: Every named float format by its name in text, the widest first.
NAMED: dict[str, FloatFormat] = {
    "fp32": FP32,
    "tf32": TF32,
    "bf16": BF16,
    "fp16": FP16,
    "dlfloat16": FloatFormat(6, 9),
    "e5m2": E5M2,
    "e4m3": E4M3,
    "e4m3fn": E4M3FN,
    "e3m2": FloatFormat(3, 2),
    "e2m3": FloatFormat(2, 3),
    "e2m1": FloatFormat(2, 1),
    "fp8_e5m2": FP8_E5M2,
    "fp8_e4m3": FP8_E4M3,
    "fp6_e3m2": FP6_E3M2,
    "fp6_e2m3": FP6_E2M3,
    "fp4_e2m1": FP4_E2M1,
    **_LEE,
    "e4m3fnuz": E4M3FNUZ,
    "e5m2fnuz": E5M2FNUZ,
    # The third finite format of ml_dtypes, and IEEE's working group P3109's of 8 bits by precision.
    "e4m3b11fnuz": FloatFormat(4, 3, specials="fnuz", bias=11),
    **{f"binary8p{p}": FloatFormat(8 - p, p - 1, specials="p3109") for p in range(1, 8)},
}

#: The meaning of a BlockFormat's short element names: the OCP types.
OCP_ELEMENTS: dict[str, FloatFormat] = {
    "e5m2": FP8_E5M2,
    "e4m3": FP8_E4M3,
    "e3m2": FP6_E3M2,
    "e2m3": FP6_E2M3,
    "e2m1": FP4_E2M1,
}

_FLOAT_NAME = re.compile(r"e(\d+)m(\d+)(ieee|fn|none|fnuz)?((?:_[a-z0-9-]+)*)")
_P3109_NAME = re.compile(r"p3109_k(\d+)p(\d+)(se|sf|ue|uf)((?:_[a-z0-9-]+)*)")
# An alias with the endings that names of the grammar have.
_ALIAS = re.compile(r"(.+?)((?:_(?:b-?\d+|nosub|inf|sat|nan))+)")
_FIELD_OF_SUFFIX: dict[str, tuple[str, Any]] = {
    "nosub": ("subnormals", False),
    **{suffix: ("overflow", overflow) for overflow, suffix in OVERFLOW_SUFFIX.items()},
}


def parse_float_name(name: str) -> FloatFormat | None:
    """The FloatFormat of a name or alias; None if the text is not of that grammar.

    Raises:  ValueError: it is of that grammar, but a suffix is unknown or repeated, or the format
        itself is refused.
    """
    if name in NAMED:
        return NAMED[name]
    if (match := _ALIAS.fullmatch(name)) and match[1] in NAMED:
        name = f"{NAMED[match[1]]}{match[2]}"
    if match := _P3109_NAME.fullmatch(name):
        k, p, kind, suffixes = match.groups()
        signed, specials = kind[0] == "s", "p3109" if kind[1] == "e" else "fnuz"
        exp_bits, man_bits = _p3109_widths(name, int(k), int(p), signed)
    elif match := _FLOAT_NAME.fullmatch(name):
        signed, specials, suffixes = True, match[3] or "ieee", match[4]
        exp_bits, man_bits = int(match[1]), int(match[2])
    else:
        return None
    fields: dict[str, Any] = {}
    for suffix in suffixes.split("_")[1:]:
        if re.fullmatch(r"b-?\d+", suffix):
            field, value = "bias", int(suffix[1:])
        elif suffix in _FIELD_OF_SUFFIX:
            field, value = _FIELD_OF_SUFFIX[suffix]
        else:
            raise ValueError(
                f"parse_format: unknown suffix '_{suffix}' in {name!r}; known are _b<bias>, "
                "_nosub, _inf, _sat and _nan"
            )
        if field in fields:
            raise ValueError(f"parse_format: {name!r} gives its {field} twice; write it once")
        fields[field] = value
    return FloatFormat(exp_bits, man_bits, specials=specials, signed=signed, **fields)


def _p3109_widths(name: str, k: int, p: int, signed: bool) -> tuple[int, int]:
    """exp_bits and man_bits of P3109's k bits with precision p."""
    most = k - 1 if signed else k
    if not 3 <= k <= 16 or not 1 <= p <= most:
        raise ValueError(
            f"parse_format: {name!r} has k={k} and p={p}; k is 3 to 16, and p is 1 to "
            f"{'k - 1' if signed else 'k'}"
        )
    return k - p + (not signed), p - 1
