"""The innermost loop of a kernel's machine code, and what a product costs in it."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from tests.triton.ahead_of_time import _run, compiled

__all__ = ["Loop", "around", "loop_of", "main_loop"]

_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@\S+\s+)?([A-Z0-9_.]+)([^;]*);", re.M)
_ARITHMETIC = ("FADD", "FMUL", "FFMA", "DADD", "DMUL", "DFMA", "HFMA2")


class Loop(NamedTuple):
    """The loop with the most floating-point arithmetic of a kernel for an NVIDIA target."""

    #: Instructions by name without suffixes, one thread, one pass.
    counts: Counter[str]
    registers: int
    #: Bytes of stack of a thread.
    stack: int
    #: Instructions of the loop around it, without the loops inside that; 0: there is none.
    outside: int = 0

    @property
    def instructions(self) -> int:
        return self.counts.total()

    @property
    def arithmetic(self) -> int:
        return sum(self.counts[name] for name in _ARITHMETIC)


def main_loop(kernel: Any, target: str = "sm_90", **arguments: Any) -> Loop:
    """Of the kernel compiled as `ahead_of_time.compiled` does it."""
    result = compiled(kernel, target, **arguments)
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(result.asm["cubin"])
        text = _run("cuobjdump", "-sass", cubin)
        usage = _run("cuobjdump", "-res-usage", cubin)
    return Loop(
        loop_of(text),
        int(re.search(r"REG:(\d+)", usage)[1]),
        int(re.search(r"STACK:(\d+)", usage)[1]),
        around(text),
    )


_Code = list[tuple[int, str, str]]


def _loops(text: str) -> tuple[_Code, list[tuple[int, int]]]:
    """All instructions of a disassembly, and the first and last address of every loop."""
    code = [(int(m[1], 16), m[2].split(".")[0], m[3]) for m in _INSTRUCTION.finditer(text)]
    spans = []
    for address, name, operands in code:
        to = re.search(r"0x([0-9a-f]+)\s*$", operands.strip()) if name == "BRA" else None
        if to and int(to[1], 16) < address:
            spans.append((int(to[1], 16), address))
    return code, spans


def _main_span(code: _Code, spans: list[tuple[int, int]]) -> tuple[int, int] | None:
    innermost = [s for s in spans if not any(s[0] <= t[0] and t[1] < s[1] for t in spans)]

    def arithmetic(span: tuple[int, int]) -> int:
        return sum(span[0] <= a <= span[1] and name in _ARITHMETIC for a, name, _ in code)

    return max(innermost, key=arithmetic, default=None)


def loop_of(text: str) -> Counter[str]:
    """The instructions of the innermost loop with the most arithmetic of a disassembly."""
    code, spans = _loops(text)
    main = _main_span(code, spans)
    return Counter() if main is None else Counter(n for a, n, _ in code if main[0] <= a <= main[1])


def around(text: str) -> int:
    """The instructions of the smallest loop around that one, without any loop inside it."""
    code, spans = _loops(text)
    main = _main_span(code, spans)
    outer = [s for s in spans if main is not None and s[0] <= main[0] and main[1] < s[1]]
    if not outer:
        return 0
    first, last = min(outer, key=lambda s: s[1] - s[0])
    inner = [s for s in spans if first <= s[0] and s[1] < last]
    return sum(first <= a <= last and not any(s[0] <= a <= s[1] for s in inner) for a, _, _ in code)
