"""What torch, ml_dtypes and the OCP specifications call formats that have other names here."""

import re

_NAMES = {
    "float": "fp32",
    "float32": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float8_e5m2": "fp8_e5m2",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e4m3": "e4m3",
    "float8_e3m4": "e3m4",
    "float6_e3m2fn": "fp6_e3m2",
    "float6_e2m3fn": "fp6_e2m3",
    "float4_e2m1fn": "fp4_e2m1",
    "float4_e2m1fn_x2": "fp4_e2m1",
    "mxfp8_e5m2": "block32_fp8_e5m2",
    "mxfp8_e4m3": "block32_fp8_e4m3",
    "mxfp6_e3m2": "block32_fp6_e3m2",
    "mxfp6_e2m3": "block32_fp6_e2m3",
    "mxfp4": "block32_fp4_e2m1",
    "mxfp4_e2m1": "block32_fp4_e2m1",
}
# Of as many bits as AffineFormat may have.
_INTEGER = re.compile(r"(u?)int([1-9]|1[0-6])")


def name_here(name: str) -> str:
    """The end of a sentence about a name that is no format's: what to write here; "" if unknown."""
    lower = name.lower().removeprefix("torch.")
    if lower in _NAMES:
        return f"; it is {_NAMES[lower]!r} here."
    if match := _INTEGER.fullmatch(lower):
        unsigned, bits = match.groups()
        fixed = f"{unsigned and 'u'}fixed{bits}_f0"
        return f"; whole numbers are {fixed!r} here, and codes with a scale 'affine{bits}'."
    return ""
