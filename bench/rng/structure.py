"""What the key schedule of rng="fast" could give away: equal keys, additive cycles, weak mixing.

A word is mix32(column_key[n] + row_key(m, w)). Everything here is computed with lpkernels.rng.

    python bench/rng/structure.py [--large] [--seed 1]

It prints figures, the expectation for random 32-bit keys beside each, and z where there is one.
"""

import argparse
import math

import numpy as np

from lpkernels import rng as lprng

GOLDEN_INVERSE = np.uint64(pow(lprng._GOLDEN, -1, 2**64))


def keyed_rows(seed: int, rows: np.ndarray, words: np.ndarray) -> np.ndarray:
    """row_key(m, w): what is added to every column's key."""
    base = np.uint64(lprng.mix64(seed ^ lprng.mix64(lprng.SITE_SUM + 1)))
    stream = lprng._mix64_array(base + np.uint64(2) * rows * np.uint64(lprng._GOLDEN))
    low, high = stream.astype(np.uint32), (stream >> np.uint64(32)).astype(np.uint32)
    return lprng._mix32_array(words.astype(np.uint32) + low) ^ high


def column_keys(seed: int, count: int) -> np.ndarray:
    base = lprng.mix64(seed ^ lprng.mix64(lprng.SITE_SUM + 1))
    return lprng.column_keys(base, np.arange(count, dtype=np.uint64))


