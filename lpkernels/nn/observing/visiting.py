"""The reports of an observation: calls of operations, their tensors, and gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import Module

from lpkernels.arithmetic import Quantizer


@dataclass(frozen=True, eq=False)
class Run:
    """One run of a module's forward; a shared module has one for each call.

    name: its first name in the model, "" for the model itself and for code around it.
    module: None for code around the model, such as a loss.
    outer: the run that called it.
    """

    name: str
    module: Module | None
    outer: Run | None

    def __str__(self) -> str:
        if self.module is None:
            return "the model"
        return f"module {self.name!r} ({type(self.module).__name__})"


@dataclass(frozen=True, eq=False)
class Call:
    """One call of an operation. It holds no tensor and may be kept; every call is another object.

    run: the innermost module that runs.
    operation: the bare name of the function ("linear", "matmul", "conv2d").
    function: the function that was called; for a part the whole function.
    part: where `parts` are told, the name of this product among the function's products ("scores"),
        else "".
    number: calls reported before it.
    """

    run: Run
    operation: str
    function: Callable[..., Any]
    part: str
    number: int

    @property
    def module(self) -> str:
        """The qualified name of the innermost module that runs."""
        return self.run.name

    def __str__(self) -> str:
        return f"{self.run} calls {self.part or self.operation}"


class Visitor:
    """Gets every call. Override the methods you need, and store what you want to keep.

    The methods run without recording gradients and unseen by any TorchFunctionMode; they must not
    change the tensors. An exception goes to the code that made the call or ran backward.
    """

    def before(self, call: Call, arguments: Mapping[str, Any]) -> None:
        """The operation is about to be computed.

        arguments: all arguments, by torch's names ("input", "weight", "stride"; "0", "1" where
            there is no name): the very tensors, as they entered; `all_tensors` finds them.
        """

    def after(self, call: Call, result: Any) -> None:
        """The operation was computed; result is what the model gets. This is not called if the
        operation raised."""

    def wants_gradient(self, call: Call, of: str) -> bool:
        """Whether `gradient` is to be called for this tensor. The question comes between `before`
        and `after`, where the tensor requires a gradient. Gradients that nobody wants cost
        nothing."""
        return True

    def gradient(self, call: Call, of: str, gradient: Tensor) -> None:
        """A gradient came back, detached.

        of: "result" ("result.0", ... of several), or the argument's name as `all_tensors` has it.
            An argument's gradient is the whole of that tensor, over all its uses, as torch.autograd
            gives it, and comes together with the result's gradient, before or after it. If an
            operation changes its argument in place, the gradient is for the value that entered.
        """

    def rounding(
        self, call: Call, product: int, kind: str, quantizer: Quantizer, x: Tensor
    ) -> None:
        """A quantizer of the recipe is about to round x, in the emulated call or in its backward
        pass, which may come after all calls.

        kind: "input", "weight", "bias", "output", "grad_output", "grad_input" or "grad_weight"; of
            codes that one product alone reads "dgrad_weight", "wgrad_input" or "wgrad_grad_output",
            with x as the product's matrix, transformed where the recipe transforms it.
        product: which of the call's layers or products x belongs to: attention and recurrent layers
            have several, numbered from 1 in the order of the forward pass; 0 where there is none.
        """


_NO_TENSORS = frozenset({int, float, bool, str, type(None)})


def all_tensors(values: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors among `values`, by name; elements of a list, tuple or mapping are "name.0" or
    "name.key"."""
    by_name: dict[str, Tensor] = {}
    for name, value in values.items():
        # Asking whether an int or None is a Tensor takes longer than all else here.
        if type(value) in _NO_TENSORS:
            continue
        if isinstance(value, Tensor):
            by_name[name] = value
        elif isinstance(value, list | tuple) and not _NO_TENSORS.issuperset(map(type, value)):
            by_name |= all_tensors({f"{name}.{i}": x for i, x in enumerate(value)})
        elif isinstance(value, Mapping):
            by_name |= all_tensors({f"{name}.{key}": x for key, x in value.items()})
    return by_name
