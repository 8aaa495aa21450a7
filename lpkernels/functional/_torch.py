"""Calls of torch's own products from inside the functions that emulate them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def own(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """function(*args, **kwargs) by torch itself: no TorchFunctionMode takes the call.

    ``lpkernels.nn.convert`` enters such a mode, which emulates the products that a model calls as
    functions; what an emulated function asks of torch is none of these.
    """
    if torch._C._is_torch_function_mode_enabled():
        with torch._C.DisableTorchFunction():
            return function(*args, **kwargs)
    return function(*args, **kwargs)
