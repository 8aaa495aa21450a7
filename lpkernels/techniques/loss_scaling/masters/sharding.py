"""A parameter of which this process may hold only a part (a DTensor, as FSDP2 makes them)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Where the parts of a tensor are; with mesh None all of it is here.

    shape: that of the whole.
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
        """Where such a range begins: the row-major index of this process's first element."""
        if not self._divided or not self.shape[0]:
            return 0
        (along,) = self._divided
        rows = -(-self.shape[0] // self.mesh.size(along))
        first = min(rows * self.mesh.get_local_rank(along), self.shape[0])
        return first * (self.shape.numel() // self.shape[0])

    @property
    def group(self) -> Any:
        """The processes that hold such ranges of one whole; None where each holds the whole."""
        return self.mesh.get_group(self._divided[0]) if self._divided else None

    @property
    def _divided(self) -> list[int]:
        """The dimensions of the mesh along which processes hold different parts."""
        return [i for i, placement in enumerate(self.placements) if not placement.is_replicate()]


def is_placed(tensor: Tensor) -> bool:
    """Whether a tensor is one of which a process may hold a part."""
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
    """Adds to each total what every process of a group counted; all processes must call this.

    parts: (total, own count, group); the parts of one group have one shape and one device.
    """
    groups: dict[int, list[tuple[Tensor, Tensor, Any]]] = {}
    for part in parts:
        groups.setdefault(id(part[2]), []).append(part)
    for held in groups.values():
        counted = torch.stack([own for _, own, _ in held])
        dist.all_reduce(counted, group=held[0][2])
        torch._foreach_add_([total for total, _, _ in held], list(counted))


def shared(seed: Tensor, device: torch.device) -> Tensor:
    """The first process's seed, which all processes get."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return seed
    common = seed.to(device)
    dist.broadcast(common, 0)
    return common
