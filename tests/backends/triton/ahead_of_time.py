"""Triton kernels compiled without a GPU, and the contents of their machine code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lpkernels.backends.triton._launch import EXACT

__all__ = ["COUNTED", "EVERY", "TARGETS", "compiled"]

#: Name -> target; gfx942 needs the wave size of CDNA.
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
#: Every target; what is compiled for others than sm_90 is for `make prove`.
EVERY = pytest.mark.parametrize(
    "target", [pytest.param(t, marks=[pytest.mark.slow] * (t != "sm_90")) for t in TARGETS]
)
#: Counts and registers are those of the compiler that Triton 3.7 brings along.
COUNTED = triton.__version__.startswith("3.7")
_POINTERS = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
}


def _type(value: Any) -> Any:
    if value is None:
        return "constexpr"
    if isinstance(value, torch.dtype):
        return _POINTERS[value]
    if isinstance(value, tuple):
        return (
            type(value)(*map(_type, value))
            if hasattr(value, "_fields")
            else tuple(map(_type, value))
        )
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def _absent(value: Any, path: tuple[int, ...]) -> dict[tuple[int, ...], None]:
    """Where value, the argument at a path, is None or holds None."""
    if value is None:
        return {path: None}
    places: dict[tuple[int, ...], None] = {}
    for position, item in enumerate(value if isinstance(value, tuple) else ()):
        places |= _absent(item, (*path, position))
    return places


def _pointers(value: Any, path: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Where value, the argument at a path, is a pointer or holds one."""
    if isinstance(value, tuple):
        return [place for i, item in enumerate(value) for place in _pointers(item, (*path, i))]
    return [path] if isinstance(value, torch.dtype) else []


def compiled(
    kernel: Any,
    target: str = "sm_90",
    *,
    num_warps: int = 4,
    num_stages: int = 1,
    options: dict[str, Any] | None = None,
    **arguments: Any,
) -> Any:
    """What `triton.compile` gives for a call with these arguments.

    Args:
        kernel: a @triton.jit function. target: a key of `TARGETS`.
        options: of the compiler, beyond those that every kernel has.
        arguments: every parameter by name: a torch.dtype for a pointer, a number of its type for a
            number, the value itself for a constexpr, a tuple of these, None for what is not there.
    """
    constant = {p.name for p in kernel.params if p.is_constexpr}
    # Tensors begin at multiples of 16 bytes, as torch allocates them.
    places = [
        place
        for position, parameter in enumerate(kernel.params)
        for place in _pointers(arguments[parameter.name], (position,))
    ]
    aligned = {place: [["tt.divisibility", 16]] for place in places}
    constants: dict[Any, Any] = {n: v for n, v in arguments.items() if n in constant}
    for position, parameter in enumerate(kernel.params):
        if not parameter.is_constexpr:
            constants |= _absent(arguments[parameter.name], (position,))
    source = ASTSource(
        kernel,
        {n: "constexpr" if n in constant else _type(v) for n, v in arguments.items()},
        constexprs=constants,
        attrs=aligned,
    )
    told = {"num_warps": num_warps, "num_stages": num_stages, **EXACT, **(options or {})}
    return triton.compile(source, target=TARGETS[target], options=told)
