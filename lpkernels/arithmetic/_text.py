"""The text form shared by Quantizer and Accumulator: a name, then options after colons."""

from lpkernels.rng import RNGS

_NUMBERS = ("bits", "block", "aligned_bits")


def parse_options(text: str, parts: list[str], keys: tuple[str, ...]) -> dict[str, str]:
    """``[rounding]``, ``[rng]`` and ``key=value`` parts of a text form, each at most once."""
    options: dict[str, str] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals:
            key, value = ("rng" if part in RNGS else "rounding"), part
        elif key not in keys or not value or (key in _NUMBERS and not value.isdecimal()):
            raise ValueError(
                f"cannot read {part!r} in {text!r}; expected a rounding, 'philox' or "
                f"{', '.join(f'{key}=<value>' for key in keys)}"
            )
        if key in options:
            raise ValueError(f"{text!r} gives its {key} twice; write it once")
        options[key] = value
    return options
