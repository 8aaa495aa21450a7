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
    #: Bytes of stack of a thread.
    stack: int

    @property
    def arithmetic(self) -> int:
        return arithmetic(self.counts)


def arithmetic(found: Counter[str]) -> int:
    return sum(found[name] for name in ("FADD", "FMUL", "FFMA", "DADD", "DMUL", "DFMA", "HFMA2"))


def machine_code(result: Any, *, read: bool = True) -> tuple[sass.Function, int]:
    """A compiled kernel's instructions (none if not read) and bytes of stack."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(result.asm["cubin"])
        usage = sass.usage(cubin)
        text = sass.disassembled(cubin) if read else ""
    function = next(sass.functions(text), sass.Function("", [], {}))
    return function, int(re.search(r"STACK:(\d+)", usage)[1])


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


def main_loop(kernel: Any, **arguments: Any) -> Loop:
    """The main loop of the kernel for sm_90, which is compiled as `launches.compiled` does it."""
    function, stack = machine_code(compiled(kernel, "sm_90", **arguments))
    found = map(counts, innermost(function))
    return Loop(max(found, key=arithmetic, default=Counter()), stack)
