"""csrc/common/integers.h, written from the Python classes that say where integers stand.

`python -m tests.project.integers` writes it; tests/project/test_integers.py compares.
"""

from pathlib import Path

from lpkernels.arithmetic.integers import InAccumulator
from lpkernels.formats.integers import InAffine, InBlock, InFixed, InFloat, InTable

FILE = Path(__file__).parents[2] / "csrc" / "common" / "integers.h"
_HEAD = """\
// Where the integers that describe formats and accumulators stand. Written by
// `python -m tests.project.integers` from the classes of these names in integers.py of
// lpkernels/formats and lpkernels/arithmetic. A slice is given by its first integer.
#pragma once

namespace lpk {
"""


def header() -> str:
    """The text of the file."""
    lines = [_HEAD]
    for described in (InFloat, InFixed, InAffine, InBlock, InTable, InAccumulator):
        lines += [f"struct {described.__name__} {{", *_members(described), "};", ""]
    return "\n".join([*lines, "}  // namespace lpk", ""])


def _members(described: type) -> list[str]:
    places = {name: place for name, place in vars(described).items() if name.isupper()}
    starts = {name: p.start if isinstance(p, slice) else p for name, p in places.items()}
    return [_member(name, place) for name, place in sorted(starts.items(), key=lambda x: x[1])]


def _member(name: str, place: int) -> str:
    camel = "".join(word.capitalize() for word in name.split("_"))
    return f"  static constexpr int k{camel} = {place};"


if __name__ == "__main__":
    FILE.write_text(header(), encoding="utf-8")
