"""The codec of what is kept between steps: values rounded to a format, as codes of its size or in a
dtype, whole or this process's part of a DTensor (FSDP2)."""

from __future__ import annotations

import math
import zlib
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from lpkernels.arithmetic import Quantizer
from lpkernels.formats import (
    BF16,
    FP16,
    FP32,
    BlockFormat,
    FixedFormat,
    FloatFormat,
    Format,
    TableFormat,
)
from lpkernels.formats.grids import grid_shape
from lpkernels.formats.integers import follows_from_values, scale_bits
from lpkernels.functional.packing import pack, unpack
from lpkernels.functional.quantize import quantize
from lpkernels.functional.seeds import derived_seed

# States of torch's optimizers that count or schedule, one number for a whole tensor.
_NUMBERS = {"step", "eta", "mu", "mu_product"}
# Formats that torch has a dtype for and keeps at their size.
_DTYPES: dict[Format, torch.dtype] = {
    FP32: torch.float32,
    FP16: torch.float16,
    BF16: torch.bfloat16,
}


class Purpose(IntEnum):
    """The purpose of a draw; a state's key is `state_key`, above all of these."""

    GRAD = 1
    MASTER = 2
    WEIGHT = 3
    COMPENSATION = 4


def state_key(name: str) -> int:
    """The key of the draws of a state; it is the same whatever other states there are."""
    return (1 << 32) + zlib.crc32(name.encode())


def rounded(values: Tensor, quantizer: Quantizer | None, seed: Tensor | None, key: int) -> Tensor:
    """Float32 values of the format; `values` itself where the format is float32.

    A draw is a function of (seed, key, row-major index in `values`): pass whole tensors.
    """
    if quantizer is None or (quantizer.fmt == FP32 and values.dtype == torch.float32):
        return values
    own = None if seed is None or not quantizer.is_stochastic else derived_seed(seed, key)
    return quantize(values, quantizer, generator=own).float()


def _dtype(fmt: Format) -> torch.dtype | None:
    """The dtype in which values are kept as they are; None where they are kept as codes.

    Values of scaled formats whose scales do not follow from them are kept in float32.
    """
    if isinstance(fmt, BlockFormat):
        return None if follows_from_values(fmt.to_ints()) else torch.float32
    return _DTYPES.get(fmt)


def is_codes(value: Any, fmt: Format | None) -> bool:
    """Whether a value is 1-D codes of this format."""
    is_bytes = isinstance(value, Tensor) and value.dtype == torch.uint8
    return is_bytes and fmt is not None and _dtype(fmt) is None


def is_values(name: str, value: Any) -> bool:
    """Whether a state has a format: it holds float values of elements and counts no steps."""
    return isinstance(value, Tensor) and value.is_floating_point() and name not in _NUMBERS


def code_bits(fmt: Format, shape: torch.Size) -> int:
    """The bits of values of this shape in the format, without those that fill the last byte."""
    numel = math.prod(shape)
    if isinstance(fmt, FloatFormat | TableFormat):
        return numel * fmt.bits
    if isinstance(fmt, FixedFormat):
        return numel * fmt.word_bits
    if not isinstance(fmt, BlockFormat) or _dtype(fmt) is not None:
        return numel * 32
    ints = fmt.to_ints()
    return numel * fmt.element.bits + scale_bits(ints) * math.prod(grid_shape(shape, ints))


