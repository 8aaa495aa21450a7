"""Comparisons of results: to the bit, and in the mean."""

from typing import Any

import numpy as np

_UNSIGNED = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def assert_bit_equal(got: Any, want: Any, name: str = "result") -> None:
    """``got`` and ``want`` (arrays or tensors) have one dtype, one shape and the same bits.

    The message names the first index that differs, both values and both bit patterns.
    """
    got_dtype, got_values, got_bits = _bits(got)
    want_dtype, want_values, want_bits = _bits(want)
    assert got_dtype == want_dtype, f"{name}: dtype {got_dtype}, expected {want_dtype}"
    assert got_bits.shape == want_bits.shape, (
        f"{name}: shape {got_bits.shape}, expected {want_bits.shape}"
    )
    differs = got_bits != want_bits
    if not differs.any():
        return
    index = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(differs)))
    at = index if got_bits.ndim else ()
    digits = 2 * got_bits.dtype.itemsize
    raise AssertionError(
        f"{name}: {int(differs.sum())} of {differs.size} differ, first at {at}: "
        f"got {got_values[at]!r} (0x{int(got_bits[at]):0{digits}x}), "
        f"expected {want_values[at]!r} (0x{int(want_bits[at]):0{digits}x})"
    )


def _bits(value: Any) -> tuple[str, np.ndarray, np.ndarray]:
    """The dtype's name, the values and the bit patterns of an array or a tensor."""
    if type(value).__module__.partition(".")[0] == "torch":
        import torch

        value = value.detach().cpu().contiguous()
        dtype = str(value.dtype).removeprefix("torch.")
        if value.is_floating_point():
            integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[value.element_size()]
            bits = value.view(integer).numpy()
            return dtype, value.double().numpy(), bits.view(_UNSIGNED[bits.dtype.itemsize])
        return dtype, value.numpy(), value.numpy()
    array = np.ascontiguousarray(value).reshape(np.shape(value))
    if array.dtype.kind == "f":
        return array.dtype.name, array, array.view(_UNSIGNED[array.dtype.itemsize])
    return array.dtype.name, array, array
