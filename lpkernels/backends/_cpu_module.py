"""The compiled module that the parts of the ``cpu`` backend call, and what they share."""

from __future__ import annotations

import os
import warnings
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from lpkernels import _build
from lpkernels.formats import known_tables

# The order of lpk::ElementType in csrc/cpu/drivers/element_types.h.
DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float64: 3}
# Kernels write through pointers, whatever torch's default dtype and device are.
FLOAT32: Any = {"dtype": torch.float32, "device": torch.device("cpu")}
BYTES: Any = {"dtype": torch.uint8, "device": torch.device("cpu")}
# The tables of this process, which grow.
_TABLES = known_tables()


class CpuModule:
    """Holds lpkernels._C once it is loaded."""

    #: Bytes read and written from which elementwise results go past the caches (bench/NOTES.md).
    stream_bytes = 16 << 20

    def __init__(self) -> None:
        self._module: ModuleType | None = None
        self._tables: set[int] = set()

    def _c(self) -> ModuleType:
        """The module, which knows every table that this process has made."""
        if self._module is None:
            self._module = _build.load_extension()
            _warn_of_scalar(self._module)
        if len(self._tables) < len(_TABLES):
            self._add_tables(self._module)
        return self._module

    def _add_tables(self, module: ModuleType) -> None:
        from lpkernels.backends import ladders

        for handle, table in list(_TABLES.items()):
            if handle not in self._tables:
                ladders.add_to(module, table)
                self._tables.add(handle)


def _warn_of_scalar(module: ModuleType) -> None:
    """Only the processor of another machine has none of the sets that an install compiles."""
    better = _build.better_set(module)
    if better and module.isa() == "scalar" and not os.environ.get("LPKERNELS_ISA"):
        compiled = ", ".join(module.compiled_sets())
        warnings.warn(
            f"lpkernels was compiled for {compiled}, and this processor has {better}: its "
            "products take the scalar kernels, tens of times slower. Install lpkernels again on "
            "this machine, or with LPKERNELS_ISAS=all",
            RuntimeWarning,
            stacklevel=4,
        )


def seed_int(seed: Tensor | None) -> int:
    return 0 if seed is None else int(seed)
