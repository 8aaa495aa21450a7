"""Recorded results of tensor cores for d = c + sum a_k b_k, and the accumulator that each group
names.

The file is an npz of codes, described in tests/data/matrix_units/README.md. A sample of 200 cases a
group lies there; the whole of 2,000 is read in the same way.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from lpkernels.arithmetic import UNITS, Accumulator
from lpkernels.formats import parse_format
from lpkernels.functional import unpack

SAMPLE = Path(__file__).parents[1] / "data" / "matrix_units" / "recordings.npz"


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
        return UNITS[self.unit].accumulator


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


def decoded(codes: np.ndarray, fmt: str) -> np.ndarray:
    """The float32 values of codes; codes of tf32 lie in float32."""
    if codes.dtype == np.uint32:
        return codes.view(np.float32)
    packed = torch.from_numpy(np.ascontiguousarray(codes).view(np.uint8).reshape(-1).copy())
    parsed = parse_format("e4m3fn" if fmt == "e4m3" else fmt)
    return unpack(packed, parsed, codes.shape).numpy()
