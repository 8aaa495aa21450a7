"""Builds the C++ module lpkernels._C by calling CMake, and what an index shows of the README;
everything else is in pyproject.toml.

Without a C++ compiler (or CMake, ninja, pybind11, Python's headers) the package installs without
the module, and lpkernels/_build_info.json records why, for lpkernels.backends.status() to repeat;
LPKERNELS_REQUIRE=1 makes that an error, as a build that was possible but failed always is.
LPKERNELS_CUDA compiles csrc/cuda: native for the GPU of this machine, 1 for sm_80 and sm_90, and a
list such as "80;90" for these architectures; unset or 0 leaves it out. LPKERNELS_ISAS names the
instruction sets of csrc/cpu/isa that are compiled beside scalar: all, or a list such as
"avx2;avx512"; unset takes the best one of this processor. LPKERNELS_DEBUG=1 builds without
optimisation, with symbols for a debugger.

The file records the commit too. A source distribution carries it, and a package built from one
repeats it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
# The package itself cannot be imported here: torch need not be installed where it is built.
BUILD = runpy.run_path(str(ROOT / "lpkernels" / "_build.py"))
# pip puts cmake and ninja beside the interpreter, which need not be on PATH.
SEARCH = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])


def tool(name: str) -> str | None:
    return shutil.which(name, path=SEARCH)


def missing() -> str:
    """Why the C++ module cannot be built here; empty when it can."""
    # $CXX may hold arguments, or a launcher such as ccache before the compiler.
    compilers = shlex.split(os.environ.get("CXX", ""))[:1] or ["c++", "g++", "clang++"]
    if not any(map(tool, compilers)):
        return (
            "no C++ compiler was found (install g++ from version 12 or clang++ from 16, "
            "or set CXX, then install again)"
        )
    for name in ("cmake", "ninja"):
        if tool(name) is None:
            return f"{name} was not found (pip install {name}, then install again)"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        return f"{header} is missing (install the system's python3-dev, then install again)"
    try:
        import pybind11  # noqa: F401
    except ImportError:
        return "pybind11 was not found (pip install pybind11, then install again)"
    return ""


def cuda_setting() -> tuple[str, str]:
    """LPKERNELS_CUDA as CMake gets it, and why CUDA is left out (empty when it is built)."""
    setting = os.environ.get("LPKERNELS_CUDA") or "0"
    if setting == "0":
        return "0", "lpkernels was built without LPKERNELS_CUDA"
    if not (os.environ.get("CUDACXX") or tool("nvcc")):
        raise SystemExit(
            f"LPKERNELS_CUDA={setting} asks for CUDA but nvcc is not on PATH; "
            "add it to PATH, set CUDACXX, or unset LPKERNELS_CUDA"
        )
    return setting, ""


class CMakeBuild(build_ext):
    """Builds CMakeLists.txt in build/<interpreter>, which the next build continues."""

    def run(self) -> None:
        target = ROOT if self.inplace or self.editable_mode else Path(self.build_lib).resolve()
        package = target / "lpkernels"
        reason = missing()
        if reason and os.environ.get("LPKERNELS_REQUIRE") == "1":
            raise SystemExit(f"LPKERNELS_REQUIRE=1 asks for the C++ module, but {reason}")
        package.mkdir(parents=True, exist_ok=True)
        if reason:
            print(f"lpkernels: installing without the C++ module: {reason}", file=sys.stderr)
            info = {"extension": False, "reason": reason, "cuda": False, "cuda_reason": reason}
        else:
            cuda, cuda_reason = cuda_setting()
            self.build_module(package, cuda)
            built = not cuda_reason
            info = {"extension": True, "reason": "", "cuda": built, "cuda_reason": cuda_reason}
        write_info(package, info)

    def build_module(self, package: Path, cuda: str) -> None:
        import pybind11

        build = ROOT / "build" / str(sys.implementation.cache_tag)
        drop_stale(build)
        settings = {
            "CMAKE_BUILD_TYPE": "Debug" if os.environ.get("LPKERNELS_DEBUG") == "1" else "Release",
            "CMAKE_MAKE_PROGRAM": tool("ninja"),
            "CMAKE_LIBRARY_OUTPUT_DIRECTORY": package,
            "Python_EXECUTABLE": sys.executable,
            "pybind11_DIR": pybind11.get_cmake_dir(),
            "LPKERNELS_CUDA": cuda,
            "LPKERNELS_ISAS": os.environ.get("LPKERNELS_ISAS") or "native",
        }
        options = [f"-D{name}={value}" for name, value in settings.items()]
        cmake = str(tool("cmake"))
        # A compiler that is too old is named by CMakeLists.txt, with the versions that work.
        if subprocess.run([cmake, "-G", "Ninja", "-S", ROOT, "-B", build, *options]).returncode:
            # The folder remembers the compiler and its version.
            shutil.rmtree(build, ignore_errors=True)
            raise SystemExit("lpkernels: CMake refused this build; its message above says why")
        announce(build)
        if subprocess.run([cmake, "--build", build]).returncode:
            raise SystemExit("lpkernels: the C++ module does not compile; see the message above")

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


def announce(build: Path) -> None:
    """Says before the compiler runs how many files it has to compile, and for which sets.

    pip shows nothing of a build unless it is called with -v: the line goes to the terminal itself
    where there is one."""
    dry_run = subprocess.run(
        [str(tool("ninja")), "-C", build, "-n"], capture_output=True, text=True
    ).stdout
    files = len(re.findall(r"^\[.*Building ", dry_run or "", re.MULTILINE))
    if not files:
        return
    cache = (build / "CMakeCache.txt").read_text()
    sets = re.findall(r"^LPK_SETS:INTERNAL=(.*)$", cache, re.MULTILINE)[0].replace(";", ", ")
    line = f"lpkernels: compiling {files} files for {sets}, for a minute or more; pip -v shows them"
    print(line, flush=True)
    if not sys.stdout.isatty():
        with contextlib.suppress(OSError), Path("/dev/tty").open("w") as terminal:
            terminal.write(f"{line}\n")


class SourcesWithCommit(sdist):
    """Adds the commit, which a folder without git does not know."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        write_info(Path(base_dir) / "lpkernels", {})


