"""The signs of a randomised Hadamard transform, and how its size and signs cross as an integer."""

from __future__ import annotations

from functools import lru_cache

from lpkernels.formats.checks import checked_int
from lpkernels.rng import SITE_QUANTIZE, Role, derive_seed, draw

HADAMARD_SIZES = (16, 32, 64, 128)
TE = "te"
#: The vector of random signs that TransformerEngine fixes for its transforms of 16.
TE_SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)
_MAX_SEED = 2**32 - 1


def check_transform(owner: str, size: object, signs: object) -> tuple[int, str | int]:
    """Size and signs of a transform, ``signs`` "te" or a seed.

    Raises:  TypeError, ValueError: a size not in `HADAMARD_SIZES`, signs that are neither or a seed
        not in 0 .. 2^32 - 1, or "te" with another size than 16.
    """
    size = checked_int(owner, "hadamard", size, -(2**62))
    if size not in HADAMARD_SIZES:
        raise ValueError(f"{owner}: hadamard must be one of {HADAMARD_SIZES} or None, got {size}")
    if not isinstance(signs, str):
        return size, checked_int(owner, "signs", signs, 0, _MAX_SEED)
    if signs != TE:
        raise ValueError(f"{owner}: signs must be 'te' or a seed, got {signs!r}")
    if size != len(TE_SIGNS):
        raise ValueError(
            f"{owner}: signs='te' are {len(TE_SIGNS)} signs, but hadamard is {size}; give a seed: "
            "signs=<int>"
        )
    return size, signs


@lru_cache(maxsize=256)
def signs_of(size: int, signs: str | int) -> tuple[int, ...]:
    """The diagonal of D: `size` numbers 1 and -1.

    Sign i of a seed is -1 where bit i % 32 of word i // 32 is set (bit 0 the lowest): of the words
    of the "fast" stream of ``rng.derive_seed(seed, Role.SIGNS)`` at site SITE_QUANTIZE, row 0 and
    column 0.
    """
    if isinstance(signs, str):
        return TE_SIGNS
    seed = derive_seed(signs, Role.SIGNS)
    words = [draw(seed, SITE_QUANTIZE, 0, 0, word, 32) for word in range((size + 31) // 32)]
    return tuple(-1 if words[i // 32] >> i % 32 & 1 else 1 for i in range(size))


def transform_to_int(size: int | None, signs: str | int) -> int:
    """0 for no transform; else the size, plus 256 (seed + 1) where a seed makes the signs."""
    if size is None:
        return 0
    return size if isinstance(signs, str) else size + ((signs + 1) << 8)


def transform_from_int(number: int) -> tuple[int | None, str | int]:
    """Size and signs of `transform_to_int`."""
    seed = (number >> 8) - 1
    return number & 255 or None, TE if seed < 0 else seed
