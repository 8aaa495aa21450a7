"""The gradients of an optimizer: checked and unscaled in one pass, their flag shared by ranks."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from lpkernels.techniques.loss_scaling._scale import Scale


def parameters(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """The parameters of an optimizer, in its order."""
    for group in optimizer.param_groups:
        yield from group["params"]


def values(gradient: Tensor) -> Tensor:
    """The memory of a gradient's elements in this process: the shard of a DTensor, the values of a
    sparse tensor."""
    if hasattr(gradient, "to_local"):
        gradient = gradient.to_local()
    return gradient._values() if gradient.is_sparse else gradient


def gradients(optimizer: torch.optim.Optimizer, *, halves: bool) -> list[Tensor]:
    """The values of all gradients; a float16 one is a ValueError unless `halves`."""
    found = []
    for parameter in parameters(optimizer):
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.dtype == torch.float16:
            if not halves:
                raise ValueError(
                    "Attempting to unscale FP16 gradients: expected float32 (or bfloat16) "
                    "parameters, got float16; keep the model in float32 and run it under autocast"
                )
            if gradient.is_sparse:
                # Elements of one index may overflow when they are added.
                gradient = parameter.grad = gradient.coalesce()
        found.append(values(gradient))
    return found


@torch.no_grad()
def checked(tensors: Sequence[Tensor], scale: Scale, *, unscale: bool) -> Tensor:
    """A 0-d float32 flag on the scale's device: 1 if an element of `tensors` is not finite, else 0.

    unscale: each element becomes element / scale in the same pass, by multiplication with the
    inverse of the scale, rounded to float32. A constant scale that is no power of two is the
    exception: a second pass divides by it.
    """
    divisor = scale.divisor if unscale else None
    home = scale.tensor.device
    once = unscale and divisor is None
    factor = scale.inverse() if once else torch.ones((), dtype=torch.float32, device=home)
    groups: dict[torch.device, dict[torch.dtype, list[Tensor]]] = defaultdict(dict)
    for tensor in tensors:
        # torch has no such pass for complex numbers.
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        groups[real.device].setdefault(real.dtype, []).append(real)
    flags = []
    for device, kinds in groups.items():
        flag = torch.zeros((), dtype=torch.float32, device=device)
        there = factor.to(device, non_blocking=True)
        for kind in kinds.values():
            torch._amp_foreach_non_finite_check_and_unscale_(kind, flag, there)
            if divisor is not None:
                torch._foreach_div_(kind, divisor)
        flags.append(flag.to(home, non_blocking=True))
    return any_of(flags, home)


def any_of(flags: Sequence[Tensor], device: torch.device) -> Tensor:
    """1 if one of the 0-d flags is 1, else 0."""
    if not flags:
        return torch.zeros((), dtype=torch.float32, device=device)
    return flags[0] if len(flags) == 1 else torch.stack(list(flags)).amax()


def over_ranks(flag: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The flag of all ranks of `group` (None: of the world): 1 if it is 1 on one of them. All these
    ranks must call it."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1:
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=group)
    return flag


@contextmanager
def set_aside(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[None]:
    """A block that starts without gradients. At its end the gradients that were there before are
    added to those of the block; after an error they are what they were."""
    # A parameter that optimizers share has one gradient.
    every = dict.fromkeys(p for optimizer in optimizers for p in parameters(optimizer))
    # Copies: DDP may write into the memory of a gradient anew.
    earlier = {p: p.grad.detach().clone() for p in every if p.grad is not None}
    for parameter in every:
        parameter.grad = None
    done = False
    try:
        yield
        done = True
    finally:
        with torch.no_grad():
            for parameter in every:
                fresh, old = parameter.grad if done else None, earlier.get(parameter)
                if old is not None:
                    parameter.grad = old if fresh is None else old.add_(fresh)
                elif not done:
                    parameter.grad = None
