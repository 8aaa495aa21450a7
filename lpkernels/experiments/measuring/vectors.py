"""Test vectors of a sum, for a kernel or a circuit that must give the same bits."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lpkernels import __version__
from lpkernels.arithmetic import Accumulator
from lpkernels.formats import FloatFormat, Format
from lpkernels.functional import matmul, pack, quantize

#: A case takes the kind of its number modulo their count. In "cancellation" half of the products
#: are the other half's with the other sign; in "ties" c lies so high that sums of small integers
#: end between two values.
KINDS = ("normal", "exponents", "cancellation", "subnormals", "ties", "overflow", "special")
_SPECIAL = (np.inf, -np.inf, np.nan, 0.0, -0.0)


def write_vectors(
    folder: Path, acc: Accumulator, operands: Format, k: int, cases: int, seed: int
) -> None:
    """Writes cases of d = c + sum of a[i] * b[i] in acc, hard ones among them, into a folder.

    vectors.npz has a and b (cases, k), c and d (cases,) in float32; a.hex and b.hex have a line of
    codes for each case, c.hex and d.hex the bits of a float32; vectors.json says what they are. The
    operands are values of `operands`, or of acc's own operand formats. c is a value of the
    outermost sum, and 0 where that takes no start.

    Raises: TypeError, ValueError: operands that are no floats; a sum that draws random bits, takes
        scales or has no order of its own.
    """
    if acc.is_stochastic or acc.takes_scales or acc.order == "native":
        raise ValueError(
            f"vectors: {acc} draws random bits, takes scales or leaves the order to torch; give an "
            "accumulator whose bits follow from a, b and c alone, such as h100_fp16"
        )
    if not isinstance(operands, FloatFormat):
        raise TypeError(f"vectors: operands are floats, got {operands}; give a format such as fp16")
    formats, rng = acc.operands or (operands, operands), np.random.default_rng(seed)
    left, right, starts = [], [], []
    for i in range(cases):
        kind = KINDS[i % len(KINDS)]
        a, b = (_values(rng, kind, fmt, k) for fmt in formats)
        c, half = rng.standard_normal(), k // 2
        if kind == "cancellation":
            a[half : 2 * half], b[half : 2 * half], c = -a[:half], b[:half], c * 2.0**-10
        elif kind == "ties" and isinstance(acc.outermost, FloatFormat):
            c = np.copysign(2.0 ** (acc.outermost.man_bits + rng.integers(1, 4)), c)
        left.append(a)
        right.append(b)
        starts.append(c)
    x, y = (
        quantize(torch.tensor(np.array(rows)), fmt).float()
        for rows, fmt in zip((left, right), formats, strict=True)
    )
    start = quantize(torch.tensor(starts, dtype=torch.float64), acc.outermost).float()
    takes_start = acc.order != "pairwise" or acc.chunk is not None
    start, initial = (start, start.view(-1, 1, 1)) if takes_start else (0 * start, None)
    d = matmul(x.unsqueeze(1), y.unsqueeze(2), acc, initial=initial).view(-1)
    arrays: dict[str, Any] = {"a": x.numpy(), "b": y.numpy(), "c": start.numpy(), "d": d.numpy()}
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "vectors.npz", **arrays)
    for (name, array), codes in zip(arrays.items(), (*formats, None, None), strict=True):
        text = "\n".join([*_hexadecimal(array, codes), ""])
        (folder / f"{name}.hex").write_text(text, encoding="ascii")
    about = {"accumulator": str(acc), "operands": [*map(str, formats)], "k": k, "cases": cases}
    about |= {"seed": seed, "kinds": KINDS, "lpkernels": __version__}
    (folder / "vectors.json").write_text(json.dumps(about, indent=1) + "\n", encoding="ascii")


def _values(rng: np.random.Generator, kind: str, fmt: FloatFormat, k: int) -> NDArray[np.floating]:
    x = rng.standard_normal(k)
    if kind == "exponents":
        low, high = math.log2(fmt.min_subnormal), math.log2(fmt.max)
        return x * 2.0 ** rng.uniform(low / 2, high / 2, k)
    if kind == "subnormals":
        return fmt.min_subnormal * rng.integers(-(2**fmt.man_bits), 2**fmt.man_bits + 1, k)
    if kind == "ties":
        return rng.integers(-4, 5, k).astype(np.float64)
    if kind == "overflow":
        return np.sign(x) * fmt.max * rng.uniform(0.4, 1, k)
    if kind == "special":
        specials = [value for value in _SPECIAL if _has_code(value, fmt)]
        return np.where(rng.random(k) < 2 / k, rng.choice(specials, k), x)
    return x


def _has_code(value: float, fmt: FloatFormat) -> bool:
    try:
        pack(torch.tensor([value], dtype=torch.float32), fmt)
    except ValueError:
        return False
    return True


def _hexadecimal(x: NDArray[np.float32], fmt: FloatFormat | None) -> list[str]:
    """The codes of each row of x in a format, or in float32, with spaces between them."""
    if fmt is None:
        codes, bits = x.view(np.uint32).reshape(len(x), -1), 32
    else:
        stream, bits = pack(torch.tensor(x), fmt).numpy(), fmt.bits
        places = np.unpackbits(stream, bitorder="little")[: x.size * bits]
        codes = places.reshape(*x.shape, bits) @ (1 << np.arange(bits))
    return [" ".join(f"{code:0{-(-bits // 4)}x}" for code in row) for row in codes]
