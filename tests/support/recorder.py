"""Calls of lpkernels._C in a file, from which lpk_replay makes them again without Python.

calls.bin is a row of entries, each with a letter in front. Numbers are little-endian, of eight
bytes; a text is its length and its bytes.

- ``l``: the text of the line of tests/data/replay.txt that makes the next calls.
- ``b``: a block, a text that calls name by its place among all blocks.
- ``c``: a call: the function's name; a list of the pieces of memory that it was given, for each the
  block before the call and the block after it; the arguments; what it returned, as a list.
- ``e``: the end.

A list is the number of its members, then these. An argument is ``i`` and an integer, ``d`` and a
float, ``s`` and a text, ``l`` and a list of arguments, or ``p`` and two integers: a piece of memory
and the place in it.
"""

import contextlib
import ctypes
import functools
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO
from unittest import mock

from torch import Tensor

from lpkernels import _build
from lpkernels.backends import cpu
from lpkernels.backends.ladders import DETERMINISTIC

#: What these return depends on the processor.
_UNRECORDED = ("isa", "take_tiers")


def _number(x: int) -> bytes:
    return struct.pack("<q", x)


def _text(x: bytes) -> bytes:
    return _number(len(x)) + x


class Recorder:
    """Stands in for lpkernels._C, and writes what its functions are given and give."""

    def __init__(self, module: ModuleType, file: BinaryIO) -> None:
        self._module, self._file = module, file
        self._blocks: dict[bytes, int] = {}
        #: The memory behind each address that may be an argument of the next call: its own address
        #: and size, and the object that keeps it.
        self._known: dict[int, tuple[int, int, object]] = {}

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._module, name)
        return function if name in _UNRECORDED else functools.partial(self._call, name, function)

    def line(self, text: str) -> None:
        self._file.write(b"l" + _text(text.encode()))

    def note(self, x: Tensor, address: int) -> None:
        storage = x.untyped_storage()
        if address:
            self._known[address] = storage.data_ptr(), storage.nbytes(), storage

    def _call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        if name == "add_table":
            *addresses, (_, count, *_) = arguments
            sizes = (8 * count, 4 * count, 8 * len(DETERMINISTIC) * (count - 1))
            self._known |= {at: (at, size, None) for at, size in zip(addresses, sizes, strict=True)}
        pieces: list[tuple[int, int]] = []
        written = b"".join(self._argument(x, pieces) for x in arguments)
        before = [self._block(piece) for piece in pieces]
        result = function(*arguments)
        after = [self._block(piece) for piece in pieces]
        self._known.clear()
        self._file.write(b"c" + _text(name.encode()) + _number(len(pieces)))
        for pair in zip(before, after, strict=True):
            self._file.write(b"".join(map(_number, pair)))
        returned = [result] if isinstance(result, int) else result or []
        self._file.write(written + self._argument(returned, pieces))
        return result

    def _argument(self, x: Any, pieces: list[tuple[int, int]]) -> bytes:
        """The argument as the file has it; its memory joins the pieces."""
        if isinstance(x, bytes):
            return b"s" + _text(x)
        if isinstance(x, (list, tuple)):
            return b"l" + _number(len(x)) + b"".join(self._argument(each, pieces) for each in x)
        if isinstance(x, float):
            return b"d" + struct.pack("<d", x)
        if x not in self._known:
            return b"i" + _number(int(x))
        piece = self._known[x][:2]
        if piece not in pieces:
            pieces.append(piece)
        return b"p" + _number(pieces.index(piece)) + _number(x - piece[0])

    def _block(self, piece: tuple[int, int]) -> int:
        content = ctypes.string_at(*piece)
        if content not in self._blocks:
            self._blocks[content] = len(self._blocks)
            self._file.write(b"b" + _text(content))
        return self._blocks[content]


@contextlib.contextmanager
def recording(folder: Path) -> Iterator[Recorder]:
    """A block in which the calls of the CPU backend are written to calls.bin in this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context((folder / "calls.bin").open("wb"))
        recorder = Recorder(_build.load_extension(), file)
        data_ptr = Tensor.data_ptr

        def noted(x: Tensor) -> int:
            recorder.note(x, address := data_ptr(x))
            return address

        # An address of this block is the result of data_ptr. The tables are added once more.
        for place, name, value in (
            (Tensor, "data_ptr", noted),
            (cpu.BACKEND, "_module", recorder),
            (cpu.BACKEND, "_tables", set()),
        ):
            stack.enter_context(mock.patch.object(place, name, value))
        yield recorder
        file.write(b"e")
