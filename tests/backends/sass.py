"""Machine code of NVIDIA GPUs as text, by the tools that come with triton, and its loops."""

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from lpkernels import _build

# "/*0a30*/  @!P0 FFMA.RM R3, R4, R5, R6 ;", or a label ".L_x_12:".
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?\s*([A-Z][\w.]*)(.*?);")
_LABEL = re.compile(r"^(\.L_x?_?\d+):")
_SECTION = re.compile(r"^\.text\.(\w+):")
_TARGET = re.compile(r"`\((\.L_x?_?\d+)\)")
_USED_BY = re.compile(r"^ *Function (\w+):", re.MULTILINE)


class Instruction(NamedTuple):
    address: int
    #: The name with its suffixes: FFMA.RM.
    name: str
    operands: str


class Function(NamedTuple):
    name: str
    code: list[Instruction]
    #: Labels, with the index of the instruction behind each.
    labels: dict[str, int]


class Loop(NamedTuple):
    """A loop, without the loops inside it."""

    first: int
    last: int
    body: list[Instruction]

    def count(self, *names: str) -> int:
        """Instructions whose name, suffixes left out, is one of these."""
        return sum(i.name.split(".")[0] in names for i in self.body)


def tool(name: str) -> Path | None:
    """A tool of the triton package; None where it is not installed, or has none."""
    spec = find_spec("triton")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / name
    return path if path.exists() else None


def reason() -> str:
    """Why the machine code of lpkernels._C cannot be read here; empty where it can."""
    if tool("nvdisasm") is None or tool("cuobjdump") is None:
        return "the triton package, whose nvdisasm and cuobjdump this needs, is not installed"
    return _build.why_no_cuda()


def _output(name: str, *arguments: object, cwd: Path | None = None) -> str:
    command = [str(tool(name)), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=cwd).stdout


def cubins(library: Path, target: str, folder: Path) -> list[Path]:
    """The modules for a target, such as "sm_90", inside a library, written to a folder."""
    _output("cuobjdump", "-xelf", target, library, cwd=folder)
    return sorted(folder.glob("*.cubin"))


def library() -> Path:
    """The module lpkernels._C."""
    return Path(str(_build.load_extension().__file__)).resolve()


def in_library(target: str, folder: Path) -> list[Path]:
    return cubins(library(), target, folder)


def ptx(library: Path) -> dict[str, str]:
    """The PTX inside a library, kernel by kernel; none where it holds machine code alone."""
    kernels = _output("cuobjdump", "-ptx", library).split(".entry ")[1:]
    return {text.split("(")[0]: text for text in kernels}


def disassembled(cubin: Path) -> str:
    return _output("nvdisasm", "-c", cubin)


def usage(cubin: Path) -> str:
    """Registers, stack, shared and local memory of every kernel."""
    return _output("cuobjdump", "-res-usage", cubin)


def functions(text: str) -> Iterator[Function]:
    """The functions in the output of `nvdisasm -c`."""
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


def readable(names: Sequence[str]) -> dict[str, str]:
    """The names in the sources that the compiler's names stand for, without the namespace and with
    values of enumerations as numbers: `some_kernel<Tile<Rule<0>, true> >(Job)`."""
    command = ["c++filt", *names]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    short = [
        re.sub(r"lpk::(cuda::)?|\((?:lpk::)?(?:cuda::)?\w+\)(?=\d)", "", name) for name in found
    ]
    return dict(zip(names, short, strict=True))


class Kernels(Mapping[str, Function]):
    """The kernels of some modules by their readable names. A module is disassembled when one of its
    kernels is first asked for: nvdisasm takes half a minute for all 1.4 million instructions."""

    def __init__(self, cubins: Sequence[Path]) -> None:
        of = {name: cubin for cubin in cubins for name in _USED_BY.findall(usage(cubin))}
        self._names = readable(list(of))
        self._cubins = {self._names[name]: cubin for name, cubin in of.items()}
        self._made: dict[str, Function] = {}

    def __getitem__(self, name: str) -> Function:
        if name not in self._made:
            for function in functions(disassembled(self._cubins[name])):
                self._made[self._names[function.name]] = function
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cubins)

    def __len__(self) -> int:
        return len(self._cubins)


def loops(function: Function) -> list[Loop]:
    """The loops of a function: for every backward branch the instructions from its target to it."""
    spans = []
    for index, instruction in enumerate(function.code):
        target = _TARGET.search(instruction.operands)
        if instruction.name.startswith("BRA") and target:
            first = function.labels[target[1]]
            # A branch to itself ends every function.
            if 0 <= first < index:
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
