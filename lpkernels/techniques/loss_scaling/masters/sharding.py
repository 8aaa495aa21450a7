"""A parameter of which this process may hold a part (DTensor, as FSDP2 makes them)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Where the parts of a tensor are; mesh None: all of it is here.

    shape: of the whole.
    """

    shape: torch.Size
    mesh: Any = None
    placements: tuple[Any, ...] = ()

    @staticmethod
    def of(parameter: Tensor) -> Layout:
        """Of a parameter, whose states lie as it does."""
        mesh = getattr(parameter, "device_mesh", None)
        return Layout(parameter.shape, mesh, tuple(getattr(parameter, "placements", ())))

    def whole(self, part: Tensor) -> Tensor:
        """All processes: the whole, of which each brings its part."""
        return whole(self.placed(part))

    def placed(self, part: Tensor) -> Tensor:
        """A part as the tensor that it is a part of."""
        if self.mesh is None:
            return part
        from torch.distributed.tensor import DTensor

        stride = torch.empty(self.shape, dtype=part.dtype, device="meta").stride()
        return DTensor.from_local(
            part, self.mesh, self.placements, run_check=False, shape=self.shape, stride=stride
        )

    def part(self, everything: Tensor) -> Tensor:
        """This process's part of what all of them have whole; nothing is sent."""
        if self.mesh is None:
            return everything
        from torch.distributed.tensor import DTensor, Replicate

        everywhere = [Replicate()] * len(self.placements)
        same = DTensor.from_local(everything, self.mesh, everywhere, run_check=False)
        return same.redistribute(placements=self.placements).to_local().contiguous()


def whole(tensor: Tensor) -> Tensor:
    """All processes: the whole of a tensor of which each may hold a part."""
    gathered = getattr(tensor, "full_tensor", None)
    return tensor if gathered is None else gathered()


def here(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor: changing it changes the tensor."""
    local = getattr(tensor, "to_local", None)
    return tensor.detach() if local is None else local().detach()


def shared(seed: Tensor, device: torch.device) -> Tensor:
    """The first process's seed, in all of them."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return seed
    common = seed.to(device)
    dist.broadcast(common, 0)
    return common
