"""The elementwise work of a backend against the reference, to the bit: rounding, counting,
codes."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from lpkernels.arithmetic import Quantizer
from lpkernels.backends import BINS, COUNTS
from lpkernels.backends import get as backend_of
from lpkernels.formats import AffineFormat, BlockFormat
from tests.compare import assert_bit_equal
from tests.support.elements import SEED, SITE, Format

REFERENCE: Any = backend_of("reference")
WAYS = ((COUNTS + BINS, True), (COUNTS, False))


def quantized(
    x: Tensor, quantizer: Quantizer, backend: Any = REFERENCE, device: str = "cpu",
    dtype: torch.dtype = torch.float32, *, seed: int = SEED, role: int = 0,
) -> Tensor:  # fmt: skip
    out = torch.empty(x.shape, dtype=dtype, device=device)
    call = (quantizer.to_ints(), torch.tensor(seed), role, SITE, out)
    backend.quantize(x.to(device), *call)
    return out


def assert_quantized(
    backend: Any, x: Tensor, quantizer: Quantizer, device: str = "cpu", name: str = "",
    **draws: int,
) -> None:  # fmt: skip
    """draws: seed and role, as for `quantized`."""
    got = quantized(x, quantizer, backend, device, **draws)
    want = quantized(x, quantizer, **draws)
    assert_bit_equal(got, want, f"{name} {quantizer} {tuple(x.shape)} {x.dtype}")


def assert_counted(
    backend: Any, x: Tensor, quantizer: Quantizer, device: str = "cpu",
    limits: Tensor | None = None, name: str = "", ways: Iterable[tuple[int, bool]] = WAYS,
    *, seed: int = SEED, role: int = 0, on: Iterable[str] = ("",),
) -> None:  # fmt: skip
    """Values and counts are the reference's. ways: how many counts there are, with a histogram or
    without, and whether values are written. on: a loop over instruction sets, or over threads."""
    name = f"{name} {quantizer} {quantizer.random_bits} {tuple(x.shape)} {x.dtype}"
    call = (quantizer.to_ints(), torch.tensor(seed), role, SITE)
    want, want_counts = torch.empty(x.shape), torch.zeros(COUNTS + BINS, dtype=torch.int64)
    REFERENCE.quantize_counting(x, *call, want, want_counts, limits)
    x, limits = x.to(device), None if limits is None else limits.to(device)
    for where, (length, written) in ((where, way) for where in on for way in ways):
        out = torch.empty(x.shape, device=device) if written else None
        counts = torch.full((length,), 5, dtype=torch.int64, device=device)
        backend.quantize_counting(x, *call, out, counts, limits)
        assert (counts - 5).tolist() == want_counts[:length].tolist(), f"{where} {name}"
        if out is not None:
            assert_bit_equal(out, want, f"{where} {name}")


def ranges(x: Tensor, fmt: AffineFormat) -> Tensor:
    """Limits for every slice of x; the limits of the second slice are NaN."""
    slices = 1 if fmt.axis is None else x.shape[fmt.axis]
    limits = torch.sort(torch.randn(2, slices, dtype=torch.float64), dim=0)[0]
    limits[:, 1:2] = float("nan")
    return limits.contiguous()


def assert_codes(backend: Any, x: Tensor, fmt: Format | BlockFormat, device: str = "cpu") -> None:
    """Codes of x and their values are the reference's."""
    ints = fmt.to_ints()
    codes, want = backend.pack(x.to(device), ints), REFERENCE.pack(x, ints)
    assert_bit_equal(codes, want, f"codes of {fmt}")
    values = backend.unpack(codes, ints, list(x.shape))
    assert_bit_equal(values, REFERENCE.unpack(want, ints, tuple(x.shape)), f"values of {fmt}")
