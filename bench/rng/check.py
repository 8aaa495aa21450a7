"""Bias, variance and correlation of long stochastically rounded sums and of rounded tensors.

Everything is measured through lp.matmul and lp.quantize, and so through the draws that the kernels
really use. The sums start at 3072 in e8m14 and never leave [2048, 4096). There the accumulator's
spacing is 1/8 throughout, and the fraction of every rounding is that of its product alone. So mean
and variance of every output's error are known exactly, for every number of random bits.

    python bench/rng/check.py [--rng fast] [--seed 1] [--size 1024]

It prints one line per statistic: what it is, z (standard normal if the draws are independent) and
its two-sided p. The exit code is 1 when a p is below 1e-6.
"""

import argparse
import math
import sys
from collections.abc import Iterator

import numpy as np
import torch

import lpkernels as lp

LENGTH = 4096
START = 3072.0
SPACING = 0.125
FORMAT = "e8m14"
LAGS = (1, 2, 3, 4, 8, 16, 64)
BITS = (1, 2, 4, 8, 13)
WEAK, FAILED = 1e-3, 1e-6

Row = tuple[str, float, float]


def two_sided(z: float, tries: int = 1) -> float:
    """p of the largest |z| among `tries` independent ones."""
    p = math.erfc(abs(z) / math.sqrt(2))
    return -math.expm1(tries * math.log1p(-p)) if p < 1 else 1.0


def row(name: str, z: float, tries: int = 1) -> Row:
    return name, z, two_sided(z, tries)


def chance_up(fraction: np.ndarray, random_bits: int) -> np.ndarray:
    """The exact probability of moving away from zero, by the rule with `random_bits` bits."""
    return np.floor((np.floor(fraction * 2.0 ** (random_bits + 1)) + 1) / 2) * 2.0**-random_bits


