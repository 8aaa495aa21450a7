"""The innermost loop of a kernel's machine code, and the cost of a product in it."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from tests.backends.triton.ahead_of_time import _run, compiled

__all__ = ["Loop", "around", "innermost_loops", "loop_of", "machine_code", "main_loop"]

_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@\S+\s+)?([A-Z0-9_.]+)([^;]*);", re.M)
_ARITHMETIC = ("FADD", "FMUL", "FFMA", "DADD", "DMUL", "DFMA", "HFMA2")


class Loop(NamedTuple):
    """The loop with the most floating-point arithmetic in a kernel for an NVIDIA target."""

    #: Instructions of one thread in one pass, by name without suffixes.
    counts: Counter[str]
    registers: int
    #: Bytes of stack of a thread.
    stack: int
    #: Instructions of the loop around it, without the loops inside that one; 0 if there is none.
    outside: int = 0

    @property
    def instructions(self) -> int:
        return self.counts.total()

    @property
    def arithmetic(self) -> int:
        return sum(self.counts[name] for name in _ARITHMETIC)


def main_loop(
    kernel: Any,
    target: str = "sm_90",
    *,
    loads: int | None = None,
    place: tuple[int, int] | None = None,
    **arguments: Any,
) -> Loop:
    """The main loop of the kernel, which is compiled as `ahead_of_time.compiled` does it.

    loads: take the loop that adds what so many loads bring, without a product. place: take the
    loop at the first number, counted from the shortest, of so many longest ones.
    """
    text, usage = machine_code(compiled(kernel, target, **arguments))
    code, spans = _loops(text)
    span = _main_span(code, spans)
    if loads is not None:
        (span,) = (
            span
            for span in _innermost(spans)
            if _within(code, span)["LDG"] == loads and not _within(code, span)["DMUL"]
        )
    if place is not None:
        found = sorted(_innermost(spans), key=lambda span: _within(code, span).total())
        span = found[len(found) - place[1] + place[0]]
    return Loop(
        Counter() if span is None else _within(code, span),
        int(re.search(r"REG:(\d+)", usage)[1]),
        int(re.search(r"STACK:(\d+)", usage)[1]),
        _around(code, spans, span),
    )


_Code = list[tuple[int, str, str]]
_Span = tuple[int, int]


def machine_code(result: Any) -> tuple[str, str]:
    """The disassembly of a kernel from `triton.compile`, and its use of registers and stack."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(result.asm["cubin"])
        return _run("cuobjdump", "-sass", cubin), _run("cuobjdump", "-res-usage", cubin)


def _loops(text: str) -> tuple[_Code, list[_Span]]:
    """All instructions of a disassembly, and the first and last address of every loop."""
    code = [(int(m[1], 16), m[2].split(".")[0], m[3]) for m in _INSTRUCTION.finditer(text)]
    spans = []
    for address, name, operands in code:
        to = re.search(r"0x([0-9a-f]+)\s*$", operands.strip()) if name == "BRA" else None
        if to and int(to[1], 16) < address:
            spans.append((int(to[1], 16), address))
    return code, spans


def _innermost(spans: list[_Span]) -> list[_Span]:
    return [s for s in spans if not any(s[0] <= t[0] and t[1] < s[1] for t in spans)]


def _within(code: _Code, span: _Span) -> Counter[str]:
    return Counter(name for address, name, _ in code if span[0] <= address <= span[1])


def _main_span(code: _Code, spans: list[_Span]) -> _Span | None:
    def arithmetic(span: _Span) -> int:
        counts = _within(code, span)
        return sum(counts[name] for name in _ARITHMETIC)

    return max(_innermost(spans), key=arithmetic, default=None)


def innermost_loops(text: str) -> list[Counter[str]]:
    """The instructions of every loop that has none inside it."""
    code, spans = _loops(text)
    return [_within(code, span) for span in _innermost(spans)]


def loop_of(text: str) -> Counter[str]:
    """The instructions of a disassembly's innermost loop with the most arithmetic."""
    code, spans = _loops(text)
    main = _main_span(code, spans)
    return Counter() if main is None else _within(code, main)


def around(text: str) -> int:
    """The number of instructions of the smallest loop around the main loop, without the loops
    inside it."""
    code, spans = _loops(text)
    return _around(code, spans, _main_span(code, spans))


def _around(code: _Code, spans: list[_Span], main: _Span | None) -> int:
    outer = [s for s in spans if main is not None and s[0] <= main[0] and main[1] < s[1]]
    if not outer:
        return 0
    first, last = min(outer, key=lambda s: s[1] - s[0])
    inner = [s for s in spans if first <= s[0] and s[1] < last]
    return sum(first <= a <= last and not any(s[0] <= a <= s[1] for s in inner) for a, _, _ in code)
