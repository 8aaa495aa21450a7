"""Calls of the private operators with wrong arguments, on tensors at the end of their memory.

`python -m tests.ops.hostile` makes them all and prints how many there were. A kernel that
believes a wrong argument reads or writes beyond the end of a tensor, and the process dies.
"""

import ctypes
import mmap
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from lpkernels.arithmetic import Accumulator, Quantizer, accumulator
from lpkernels.backends import Convolution, Fused, How, Product, Scales, fprop_of, matmul_of
from lpkernels.formats import parse_format
from lpkernels.ops._products import crossing
from tests.support.updates import FORMATS, STEPS, rounding_of, tensors_of

OP = torch.ops.lpkernels
PAGE = mmap.PAGESIZE
# The errors that a call may raise; any other is a fault of ours.
REFUSALS = (ValueError, TypeError, RuntimeError, NotImplementedError)
_MEMORY = 6 << 30
_libc = ctypes.CDLL(None, use_errno=True)
_held: list[mmap.mmap] = []


def guarded(x: Tensor) -> Tensor:
    """x, dense, in memory that ends with its last byte: the page behind it cannot be touched."""
    data = x.contiguous()
    size = data.numel() * data.element_size()
    room = -(-max(size, 1) // PAGE) * PAGE
    memory = mmap.mmap(-1, room + PAGE)
    _held.append(memory)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if _libc.mprotect(ctypes.c_void_p(address + room), ctypes.c_size_t(PAGE), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    if not size:
        return data
    held = torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=room - size)
    held.copy_(data.view(-1).view(torch.uint8))
    return held.view(data.dtype).view(data.shape)


def calls() -> dict[str, tuple[Any, ...]]:
    """A right call of every operator that reads or writes tensors, by name."""
    acc = Accumulator("e6m9", chunk=4).to_ints()
    drawn = Accumulator("e6m9", "stochastic", product="e5m10").to_ints()
    native = Accumulator("fp32", "stochastic", chunk=4, outer="e6m9", order="native").to_ints()
    rounds, seed = Quantizer("e5m2").to_ints(), torch.tensor(7)
    image, kernel, bias = torch.randn(2, 4, 5, 5), torch.randn(6, 2, 3, 3), torch.randn(6)
    grad = torch.randn(2, 6, 5, 5)
    conv = Convolution((1, 1), (1, 1), (1, 1), 2)
    how = How(acc, fused=Fused(rounds, (), rounds))
    a, b = torch.randn(5, 7), torch.randn(7, 3)
    batches = torch.randn(2, 1, 5, 7), torch.randn(3, 7, 3)
    products = {
        "": (matmul_of(a, b, torch.randn(3)), how),
        " drawn": (matmul_of(a, b), How(drawn, seed)),
        " native": (matmul_of(a, b), How(native, seed)),
        " batches": (matmul_of(*batches), how),
        " initial": (matmul_of(a, b, initial=torch.randn(5, 3)), how),
        " fprop": (fprop_of(image, kernel, bias, conv), how),
        " dgrad": (Product("conv_dgrad", grad, kernel, [2, 4, 5, 5], conv), how),
        " wgrad": (Product("conv_wgrad", image, grad, [6, 2, 3, 3], conv), how),
    }
    limits = torch.zeros(2, 3, dtype=torch.float64)
    affine, mx = Quantizer("affine4_axis1").to_ints(), Quantizer("block4_e2m1").to_ints()
    fmt = parse_format("e4m2").to_ints()
    by_scale = Accumulator("e6m9", chunk="scale").to_ints()
    grouped = accumulator("model_b200_mxf4").to_ints()
    step, formats = STEPS["adam"], FORMATS["bytes"]
    kept = tensors_of(step, formats, [(3, 5), (7,)])
    keys, made = ([0, 1], [0, 6]), (rounding_of(formats).to_ints(), step.to_numbers(), False)
    x = torch.randn(4, 3)
    nvfp4, amax = Quantizer("block4_e2m1_se4m3fn_t").to_ints(), torch.ones(1, dtype=torch.float64)
    whole = Quantizer("tensor_e4m3").to_ints()
    parts = (torch.ones(4, 3), torch.ones(4, 1), torch.tensor(1.0))
    return {
        **{f"_multiply{name}": crossing(*each, "cpu") for name, each in products.items()},
        "_add_bias": (grad, bias, 1, acc, None, 0, "cpu", rounds),
        "_quantize": (x, rounds, None, seed, 0, 4, "cpu"),
        "_quantize affine": (x, affine, limits, None, 0, 4, "cpu"),
        "_quantize block": (x, mx, None, None, 0, 4, "cpu"),
        "_count": (x, rounds, None, None, 0, 4, "cpu", 260),
        "_count affine": (x, affine, limits, None, 0, 4, "cpu", 4),
        "_hadamard": (torch.randn(3, 32), 16, 1, "cpu"),
        "_hadamard seed": (torch.randn(32, 3), 32 + (8 << 8), 0, "cpu"),
        "_scaled": (x, nvfp4, amax, seed, 0, 4, "auto"),
        "_delayed": (x, torch.tensor(2.0), whole, seed, 1, 4, True, "cpu"),
        "_multiply scaled": crossing(
            matmul_of(torch.randn(4, 8), torch.randn(8, 3), initial=torch.randn(4, 3)),
            How(by_scale, seed), "cpu", Scales(torch.ones(4, 2), torch.ones(3, 1), 4, 0, True),
        ),
        "_multiply grouped": crossing(
            matmul_of(torch.ones(4, 32), torch.ones(32, 3), initial=torch.randn(4, 3)),
            How(grouped), "cpu", Scales(torch.ones(4, 2), torch.ones(3, 1), 16, 0, False, -6),
        ),
        "_pack": (x.half().float(), None, None, parse_format("fp16").to_ints(), (0, 0, 0)),
        "_pack in room": (x.half().float(), None, None, parse_format("fp16").to_ints(), (20, 2, 0)),
        "_pack scaled": (*parts, mx[:-4], (0, 0, 0)),
        "_pack apart": (*parts, nvfp4[:-4], (0, 0, 0)),
        "_unpack": (torch.zeros(11).byte(), None, None, fmt, [4, 3], "auto"),
        "_unpack apart": (torch.zeros(14).byte(), None, None, nvfp4[:-4], [4, 3], "auto"),
        "_unpack block": (torch.zeros(10).byte(), None, None, mx[:-4], [4, 3], "auto"),
        "_unpack parts": (*parts, nvfp4[:-4], [4, 3], "auto"),
        "_update_range": (x, torch.ones(2), torch.tensor(1.0), 0.5),
        "_update": (*map(list, kept), seed, torch.tensor(False), torch.tensor(2.0), *keys, *made,
                    "cpu"),
    }  # fmt: skip


def wrong_tensors(x: Tensor) -> Iterator[Any]:
    yield None
    for dtype in (torch.float16, torch.float64, torch.int64, torch.uint8, torch.complex64):
        if x.dtype != dtype:
            yield x.to(dtype)
    yield x.unsqueeze(0)
    yield x[..., None]
    if x.dim():
        yield x[0]
        yield x[:0]
    for dim in range(x.dim()):
        yield x.narrow(dim, 0, x.shape[dim] - 1)
        yield torch.cat([x, x], dim)


def wrong_integers(ints: list[int]) -> Iterator[Any]:
    yield []
    yield ints[:-1]
    yield [*ints, 0]
    yield ints[::-1]
    for i in range(len(ints)):
        for value in (-1, 0, 9, 127, 2**31, 2**62, -(2**62)):
            yield [*ints[:i], value, *ints[i + 1 :]]


def wrong(value: Any) -> Iterator[Any]:
    """Other values of the same kind; a few may also be right."""
    if isinstance(value, Tensor):
        yield from wrong_tensors(value)
    elif value is None:
        yield torch.randn(3)
        yield torch.tensor([1, 2])
        yield torch.tensor(1)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (-1, 0, 3, 2**31, -(2**62), 2**62)
    elif isinstance(value, str):
        yield from ("", "none", "reference")
    elif isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
        yield []
        yield value[:-1]
        yield [*value, value[0]]
        for other in wrong_tensors(value[0]):
            yield [other, *value[1:]] if other is not None else []
    elif isinstance(value, (list, tuple)) and value and isinstance(value[0], float):
        yield []
        yield value[:-1]
        for i in range(len(value)):
            for other in (float("nan"), float("inf"), -1.0, 1e308):
                yield [*value[:i], other, *value[i + 1 :]]
    elif isinstance(value, (list, tuple)):
        yield from wrong_integers(list(value))


def held(value: Any) -> Any:
    """The argument with its tensors at the end of their memory."""
    if isinstance(value, Tensor):
        return guarded(value)
    if isinstance(value, list) and value and isinstance(value[0], Tensor):
        return [guarded(x) for x in value]
    return value


def attempts(every: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every call, right and with one argument wrong; of wrong integers one in `every`."""
    for name, arguments in calls().items():
        function = getattr(OP, name.split()[0])
        yield name, lambda function=function, arguments=arguments: function(*map(held, arguments))
        for place, value in enumerate(arguments):
            others = list(wrong(value))
            step = every if len(others) > 60 else 1
            for other in others[::step]:
                changed = [*arguments[:place], other, *arguments[place + 1 :]]

                def call(function: Any = function, changed: list[Any] = changed) -> Any:
                    return function(*map(held, changed))

                yield f"{name}, argument {place}: {str(other)[:200]}", call


def counted(every: int) -> tuple[int, int]:
    """How many calls there were, in a process of their own, and how many were refused."""
    command = [sys.executable, "-m", "tests.ops.hostile", str(every)]
    ended = subprocess.run(command, capture_output=True, text=True)
    last = ended.stderr.splitlines()[-1:]
    assert ended.returncode == 0, f"ended with {ended.returncode} at: {last}"
    made, refused = map(int, re.findall(r"\d+", ended.stdout))
    return made, refused


def main(every: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    made = refused = 0
    for name, call in attempts(every):
        print(name, flush=True, file=sys.stderr)
        right = "argument" not in name
        made += 1
        try:
            call()
        except REFUSALS as error:
            refused += 1
            assert not right, f"{name}: {error}"
        _held.clear()
    print(f"{made} calls, {refused} refused")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