def operands(size: int, same: bool, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values of 11 bits in +-[1, 2), with START as the first product. `same`: all rows are equal,
    and all columns."""
    rng = np.random.default_rng(seed)
    shape = (1 if same else size, LENGTH)
    a, b = (np.floor(rng.uniform(1024, 2048, shape)) / 1024 for _ in range(2))
    a *= rng.choice([-1.0, 1.0], shape)
    a[:, 0], b[:, 0] = START, 1.0
    a, b = (np.broadcast_to(v, (size, LENGTH)) for v in (a, b))
    return torch.tensor(a, dtype=torch.float32), torch.tensor(b, dtype=torch.float32).T.contiguous()


def predicted(a: np.ndarray, b: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of every output, in the order of (rows of a, columns of b)."""
    up, variance = np.zeros((len(a), b.shape[1])), np.zeros((len(a), b.shape[1]))
    for k in range(1, LENGTH):
        units = np.outer(a[:, k], b[k]) / SPACING
        whole = np.floor(units)
        p = chance_up(units - whole, bits)
        up += whole + p
        variance += p * (1 - p)
    return START + SPACING * up, SPACING * np.sqrt(variance)


def errors(
    a: torch.Tensor, b: torch.Tensor, bits: int, rng: str, seed: torch.Tensor | None, same: bool
) -> np.ndarray:
    """Errors of all outputs in units of their predicted standard deviation."""
    acc = lp.Accumulator(FORMAT, "stochastic", random_bits=bits, rng=rng)
    out = lp.matmul(a, b, acc, generator=seed).double().numpy()
    if not (out.min() >= 2048 and out.max() < 4096):
        raise ValueError(f"a sum left [2048, 4096): {out.min()} .. {out.max()}")
    take = 1 if same else len(a)
    mean, deviation = predicted(a[:take].double().numpy(), b[:, :take].double().numpy(), bits)
    return (out - mean) / deviation


def gram_rows(e: np.ndarray, what: str) -> Iterator[Row]:
    """All pairs of columns of e: the largest correlation, and the sum of squares of all.

    The sum of squares runs over all cycles (m, n), (m, n'), (m', n'), (m', n), which an additive
    structure of the keys would show.
    """
    count, n = e.shape
    gram = (e.T @ e)[np.triu_indices(n, 1)] / math.sqrt(count)
    yield row(f"largest correlation of two {what}", gram[np.abs(gram).argmax()], len(gram))
    variance = len(gram) * (2 + 6 / count) + n * (n - 1) * (n - 2) * 2 / count
    yield row(f"four-cycles of {what}", (np.square(gram).sum() - len(gram)) / math.sqrt(variance))


def matrix_rows(e: np.ndarray) -> Iterator[Row]:
    """Statistics of a matrix of independent standard normals."""
    yield row("mean", e.mean() * math.sqrt(e.size))
    yield row("variance", (np.square(e).mean() - 1) * math.sqrt(e.size / 2))
    for name, v in (("columns", e), ("rows", e.T)):
        means = v.mean(axis=0)
        z = (len(v) * np.square(means).sum() - len(means)) / math.sqrt(2 * len(means))
        yield row(f"spread of the means of {name}", z)
        for lag in LAGS:
            product = v[:, lag:] * v[:, :-lag]
            yield row(f"{name} n, n + {lag}", product.sum() / math.sqrt(product.size))
        yield from gram_rows(v, name)


def sum_rows(rng: str, seed: int, size: int) -> Iterator[Row]:
    for same in (True, False):
        n = size if same else min(size, 256)
        a, b = operands(n, same, seed)
        for bits in BITS:
            e = errors(a, b, bits, rng, torch.tensor(seed + bits), same)
            kind = "equal" if same else "varied"
            for name, z, p in matrix_rows(e):
                yield f"sums, {kind} operands, R={bits}, {n}x{n}: {name}", z, p


def seed_rows(rng: str, seed: int, size: int, count: int = 8) -> Iterator[Row]:
    """Errors of the same sums under consecutive seeds, also shifted by a row or a column."""
    a, b = operands(size, True, seed)
    for how in ("seed", "torch.manual_seed"):
        runs = []
        for s in range(seed, seed + count):
            torch.manual_seed(s)
            given = torch.tensor(s) if how == "seed" else None
            runs.append(errors(a, b, 8, rng, given, True))
        for down, right in ((0, 0), (1, 0), (0, 1), (1, 1)):
            z = [
                (x[down:, right:] * y[: size - down, : size - right]).sum()
                / math.sqrt((size - down) * (size - right))
                for i, x in enumerate(runs)
                for y in runs[i + 1 :]
            ]
            name = f"{how} s, s + 1 .. s + {count - 1}, shift ({down}, {right}), R=8"
            yield row(name + ": largest correlation", max(z, key=abs), len(z))
            squares = (np.square(z).sum() - len(z)) / math.sqrt(2 * len(z))
            yield row(name + ": sum of squares", squares)


def element_rows(rng: str, seed: int, count: int = 1 << 23) -> Iterator[Row]:
    """lp.quantize of a constant 0.3 of the way between two values of e8m3."""
    fraction = math.floor(0.3 * 2**20) / 2**20
    x = torch.full((count,), 1 + fraction / 8)
    for bits in (*BITS, 32):
        q = lp.Quantizer("e8m3", "stochastic", random_bits=bits, rng=rng)
        p = float(chance_up(np.array(fraction), bits))
        e, other = (
            ((lp.quantize(x, q, generator=torch.tensor(s)).numpy() > 1) - p)
            / math.sqrt(p * (1 - p))
            for s in (seed + 2 * bits, seed + 2 * bits + 1)
        )
        name = f"quantize, R={bits}, {count} elements: "
        yield row(name + "mean", e.mean() * math.sqrt(count))
        for lag in (*LAGS, 4096):
            product = e[lag:] * e[:-lag]
            yield row(name + f"elements i, i + {lag}", product.sum() / math.sqrt(product.size))
        blocks = np.square(e.reshape(-1, 4096).sum(axis=1)) / 4096
        z = (blocks.mean() - 1) * math.sqrt(len(blocks) / 2)
        yield row(name + "variance of sums of 4096", z)
        yield row(name + "seeds s, s + 1", (e * other).sum() / math.sqrt(count))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rng", default="fast", choices=("fast", "philox"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", type=int, default=1024, help="outputs per side, equal operands")
    args = parser.parse_args()
    torch.set_num_threads(1)
    total = weak = failed = 0
    parts = (
        sum_rows(args.rng, args.seed, args.size),
        seed_rows(args.rng, args.seed, 512),
        element_rows(args.rng, args.seed),
    )
    for part in parts:
        for name, z, p in part:
            note = "FAILED" if p < FAILED else "weak" if p < WEAK else ""
            total, weak, failed = total + 1, weak + (note == "weak"), failed + (note == "FAILED")
            print(f"{args.rng:6} {name:75} z {z:7.2f}  p {p:8.2g}  {note}", flush=True)
    print(
        f"{args.rng}: {total} statistics, {weak} weak (p < {WEAK}, expected "
        f"{WEAK * total:.1f}), {failed} failed (p < {FAILED})"
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
