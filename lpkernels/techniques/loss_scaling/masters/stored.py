"""The tensors that are kept between steps: codes at their formats' own size, or values; whole, or
this process's part of a DTensor (FSDP2)."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
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
from lpkernels.techniques.loss_scaling.masters.formats import Rule


@dataclass(frozen=True)
class Layout:
    """Where the parts of a tensor are; with mesh None all of it is here.

    shape: the shape of the whole.
    """

    shape: torch.Size
    mesh: Any = None
    placements: tuple[Any, ...] = ()

    @staticmethod
    def of(parameter: Tensor) -> Layout:
        """The layout of a parameter, whose states lie as it does."""
        mesh = getattr(parameter, "device_mesh", None)
        return Layout(parameter.shape, mesh, tuple(getattr(parameter, "placements", ())))

    def whole(self, part: Tensor) -> Tensor:
        """The whole, to which each process brings its part; all processes must call this."""
        return whole(self.placed(part))

    def placed(self, part: Tensor) -> Tensor:
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
        # a strided shard may be a Shard too, by inheritance
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

    @property
    def _divided(self) -> list[int]:
        """The dimensions of the mesh along which processes hold different parts."""
        return [i for i, placement in enumerate(self.placements) if not placement.is_replicate()]


def is_placed(tensor: Tensor) -> bool:
    """Whether a tensor is of a type (DTensor) of which a process may hold a part."""
    return hasattr(tensor, "device_mesh")


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor of which each process may hold a part; all processes must call this."""
    gathered = getattr(tensor, "full_tensor", None)
    return tensor if gathered is None else gathered()


