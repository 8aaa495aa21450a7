"""The build with other compilers: what csrc may not use, refused versions, build folders."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Words that GCC has and Clang lacks. Both know `#pragma GCC unroll`.
_GCC_ALONE = re.compile(
    r"__builtin_shuffle\b|__builtin_ia32_|__builtin_assoc_barrier|__attribute__\(\(optimize"
    r"|\bnoclone\b|#pragma GCC (?!unroll\b)|cpu_supports\(\"avx512fp16\"\)"
)
_MACRO = "#define LPK_NOCLONE __attribute__((noclone))"


def gcc_alone(source: str) -> list[str]:
    return _GCC_ALONE.findall(source.replace(_MACRO, ""))


def test_the_sources_have_no_words_that_gcc_alone_knows() -> None:
    sources = [p for p in (ROOT / "csrc").rglob("*") if p.suffix in (".h", ".cpp", ".cu", ".cuh")]
    assert len(sources) > 200
    found = {str(p.relative_to(ROOT)): gcc_alone(p.read_text(encoding="utf-8")) for p in sources}
    assert {name: words for name, words in found.items() if words} == {}


@pytest.mark.skipif(
    not (shutil.which("g++") and shutil.which("cmake") and shutil.which("ninja")),
    reason="needs g++, cmake and ninja on PATH",
)
@pytest.mark.parametrize(
    "name, macros",
    [("GNU 11", "-U__GNUC__ -D__GNUC__=11"),
     ("Clang 14", "-D__clang__ -D__clang_major__=14 -D__clang_minor__=0 -D__clang_patchlevel__=6")],
)  # fmt: skip
def test_an_old_compiler_is_refused_in_a_sentence(name: str, macros: str, tmp_path: Path) -> None:
    old = tmp_path / "old-c++"
    old.write_text(f'#!/bin/sh\nexec g++ {macros} "$@"\n')
    old.chmod(0o755)
    command = ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(tmp_path / "build")]
    own = {**os.environ, "CXX": str(old)}
    done = subprocess.run(command, env=own, capture_output=True, text=True)
    assert done.returncode != 0
    assert re.search(
        r"lpkernels compiles with GCC from 12, Clang from 16 or Apple's Clang from 15 on, "
        rf"and {re.escape(str(old))} is {name}\.[0-9.]+: set CXX to one of these", done.stderr
    ), done.stderr  # fmt: skip


@pytest.mark.parametrize(
    "cache, cxx, kept",
    [
        ("CMAKE_HOME_DIRECTORY:INTERNAL={root}\n", "", True),
        ("CMAKE_HOME_DIRECTORY:INTERNAL={root}/elsewhere\n", "", False),
        ("CMAKE_HOME_DIRECTORY:INTERNAL={root}\n", "clang++-16", False),
        ("CMAKE_HOME_DIRECTORY:INTERNAL={root}\nLPKERNELS_CXX:STRING=\n", "", True),
        ("CMAKE_HOME_DIRECTORY:INTERNAL={root}\nLPKERNELS_CXX:STRING=\n", "clang++-16", False),
        ("CMAKE_HOME_DIRECTORY:INTERNAL={root}\nLPKERNELS_CXX:STRING=g++\n", "g++", True),
        ("CMAKE_HOME_DIRECTORY:INTERNAL={root}\nLPKERNELS_CXX:STRING=g++\n", "", False),
    ],
)
def test_a_build_folder_serves_one_checkout_and_one_compiler(
    setup, monkeypatch, tmp_path, cache, cxx, kept
):
    build = tmp_path / "build"
    build.mkdir(exist_ok=True)
    (build / "CMakeCache.txt").write_text(cache.format(root=setup.ROOT))
    monkeypatch.setenv("CXX", cxx)
    setup.drop_stale(build)
    assert build.exists() == kept
