"""Operators of torch.library, and the seed, which is one."""

from __future__ import annotations

import itertools
from collections import namedtuple
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._C import (
    DispatchKey,
    DispatchKeySet,
    _dispatch_keys,
    _dispatch_tls_local_include_set,
    _functorch,
    _get_tracing_state,
    _is_torch_function_mode_enabled,
)
from torch.autograd import forward_ad, profiler
from torch.compiler import is_compiling
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode, track_tensor_tree
from torch.utils.checkpoint import CheckpointPolicy

from lpkernels.arithmetic import Accumulator, Quantizer
from lpkernels.formats import BlockFormat, Number
from lpkernels.formats.integers import Ints
from lpkernels.ops._checks import ARGUMENTS
from lpkernels.ops._descriptions import NOTHING, TABLE_NAME, by_number, crossed

Packable: TypeAlias = Number | BlockFormat

_lib = torch.library.Library("lpkernels", "FRAGMENT")
_CPU = torch.device("cpu")


def as_ints(description: Quantizer | Accumulator | Packable | Ints) -> Ints:
    """A description as integers, as it crosses to the operators; callers that torch.compile traces
    pass the integers, or a `Row`."""
    return description if isinstance(description, tuple) else description.to_ints()


def without_grad(value: Any) -> Any:
    """A tensor that records nothing; anything else as it is."""
    # isinstance(None, Tensor) takes 3 us.
    return value.detach() if getattr(value, "requires_grad", False) else value


def _refuse_gradient(ctx: Any, *grads: Tensor) -> Any:
    raise NotImplementedError(
        "lpkernels: an operator alone has no gradient, and an exported program holds operators "
        "alone; train the model and export it for inference"
    )


def _refuse_vmap(*args: Any) -> Any:
    raise NotImplementedError(
        "lpkernels: vmap does not map what writes into a tensor that is there: count, counts=, "
        "out= and a running range in training; call it outside of vmap, on the whole batch or in a "
        "loop over its samples"
    )


def refuse_mapped(*tensors: Tensor | None) -> None:
    """Raises NotImplementedError: torch.vmap maps one of these tensors, and the call writes."""
    if is_compiling() or _functorch.maybe_current_level() is None:
        return
    for x in tensors:
        while x is not None and _functorch.is_functorch_wrapped_tensor(x):
            if _functorch.is_batchedtensor(x):
                _refuse_vmap()
            x = _functorch.get_unwrapped(x)


def _parsed(line: str) -> tuple[str, dict[str, str], str]:
    """The name of an operator, the types of its arguments by their names, and its result."""
    name, _, text = line.partition("(")
    arguments, _, returns = text.rpartition(") -> ")
    types = {}
    for text in arguments.split(", "):
        type_, _, argument = text.rpartition(" ")
        types[argument] = type_ or ARGUMENTS[argument].type
    return name, types, returns