class Layout:
    """Where the parts of a parameter's tensors are; without a mesh all of it is here.

    shape, part_shape: of the whole and of this process's part.
    """

    def __init__(self, parameter: Tensor) -> None:
        self.shape = self.part_shape = parameter.shape
        self.mesh: Any = getattr(parameter, "device_mesh", None)
        self.placements: tuple[Any, ...] = ()
        if self.mesh is not None:
            self.part_shape, self.placements = here(parameter).shape, tuple(parameter.placements)  # type: ignore[attr-defined]
        # The dimensions of the mesh along which processes hold different parts.
        self._divided = [i for i, p in enumerate(self.placements) if not p.is_replicate()]

    def encoded(self, values: Tensor, fmt: Format) -> Tensor:
        """Whole float32 values of `fmt` as this process keeps them: 1-D codes, or values in a dtype
        that lie as the parameter does.

        Raises: ValueError: a value without a code: an infinity or NaN in a format that has none.
        """
        return self.encoded_part(self.part(values), fmt)

    def encoded_part(self, part: Tensor, fmt: Format) -> Tensor:
        """`encoded` of this process's part alone."""
        dtype = _dtype(fmt)
        return pack(part, fmt) if dtype is None else self._placed(part.to(dtype))  # type: ignore[arg-type]

    def decoded(self, kept: Tensor, fmt: Format) -> Tensor:
        """The whole float32 values, perhaps the memory that is kept itself; all processes must call
        this."""
        if is_codes(kept, fmt):
            return self.whole(unpack(kept, fmt, self.part_shape))  # type: ignore[arg-type]
        return whole(kept).float()

    def saved(self, value: Any, fmt: Format | None) -> Any:
        """What this process keeps, whole, for a state_dict; all processes must call this."""
        if self.mesh is None or not isinstance(value, Tensor):
            return value
        if fmt is not None and is_codes(value, fmt):
            return pack(self.decoded(value, fmt), fmt)  # type: ignore[arg-type]
        return whole(value)

    def loaded(self, value: Tensor, fmt: Format | None) -> Tensor:
        """What this process keeps of a tensor that `saved` returned."""
        if self.mesh is None or fmt is None:
            return value
        if is_codes(value, fmt):
            value = unpack(value, fmt, self.shape)  # type: ignore[arg-type]
        return self.encoded(value, fmt) if value.shape == self.shape else value

    def whole(self, part: Tensor) -> Tensor:
        """The whole, to which each process brings its part; all processes must call this."""
        return whole(self._placed(part))

    def _placed(self, part: Tensor) -> Tensor:
        """A part in the form of the tensor that it belongs to."""
        if self.mesh is None:
            return part
        from torch.distributed.tensor import DTensor

        stride = torch.empty(self.shape, dtype=part.dtype, device="meta").stride()
        return DTensor.from_local(
            part, self.mesh, self.placements, run_check=False, shape=self.shape, stride=stride
        )

    def part(self, everything: Tensor) -> Tensor:
        """This process's part of a tensor that all of them have whole; nothing is sent."""
        if self.mesh is None:
            return everything
        from torch.distributed.tensor import DTensor, Replicate

        everywhere = [Replicate()] * len(self.placements)
        same = DTensor.from_local(everything, self.mesh, everywhere, run_check=False)
        return same.redistribute(placements=self.placements).to_local().contiguous()

    @property
    def is_range(self) -> bool:
        """Whether every process holds neighbours in row-major order: everything, or some rows."""
        if self.mesh is None:
            return True
        from torch.distributed.tensor import Shard

        divided = [self.placements[along] for along in self._divided]
        # A strided shard may be a Shard too, by inheritance.
        return len(divided) <= 1 and all(type(p) is Shard and p.dim == 0 for p in divided)

    @property
    def origin(self) -> int:
        """The row-major index of the first element in this process's range (`is_range`)."""
        if not self._divided or not self.shape[0]:
            return 0
        (along,) = self._divided
        rows = -(-self.shape[0] // self.mesh.size(along))
        first = min(rows * self.mesh.get_local_rank(along), self.shape[0])
        return first * (self.shape.numel() // self.shape[0])

    @property
    def group(self) -> Any:
        """The processes that hold the ranges of one whole tensor; None where each process holds the
        whole."""
        return self.mesh.get_group(self._divided[0]) if self._divided else None


def is_placed(tensor: Tensor) -> bool:
    """Whether a tensor is of a type (DTensor) of which a process may hold a part."""
    return hasattr(tensor, "device_mesh")


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor of which each process may hold a part; all processes must call this."""
    return tensor.full_tensor() if is_placed(tensor) else tensor  # type: ignore[attr-defined]


def here(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds. Changing it changes the tensor."""
    local = tensor.to_local() if is_placed(tensor) else tensor  # type: ignore[attr-defined]
    return local.detach()
