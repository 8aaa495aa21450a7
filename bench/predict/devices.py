"""GPUs that times are predicted for."""

from __future__ import annotations

from typing import NamedTuple


class Device(NamedTuple):
    """The figures of a GPU that a prediction needs: docs/predictions.md has the model.

    processors: streaming multiprocessors. issues: warp instructions that one processor starts a
    clock. lanes: float32 multiply-adds that it makes a clock. tensor_products: products of half
    precision that it makes a clock by mma.sync, assumed. clock: MHz. bandwidth: of memory, bytes a
    microsecond. launch: microseconds of a kernel that does nothing. fast_doubles: it adds doubles
    at half the rate of floats.
    """

    name: str
    processors: int
    issues: int
    lanes: int
    tensor_products: int
    clock: float
    bandwidth: float
    launch: float
    fast_doubles: bool


#: Devices by the names that the command takes. A processor has four tensor cores, each of which
#: makes 2048 products in 6.4 clocks.
DEVICES = {
    "h100": Device("H100 SXM", 132, 4, 128, 1280, 1755.0, 3.35e6, 2.0, True),
}


def device(name: str) -> Device:
    """The device of that name.

    Raises: ValueError: there is none; the message names the devices that there are.
    """
    if name not in DEVICES:
        raise ValueError(
            f"device: expected one of {', '.join(DEVICES)}, got {name!r}: predictions are for these"
        )
    return DEVICES[name]


def device_of(model: str) -> str:
    """The name of the device that a GPU calling itself `model` is; "" if it is none of them."""
    found = (name for name in DEVICES if name in model.lower().split())
    return next(found, "")
