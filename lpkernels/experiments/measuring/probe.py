"""Single values sent through a format."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from lpkernels.formats import FloatFormat, Format, Number
from lpkernels.functional import pack, quantize


class Probe(NamedTuple):
    """The outcome of one value; `code` is "" where the format has no code for the result."""

    value: float
    result: float
    code: str

    @property
    def error(self) -> float:
        """result - value, in float64."""
        return self.result - self.value


def probe(values: Sequence[float], fmt: Format, rounding: str, *, seed: int = 0) -> list[Probe]:
    """Rounds each value to `fmt`, straight from float64.

    Block and affine formats take their scale from all values together, which are then one tensor.
    `seed` is for stochastic rounding.
    """
    x = torch.tensor(values, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    results = quantize(x, fmt, rounding, generator=generator).double().tolist()
    pairs = zip(x.tolist(), results, strict=True)
    return [Probe(value, result, code_bits(result, fmt)) for value, result in pairs]


def code_bits(value: float, fmt: Format) -> str:
    """The code of a value of `fmt` in bits, fields apart ("0 1111 110"); "" where it has none."""
    if not isinstance(fmt, Number):
        return ""
    try:
        packed = pack(torch.tensor([value], dtype=torch.float32), fmt)
    except ValueError:
        return ""
    bits = f"{int.from_bytes(bytes(packed.tolist()), 'little'):0{fmt.bits}b}"
    if not isinstance(fmt, FloatFormat):
        return bits
    start = int(fmt.signed)
    end = start + fmt.exp_bits
    return f"{bits[:start]} {bits[start:end]} {bits[end:]}".strip()
