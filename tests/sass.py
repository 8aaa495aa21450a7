"""Machine code of NVIDIA GPUs as text, and its loops."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Function", "Loop", "functions", "loops"]

# "/*0a30*/  @!P0 FFMA.RM R3, R4, R5, R6 ;", or a label ".L_x_12:".
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?\s*([A-Z][\w.]*)(.*?);")
_LABEL = re.compile(r"^(\.L_x?_?\d+):")
_SECTION = re.compile(r"^\.text\.(\w+):")
_TARGET = re.compile(r"`\((\.L_x?_?\d+)\)")


class Instruction(NamedTuple):
    address: int
    #: With its suffixes: FFMA.RM.
    name: str
    operands: str


class Function(NamedTuple):
    name: str
    code: list[Instruction]
    #: Label -> index of the instruction behind it.
    labels: dict[str, int]


class Loop(NamedTuple):
    """A loop, without the loops inside it."""

    first: int
    last: int
    body: list[Instruction]

    def count(self, *names: str) -> int:
        """Instructions whose name, suffixes left out, is one of these."""
        return sum(i.name.split(".")[0] in names for i in self.body)


def functions(text: str) -> Iterator[Function]:
    """Of the output of `nvdisasm -c`."""
    current: Function | None = None
    for line in text.splitlines():
        if section := _SECTION.match(line):
            if current:
                yield current
            current = Function(section[1], [], {})
        elif current is None:
            continue
        elif label := _LABEL.match(line.strip()):
            current.labels[label[1]] = len(current.code)
        elif found := _INSTRUCTION.search(line):
            current.code.append(Instruction(int(found[1], 16), found[2], found[3]))
    if current:
        yield current


def loops(function: Function) -> list[Loop]:
    """Of every backward branch the instructions from its target to it."""
    spans = []
    for index, instruction in enumerate(function.code):
        target = _TARGET.search(instruction.operands)
        if instruction.name.startswith("BRA") and target:
            first = function.labels[target[1]]
            # A branch to itself ends every function.
            if first < index:
                spans.append((first, index))
    found = []
    for first, last in spans:
        inner = [s for s in spans if s != (first, last) and first <= s[0] and s[1] <= last]
        body = [
            function.code[i]
            for i in range(first, last + 1)
            if not any(a <= i <= b for a, b in inner)
        ]
        found.append(Loop(first, last, body))
    return found
