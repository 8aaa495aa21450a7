"""The products among the operators that torch runs for a model, below autograd and inside fused
functions, in the forward pass and in the backward pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lpkernels.functional.recording import is_in_backward
from lpkernels.functional.torch_calls import current_mark
from lpkernels.nn._product_sizes import Sizes, sizes_of
from lpkernels.nn.observing.reporting import Runs
from lpkernels.rng import Role

_OURS = "lpkernels::"
_GEMMS = {Role.DIRECT: "fprop", Role.FPROP: "fprop", Role.DGRAD: "dgrad", Role.WGRAD: "wgrad"}


class Operation(NamedTuple):
    """Equal calls of an operator that makes products.

    operator: the name of its schema, "aten::mm".
    module, layer: the module that called it, its name first; in backward the module whose forward
        pass is differentiated.
    gemm: "fprop", "dgrad", "wgrad", or "backward" where torch's own operator, or the backward of a
        user's Function, does not say which.
    emulated: whether a recipe rounds it.  reported: whether an observer of functions gets it.
    """

    operator: str
    module: str
    layer: torch.nn.Module | None
    sizes: Sizes
    gemm: str
    emulated: bool
    reported: bool


class Operators(TorchDispatchMode):
    """Counts the products of a model that runs inside it, while its `runs` follow the modules."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.runs = Runs()
        self.runs.keeps_order = True
        #: How often each was called, in the order of the first calls.
        self.counts: Counter[Operation] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload):
            # An operator of higher order, which calls functions of its own.
            self._count(func.name(), Sizes(func.name(), None), None)
            return func(*args, **kwargs)
        if torch.is_inference_mode_enabled():
            # There operators that run as others are not yet taken apart.
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        schema = func._schema
        behind = schema.arguments[len(args) :]
        values = [*args, *(kwargs.get(x.name, x.default_value) for x in behind)]
        sizes = sizes_of(schema.name, values, result)
        if sizes is not None:
            roles = [x.name for x in schema.arguments] if schema.name.startswith(_OURS) else []
            self._count(schema.name, sizes, Role(values[roles.index("role")]) if roles else None)
        return result

    def _count(self, name: str, sizes: Sizes, role: Role | None) -> None:
        """role: of an operator of this package; others may have a mark."""
        mark = current_mark()
        if role is Role.GRAD_BIAS or (mark is not None and mark.role is None):
            return
        emulated = role is not None or (mark is not None and mark.emulated)
        role = mark.role if role is None and mark is not None else role
        # A forward pass that is computed again in backward records a graph, and its modules run.
        in_forward = not is_in_backward() or self.runs.innermost.outer is not None
        if role is None:
            in_forward = in_forward or torch.is_grad_enabled()
        gemm = "fprop" if role is None else _GEMMS[role]
        gemm = gemm if in_forward or gemm != "fprop" else "backward"
        run, reported = self.runs.current()
        key = Operation(name, run.name, run.module, sizes, gemm, emulated, reported)
        self.counts[key] += 1

    def uncovered(self, has_row: Callable[[Operation], bool]) -> str:
        """One sentence about the products that a table does not have; "" if it has all."""
        calls: Counter[str] = Counter()
        for operation, count in self.counts.items():
            if not has_row(operation):
                calls[operation.operator] += count
        names = ", ".join(f"{name} x{count}" for name, count in calls.items())
        return f"products that reach torch and have no row here: {names}" if names else ""