def define(
    line: str,
    result: Callable[[Any], Any],
    run: Callable[[Any], Any],
    guard: Callable[[Any], object] | None = None,
) -> Callable[..., Any]:
    """Registers one operator for CPU and CUDA tensors and returns the function that calls it.

    Args:
        line: "_name(argument, ...) -> result". An argument is a name of `_checks.ARGUMENTS`, or a
            type of torch's schemas and a name.
        result: new tensors of the result's shapes and dtypes, for fake tensors. As run and guard
            it takes the arguments as one tuple with their names.
        run: the work.
        guard: refuses what the checks of single arguments let pass. Calls by torch are checked (of
            torch.ops, and of compiled and exported programs); the package itself has checked
            before.

    Descriptions are integers or, where torch.compile traces, rows (`_descriptions`); an empty one
    crosses as `NOTHING`. The call goes to run at once where the dispatcher would do nothing else
    (`is_direct`), which is half the time of a small product.
    """
    name, types, returns = _parsed(line)
    Arguments = namedtuple(name.lstrip("_"), types)  # type: ignore[misc]
    common = {x: ARGUMENTS[x] for x in types if x in ARGUMENTS and ARGUMENTS[x].type == types[x]}
    checks = [argument.check for argument in common.values() if argument.check is not None]
    row_parts = {i: common[x].part for i, x in enumerate(types) if x in common}
    parts = {i: part for i, part in row_parts.items() if part is not None}
    count, places = len(types), [i for i, kind in enumerate(types.values()) if "Tensor" in kind]
    needed = [i for i in places if [*types.values()][i] == "Tensor"]
    # Two places at least, so that the getter returns a tuple.
    tensors_of = itemgetter(*places, places[0])
    schema = ", ".join(f"{kind} {argument}" for argument, kind in types.items())
    table = f", Tensor? {TABLE_NAME}=None" if parts else ""
    _lib.define(f"{name}({schema}{table}) -> {returns}")
    overload = getattr(torch.ops.lpkernels, name).default

    # The dispatcher leaves out a table that is None, and hands over a missing tensor as None.
    def kernel(*args: Any) -> Any:
        if any(args[i] is None for i in needed):
            raise ValueError(f"lpkernels::{name}: expected a tensor, got None")
        table = args[count] if len(args) > count else None
        values = list(args[:count])
        for i, part in parts.items():
            values[i] = crossed(values[i], table, part)
        arguments = Arguments(*values)
        for check in checks:
            check(name.lstrip("_"), arguments)
        if guard is not None:
            guard(arguments)
        return run(arguments)

    _lib.impl(name, kernel, "CPU")
    _lib.impl(name, kernel, "CUDA")

    def fake(*args: Any) -> Any:
        return result(Arguments(*args[:count]))

    torch.library.register_fake(f"lpkernels::{name}", fake, lib=_lib)
    if overload._schema.is_mutable:
        torch.library.register_vmap(f"lpkernels::{name}", _refuse_vmap, lib=_lib)
    else:
        torch.library.register_autograd(f"lpkernels::{name}", _refuse_gradient, lib=_lib)

    def call(*args: Any) -> Any:
        if is_compiling():
            return overload(*full(by_number(args)))
        if is_direct(*tensors_of(args)):
            return run(Arguments(*args))
        return overload(*full(args))

    def full(args: Sequence[Any]) -> Sequence[Any]:
        return [NOTHING if i in parts and not len(x) else x for i, x in enumerate(args)]

    return call


def _bits(*keys: DispatchKey) -> int:
    keyset = DispatchKeySet(keys[0])
    for key in keys[1:]:
        keyset = keyset.add(key)
    return keyset.raw_repr()


def _tensor_keys(*keys: DispatchKey) -> set[int]:
    """The dispatch keys of tensors made inside torch.inference_mode or outside: no views with a
    negative or conjugate bit, no wrappers of vmap or grad, not sparse and not fake."""
    backend, autocast, autograd = keys
    return {
        _bits(backend, autocast),
        _bits(backend, autocast, autograd, DispatchKey.ADInplaceOrView),
    }


_CPU_KEYS = _tensor_keys(DispatchKey.CPU, DispatchKey.AutocastCPU, DispatchKey.AutogradCPU)
_CUDA_KEYS = _tensor_keys(DispatchKey.CUDA, DispatchKey.AutocastCUDA, DispatchKey.AutogradCUDA)
# The dispatch state of a plain call: inference mode or not, but no dispatch mode, no functorch, no
# tracing.
_MODE_KEYS = {
    _bits(DispatchKey.BackendSelect),
    _bits(DispatchKey.BackendSelect, DispatchKey.ADInplaceOrView),
}
_TYPES = (Tensor, torch.nn.Parameter)


def is_direct(*tensors: Tensor | list[Tensor] | None, dtype: torch.dtype | None = None) -> bool:
    """Whether the dispatcher would go straight to the kernel for tensors on the CPU or on one CUDA
    device, and nobody looks on: no compiler, no mode or subclass that takes the call, no profiler,
    no derivative in forward mode.

    Tensors that an operator makes of such tensors are such tensors too, so a layer asks once.
    dtype: every argument must be a tensor of this dtype as well; without it None is passed over.
    """
    if is_compiling():
        return False
    if _dispatch_tls_local_include_set().raw_repr() not in _MODE_KEYS:
        return False
    if _is_torch_function_mode_enabled() or profiler._is_profiler_enabled:
        return False
    if _get_tracing_state() is not None or forward_ad._current_level >= 0:
        return False
    device = None
    x: Any
    for x in tensors:
        if type(x) not in _TYPES:
            if dtype is None and (x is None or (type(x) is list and is_direct(*x))):
                continue
            return False
        if dtype is not None and x.dtype is not dtype:
            return False
        keys = _dispatch_keys(x).raw_repr()
        if keys not in _CPU_KEYS:
            if keys not in _CUDA_KEYS or (device is not None and x.device != device):
                return False
            device = x.device
    return True


