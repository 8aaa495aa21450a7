"""The operators between values and tensors of codes and scales, and of products by scale."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lpkernels import backends
from lpkernels.backends import Parts, Rounding, new_parts
from lpkernels.formats import table_of_handle
from lpkernels.formats.integers import InTable, element
from lpkernels.ops import _checks
from lpkernels.ops._operator import define, without_grad
from lpkernels.ops._rows import Ints


def _scaled_fake(x: Tensor, quantizer: Sequence[int], *call: object) -> Parts:
    return new_parts(x, tuple(quantizer))


def scaled_directly(
    x: Tensor,
    quantizer: Ints,
    amax: Tensor | None,
    seed: Tensor | None,
    role: int,
    site: int,
    backend: str,
) -> Parts:
    """The work of the operator."""
    known = _checks.rounds(quantizer)
    op = "scaled_table" if known.op.endswith("_table") else "scaled"
    chosen = backends.select(backend, op, x.device)
    if x.numel() == 0:
        return new_parts(x, known.ints)
    if x.requires_grad:
        x = x.detach()
    # A scalar is a vector of one element, which has an axis.
    vector = x if x.dim() else x.view(1)
    parts = new_parts(vector, known.ints)
    chosen.quantize(Rounding(vector, known.ints, seed, role, site, None, None, amax, parts))
    values, scale, tensor_scale = parts
    if known.codes is not None and known.codes.without_zero:
        # The codes of a block that is NaN are 0, or the least value where 0 is none.
        values.clamp_(min=table_of_handle(element(known.ints)[InTable.HANDLE]).min)
    if x.dim():
        return values, scale, tensor_scale
    return values.view(()), scale.view(()), tensor_scale


def _guard_scaled(
    x: Tensor, quantizer: Ints, amax: Tensor | None, seed: Tensor | None, role: int, site: int,
    backend: str,
) -> None:  # fmt: skip
    _checks.quantizer("scaled", quantizer, x, seed, role, site)
    _checks.scaled_to(quantizer, x, amax)


_scaled = define(
    "_scaled(Tensor x, int[] quantizer, Tensor? amax, Tensor? seed, int role, int site,"
    " str backend) -> (Tensor, Tensor, Tensor)",
    _scaled_fake,
    scaled_directly,
    _guard_scaled,
)


def scaled(
    x: Tensor,
    quantizer: Ints,
    amax: Tensor | None,
    seed: Tensor | None,
    role: int,
    site: int,
    backend: str = "auto",
) -> Parts:
    """x in a block format: codes of x's shape, the scales of its blocks on their grid, and the
    scale of the tensor, all float32.

    amax: one float64 element on x's device, in place of the tensor's largest finite magnitude.
    """
    return _scaled(without_grad(x), quantizer, amax, seed, int(role), site, backend)
