"""Calls of the product operators: as tensors for a backend, and as `Call` by sizes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from bench.predict.shapes import Call
from lpkernels.arithmetic import Accumulator, as_quantizer
from lpkernels.arithmetic.products import output_size
from lpkernels.backends import NOT_FUSED, Fused

E5M2 = as_quantizer("e5m2").to_ints()


class Case(NamedTuple):
    """A call of an operator. sizes are (a, b) for a matmul, and (x, w, stride, padding, dilation,
    groups) for a convolution."""

    op: str
    sizes: tuple[Any, ...]
    acc: Accumulator
    bias: bool = False
    fused: Fused = NOT_FUSED


def output(x: Sequence[int], w: Sequence[int], geometry: Sequence[Any]) -> tuple[int, ...]:
    return (x[0], w[0], *output_size(x[2:], w[2:], *geometry[:3]))


def run(backend: Any, case: Case) -> None:
    """The call on zeros of the CPU."""
    ints, tail = case.acc.to_ints(), (None, 4, case.fused)
    zeros = [torch.zeros(size, dtype=torch.float32, device="cpu") for size in case.sizes[:2]]
    if case.op == "matmul":
        bias = torch.zeros(case.sizes[1][-1], device="cpu") if case.bias else None
        backend.matmul(*zeros, bias, ints, *tail)
        return
    x, w, *geometry = case.sizes
    numbers = (*map(list, geometry[:3]), geometry[3])
    gradient = torch.zeros(output(x, w, geometry), dtype=torch.float32, device="cpu")
    if case.op == "conv_fprop":
        bias = torch.zeros(w[0], device="cpu") if case.bias else None
        backend.conv_fprop(*zeros, bias, *numbers, ints, *tail)
    elif case.op == "conv_dgrad":
        backend.conv_dgrad(gradient, zeros[1], list(x), *numbers, ints, *tail)
    else:
        backend.conv_wgrad(zeros[0], gradient, list(w), *numbers, ints, *tail)


def call(case: Case) -> Call:
    """The same call by sizes."""
    kept: dict[str, Any] = {"acc": case.acc.to_ints(), "quantizers": case.fused[:2]}
    first, second, *geometry = case.sizes
    if case.op == "matmul":
        batch = torch.broadcast_shapes(first[:-2], second[:-2])
        return Call("matmul", first, second, (*batch, first[-2], second[-1]), **kept)
    y = output(first, second, geometry)
    kept |= {"geometry": tuple(geometry[:3]), "groups": geometry[3]}
    shapes = {
        "conv_fprop": (first, second, y),
        "conv_dgrad": (y, second, first),
        "conv_wgrad": (first, y, second),
    }
    return Call(case.op, *shapes[case.op], **kept)


_ACC = Accumulator("e6m9", chunk=64)
_ROUNDED = Fused(E5M2, E5M2)
_SMALL = ((9, 40), (40, 20))
_CONVS = {
    "3x3": ((2, 9, 7, 7), (20, 9, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    "strided": ((2, 16, 9, 8), (24, 16, 3, 3), (2, 2), (1, 1), (1, 1), 1),
    "strided 1x1": ((2, 16, 8, 8), (24, 16, 1, 1), (2, 2), (0, 0), (1, 1), 1),
    "depthwise": ((2, 6, 7, 7), (6, 1, 3, 3), (1, 1), (1, 1), (1, 1), 6),
    "grouped": ((2, 40, 5, 5), (40, 20, 3, 3), (1, 1), (2, 2), (2, 2), 2),
    "1-d": ((3, 4, 30), (8, 4, 5), (3,), (2,), (1,), 1),
}
CASES = {
    **{
        f"{op} {name}": Case(f"conv_{op}", sizes, _ACC, fused=Fused(E5M2, E5M2))
        for name, sizes in _CONVS.items()
        for op in ("fprop", "dgrad", "wgrad")
    },
    "conv with bias": Case("conv_fprop", _CONVS["3x3"], _ACC, True, Fused(E5M2, E5M2, E5M2)),
    "matmul": Case("matmul", ((300, 40), (40, 310)), _ACC, fused=_ROUNDED),
    "few columns": Case("matmul", ((300, 40), (40, 3)), _ACC, fused=_ROUNDED),
    "layer": Case("matmul", ((2, 9, 40), (40, 20)), _ACC, True, _ROUNDED),
    "batch": Case("matmul", ((2, 3, 9, 40), (3, 40, 20)), _ACC, fused=_ROUNDED),
    "one sum": Case("matmul", _SMALL, Accumulator("e5m10"), fused=_ROUNDED),
    "saturating": Case("matmul", _SMALL, Accumulator("e4m3_sat"), fused=_ROUNDED),
    "float32": Case("matmul", _SMALL, Accumulator("e6m12")),
    "stochastic": Case("matmul", _SMALL, Accumulator("e6m9", "stochastic"), fused=_ROUNDED),
}
