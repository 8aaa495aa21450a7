"""Bytes as text, and back."""

import math
import re

_BINARY = ("KiB", "MiB", "GiB")
_UNITS = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_UNITS |= {unit: 1024**power for power, unit in enumerate(_BINARY, 1)}


def bytes_text(size: float) -> str:
    """A number of bytes with a binary unit: 49344 / 8 is "6.02 KiB"."""
    if size < 1024:
        return f"{size:.0f} B"
    power = min(int(math.log2(size)) // 10, len(_BINARY))
    return f"{size / 1024**power:.2f} {_BINARY[power - 1]}"


def bytes_from(text: str) -> float:
    """The number of bytes of a text such as "64KiB", "1.5 MB" or "65536".

    Raises: ValueError: no such text, or not above 0.
    """
    parts = re.fullmatch(r"\s*(\d+\.?\d*(?:e\d+)?)\s*([A-Za-z]*)\s*", text)
    factors = {unit.lower(): factor for unit, factor in _UNITS.items()}
    factor = factors.get(parts[2].lower()) if parts else None
    if parts is None or factor is None or not float(parts[1]):
        raise ValueError(
            f"expected a size such as 64KiB or 1.5MiB, in {', '.join(filter(None, _UNITS))}, got "
            f"{text!r}"
        )
    return float(parts[1]) * factor
