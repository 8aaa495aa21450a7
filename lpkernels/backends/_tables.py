"""Tables of offsets and keys: made on the device by torch, once for every geometry and stream.

Nothing is copied from the host, so that making a table never waits for the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Tables are small beside the operands they describe; a model has some dozens of geometries.
_RESULTS = 512


def cached_by_stream(make: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator for make(*hashables, device), which caches its results for each stream: nothing
    orders one stream after the writes of another.

    While a CUDA graph is captured nothing is cached, because a result then belongs to the graph.
    """

    @functools.lru_cache(maxsize=_RESULTS)
    def on_stream(_stream: int, *arguments: Any) -> Any:
        return make(*arguments)

    @functools.wraps(make)
    def look_up(*arguments: Any) -> Any:
        device = arguments[-1]
        if device.type != "cuda":
            return on_stream(0, *arguments)
        if torch.cuda.is_current_stream_capturing():
            return make(*arguments)
        return on_stream(torch.cuda.current_stream(device).cuda_stream, *arguments)

    return look_up


@cached_by_stream
def offsets(sizes: tuple[int, ...], strides: tuple[int, ...], device: torch.device) -> Tensor:
    """int64: the sum of index * stride for every index of a tensor of these sizes, row-major."""
    table = torch.zeros((), dtype=torch.int64, device=device)
    for size, stride in zip(sizes, strides, strict=True):
        steps = torch.arange(size, dtype=torch.int64, device=device) * stride
        table = table.unsqueeze(-1) + steps
    return table.reshape(-1)
