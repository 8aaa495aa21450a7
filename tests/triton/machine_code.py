"""The innermost loop of a kernel's machine code, and what a product costs in it."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from tests.triton.ahead_of_time import _run, compiled

__all__ = ["Loop", "innermost_loops", "loop_of", "machine_code", "main_loop"]

_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@\S+\s+)?([A-Z0-9_.]+)([^;]*);", re.M)
_ARITHMETIC = ("FADD", "FMUL", "FFMA", "DADD", "DMUL", "DFMA", "HFMA2")


class Loop(NamedTuple):
    """The loop with the most floating-point arithmetic of a kernel for an NVIDIA target."""

    #: Instructions by name without suffixes, one thread, one pass.
    counts: Counter[str]
    registers: int
    #: Bytes of stack of a thread.
    stack: int

    @property
    def instructions(self) -> int:
        return self.counts.total()

    @property
    def arithmetic(self) -> int:
        return sum(self.counts[name] for name in _ARITHMETIC)


def main_loop(kernel: Any, target: str = "sm_90", **arguments: Any) -> Loop:
    """Of the kernel compiled as `ahead_of_time.compiled` does it."""
    text, usage = machine_code(compiled(kernel, target, **arguments))
    return Loop(
        loop_of(text),
        int(re.search(r"REG:(\d+)", usage)[1]),
        int(re.search(r"STACK:(\d+)", usage)[1]),
    )


def machine_code(result: Any) -> tuple[str, str]:
    """The disassembly of what `triton.compile` gave, and its use of registers and stack."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(result.asm["cubin"])
        return _run("cuobjdump", "-sass", cubin), _run("cuobjdump", "-res-usage", cubin)


def loop_of(text: str) -> Counter[str]:
    """The instructions of the innermost loop with the most arithmetic of a disassembly."""
    loops = innermost_loops(text)
    return max(loops, key=lambda c: sum(c[name] for name in _ARITHMETIC), default=Counter())


def innermost_loops(text: str) -> list[Counter[str]]:
    """The instructions of every loop without one inside it."""
    code = [(int(m[1], 16), m[2].split(".")[0], m[3]) for m in _INSTRUCTION.finditer(text)]
    spans = []
    for address, name, operands in code:
        to = re.search(r"0x([0-9a-f]+)\s*$", operands.strip()) if name == "BRA" else None
        if to and int(to[1], 16) < address:
            spans.append((int(to[1], 16), address))
    innermost = [s for s in spans if not any(s[0] <= t[0] and t[1] < s[1] for t in spans)]
    return [Counter(n for a, n, _ in code if start <= a <= end) for start, end in innermost]
