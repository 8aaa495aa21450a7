"""The innermost loops of a Triton kernel's machine code, and the cost of a product in them."""

import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from tests.backends import sass
from tests.backends.triton.launches import compiled


class Loop(NamedTuple):
    """The loop with the most floating-point arithmetic in a kernel for an NVIDIA target."""

    #: Instructions of one thread in one pass, by name without suffixes.
    counts: Counter[str]
    registers: int
    #: Bytes of stack of a thread.
    stack: int

    @property
    def instructions(self) -> int:
        return self.counts.total()

    @property
    def arithmetic(self) -> int:
        return arithmetic(self.counts)


def arithmetic(found: Counter[str]) -> int:
    return sum(found[name] for name in ("FADD", "FMUL", "FFMA", "DADD", "DMUL", "DFMA", "HFMA2"))


def machine_code(result: Any, *, read: bool = True) -> tuple[sass.Function, int, int]:
    """A compiled kernel's instructions (none if not read), registers and bytes of stack."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(result.asm["cubin"])
        usage = sass.usage(cubin)
        text = sass.disassembled(cubin) if read else ""
    function = next(sass.functions(text), sass.Function("", [], {}))
    registers, stack = (int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("REG", "STACK"))
    return function, registers, stack


def innermost(function: sass.Function) -> list[sass.Loop]:
    """The loops that have none inside them."""
    found = sass.loops(function)
    return [
        loop
        for loop in found
        if not any(loop.first <= other.first and other.last < loop.last for other in found)
    ]


def counts(loop: sass.Loop) -> Counter[str]:
    return Counter(instruction.name.split(".")[0] for instruction in loop.body)


def main_loop(
    kernel: Any,
    target: str = "sm_90",
    *,
    loads: int | None = None,
    place: tuple[int, int] | None = None,
    **arguments: Any,
) -> Loop:
    """The main loop of the kernel, which is compiled as `launches.compiled` does it.

    loads: take the loop that adds what so many loads bring, without a product. place: take the
    loop at the first number, counted from the shortest, of so many longest ones.
    """
    function, registers, stack = machine_code(compiled(kernel, target, **arguments))
    found = sorted(innermost(function), key=lambda loop: len(loop.body))
    if loads is not None:
        (main,) = (x for x in found if counts(x)["LDG"] == loads and not counts(x)["DMUL"])
    elif place is not None:
        main = found[len(found) - place[1] + place[0]]
    elif found:
        main = max(found, key=lambda loop: arithmetic(counts(loop)))
    else:
        return Loop(Counter(), registers, stack)
    return Loop(counts(main), registers, stack)