def needs_gradient(*tensors: Tensor | None) -> bool:
    """Whether autograd records an operation on these tensors."""
    if torch.is_grad_enabled():
        for x in tensors:
            if x is not None and x.requires_grad:
                return True
    return False


def is_in_cpu_memory(tensor: Tensor) -> bool:
    """Whether it is a tensor in the memory of the CPU, and nothing else."""
    return type(tensor) in _TYPES and _dispatch_keys(tensor).raw_repr() in _CPU_KEYS


def _seed(label: int, *, device: torch.device) -> Tensor:
    return torch.empty((), dtype=torch.int64, device=device).random_()


# nondeterministic_seeded keeps compilers from reordering draws. A compiled checkpoint draws again,
# from the state that the generator had in forward; the device, always the CPU, says which generator
# that is. Compilers merge equal calls all the same (torch 2.13, AOTAutograd's common
# subexpressions): the label makes calls differ.
_lib.define(
    "_seed(int label, *, Device device) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,)
)
_lib.impl("_seed", _seed, "CompositeExplicitAutograd")


@torch.library.register_fake("lpkernels::_seed", lib=_lib)
def _seed_fake(label: int, *, device: torch.device) -> Tensor:
    return torch.empty((), dtype=torch.int64, device=device)


@torch.library.register_torch_dispatch("lpkernels::_seed", ProxyTorchDispatchMode, lib=_lib)
def _seed_in_a_graph(
    mode: ProxyTorchDispatchMode, func: Any, types: Any, args: Any, kwargs: Any
) -> Tensor:
    """The seed of a call that a compiler traces, marked as a value that it keeps for backward.

    Without the mark a compiler with a memory budget draws another seed in backward, whatever the
    tag says. With a budget of 0 it does not look at marks.
    """
    if torch._C._current_graph_task_id() != -1 and args[0] > 0:
        # Operations of backward that need no gradient move to forward, each with a draw of its own.
        raise NotImplementedError(
            "lpkernels: torch.compile cannot keep the random bits that the backward of a "
            "torch.autograd.Function of yours draws; leave the module that applies it out of the "
            "graph with torch.compiler.disable, or round without random bits there"
        )
    seed = func(*args, **kwargs)
    proxy = mode.tracer.create_proxy("call_function", func, args, kwargs)
    if torch.is_grad_enabled() and _memory_budget(proxy.node) == 0:
        raise NotImplementedError(
            "lpkernels: with a memory budget of 0 torch.compile keeps nothing for backward, and "
            "would draw other random bits there; set torch._functorch.config."
            "activation_memory_budget above 0, as 0.01, or compile under torch.no_grad()"
        )
    proxy.node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return track_tensor_tree(seed, proxy, constant=None, tracer=mode.tracer)


def _memory_budget(node: torch.fx.Node) -> float:
    """The share of a graph's activations that the compiler may keep for backward."""
    from torch._functorch import config

    # torch 2.13 has budgets of regions, beside the one of its configuration.
    of_region = getattr(torch.fx.traceback, "_get_memory_budget_annotation", lambda node: None)
    budget = of_region(node)
    return config.activation_memory_budget if budget is None else budget


_labels = itertools.count(1)


def assume_constant_result(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compiler.assume_constant_result without importing the compiler (1.8 s)."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@assume_constant_result
def _new_label() -> int:
    return next(_labels)


def is_inside(kind: str) -> bool:
    """Whether one of torch.func's transforms of this kind runs: Vmap, Grad or Jvp."""
    if _functorch.maybe_current_level() is None:
        return False
    key = getattr(_functorch.TransformType, kind)
    return any(transform.key() == key for transform in _functorch.get_interpreter_stack() or ())


def draw_seed() -> Tensor:
    """A 0-d int64 tensor from torch's default CPU generator, which torch.manual_seed sets."""
    if is_direct():
        return _seed(0, device=_CPU)
    compiling = is_compiling()
    if not compiling and is_inside("Vmap"):
        # torch.vmap decides by its `randomness` whether calls of random functions may differ.
        return torch.randint(2**63 - 1, (), dtype=torch.int64, device="cpu")
    label = _new_label() if compiling else 0
    return torch.ops.lpkernels._seed(label, device="cpu")
