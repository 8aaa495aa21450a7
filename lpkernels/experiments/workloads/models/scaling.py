"""The channels of a network that is made wider or narrower as a whole."""

# Channels are a multiple of this, so that every one of the published networks keeps its own.
_STEP = 4


def scaled(channels: int, width: int, usual: int) -> int:
    """The channels of a layer if the first layer has `width` instead of its `usual`: the multiple
    of 4 that is nearest to channels * width / usual, the larger of two, and at least 4.
    """
    return max(_STEP, (2 * channels * width + _STEP * usual) // (2 * _STEP * usual) * _STEP)


def check_width(name: str, width: int) -> None:
    """Raises: ValueError: a width below 1."""
    if width < 1:
        raise ValueError(f"{name}: width must be at least 1, got {width}")


def check_size(name: str, depth: int, width: int) -> None:
    """Raises: ValueError: a depth or a width below 1."""
    if depth < 1 or width < 1:
        raise ValueError(
            f"{name}: depth and width must be at least 1, got depth={depth} and width={width}"
        )
