"""``python -m mutants nn tests/nn``: how many wrong tokens of a package these tests notice.

A random sample of single mutations is tried in build/mutants, a copy of the sources. Mutations of
Python are cosmic-ray's (cosmic-ray.toml); ``kernels`` takes the C++ rules of rounding, sums and
certificates, where all mutants are switches of one build (switch.h).
"""

import argparse
import os
import random
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pybind11
from scipy.stats import binomtest

HERE = Path(__file__).resolve().parent
TREE, BUILD = HERE.parent / "build/mutants", f"build/{sys.implementation.cache_tag}"
SCRIPTS = Path(sysconfig.get_path("scripts"))
PYTEST = [sys.executable, *"-m pytest -xq -p no:cacheprovider".split()]
RULES = ("csrc/common/*.h", "csrc/cpu/sums/certified/*_r*.h", "csrc/cuda/rules/*.h")
OPERATORS = {"<": "Less", "<=": "LessEqual", ">": "Greater", ">=": "GreaterEqual", "==": "Equal",
             "!=": "NotEqual", "+": "Plus", "-": "Minus", "*": "Times", "/": "Divided", "&": "And",
             "|": "Or", "<<": "Left", ">>": "Right"}  # fmt: skip
PLACES = re.compile(
    r"(?<= )(?P<operator><<|>>|[<>=!]=|[-<>+*/&|])(?= )"
    r"|(?<![\w.])(?<!p[-+])\d+(?:\.\d+)?[uf]?\b(?!\.)"
)
#: Lines of declarations, where a switch cannot stand or changes nothing that runs.
DECLARES = re.compile(
    r"^\s*(#|(template|using|enum|struct|class|case|(static |inline )?constexpr|typedef|asm)\b"
    r"|static_assert|\"|LPK_)|\boperator\b|if constexpr"
)


class Place(NamedTuple):
    """A token of C++ that a mutant changes."""

    file: str
    line: int
    token: re.Match[str]

    def switch(self, number: int) -> str:
        """An expression that is the mutant's where LPK_MUTANT is this number."""
        token = self.token[0]
        if self.token["operator"]:
            return f"{token} ::lpk_mutants::{OPERATORS[token]}<{number}>{{}} {token}"
        return f"::lpk_mutants::either<{number}>({token}, {token} + 1)"


def places(file: str, source: str) -> Iterator[Place]:
    """The places in lines that a host compiles, outside of comments, strings and constants."""
    device = constant = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.startswith("#"):
            device = line.startswith("#if defined(__CUDA_ARCH__)")
        code = re.sub(r"//.*|\"[^\"]*\"", lambda match: "~" * len(match[0]), line)
        declares = bool(DECLARES.search(code))
        constant = (constant or (declares and "constexpr" in code)) and ";" not in code
        if not (declares or constant or device):
            yield from (Place(file, number, match) for match in PLACES.finditer(code))


def build(chosen: list[Place]) -> set[tuple[str, int]]:
    """Compiles the copy with a switch at each place; the lines that the compiler refuses."""
    sources = {path: (HERE.parent / path.relative_to(TREE)).read_text().splitlines(keepends=True)
               for rule in RULES for path in TREE.glob(rule)}  # fmt: skip
    for number, place in sorted(enumerate(chosen, 1), key=lambda pair: -pair[1].token.start()):
        lines, (start, end) = sources[TREE / place.file], place.token.span()
        line = lines[place.line - 1]
        lines[place.line - 1] = line[:start] + place.switch(number) + line[end:]
    for path, lines in sources.items():
        if (text := "".join(lines)) != path.read_text():
            path.write_text(text)
    settings = {
        "LPKERNELS_TESTS": "ON", "CMAKE_LIBRARY_OUTPUT_DIRECTORY": TREE / "lpkernels",
        "CMAKE_MAKE_PROGRAM": SCRIPTS / "ninja", "Python_EXECUTABLE": sys.executable,
        "pybind11_DIR": pybind11.get_cmake_dir(), "CMAKE_CXX_FLAGS": f"-include {HERE}/switch.h -w",
    }  # fmt: skip
    cmake = [SCRIPTS / "cmake", "-GNinja", "-S", TREE, "-B", TREE / BUILD]
    subprocess.run([*cmake, *(f"-D{name}={value}" for name, value in settings.items())], check=True)
    ninja = [SCRIPTS / "ninja", "-C", TREE / BUILD, "-k", "0"]
    done = subprocess.run(ninja, stdout=subprocess.PIPE, text=True)
    named = re.findall(r"(csrc/[\w/]+\.h):(\d+)", done.stdout) if done.returncode else ()
    refused = {(file, int(line)) for file, line in named} & {place[:2] for place in chosen}
    assert refused or not done.returncode, done.stdout[-4000:]
    return refused


