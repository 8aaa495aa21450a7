"""The gradients of an optimizer: their check for infinity and NaN, and the outcome of its step."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.weak import TensorWeakRef


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
    """The values of all gradients, as real tensors; float16 is a ValueError unless `halves`."""
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
        gradient = values(gradient)
        # torch checks no complex numbers.
        found.append(torch.view_as_real(gradient) if gradient.is_complex() else gradient)
    return found


def check_and_multiply(tensors: Sequence[Tensor], factor: Tensor, flag: Tensor) -> None:
    """Multiplies all elements by a 0-d factor, in place, and sets the 0-d flag, on the same device,
    to 1 if an element is not finite."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        kinds[tensor.device, tensor.dtype].append(tensor)
    for (device, _), kind in kinds.items():
        there = flag.to(device, non_blocking=True)
        torch._amp_foreach_non_finite_check_and_unscale_(
            kind, there, factor.to(device, non_blocking=True)
        )
        if there is not flag:
            torch.maximum(flag, there.to(flag.device, non_blocking=True), out=flag)


def names_of(pairs: Iterable[tuple[str, Tensor]]) -> dict[Tensor, str]:
    """The names of parameters, by parameter."""
    found: dict[Tensor, str] = {}
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[1], Tensor):
            raise TypeError(
                "named_parameters: expected pairs (name, parameter) as of "
                f"model.named_parameters(), got {type(pair).__name__}"
            )
        found[pair[1]] = pair[0]
    return found


def is_shared(group: dist.ProcessGroup | None) -> bool:
    """Whether other processes step together with this one. group: None is the world."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1


def is_watched(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a function stands in the place of the optimizer's own step, as accelerate's that
    notes whether it is called. That of a schedule of torch counts calls, and may be called."""
    step = vars(optimizer).get("step")
    own = getattr(step, "__func__", None) is type(optimizer).step
    return not (step is None or own or hasattr(step, "_wrapped_by_lr_sched"))


@dataclass(frozen=True)
class StepRecord:
    """One call of LossScaler.step.

    ran: whether the optimizer changed the weights.
    parameter: the first parameter, in the optimizer's order, whose gradient was not finite: its
        name if the scaler knows it, else its position. None if the step ran, if the gradients of
        this process were finite (another rank's were not), or if they are gone.
    """

    ran: bool
    parameter: str | int | None = None


class Outcome:
    """A step whose result is on the device; it keeps no gradient alive.

    optimizer: after its step.
    found: 0-d, not 0 if a gradient was not finite.
    names: the parameters' names.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, found: Tensor, names: Mapping[Tensor, str]
    ) -> None:
        self.ran = found == 0
        self._gradients = {
            names.get(p, position): (TensorWeakRef(p.grad), p.grad._version)
            for position, p in enumerate(parameters(optimizer))
            if p.grad is not None
        }
        self._finite: Tensor | None = None

    def look(self) -> None:
        """Notes on the device which gradients are finite, before anything changes them."""
        alive = [(reference(), version) for reference, version in self._gradients.values()]
        if alive and all(g is not None and g._version == version for g, version in alive):
            flags = [torch.isfinite(values(gradient)).all() for gradient, _ in alive]
            self._finite = torch.stack([f.to(self.ran.device, non_blocking=True) for f in flags])

    def record(self) -> StepRecord:
        """The record of the step; it waits for the device."""
        if self.ran.item():
            return StepRecord(ran=True)
        if self._finite is None:
            self.look()
        finite = [] if self._finite is None else self._finite.tolist()
        bad = (name for name, fine in zip(self._gradients, finite, strict=False) if not fine)
        return StepRecord(ran=False, parameter=next(bad, None))


class SkippedInARow:
    """Counts updates one after the other that were skipped at a scale that cannot fall."""

    MOST = 10

    def __init__(self) -> None:
        self._counts: tuple[Tensor, Tensor] | None = None
        self._told = False

    def are_too_many(self, stuck: Tensor) -> bool:
        """Counts an update, on its device; true once. The host reads a count that was copied
        without waiting, and may learn of it some updates later."""
        if self._told:
            return False
        if self._counts is None:
            count = torch.zeros((), dtype=torch.int32, device=stuck.device)
            on_host = count
            if count.device.type != "cpu":
                on_host = torch.zeros((), dtype=torch.int32, device="cpu", pin_memory=count.is_cuda)
            self._counts = count, on_host
        count, on_host = self._counts
        count.add_(1).mul_(stuck)
        if on_host is not count:
            on_host.copy_(count, non_blocking=True)
        self._told = int(on_host.numpy()) >= self.MOST
        return self._told

    def __getstate__(self) -> dict[str, object]:
        return {"_counts": None, "_told": self._told}