def equal_pairs(values: np.ndarray) -> int:
    """Pairs of equal values; sorts in place."""
    values = values.ravel()
    values.sort()
    edges = np.flatnonzero(values[1:] != values[:-1])
    runs = np.diff(np.concatenate([[-1], edges, [len(values) - 1]]))
    return int((runs * (runs - 1) // 2).sum())


def against_random(name: str, found: float, expected: float) -> None:
    z = (found - expected) / math.sqrt(expected)
    print(f"{name:70} found {found:12.0f}  expected {expected:12.1f}  z {z:6.2f}", flush=True)


def duplicates(seed: int, large: bool) -> None:
    for log2_rows, log2_words in ((10, 10), (14, 8), (12, 12), (16, 10), *([(18, 10)] * large)):
        rows = np.arange(1 << log2_rows, dtype=np.uint64)[:, None]
        keys = keyed_rows(seed, rows, np.arange(1 << log2_words, dtype=np.uint64)[None])
        n = keys.size
        against_random(
            f"equal row keys, {1 << log2_rows} rows of {1 << log2_words} words",
            equal_pairs(keys),
            n * (n - 1) / 2**33,
        )
    found = equal_pairs(column_keys(seed, 1 << 22))
    print(f"equal column keys, 2^22 columns: {found} (a permutation: none in 2^32)")
    one = keyed_rows(seed, np.zeros(1, np.uint64), np.arange(1 << 22, dtype=np.uint64))
    words = lprng._mix32_array(one + column_keys(seed, 1))
    print(
        f"equal words in one output's 2^22: {equal_pairs(words)} (a random 32-bit source: "
        f"{2.0**44 / 2**33:.0f}; here a permutation by construction)"
    )
    found = []
    for s in range(512):
        tile = keyed_rows(
            seed + s, np.arange(64, dtype=np.uint64)[:, None], np.arange(8, dtype=np.uint64)[None]
        ).reshape(-1, 1)
        found.append(equal_pairs(lprng._mix32_array(tile + column_keys(seed + s, 512))))
    mean = 2.0**18 * (2**18 - 1) / 2**33
    against_random(
        "equal words in 512 tiles of 64 rows x 8 words x 512 columns", sum(found), 512 * mean
    )
    spread = np.var(found, ddof=1) / mean
    print(f"  variance / mean of the count per tile {spread:.3f}, z {(spread - 1) * 16:.2f}")


def correlation(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Correlations of the four bytes of x with those of y, (4, 4)."""
    a, b = (v.view(np.uint8).reshape(-1, 4).astype(np.float32) - 127.5 for v in (x, y))
    return (a.T @ b).astype(np.float64) / (len(a) * (2**16 - 1) / 12)


def mixing(seed: int, log2_samples: int) -> None:
    """Two columns whose keys differ by d see mix32(y) and mix32(y + d) at every position; this
    correlates the two."""
    y = np.random.default_rng(seed).integers(0, 2**32, 1 << log2_samples, dtype=np.uint32)
    plain = lprng._mix32_array(y)
    noise = 2.0 ** (-log2_samples / 2)
    groups = {
        "one bit flipped": [y ^ np.uint32(1 << j) for j in range(32)],
        "plus a power of two": [y + np.uint32(1 << j) for j in range(32)],
        "plus 3 .. 63": [y + np.uint32(d) for d in range(3, 64, 4)],
        "plus a random number": [y + np.uint32(d) for d in y[:32]],
    }
    for name, others in groups.items():
        worst_bit = worst_byte = 0.0
        for other in others:
            mixed = lprng._mix32_array(other)
            ones = np.unpackbits((mixed ^ plain).view(np.uint8)).reshape(-1, 32).mean(axis=0)
            worst_bit = max(worst_bit, float(np.abs(ones - 0.5).max()))
            worst_byte = max(worst_byte, float(np.abs(correlation(plain, mixed)).max()))
        print(
            f"mix32, {name:22} largest |P(output bit flips) - 1/2| {worst_bit:.5f} "
            f"(noise {noise / 2:.5f}), largest byte correlation {worst_byte:.5f} "
            f"(noise {noise:.5f})"
        )


def spectrum(log2_fold: int = 16) -> None:
    """The largest additive Fourier coefficients of the bytes of mix32, over all 2^32 inputs.

    Four-cycles of additive keys correlate by the sum of fourth powers of these. Two ranges are
    covered: the 2^16 frequencies that see the low half of the input, and the 2^16 lowest ones,
    which see its high half.
    """
    size = 1 << log2_fold
    low = np.zeros((size, 4))
    high = np.zeros((size, 4))
    y = np.arange(size * 16, dtype=np.uint32)
    for block in range(1 << (32 - log2_fold - 4)):
        mixed = lprng._mix32_array(y + np.uint32(block * size * 16))
        parts = mixed.view(np.uint8).reshape(16, size, 4)
        low += parts.sum(axis=0, dtype=np.uint32)
        high[block * 16 : block * 16 + 16] = parts.sum(axis=1, dtype=np.uint32)
    typical = math.sqrt(math.log(4 * size)) * 2**-16
    for name, sums in (("low half", low), ("high half", high)):
        centred = sums / 2.0 ** (32 - log2_fold) - 127.5
        found = np.abs(np.fft.fft(centred, axis=0)) / size / math.sqrt((2**16 - 1) / 12)
        print(
            f"mix32, all 2^32 inputs, {name}: largest Fourier coefficient of a byte "
            f"{found.max():.2e} (random function about {typical:.2e}), "
            f"sum of fourth powers {np.max((found**4).sum(axis=0)):.2e}"
        )


def four_cycles(seed: int, log2_points: int, columns: int = 512) -> None:
    """Single draws, not sums: words of `columns` columns at 2^log2_points row keys."""
    per_row = 1 << (log2_points - 8)
    rows, words = np.arange(256, dtype=np.uint64), np.arange(per_row, dtype=np.uint64)
    keys = keyed_rows(seed, rows[:, None], words[None]).reshape(-1, 1)
    cols = column_keys(seed, columns)
    for byte in range(4):
        top = np.zeros((columns, columns))
        full = np.zeros((columns, columns))
        for part in np.array_split(keys, max(1, len(keys) >> 13)):
            draws = (lprng._mix32_array(part + cols) >> np.uint32(8 * byte)) & np.uint32(255)
            value = (draws.astype(np.float32) - 127.5) / math.sqrt((2**16 - 1) / 12)
            sign = np.where(draws > 127, np.float32(1), np.float32(-1))
            full += value.T @ value
            top += sign.T @ sign
        for name, gram in (("value", full), ("top bit", top)):
            g = gram[np.triu_indices(columns, 1)] / math.sqrt(len(keys))
            z = (np.square(g).sum() - len(g)) / math.sqrt(2 * len(g))
            print(
                f"four-cycles of draws, byte {byte} {name:8} z {z:6.2f}, largest pair correlation "
                f"z {np.abs(g).max():.2f} of {len(g)}"
            )


def roles_and_sites(seed: int) -> None:
    """Draws of the same outputs for every site of a call and every role of a layer."""
    row, col = (np.arange(64, dtype=np.uint64).reshape(s) for s in ((64, 1, 1), (1, 64, 1)))
    word = np.arange(64, dtype=np.uint64)
    streams = [lprng.fast_words(seed, site, row, col, word) for site in range(6)]
    for role in range(1, 12):
        streams.append(lprng.fast_words(lprng.derive_seed(seed, role), 0, row, col, word))
    for consecutive in range(1, 8):
        streams.append(lprng.fast_words(seed + consecutive, 0, row, col, word))
    values = np.stack([s.ravel().view(np.uint8) for s in streams]).astype(np.float32) - 127.5
    gram = (values @ values.T).astype(np.float64) / ((2**16 - 1) / 12 * math.sqrt(values.shape[1]))
    z = gram[np.triu_indices(len(gram), 1)]
    print(
        f"draws of 6 sites, 11 roles, 7 further seeds at the same places: largest correlation of "
        f"{len(z)} pairs z {np.abs(z).max():.2f}, sum of squares "
        f"z {(np.square(z).sum() - len(z)) / math.sqrt(2 * len(z)):.2f}"
    )


def seeds(seed: int, count: int = 1 << 16) -> None:
    """Do calls share keys? The streams of all roles and sites of consecutive seeds lie on one axis.

    Rows and columns of a base b are mix64(b + j G): two bases share keys where they differ by a
    small multiple of G.
    """
    start = np.arange(seed, seed + count, dtype=np.uint64)
    roles = [start] + [
        lprng._mix64_array(start + np.uint64(r * lprng._GOLDEN & lprng.MASK64))
        for r in range(1, 12)
    ]
    derived = np.concatenate(roles)
    print(f"derived seeds of {count} seeds x 12 roles: {equal_pairs(derived.copy())} equal")
    bases = np.concatenate(
        [lprng._mix64_array(derived ^ np.uint64(lprng.mix64(site + 1))) for site in range(6)]
    )
    place = np.sort(bases * GOLDEN_INVERSE)
    gaps = np.diff(place)
    for log2_gap in (24, 28, 32):
        n = len(place)
        against_random(
            f"{n} bases: neighbours nearer than 2^{log2_gap} keys (2^{log2_gap - 1} rows)",
            int((gaps < np.uint64(1 << log2_gap)).sum()),
            n * (n / 2**64) * 2**log2_gap,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--large", action="store_true", help="2^28 row keys, the full spectrum")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    duplicates(args.seed, args.large)
    mixing(args.seed, 22)
    four_cycles(args.seed, 18 if args.large else 15)
    roles_and_sites(args.seed)
    seeds(args.seed)
    if args.large:
        spectrum()


if __name__ == "__main__":
    main()