def here(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds. Changing it changes the tensor."""
    local = getattr(tensor, "to_local", None)
    return tensor.detach() if local is None else local().detach()


def add_up(parts: list[tuple[Tensor, Tensor, Any]]) -> None:
    """Adds to each total the counts of all processes of a group; all processes must call this.

    parts: (total, own count, group); the parts of one group have one shape and one device.
    """
    groups: dict[int, list[tuple[Tensor, Tensor, Any]]] = {}
    for part in parts:
        groups.setdefault(id(part[2]), []).append(part)
    for held in groups.values():
        counted = torch.stack([own for _, own, _ in held])
        dist.all_reduce(counted, group=held[0][2])
        torch._foreach_add_([total for total, _, _ in held], list(counted))


def shared(seed: Tensor) -> Tensor:
    """The first process's seed, on the device where processes exchange it."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return seed
    common = seed.clone()
    dist.broadcast(common, 0)
    return common


# Formats that torch has a dtype for and keeps at their size.
_DTYPES = {FP32: torch.float32, FP16: torch.float16, BF16: torch.bfloat16}


def _dtype(fmt: Format) -> torch.dtype | None:
    """The dtype in which values are kept as they are; None where they are kept as codes.

    Values of scaled formats whose scales do not follow from them are kept in float32.
    """
    if isinstance(fmt, BlockFormat):
        return None if follows_from_values(fmt.to_ints()) else torch.float32
    return _DTYPES.get(fmt)  # type: ignore[arg-type]


def rounded(values: Tensor, quantizer: Quantizer | None, seed: Tensor | None, key: int) -> Tensor:
    """Float32 values of the format; the values that are given where the format is float32.

    A draw is a function of (seed, key, row-major index in `values`): pass whole tensors.
    """
    if quantizer is None or (quantizer.fmt == FP32 and values.dtype == torch.float32):
        return values
    own = None if seed is None or not quantizer.is_stochastic else derived_seed(seed, key)
    return quantize(values, quantizer, generator=own).float()


def encoded(values: Tensor, fmt: Format) -> Tensor:
    """float32 values of `fmt` as they are kept: a tensor of their shape where they have a dtype
    (`_dtype`), else 1-D codes.

    Raises: ValueError: a value without a code: an infinity or NaN in a format that has none.
    """
    dtype = _dtype(fmt)
    return pack(values, fmt) if dtype is None else values.to(dtype)  # type: ignore[arg-type]


def zeros(shape: torch.Size, fmt: FloatFormat, device: torch.device) -> Tensor:
    """`encoded` of zeros, for formats of whole bytes."""
    dtype = _DTYPES.get(fmt)
    if dtype is not None:
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.zeros(math.prod(shape) * fmt.bits // 8, dtype=torch.uint8, device=device)


def decoded(kept: Tensor, fmt: Format, shape: torch.Size) -> Tensor:
    """The float32 values; where these are kept as they are, the tensor that is kept itself."""
    if not is_coded(fmt):
        return kept.float()
    return unpack(kept, fmt, shape)  # type: ignore[arg-type]


def is_coded(fmt: Format) -> bool:
    """Whether values of this format are kept as 1-D codes."""
    return _dtype(fmt) is None


def is_codes(value: Any, fmt: Format | None) -> bool:
    """Whether a value is 1-D codes of this format."""
    bytes_ = isinstance(value, Tensor) and value.dtype == torch.uint8
    return bytes_ and fmt is not None and is_coded(fmt)


def code_bits(fmt: Format, shape: torch.Size) -> int:
    """The bits that values of this shape take in the format, without the bits that fill up the last
    byte."""
    numel = math.prod(shape)
    if isinstance(fmt, FloatFormat | TableFormat):
        return numel * fmt.bits
    if isinstance(fmt, FixedFormat):
        return numel * fmt.word_bits
    if not isinstance(fmt, BlockFormat) or not is_coded(fmt):
        return numel * 32
    ints = fmt.to_ints()
    return numel * fmt.element.bits + scale_bits(ints) * math.prod(grid_shape(shape, ints))


# The tensors that are kept beside the optimizer's own states, by name.
MASTER, COMPENSATION, COUNTS = "master", "compensation", "counts"
OWN = (MASTER, COMPENSATION, COUNTS)
# States of torch's optimizers that count or schedule, one number for a whole tensor.
_NUMBERS = {"step", "eta", "mu", "mu_product"}


def state_key(name: str) -> int:
    """The key of the draws of a state; it is the same whatever other states there are."""
    return (1 << 32) + zlib.crc32(name.encode())


def is_values(name: str, value: Any) -> bool:
    """Whether a state has a format: it holds float values of elements and counts no steps."""
    return isinstance(value, Tensor) and value.is_floating_point() and name not in _NUMBERS


def kept_format(name: str, value: Any, rule: Rule) -> Format | None:
    """The format of the tensor that is kept under a name; None for counts and other plain
    values."""
    formats = rule.formats
    if name in OWN:
        quantizer = {MASTER: formats.master, COMPENSATION: formats.compensation}.get(name)
        return None if quantizer is None else quantizer.fmt
    if is_values(name, value) or is_codes(value, rule.formats.of_state(name).fmt):
        return formats.of_state(name).fmt
    return None


def decoded_states(
    kept: Mapping[str, Any], rule: Rule, layout: Layout, shape: torch.Size
) -> dict[str, Any]:
    """The optimizer's states as the optimizer knows them, whole, and never the memory that is kept.

    shape: the shape of the part that is kept here.
    """
    formats, found = rule.formats, {}
    for name, value in kept.items():
        if name in OWN:
            continue
        if is_codes(value, rule.formats.of_state(name).fmt):
            found[name] = layout.whole(decoded(value, formats.of_state(name).fmt, shape))
        elif isinstance(value, Tensor):
            values = whole(value)
            values = values.float() if is_values(name, value) else values
            found[name] = values.clone() if values is value else values
        else:
            found[name] = value
    return found


def encoded_state(name: str, value: Any, rule: Rule, layout: Layout, seed: Tensor | None) -> Any:
    """A state as it is kept: rounded, and as codes and in parts where it has the parameter's
    shape."""
    if not is_values(name, value):
        if is_codes(value, rule.formats.of_state(name).fmt):
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