def kernels(options: argparse.Namespace) -> Iterator[tuple[str, bool]]:
    """Mutants of the C++ rules, and whether the tests notice them."""
    files = sorted(str(path.relative_to(TREE)) for rule in RULES for path in TREE.glob(rule))
    found = [p for file in files for p in places(file, (HERE.parent / file).read_text())]
    random.Random(options.seed).shuffle(found)
    while refused := build(found[: options.size]):
        found = [place for place in found if (place.file, place.line) not in refused]
    for number, place in enumerate(found[: options.size], 1):
        os.environ["LPK_MUTANT"] = f"{number}"
        done = subprocess.run([*PYTEST, *options.tests], cwd=TREE, stdout=subprocess.DEVNULL)
        yield f"{place.file}:{place.line} {place.token}", done.returncode != 0


def python(options: argparse.Namespace) -> Iterator[tuple[str, bool]]:
    """Mutants of a package by cosmic-ray, and whether the tests notice them."""
    from cosmic_ray.work_db import WorkDB
    from cosmic_ray.work_item import WorkerOutcome, WorkResult

    config, session = TREE / "cosmic-ray.toml", TREE / "session.sqlite"
    names = {"package": options.package, "tests": shlex.join(PYTEST + options.tests)}
    config.write_text((HERE / "cosmic-ray.toml").read_text().format(**names))
    subprocess.run([SCRIPTS / "cosmic-ray", "init", config, session], cwd=TREE, check=True)
    subprocess.run([SCRIPTS / "cr-filter-operators", session, config], cwd=TREE, check=True)
    work = WorkDB(session, WorkDB.Mode.open)
    filtered = {job for job, _ in work.results}
    items = {i.job_id: i.mutations[0] for i in work.work_items if i.job_id not in filtered}
    jobs = {(m.module_path, m.start_pos): job for job, m in items.items()}
    chosen = {*random.Random(options.seed).sample([*jobs.values()], options.size)}
    skipped = WorkResult(WorkerOutcome.SKIPPED)
    work.set_multiple_results([job for job in items if job not in chosen], skipped)
    subprocess.run([SCRIPTS / "cosmic-ray", "exec", config, session], cwd=TREE, check=True)
    yield from ((str(r.diff), r.is_killed) for job, r in work.results if job in chosen)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("package", help="a folder or file of lpkernels, such as nn, or kernels")
    parser.add_argument("tests", nargs="+", help="files and folders of tests")
    parser.add_argument("--size", type=int, default=40, help="mutants in the sample (40)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    options = parser.parse_args()
    files = "{ git ls-files; ls lpkernels/_C* lpkernels/_build_info.json; }"
    copy = f"rm -rf {TREE}; mkdir -p {TREE}; {files} | xargs cp --parents -p -t {TREE}"
    subprocess.run(copy, cwd=HERE.parent, shell=True, check=True)
    os.environ["PYTHONPATH"] = str(TREE)
    outcomes = []
    for name, noticed in (kernels if options.package == "kernels" else python)(options):
        outcomes.append(noticed)
        print("noticed:" if noticed else "SURVIVED:", name, flush=True)
    low, high = binomtest(sum(outcomes), len(outcomes)).proportion_ci(method="wilson")
    print(f"{sum(outcomes)} of {len(outcomes)} noticed, 95% interval {low:.3f} to {high:.3f}")


if __name__ == "__main__":
    main()
