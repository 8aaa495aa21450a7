"""The processes that train one run together under torchrun: who they are and what they agree on."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")

# The variables that torchrun gives each process that it starts.
_RENDEZVOUS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# What gloo's threads need to let go of their last work, on a busy machine too.
_GRACE_S = 0.5
_HOW = "torchrun --standalone --nproc-per-node 2 -m lpkernels train ..."


@dataclass(frozen=True)
class Processes:
    """The processes of a run as one of them sees them. All processes call every method that says
    "all", in the same order; with one process nothing is sent.

    rank: the number of this process, 0 .. count - 1; the first writes files and talks.
    local_rank: its number on its machine; on CUDA the number of its GPU.
    sharded: weights, their gradients and the optimizer's state are spread over the processes
        (FSDP2) and not whole in each (DDP).
    """

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    sharded: bool = False

    @property
    def first(self) -> bool:
        return self.rank == 0

    def device(self, name: str) -> str:
        """The device of this process where the run's is called `name`.

        Raises: ValueError: several processes, and `name` is one single GPU.
        """
        kind, _, number = name.partition(":")
        if self.count == 1 or kind == "cpu":
            return name
        if number:
            raise ValueError(
                f"device: {self.count} processes cannot share {name!r}; give {kind!r}, and each "
                "takes a GPU of its own"
            )
        return f"{kind}:{self.local_rank}"

    def check_batches(self, batch: int, examples: int) -> None:
        """Raises ValueError unless every batch of an epoch has work for every process."""
        if batch % self.count:
            raise ValueError(
                f"batch: {batch} examples do not divide by {self.count} processes; choose a "
                f"multiple of {self.count} such as {(batch // self.count + 1) * self.count}"
            )
        last = examples % batch or batch
        if last < self.count:
            raise ValueError(
                f"batch: of {examples} examples in batches of {batch} the last batch has {last}, "
                f"fewer than the {self.count} processes; choose another batch"
            )

    def share(self, images: int) -> slice:
        """The part of a batch of so many images that this process takes: consecutive ones, in the
        order of the ranks, as even as can be."""
        start, end = (i * images // self.count for i in (self.rank, self.rank + 1))
        return slice(start, end)

    def any(self, flag: bool) -> bool:
        """All: whether `flag` is true in one of them."""
        return self.sums([flag])[0] > 0

    def everywhere(self, flag: Tensor) -> Tensor:
        """All: a 0-d bool tensor on the device of `flag`: whether the flag is true in each of
        them."""
        if self.count == 1:
            return flag
        false = (~flag).float()
        dist.all_reduce(false)
        return false == 0

    def sums(self, values: Sequence[float]) -> list[float]:
        """All: the float64 sums of `values` over the processes."""
        if self.count == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def on_first(self, task: Callable[[], T]) -> T:
        """All: the result or the error of `task`, though the first process alone calls it."""
        if self.count == 1:
            return task()
        box: list[Any] = [None, None]
        if self.first:
            try:
                box[0] = task()
            except Exception as error:
                box[1] = error
        dist.broadcast_object_list(box)
        if box[1] is not None:
            raise box[1]
        return box[0]


ALONE = Processes()


def launched() -> int | None:
    """How many processes torchrun started, of which this is one; None if it started none."""
    if not all(name in os.environ for name in _RENDEZVOUS):
        return None
    return int(os.environ["WORLD_SIZE"])


@contextmanager
def joined(*, sharded: bool = False) -> Iterator[Processes]:
    """The processes that torchrun started, which can communicate inside the block; `ALONE` where it
    did not, or started one. CPU tensors go through gloo, a GPU's through nccl.

    Raises: ValueError: `sharded` without torchrun.
    """
    count = launched()
    if count is None and sharded:
        raise ValueError(
            f"--fsdp spreads the weights over processes, but there is one; start them with "
            f"torchrun: {_HOW} --fsdp"
        )
    if count is None or (count == 1 and not sharded):
        yield ALONE
        return
    local = int(os.environ.get("LOCAL_RANK", "0"))
    gpus = torch.cuda.device_count()
    if local < gpus:
        torch.cuda.set_device(local)
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo")
    try:
        yield Processes(int(os.environ["RANK"]), count, local, sharded)
        # No process leaves while another still talks to it.
        dist.barrier()
    finally:
        # A thread of gloo needs the interpreter's lock to free its last work, and the process
        # group's destructor waits for that thread with the lock held (torch 2.13): they must not
        # meet, or the process hangs or aborts when it ends.
        time.sleep(_GRACE_S)
        dist.destroy_process_group()
