"""The instruction sets that the kernels run, and the tests on processors that have fewer."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from lpkernels import _build, backends
from lpkernels.backends import cpu
from lpkernels.backends.cpu import CpuBackend
from lpkernels.report import doctor
from tests.support import processor
from tests.support.processor import FAMILIES, ISAS, NEEDS_KERNELS, runs

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def any_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LPKERNELS_ISA", raising=False)


@NEEDS_KERNELS
def test_what_runs_is_compiled_and_of_the_processor(monkeypatch: pytest.MonkeyPatch):
    module = _build.load_extension()
    both = [name for name in module.compiled_sets() if name in module.sets_of_processor()]
    assert [name for name in ISAS if runs(name)] == both
    assert cpu.BACKEND.isa() == both[-1]
    assert tuple(module.sets_of_processor()) in [
        names[:count] for names in FAMILIES.values() for count in range(1, len(names) + 1)
    ]
    for name in [*({*ISAS} - {*both}), "sse2"]:
        monkeypatch.setenv("LPKERNELS_ISA", name)
        with pytest.raises(ValueError, match=f"={name}: this processor runs {', '.join(both)} of"):
            cpu.BACKEND.isa()


class Compiled:
    """A stand-in for the module: compiled for some sets, on a processor that has others."""

    def __init__(self, compiled: str, of_processor: str) -> None:
        self.compiled_sets, self.sets_of_processor = compiled.split, of_processor.split
        self.run = [name for name in compiled.split() if name in of_processor.split()]

    def isa(self) -> str:
        return os.environ.get("LPKERNELS_ISA", "") or self.run[-1]


def test_a_processor_whose_sets_are_not_compiled_warns_once(monkeypatch: pytest.MonkeyPatch):
    moved = Compiled("scalar avx512", "scalar avx2")
    monkeypatch.setattr(_build, "load_extension", lambda: moved)
    monkeypatch.setattr(CpuBackend, "_add_tables", lambda self, module: None)
    module = CpuBackend()
    with pytest.warns(RuntimeWarning, match="for scalar, avx512, and this processor has avx2"):
        module._c()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module._c()
        monkeypatch.setenv("LPKERNELS_ISA", "scalar")
        CpuBackend()._c()
        monkeypatch.delenv("LPKERNELS_ISA")
        moved = Compiled("scalar avx2", "scalar avx2 avx512")
        CpuBackend()._c()


@pytest.mark.parametrize(
    "compiled, of_processor, line",
    [("scalar avx2", "scalar avx2", "avx2 of scalar, avx2"),
     ("scalar avx2", "scalar avx2 avx512",
      "avx2 of scalar, avx2; this processor has avx512: install again to compile it"),
     ("scalar", "scalar", "scalar of scalar: 36 to 1038 times slower than AVX-512; "
      "this processor has no set that could be compiled")],
)  # fmt: skip
def test_doctor_names_the_compiled_sets(monkeypatch, compiled, of_processor, line):
    module = Compiled(compiled, of_processor)
    monkeypatch.setattr(_build, "load_extension", lambda: module)
    monkeypatch.setattr(backends, "status", lambda: {"cpu": "available"})
    assert doctor._instruction_set() == line


@NEEDS_KERNELS
@pytest.mark.parametrize("name", ISAS)
def test_loops_over_instruction_sets_run(name: str, monkeypatch: pytest.MonkeyPatch):
    """Skipped for each instruction set that tests with such a loop leave out here."""
    processor.choose(name, monkeypatch)
    assert name in [isa for isa in processor.Isas(monkeypatch) if cpu.BACKEND.isa() == isa]


@NEEDS_KERNELS
@pytest.mark.parametrize(
    ("name", "passed"), [("avx2", 3), pytest.param("avx512", 4, marks=pytest.mark.slow)]
)
def test_on_a_processor_with_fewer_instructions(name: str, passed: int):
    """csrc/tests/other_processor.cpp answers CPUID for every library of the process. The first one
    lacks all that the second lacks."""
    build = ROOT / "build" / str(sys.implementation.cache_tag)
    library = build / "liblpk_other_processor.so"
    if not library.exists():
        pytest.skip(f"{library} is missing; `make test` builds it on Linux for x86-64")
    if not runs(name):
        pytest.skip(f"this processor does not run {name}")
    preloaded = f"{library} {os.environ.get('LD_PRELOAD', '')}"
    left_out = ("LPKERNELS_ISA", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER")
    environment = {k: v for k, v in os.environ.items() if k not in left_out}
    plugins = [f"-pno:{plugin}" for plugin in ("cacheprovider", "xdist")]
    folder = "tests/backends/cpu"
    cases = [
        f"{folder}/test_processor.py::test_loops_over_instruction_sets_run",
        f"{folder}/test_cpu.py::test_results_do_not_depend_on_flush_to_zero",
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, *cases],
        env={**environment, "LD_PRELOAD": preloaded.strip(), "LPK_PROCESSOR": name},
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    if ran.returncode == 77:
        pytest.skip("CPUID cannot be made to trap here")
    skipped = len(ISAS) + 1 - passed
    assert f"{passed} passed, {skipped} skipped" in ran.stdout, ran.stdout + ran.stderr
