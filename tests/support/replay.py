"""Fixed calls whose results' bits are on record: a change of the sources that moves a bit shows.

tests/data/replay.txt has a call a line: a hash of what it returns, then the call, a Python
expression over the names of `NAMES`. Inputs come from lpkernels.rng, never from torch's generator,
and every call starts with the same seed, so that a hash depends on nothing but the contract.
Arithmetic that the contract leaves to torch stays out: native sums, softmax, gates of recurrent
layers.

A new call is a line with any hash; `python -m tests.support.replay` writes the hashes that the
reference gives. With ``--record FOLDER`` it makes the calls on the CPU backend and writes into the
folder what lpk_replay (csrc/tests/replay.cpp) makes again where no Python is.
"""

import argparse
import contextlib
import ctypes
import functools
import hashlib
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels import Recipe, _build, rng
from lpkernels.backends import cpu
from lpkernels.backends.ladders import DETERMINISTIC
from lpkernels.ops import UpdateTensors
from lpkernels.recipes import as_recipe
from lpkernels.techniques.accumulation import measure
from tests.support import updates

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
        # Tables may be added between the addresses of a call and the call itself.
        later = dict(self._known) if name == "add_table" else {}
        if name == "add_table":
            *addresses, (_, count, *_) = arguments
            sizes = (8 * count, 4 * count, 8 * len(DETERMINISTIC) * (count - 1))
            self._known |= {at: (at, size, None) for at, size in zip(addresses, sizes, strict=True)}
        pieces: list[tuple[int, int]] = []
        written = b"".join(self._argument(x, pieces) for x in arguments)
        before = [self._block(piece) for piece in pieces]
        result = function(*arguments)
        after = [self._block(piece) for piece in pieces]
        self._known = later
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


FILE = Path(__file__).parents[1] / "data" / "replay.txt"
_device = "cpu"


class Call(NamedTuple):
    digest: str
    text: str


def calls(*, large: bool = True) -> list[Call]:
    """All calls, or only the calls before the heading "Large", which an interpreter can make."""
    text = FILE.read_text(encoding="utf-8")
    if not large:
        text, _ = text.split("# Large")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [Call(*line.split("  ", 1)) for line in lines]


def _words(stream: int, shape: tuple[int, ...]) -> np.ndarray:
    """32 random bits for each element."""
    index = np.arange(int(np.prod(shape)), dtype=np.uint64)
    return rng.draws(stream, rng.SITE_QUANTIZE, 0, 0, index, 32).reshape(shape)


def _numbers(stream: int, man_bits: int = 23) -> Callable[..., Tensor]:
    """Numbers of 16 binades with mantissas of so many bits."""

    def numbers(*shape: int) -> Tensor:
        words = _words(stream, shape).astype(np.int64)
        mantissa = (words & 0x7FFFFF) >> (23 - man_bits) << (23 - man_bits)
        exponent = ((words >> 23) & 0xF) - 11 + 127
        bits = (words >> 31 << 31) | (exponent << 23) | mantissa
        return _tensor(bits)

    return numbers


def bits(*shape: int) -> Tensor:
    """Any pattern of 32 bits: NaN, infinities and subnormal numbers among them."""
    words = _words(9, shape)
    rare = [0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000, 1, 0x807FFFFF, 0x7F7FFFFF]
    words.reshape(-1)[: len(rare)] = rare[: words.size]
    return _tensor(words)


def _tensor(words: np.ndarray) -> Tensor:
    return torch.from_numpy(words.astype(np.uint32).view(np.float32)).to(_device)


def gradients(function: Callable[..., Tensor], *tensors: Tensor, **options: Any) -> list[Tensor]:
    """The function's result, and the gradient of each tensor for a gradient of fixed numbers."""
    recipe = as_recipe(options.get("recipe", RECIPES["WIDE"]))
    assert not any(acc.is_native for acc in (recipe.fprop, recipe.dgrad, recipe.wgrad)), recipe
    leaves = [x.detach().requires_grad_() for x in tensors]
    result = function(*leaves, **options)
    result.backward(_numbers(8)(*result.shape).to(result.dtype))
    return [result.detach(), *(x.grad for x in leaves if x.grad is not None)]


def layer(module: torch.nn.Module, *inputs: Tensor) -> list[Tensor]:
    """A layer's result with fixed parameters, and all gradients."""
    module.to(_device)
    parameters = list(module.parameters())
    with torch.no_grad():
        for number, parameter in enumerate(parameters):
            parameter.copy_(_numbers(100 + number)(*parameter.shape))
    got = gradients(module, *inputs)
    return got + [p.grad for p in parameters if p.grad is not None]


def packed(x: Tensor, fmt: str) -> list[Tensor]:
    """Values of a format, their codes, and the codes' values."""
    values = lp.quantize(x, fmt)
    codes = lp.pack(values, fmt)
    return [codes, lp.unpack(codes, fmt, x.shape)]


def events(a: Tensor, b: Tensor, acc: str) -> list[float | None]:
    got = measure(a, b, acc)
    return [got.swamped, got.swamped_chunks, got.overflowed]


