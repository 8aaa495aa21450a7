"""The optimizer's states as they are kept: rounded, as codes, and in parts where the parameters
are in parts."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lpkernels.formats import Format
from lpkernels.techniques.loss_scaling.masters.formats import remainder_format
from lpkernels.techniques.loss_scaling.masters.rules import Rule
from lpkernels.techniques.loss_scaling.masters.sharding import Layout, whole
from lpkernels.techniques.loss_scaling.masters.storage import decoded, encoded, is_coded, rounded

# What is kept beside the optimizer's own states, by name.
MASTER, REMAINDER, COMPENSATION, COUNTS = "master", "remainder", "compensation", "counts"
OWN = (MASTER, REMAINDER, COMPENSATION, COUNTS)
# States of torch's optimizers that count or schedule, one number for a whole tensor.
_NUMBERS = {"step", "eta", "mu", "mu_product"}


def state_key(name: str) -> int:
    """The key of the draws of a state; it is the same whatever other states there are."""
    return (1 << 32) + zlib.crc32(name.encode())


def is_values(name: str, value: Any) -> bool:
    """Whether a state has a format: it holds float values of elements and counts no steps."""
    return isinstance(value, Tensor) and value.is_floating_point() and name not in _NUMBERS


def kept_format(name: str, value: Any, rule: Rule) -> Format | None:
    """The format of what is kept under a name; None for counts and other plain values."""
    formats = rule.formats
    if name in OWN:
        owners = {MASTER: formats.master, COMPENSATION: formats.compensation}
        quantizer = owners.get(name)
        if quantizer is not None:
            return quantizer.fmt
        return remainder_format(formats.weight) if name == REMAINDER else None
    if is_values(name, value) or _is_coded_state(value, name, rule):
        return formats.of_state(name).fmt
    return None


def decoded_states(
    kept: Mapping[str, Any], rule: Rule, layout: Layout, shape: torch.Size, copies: bool
) -> dict[str, Any]:
    """The optimizer's states as the optimizer knows them, whole.

    shape: that of the part that is kept here.
    copies: memory that is kept is never handed out itself.
    """
    formats, found = rule.formats, {}
    for name, value in kept.items():
        if name in OWN:
            continue
        if _is_coded_state(value, name, rule):
            found[name] = layout.whole(decoded(value, formats.of_state(name).fmt, shape))
        elif isinstance(value, Tensor):
            values = whole(value)
            values = values.float() if is_values(name, value) else values
            found[name] = values.clone() if copies and values is value else values
        else:
            found[name] = value
    return found


def _is_coded_state(value: Any, name: str, rule: Rule) -> bool:
    """Whether a state is kept as codes."""
    bytes_ = isinstance(value, Tensor) and value.dtype == torch.uint8
    return bytes_ and is_coded(rule.formats.of_state(name).fmt)


def encoded_state(name: str, value: Any, rule: Rule, layout: Layout, seed: Tensor | None) -> Any:
    """A state as it is kept: rounded, and as codes and in parts where it has the parameter's
    shape."""
    if not is_values(name, value):
        if _is_coded_state(value, name, rule):
            raise NotImplementedError(
                f"MasterWeights: state {name!r} of the optimizer is made of bytes, which cannot "
                f"be told from codes of {rule.formats.of_state(name).fmt}; keep it in fp32"
            )
        return value
    quantizer = rule.formats.of_state(name)
    values = rounded(value, quantizer, seed, state_key(name))
    if value.shape != layout.shape:
        return values
    codes = encoded(layout.part(values), quantizer.fmt)
    return codes if is_coded(quantizer.fmt) else layout.placed(codes)
