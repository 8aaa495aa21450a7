"""Mutants of the C++ rules, all in one build: the variable LPK_MUTANT chooses one when a program
starts.

A place is an operator between spaces, a decimal number or a truth value. In a copy of the sources
(build/mutants) each chosen place becomes an expression that has its own value, or the
mutant's when its number is chosen (switch.h). A place where the compiler wants a constant, or two
types that the switch cannot mix, makes no mutant: the next one takes its turn. Places in
code for GPUs alone, in constants and in declarations of types make none either.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pty
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutants import trial
from mutants.packages import ROOT

_TREE = ROOT / "build" / "mutants"
_BUILD = _TREE / "build"
# The exit status of lpk_test where the processor lacks the instruction set (csrc/tests/main.cpp).
_SKIPPED = 77

#: An operator, its name in switch.h and what the mutant has in its place.
_OPERATORS = {
    "<": ("Less", "<="), "<=": ("LessEqual", "<"), ">": ("Greater", ">="),
    ">=": ("GreaterEqual", ">"), "==": ("Equal", "!="), "!=": ("NotEqual", "=="),
    "+": ("Plus", "-"), "-": ("Minus", "+"), "*": ("Times", "+"), "/": ("Divided", "*"),
    "&": ("And", "|"), "|": ("Or", "&"), "<<": ("Left", ">>"), ">>": ("Right", "<<"),
}  # fmt: skip
_PLACES = re.compile(
    r"(?<= )(?P<operator><<|>>|[<>=!]=|[-<>+*/&|])(?= )"
    r"|(?<![\w.])(?<!p[-+])(?P<number>\d+(?:\.\d+)?)(?=[uf]?\b(?!\.))"
    r"|\b(?P<truth>true|false)\b"
)
#: Lines of declarations, where a switch cannot stand or changes nothing that runs.
_DECLARES = re.compile(
    r"^\s*(#|template\b|using\b|static_assert|enum\b|struct\b|class\b|case\b|(static )?constexpr\b"
    r"|(inline )?constexpr\b|typedef\b|asm\b|\"|LPK_)|\boperator\b|if constexpr"
)


@dataclass(frozen=True)
class Mutant:
    """One change of a line. number: the value of LPK_MUTANT that chooses it, from 1 on."""

    number: int
    key: str
    file: str
    line: int
    operator: str
    before: str
    after: str


@dataclass(frozen=True)
class Place:
    """A token that a mutant changes."""

    file: str
    line: int
    start: int
    end: int
    text: str  # of the line
    kind: str
    name: str  # without a line number

    def mutated(self) -> str:
        """The line with another token."""
        token = self.text[self.start : self.end]
        after = _OPERATORS[token][1] if self.kind == "operator" else _other(token)
        return self.text[: self.start] + after + self.text[self.end :]

    def switched(self, number: int) -> str:
        """The switch that takes the token's place in the build."""
        token = self.text[self.start : self.end]
        if self.kind == "operator":
            return f"{token} ::lpk_mutants::{_OPERATORS[token][0]}<{number}>{{}} {token}"
        suffix = re.match("[uf]?", self.text[self.end :]).group()  # type: ignore[union-attr]
        return f"::lpk_mutants::either<{number}>({token}{suffix}, {_other(token)}{suffix})"


def _other(token: str) -> str:
    if token in ("true", "false"):
        return "false" if token == "true" else "true"
    return f"{float(token) + 1}" if "." in token else f"{int(token) + 1}"


def _lines(source: str) -> Iterator[tuple[int, str]]:
    """The lines that a host compiles, without comments and strings of the same length."""
    device: list[bool] = []
    constant = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.startswith("#if"):
            device.append(line.startswith("#if defined(__CUDA_ARCH__)"))
        elif line.startswith("#el") and device:
            device[-1] = not device[-1] and "__CUDA_ARCH__" in line
        elif line.startswith("#endif"):
            device.pop()
        code = re.sub(r"//.*|\"[^\"]*\"", lambda found: "~" * len(found.group()), line)
        declares = bool(_DECLARES.search(code))
        # A constant goes on to its semicolon.
        constant = (constant or (declares and "constexpr" in code)) and ";" not in code
        if not (declares or constant or any(device)):
            yield number, code


def places(file: str, source: str) -> Iterator[Place]:
    """All places of a file."""
    lines = source.splitlines()
    for number, code in _lines(source):
        text = lines[number - 1]
        repeated = sum(other.strip() == text.strip() for other in lines[: number - 1])
        for found in _PLACES.finditer(code):
            name = f"{file}:{text.strip()}:{repeated}:{found.start()}"
            yield Place(file, number, *found.span(), text, str(found.lastgroup), name)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def sample(sources: dict[str, str], size: int, seed: int) -> tuple[list[Mutant], int]:
    """Builds the C++ tests and the module with mutants of `size` places; the mutants, and how many
    places there are.

    sources: the text of each file.
    """
    found = [place for name, source in sources.items() for place in places(name, source)]
    found.sort(key=lambda place: _digest(f"{seed}:{place.name}"))
    refused: set[Place] = set()
    while True:
        chosen = [place for place in found if place not in refused][:size]
        _write(sources, chosen)
        failed = _built(chosen)
        if not failed:
            break
        refused |= failed
    rows = []
    for number, place in enumerate(chosen, 1):
        before, after = place.text.strip(), place.mutated().strip()
        key = _digest(place.name)[:12]
        rows.append(Mutant(number, key, place.file, place.line, place.kind, before, after))
    return rows, len(found)


