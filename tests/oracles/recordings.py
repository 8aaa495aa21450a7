"""Results of tensor cores and of AMD's matrix cores for d = c + sum a_k b_k, and the accumulator
that each group names.

The files are npz of codes, described in tests/data/matrix_units/README.md and amd_units/README.md.
Samples lie there; the whole files are read in the same way.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from lpkernels.arithmetic import UNITS, Accumulator
from lpkernels.formats import parse_format
from lpkernels.functional import unpack

DATA = Path(__file__).parents[1] / "data"
SAMPLE = DATA / "matrix_units" / "recordings.npz"
AMD_SAMPLE = DATA / "amd_units" / "outputs.npz"


class Group(NamedTuple):
    """The cases of one GPU and one pair of formats: a, b (cases, K), c and d (cases,), float32."""

    name: str
    unit: str
    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    d: np.ndarray

    @property
    def accumulator(self) -> Accumulator:
        if self.unit in UNITS:
            acc = UNITS[self.unit].accumulator
            # An instruction of K = 4 is one step of 4.
            return replace(acc, block=4) if self.name == "mi300_fp16.k4" else acc
        gpu, *operands = self.unit.split("_")
        return replace(UNITS[f"{gpu}_{operands[0]}"].accumulator, operands=operands)


def groups(path: Path = SAMPLE) -> Iterator[Group]:
    """All groups of a file, in its order."""
    with np.load(path) as file:
        for line in file["index"]:
            name, inputs, unit = str(line).split()
            _, operand, result, *_ = name.split(".")
            yield Group(
                name,
                unit,
                *(decoded(file[f"{inputs}.{x}"], operand) for x in "ab"),
                *(decoded(file[f"{name}.{x}"], result) for x in "cd"),
            )


def amd_groups(path: Path = AMD_SAMPLE) -> Iterator[Group]:
    """All groups of a file of AMD's units, in its order."""
    with np.load(path) as file:
        for line in file["index"]:
            name, unit, *_ = str(line).split()
            empty = Group(name, unit, *[np.zeros(0)] * 4)
            operands = empty.accumulator.operands or ("fp32", "fp32")
            a, b = (
                decoded(file[f"{name}.{x}"], str(f)) for x, f in zip("ab", operands, strict=True)
            )
            if "xf32" in unit:
                # The unit reads the upper 19 bits.
                a, b = ((x.view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (a, b))
            yield Group(name, unit, a, b, *(file[f"{name}.{x}"].view(np.float32) for x in "cd"))


def decoded(codes: np.ndarray, fmt: str) -> np.ndarray:
    """The float32 values of codes; codes of tf32 lie in float32."""
    if codes.dtype == np.uint32:
        return codes.view(np.float32)
    packed = torch.from_numpy(np.ascontiguousarray(codes).view(np.uint8).reshape(-1).copy())
    parsed = parse_format("e4m3fn" if fmt == "e4m3" else fmt)
    return unpack(packed, parsed, codes.shape).numpy()
