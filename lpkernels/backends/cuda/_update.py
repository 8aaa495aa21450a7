"""An optimizer's step by csrc/cuda/elementwise/update.cu, with a launch for each parameter."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lpkernels.backends._layout import CODES, add_steps, update_dtypes, update_parameters
from lpkernels.backends._protocol import UpdateTensors
from lpkernels.backends.cuda._launch import module, on_device, stream

_LIES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.uint8: CODES}


def update(
    tensors: UpdateTensors,
    seed: Tensor | None,
    found: Tensor | None,
    scale: Tensor | None,
    positions: Sequence[int],
    origins: Sequence[int],
    rounding: tuple[int, ...],
    numbers: tuple[float, ...],
    begins: bool,
) -> None:
    """As `lpkernels.backends.Backend.update`."""
    weight = tensors.weights[0]
    with on_device(weight):
        module().cuda_update(
            update_parameters(tensors, positions, origins),
            [_LIES[dtype] for dtype in update_dtypes(tensors)],
            not tensors.masters,
            begins,
            rounding,
            numbers,
            [0 if x is None else x.data_ptr() for x in (seed, found, scale)],
            stream(weight),
        )
        add_steps(tensors.steps, found)
