"""A model and its optimizer on several processes: whole in each (DDP) or in shards (FSDP2).

With both a checkpoint holds whole tensors, the same as with one process.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lpkernels.experiments.processes.torchrun import Processes
from lpkernels.nn.scaling import KeptScales

State = dict[str, Any]


def sharded(model: nn.Module, processes: Processes, device: str) -> nn.Module:
    """The model, whose parameters become DTensors where the processes hold shards of them, so that
    the optimizer is made after this: each child with parameters is gathered when it is called."""
    if processes.sharded:
        from torch.distributed.fsdp import fully_shard

        mesh = dist.init_device_mesh(torch.device(device).type, (processes.count,))
        for child in model.children():
            if any(True for _ in child.parameters()):
                fully_shard(child, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def replicated(model: nn.Module, processes: Processes) -> nn.Module:
    """The function to call for a training step, whose backward leaves the mean of the processes'
    gradients: the model, or its DDP wrapper where each process holds all of it."""
    if processes.count == 1 or processes.sharded:
        return model
    return nn.parallel.DistributedDataParallel(model)


# A DTensor alone has these attributes; its type is not imported for runs of one process.
def whole(tensor: Any) -> Tensor:
    """The full tensor, where each process has a shard; any other tensor as it is."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def local(tensor: Any) -> Tensor:
    """The part of a tensor that this process holds."""
    return tensor.to_local() if hasattr(tensor, "full_tensor") else tensor


def like(value: Tensor, parameter: Any) -> Tensor:
    """All: the whole tensor `value`, sharded as `parameter` is."""
    if not hasattr(parameter, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, parameter.device_mesh, parameter.placements)


def model_state(model: nn.Module) -> State:
    """All: the state_dict of the whole model."""
    return {name: whole(tensor) for name, tensor in model.state_dict().items()}


def load_model(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """All: takes over what `model_state` returned, with any number of processes."""
    own = model.state_dict()
    # A name that the model does not have is left to load_state_dict, which says so.
    placed = {name: like(value, own.get(name, value)) for name, value in state.items()}
    model.load_state_dict(placed)


def optimizer_state(optimizer: torch.optim.Optimizer) -> State:
    """All: the state_dict of the optimizer of the whole model."""
    state = optimizer.state_dict()
    return {**state, "state": _each(state["state"], lambda value, number: whole(value))}


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """All: takes over what `optimizer_state` returned, with any number of processes."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def placed(value: Tensor, number: int) -> Tensor:
        # a count of steps has no shape and is whole everywhere
        same = value.shape == parameters[number].shape
        return like(value, parameters[number]) if same else value

    optimizer.load_state_dict({**state, "state": _each(state["state"], placed)})


def _each(states: Mapping[int, State], change: Any) -> dict[int, State]:
    """`change(tensor, number of its parameter)` of every tensor of an optimizer's state."""
    return {
        number: {
            key: change(value, number) if isinstance(value, Tensor) else value
            for key, value in state.items()
        }
        for number, state in states.items()
    }


@torch.no_grad()
def share_buffers(model: nn.Module, processes: Processes) -> None:
    """All: every floating buffer becomes its mean over the processes: the running statistics of
    batch norm, as each process sees its own images. `update_scales` shares delayed scales."""
    if processes.count == 1:
        return
    modules = [m for m in model.modules() if not isinstance(m, KeptScales)]
    buffers = [b for m in modules for b in m.buffers(recurse=False) if b.is_floating_point()]
    if not buffers:
        return
    flat = torch.cat([b.flatten() for b in buffers])
    dist.all_reduce(flat)
    flat /= processes.count
    for buffer, mean in zip(buffers, flat.split([b.numel() for b in buffers]), strict=True):
        buffer.copy_(mean.view_as(buffer))