def write_info(package: Path, info: dict[str, object]) -> None:
    """Records `info` and the commit for the installed package, which reads them in _build.py."""
    text = json.dumps({**info, "commit": BUILD["commit"]()}, indent=1)
    (package / BUILD["INFO"]).write_text(text + "\n")


# A link's or a picture's path in Markdown or HTML; code, which is matched first, has none.
LINK = re.compile(
    r'(?P<code>```.*?```|`[^`\n]*`)|(?P<start>\]\(|(?:src|href)=")(?!#|\w+:)(?P<path>[^)\s"]+)',
    re.DOTALL,
)


def description() -> str:
    """The README as an index shows it: its paths lead to the repository of pyproject.toml."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    repository = re.findall(r'^Repository = "(.+)"$', project, re.MULTILINE)[0]

    def absolute(found: re.Match[str]) -> str:
        if found["code"]:
            return found[0]
        place = "raw" if found["path"].endswith((".png", ".svg")) else "blob"
        return f"{found['start']}{repository}/{place}/main/{found['path']}"

    return LINK.sub(absolute, (ROOT / "README.md").read_text(encoding="utf-8"))


def drop_stale(build: Path) -> None:
    """Remove a build folder that CMake refuses to reuse, because it was copied here with its
    checkout, or would reuse with the compiler of an earlier CXX."""
    cache = build / "CMakeCache.txt"
    if not cache.exists():
        return
    lines = cache.read_text().splitlines()
    here = f"CMAKE_HOME_DIRECTORY:INTERNAL={ROOT}" in lines
    known = [line.partition("=")[2] for line in lines if line.startswith("LPKERNELS_CXX:")]
    if not here or (known or [""]) != [os.environ.get("CXX", "")]:
        shutil.rmtree(build)


if __name__ == "__main__":
    setup(
        ext_modules=[Extension("lpkernels._C", [])],
        cmdclass={"build_ext": CMakeBuild, "sdist": SourcesWithCommit},
        long_description=description(),
        long_description_content_type="text/markdown",
    )
