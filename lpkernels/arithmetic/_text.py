"""The text form shared by Quantizer and Accumulator: a name, then options after colons."""

from lpkernels.rng import RNGS

_NUMBERS = ("bits", "block", "aligned_bits", "interleaved")
# Numbers that may be negative.
_SIGNED = ("least_exponent",)


def parse_options(text: str, parts: list[str], keys: tuple[str, ...]) -> dict[str, str]:
    """``[rounding]``, ``[rng]`` and ``key=value`` parts of a text form, each at most once."""
    options: dict[str, str] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals:
            key, value = ("rng" if part in RNGS else "rounding"), part
        elif key not in keys or not value or not _reads(key, value):
            raise ValueError(
                f"cannot read {part!r} in {text!r}; expected a rounding, 'philox' or "
                f"{', '.join(f'{key}=<value>' for key in keys)}"
            )
        if key in options:
            raise ValueError(f"{text!r} gives its {key} twice; write it once")
        options[key] = value
    return options


def _reads(key: str, value: str) -> bool:
    if key in _SIGNED:
        return value.removeprefix("-").isdecimal()
    return key not in _NUMBERS or value.isdecimal()