def _write(sources: dict[str, str], chosen: list[Place]) -> None:
    """The copy of the sources with a switch at each of the places. A file that stays the same keeps
    its time, so that it is not compiled again."""
    _TREE.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-ru", "--preserve=timestamps", "csrc", "CMakeLists.txt", _TREE],
                   cwd=ROOT, check=True)  # fmt: skip
    vectors = _TREE / "tests" / "rng_vectors.json"
    vectors.parent.mkdir(exist_ok=True)
    shutil.copy(ROOT / "tests" / "rng_vectors.json", vectors)
    for name, source in sources.items():
        lines = source.splitlines(keepends=True)
        numbered = [(place, n) for n, place in enumerate(chosen, 1) if place.file == name]
        for place, number in sorted(numbered, key=lambda pair: -pair[0].start):
            line = lines[place.line - 1]
            rest = line[place.end :]
            if place.kind == "number":
                rest = re.sub("^[uf]", "", rest)
            lines[place.line - 1] = line[: place.start] + place.switched(number) + rest
        text = "".join(lines)
        if (_TREE / name).read_text(encoding="utf-8") != text:
            (_TREE / name).write_text(text, encoding="utf-8")


def _built(chosen: list[Place]) -> set[Place]:
    """Compiles everything; the places that the compiler refuses."""
    scripts = Path(sysconfig.get_path("scripts"))
    pybind = subprocess.run([sys.executable, "-m", "pybind11", "--cmakedir"], capture_output=True,
                            text=True, check=True).stdout.strip()  # fmt: skip
    switch = Path(__file__).with_name("switch.h")
    subprocess.run(
        [scripts / "cmake", "-G", "Ninja", "-S", _TREE, "-B", _BUILD, "-DLPKERNELS_TESTS=ON",
         f"-DCMAKE_MAKE_PROGRAM={scripts / 'ninja'}", f"-DPython_EXECUTABLE={sys.executable}",
         f"-Dpybind11_DIR={pybind}", f"-DCMAKE_CXX_FLAGS=-include {switch} -w"],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    made = subprocess.run(
        [scripts / "cmake", "--build", _BUILD, "--target", "lpk_test", "_C", "--", "-k", "0"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode == 0:
        return set()
    said = made.stdout + made.stderr
    named = {(m[1], int(m[2])) for m in re.finditer(r"(csrc/[\w/]+\.h):(\d+)", said)}
    refused = {place for place in chosen if (place.file, place.line) in named}
    if not refused:
        raise RuntimeError(f"the mutants do not compile:\n{said[-4000:]}")
    return refused


def run(mutant: Mutant, stages: Sequence[Sequence[str]], limit: float) -> trial.Outcome:
    """Runs the C++ tests on a mutant and then, if they notice nothing, these tests of Python.

    limit: as for `trial.run`; each run of the C++ tests has the same limit.
    """
    os.environ["LPK_MUTANT"] = f"{mutant.number}"
    by = _failed(limit)
    if by:
        return trial.Outcome(True, by, 0.0)
    return trial.run(stages, limit, next(_BUILD.glob("_C*.so")), None)


def _failed(limit: float) -> str:
    """The first of the C++ tests that fails or takes too long; empty where none does."""
    ctest = Path(sysconfig.get_path("scripts")) / "ctest"
    listed = subprocess.run(
        [ctest, "--test-dir", _BUILD, "--show-only=json-v1"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    for test in json.loads(listed.stdout)["tests"]:
        values = {each["name"]: each["value"] for each in test["properties"]}
        environment = dict(pair.split("=", 1) for pair in values.get("ENVIRONMENT", ()))
        if _fails(test["command"], environment, limit):
            return f"lpk_test {test['name']}"
    return ""


def _fails(command: Sequence[str], environment: Mapping[str, str], limit: float) -> bool:
    """Whether a C++ test fails; it is stopped at the first check that does."""
    # A terminal gets each line as it is printed.
    reads, writes = pty.openpty()
    process = subprocess.Popen(
        command, stdout=writes, stderr=writes, env={**os.environ, **environment},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit))),
    )  # fmt: skip
    os.close(writes)
    with contextlib.suppress(OSError), os.fdopen(reads, errors="replace") as printed:
        # Linux ends a terminal that nobody writes to with an error.
        for line in printed:
            if re.match(r"\S+:\d+: ", line):
                process.kill()
                process.wait()
                return True
    return process.wait() not in (0, _SKIPPED)
