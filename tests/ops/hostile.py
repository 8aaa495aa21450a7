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

from tests.ops.calls import calls

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
    for name, arguments in calls("cpu").items():
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
