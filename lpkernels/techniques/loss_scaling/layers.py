"""Scales for the backward pass of single layers: powers of two, undone where the pass leaves."""

import fnmatch
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.hooks import RemovableHandle

from lpkernels.techniques import checks
from lpkernels.techniques._nested import all_tensors, changed

# Beyond this |e|, 2^e or its inverse is no normal float32.
_LARGEST = 126


def layer_scales(model: nn.Module, exponents: Mapping[str, int]) -> "LayerScales":
    """Multiplies all gradients inside the backward pass of some modules by 2 ** exponent.

    It is for gradients that one format holds in some layers and not in others. The gradient of a
    module's output is multiplied where it enters the module, and the gradients of its inputs and
    parameters are multiplied by 2 ** -exponent where they leave it. So the quantizers grad_output,
    grad_input and grad_weight of a converted layer, and the sums of dgrad and wgrad, see the scaled
    values; other layers, .grad and the hooks of DDP and FSDP2 get unscaled ones. Without rounding
    in between nothing changes, to the bit: a power of two is exact in float32, float16 and bfloat16
    except at over- and underflow, which the scales are there to change. The forward pass is the
    same.

    It works by hooks on torch's modules and converted ones, before or after lp.convert; under FSDP2
    call it before fully_shard. Parameters are seen by their owner's attribute. So a parameter that
    the module's parent uses past the module's own call (torch.nn.MultiheadAttention's out_proj) is
    in its parent's scale, and a tensor that reaches a module neither as an argument nor as a
    parameter is not unscaled.
    torch's layers that work in place, such as nn.ReLU(inplace=True), are left as they are. Second
    derivatives are refused in backward.

    Args:
        model: its modules get hooks.
        exponents: {glob of module names: exponent}; the first glob that matches a module gives the
            exponent for every gradient inside it. A module that no glob matches has the exponent of
            the module around it. In inputs and outputs, tensors are found inside tuples, lists,
            dicts and PackedSequences.
    Raises:
        TypeError: an exponent is no int.
        ValueError: it is beyond +-126, or a glob matches no module.
    Reference: ours. Micikevicius et al. 2017, arXiv 1710.03740, has one scale for all layers.

    >>> from lpkernels.techniques.loss_scaling import layer_scales
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    >>> with layer_scales(model, {"0": 8}) as scales:
    ...     model(torch.ones(1, 4)).sum().backward()
    ...
    >>> scales.exponents
    {'0': 8}
    """
    for glob, exponent in exponents.items():
        checks.whole(f"layer_scales: exponent of {glob!r}", exponent, -_LARGEST, _LARGEST)
    names = [name for name, _ in model.named_modules() if name]
    for glob in exponents:
        if not fnmatch.filter(names, glob):
            raise ValueError(
                f"layer_scales: {glob!r} matches no module; the model has {', '.join(names[:8])}"
                + (", ..." if len(names) > 8 else "")
            )
    return LayerScales(model, exponents)


class LayerScales:
    """The scales of `layer_scales`, until they are removed; as a context manager it removes them.

    Args:
        model, exponents: as for `layer_scales`.

    Attributes:
        exponents: {name of a module: exponent}, of every module that a glob matched.
    """

    def __init__(self, model: nn.Module, exponents: Mapping[str, int]) -> None:
        self.exponents: dict[str, int] = {}
        self._handles: list[RemovableHandle] = []
        inside = {"": 0}
        for name, module in model.named_modules():
            if not name:
                continue
            around = inside[name.rpartition(".")[0]]
            globs = (glob for glob in exponents if fnmatch.fnmatchcase(name, glob))
            glob = next(globs, None)
            inside[name] = around if glob is None else exponents[glob]
            if glob is not None:
                self.exponents[name] = inside[name]
            # The module around this one has scaled its gradients already.
            if inside[name] != around and not _in_place(module):
                self._handles += _Scaled(inside[name] - around).attach(module)

    def remove(self) -> None:
        """Leaves the model as it was."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __enter__(self) -> "LayerScales":
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


class _Scaled:
    """The hooks of one module. They hold no module, so that a copied module has its own hooks."""

    def __init__(self, exponent: int) -> None:
        self.exponent = exponent
        # For each call that has not ended: the modules inside and their parameters; None if the
        # call is not differentiated.
        self._calls: list[list[tuple[nn.Module, dict[str, Any]]] | None] = []

    def attach(self, module: nn.Module) -> list[RemovableHandle]:
        return [
            module.register_forward_pre_hook(self.enter, with_kwargs=True),
            module.register_forward_hook(self.leave, always_call=True),
        ]

    def enter(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Gives inputs and parameters a backward pass that undoes the scale."""
        if not torch.is_grad_enabled():
            self._calls.append(None)
            return None
        call: list[tuple[nn.Module, dict[str, Any]]] = []
        self._calls.append(call)
        for inner in module.modules():
            held: dict[str, Any] = inner._parameters
            own = {name: p for name, p in held.items() if p is not None and p.requires_grad}
            if own:
                call.append((inner, own))
                _put(inner, {name: self._down(0, parameter) for name, parameter in own.items()})
        return changed((args, kwargs), self._down)

    def leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Gives results a backward pass that applies the scale; the parameters are themselves
        again."""
        # There is none if another hook failed before `enter` was called.
        call = self._calls.pop() if self._calls else None
        if call is None:
            return None
        for inner, own in call:
            _put(inner, own)
        tensors = list(all_tensors({"": output}).values())
        if len(tensors) > 1:
            # One result may be made of another, as an LSTM's h of its c: the scale follows both.
            return changed(output, self._up)
        for tensor in tensors:
            if tensor.requires_grad:
                # Any operation may follow, also one that works in place.
                tensor.register_hook(lambda gradient: gradient * 2.0**self.exponent)
        return None

    def _up(self, _: int, tensor: Tensor) -> Tensor:
        return _Times.apply(tensor, 2.0**self.exponent) if tensor.requires_grad else tensor

    def _down(self, _: int, tensor: Tensor) -> Tensor:
        return _Times.apply(tensor, 2.0**-self.exponent) if tensor.requires_grad else tensor


def _in_place(module: nn.Module) -> bool:
    """Whether it is a torch layer that overwrites its input.

    Its backward pass is elementwise, so that a scale changes nothing, and autograd refuses to undo
    a scale on a tensor that is overwritten.
    """
    return bool(getattr(module, "inplace", False)) and type(module).__module__.startswith("torch.")


class _Times(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a number."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    # A second derivative inside the module would be unscaled though it was never scaled.
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


def _put(owner: nn.Module, parameters: Mapping[str, Tensor]) -> None:
    """Sets the tensors that the module finds as its parameters; these need not be Parameters."""
    everything: dict[str, Any] = owner._parameters
    everything.update(parameters)
    if isinstance(owner, nn.RNNBase):
        owner._flat_weights = [getattr(owner, name, None) for name in owner._flat_weights_names]
