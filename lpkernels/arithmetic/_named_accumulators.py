"""Accumulators by name: the named ones, and the text form of every other."""

import re
from functools import lru_cache

from lpkernels.arithmetic._accumulator import ACCUMULATOR_OPTIONS, Accumulator
from lpkernels.arithmetic._units import MODELS, UNITS
from lpkernels.arithmetic.text import read_options
from lpkernels.formats import Format, FormatLike, as_format, take_names_of_accumulators
from lpkernels.formats.elsewhere import KINDS, name_here, nearest, of_another_kind, unless_dtype

#: torch's own sums: fp32, in the hardware's own order.
NATIVE = Accumulator("fp32", order="native")

#: Accumulators whose text form would hide where they come from; every text form is a name too.
NAMED_ACCUMULATORS: dict[str, Accumulator] = {
    # Wang et al. 2018 (arXiv 1812.08011): sums of 64 in a 16-bit float with 6 exponent bits.
    "ibm_e6m9_chunk64": Accumulator("e6m9", chunk=64),
    # Blumenfeld et al. 2024 (arXiv 2401.14110): product and sum keep 7 mantissa and 4 exponent
    # bits, truncate, saturate and flush below min_normal. The biases and the chunk length are
    # parameters of the method: 12 (product max 15.9), 10 (sum max 63.75), 16 are this package's.
    "lba_m7e4": Accumulator(
        "e4m7none_b10_nosub_sat",
        "toward_zero",
        product="e4m7none_b12_nosub_sat",
        product_rounding="toward_zero",
        chunk=16,
    ),
    # DeepSeek-V3 (arXiv 2412.19437, section 3.3): chains of 14 bits of an H100's fp8 unit over 128
    # codes, each added to a float32 sum times both scales; their product is rounded, as in
    # DeepGEMM.
    "deepseek_v3": Accumulator(
        "e8m13",
        "toward_zero",
        block=32,
        aligned_bits=13,
        operands="e4m3fn",
        chunk="scale",
        outer="fp32",
        outer_rounding="nearest_even",
    ),
    # OCP MX v1.0, section 6: the sum of each block's codes times both scales, with float32 sums.
    "mx_fp32": Accumulator("fp32", chunk="scale"),
    # Tensor cores as they are: `lpkernels units` says where each is known from.
    **{name: unit.accumulator for name, unit in (UNITS | MODELS).items()},
}

take_names_of_accumulators(NAMED_ACCUMULATORS)

_HEAD = re.compile(r"(.+?)(?:_chunk(\d+|scale))?")


def accumulator(name: str) -> Accumulator:
    """The accumulator called `name`, or the one of a text form such as "e6m9_chunk64" or
    "e5m10:toward_zero".

    Names are the tensor cores of `lpkernels units` ("h100_fp16"), "lba_m7e4" and others, which
    docs/arithmetic.md lists; :class:`Accumulator` has the text form.

    Raises:  TypeError: not a str.  ValueError: no such name; the message lists near ones.

    >>> print(lp.accumulator("ibm_e6m9_chunk64"))
    e6m9_chunk64
    >>> lp.accumulator("e5m10_chunk64:toward_zero").chunk
    64
    """
    if not isinstance(name, str):
        raise TypeError(
            f"accumulator: the name must be a str, got {name!r} ({type(name).__name__}); use "
            "as_accumulator to take an Accumulator as well"
        )
    return _named_or_parsed(name)


@lru_cache(maxsize=1024)
def _named_or_parsed(name: str) -> Accumulator:
    if name in NAMED_ACCUMULATORS:
        return NAMED_ACCUMULATORS[name]
    head, *parts = name.split(":")
    options = read_options(name, parts, ACCUMULATOR_OPTIONS)
    match = _HEAD.fullmatch(head)
    fmt, chunk = match.groups() if match else ("", None)
    native = fmt == "native"
    try:
        sum_format = as_format("fp32" if native else fmt)
    except ValueError as error:
        if other := of_another_kind(name, "accumulator"):
            raise ValueError(f"accumulator: unknown name {name!r}{other}") from error
        known = [*NAMED_ACCUMULATORS, "native", "fp32", "e6m9_chunk64"]
        listed = nearest(name, known, "docs/arithmetic.md and `lpkernels units` list all")
        meant = name_here(fmt) or f"; expected one of {listed},"
        raise ValueError(
            f"accumulator: unknown name {name!r}{meant} or <format>[_chunk<n>|_chunkscale]"
            "[:<rounding>], as e6m9_chunk64:toward_zero; help(lpkernels.Accumulator) has the other "
            f"options ({error})"
        ) from error
    if native:
        options["order"] = "native"
    length = int(chunk) if chunk and chunk.isdecimal() else chunk
    return Accumulator(sum_format, chunk=length, **options)


def as_accumulator(acc: Accumulator | FormatLike | None) -> Accumulator:
    """`acc` itself if it is an Accumulator, else the one of a format, torch.dtype or name; None is
    :data:`NATIVE`.

    Raises:  TypeError: something else, or a dtype whose values are no format's.
        ValueError: an unknown name, or an Affine or Block format.
    """
    acc = unless_dtype(acc)
    if acc is None:
        return NATIVE
    if isinstance(acc, Accumulator):
        return acc
    if isinstance(acc, Format):
        return Accumulator(acc)
    if isinstance(acc, str):
        return accumulator(acc)
    example = "; for example 'e6m9_chunk64' or Accumulator('e6m9', chunk=64)"
    meant = of_another_kind(acc, "accumulator")
    raise TypeError(
        f"expected an Accumulator, a format or a name, got {acc!s} ({type(acc).__name__})"
        f"{meant or example}"
    )


def _accumulator_kind(value: object) -> str:
    """What `KINDS` says of an Accumulator, of its name, and of texts that no format has."""
    if isinstance(value, str):
        match = _HEAD.fullmatch(value.partition(":")[0])
        sums = value in NAMED_ACCUMULATORS or (match and (match[2] or match[1] == "native"))
    else:
        sums = isinstance(value, Accumulator)
    where = "for fprop, dgrad and wgrad of a Recipe and for acc= of lp.matmul"
    return f"an accumulator, {where}" if sums else ""


KINDS["accumulator"] = _accumulator_kind