def update(step: str, formats: str) -> UpdateTensors:
    """One step of an optimizer over parameters of three sizes, with all its roundings."""
    how = (updates.FORMATS | updates.LOOPS)[formats]
    made = updates.STEPS[step]
    tensors = updates.tensors_of(made, how, ((1,), (37,), (300,)), values=_values)
    moved = UpdateTensors(*([x.to(_device) for x in kind] for kind in tensors))
    arguments = updates.call_of(made, how, len(moved.weights), device=_device)
    torch.ops.lpkernels._update(*moved, *arguments, "auto")
    return moved


def _values(shape: Sequence[int], stream: int) -> Tensor:
    return _numbers(1000 + stream)(*shape).cpu()


RECIPES = {
    # Certified tiers by turns, one product with chunks.
    "MIXED": Recipe("e4m3fn", "e4m3fn", None, None, "e5m2:stochastic",
                    fprop="e5m10", dgrad="e6m9", wgrad="e5m7_chunk8"),
    # Every quantizer, and sums that draw.
    "DRAWN": Recipe("fp8_e5m2:stochastic", "fp8_e4m3", "fp16", "bf16", "fp8_e5m2",
                    "fp16:stochastic", "bf16", "e6m9_chunk64", "e6m9_chunk64:stochastic",
                    "e6m9_chunk64:stochastic:bits=13"),
    # No quantizer: sums as wide as their operands.
    "WIDE": Recipe(fprop="fp32", dgrad="fp32", wgrad="fp32:order=pairwise"),
    "FIXED": Recipe("fixed8_f4", "fixed8_f6", None, None, "fixed12_f8:stochastic",
                    fprop="fixed16_f8", dgrad="fixed16_f8:toward_zero", wgrad="fixed24_f10"),
    "BLOCKS": Recipe("block32_e4m3", "block32_e4m3", None, None, "block32_e5m2",
                     fprop="fp32_chunk32", dgrad="fp32_chunk32", wgrad="fp32_chunk32"),
    "AFFINE": Recipe("affine8", "affine8_sym", None, None, "affine8:stochastic",
                     fprop="e8m13", dgrad="e8m13", wgrad="e8m13"),
    # Three orders of sums.
    "ORDERS": Recipe("fp16", "fp16", None, None, "fp16", fprop="e5m10:order=compensated",
                     dgrad="e5m10:product=e5m10", wgrad="fp32:block=4:aligned_bits=24"),
}  # fmt: skip

#: The names that a call may use.
NAMES: dict[str, object] = {
    "lp": lp, "F": lp.functional, "nn": lp.nn, "torch": torch, **RECIPES,
    **{name: _numbers(stream) for stream, name in enumerate("xyz", start=1)},
    # Few bits of mantissa: sums that certified tiers take, and ties of formats with one bit less.
    **{f"x{man}": _numbers(4, man) for man in (3, 4, 8, 10, 11)},
    **{f"y{man}": _numbers(5, man) for man in (3, 10)},
    **{each.__name__: each for each in (bits, packed, gradients, layer, events, update)},
}  # fmt: skip


def run(text: str, device: str = "cpu") -> str:
    """The hash of the call's result.

    device: where its tensors are. LPKERNELS_BACKEND names the backend.
    """
    global _device
    _device = device
    try:
        with lp.seed_from(torch.tensor(20261124, device=device)):
            return digest(eval(text, dict(NAMES)))
    finally:
        _device = "cpu"


def digest(result: Any) -> str:
    """Twelve digits over dtypes, shapes and bytes of all tensors, and over the text of numbers."""
    total = hashlib.sha256()
    for part in _parts(result):
        total.update(part)
    return total.hexdigest()[:12]


def _parts(result: Any) -> Iterator[bytes]:
    if isinstance(result, Tensor):
        plain = result.detach().cpu().contiguous()
        yield f"{plain.dtype} {tuple(plain.shape)}".encode()
        yield plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(result, Iterable):
        for each in result:
            yield from _parts(each)
    else:
        yield repr(result).encode()


def changed(listed: Iterable[Call], device: str = "cpu") -> tuple[list[str], int]:
    """The calls whose bits moved, as lines to print, and how many calls the backend made.

    Calls that it refuses with NotImplementedError are left out.
    """
    lines, made = [], 0
    for call in listed:
        try:
            got = run(call.text, device)
        except NotImplementedError:
            continue
        except Exception as error:
            raise AssertionError(f"this call raised: {call.text}") from error
        made += 1
        if got != call.digest:
            lines.append(f"{got} in the place of {call.digest}: {call.text}")
    return lines, made


def record(listed: Iterable[Call], folder: Path) -> int:
    """Records the calls of lpkernels._C that these calls make, and returns how many these were.

    Raises:
        AssertionError: a call's bits are not those on record.
    """
    with recording(folder) as recorder:

        def told() -> Iterator[Call]:
            for call in listed:
                recorder.line(call.text)
                yield call

        lines, made = changed(told())
    assert not lines, "\n".join(lines)
    return made


def write_hashes() -> None:
    """Writes each call's hash as the reference gives it."""
    os.environ["LPKERNELS_BACKEND"] = "reference"
    lines = FILE.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if line and not line.startswith("#"):
            text = line.split("  ", 1)[1]
            lines[number] = f"{run(text)}  {text}"
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.replay")
    parser.add_argument("--record", type=Path, metavar="FOLDER")
    if folder := parser.parse_args().record:
        os.environ["LPKERNELS_BACKEND"] = "cpu"
        record(calls(), folder)
    else:
        write_hashes()


if __name__ == "__main__":
    main()
