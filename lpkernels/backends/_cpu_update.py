"""Steps of parameters in one pass over each: pointers to csrc/cpu/elementwise/update.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from lpkernels.backends._cpu_counting import DTYPES
from lpkernels.backends._layout import CODES, update_dtypes, update_parameters
from lpkernels.backends._protocol import UpdateTensors

_LIES = {**DTYPES, torch.uint8: CODES}


def update(
    module: ModuleType,
    tensors: UpdateTensors,
    shared: tuple[Tensor | None, Tensor | None, Tensor | None],
    keys: tuple[Sequence[int], Sequence[int]],
    rounding: tuple[int, ...],
    numbers: tuple[float, ...],
    begins: bool,
    stream_bytes: int,
) -> None:
    """As `Backend.update`; module is lpkernels._C, shared its seed, found and scale, keys its
    positions and origins."""
    module.update(
        update_parameters(tensors, *keys),
        [_LIES[dtype] for dtype in update_dtypes(tensors)],
        not tensors.masters,
        begins,
        rounding,
        numbers,
        [0 if x is None else x.data_ptr() for x in shared],
        torch.get_num_threads(),
        stream_bytes,
    )
