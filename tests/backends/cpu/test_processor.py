"""The tests on other processors: some are skipped there, and the others still run."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from lpkernels import _build, backends
from lpkernels.backends import cpu
from lpkernels.backends.cpu import CpuBackend
from lpkernels.report import doctor
from tests.loops import rows
from tests.support import processor
from tests.support.processor import FAMILIES, ISAS, NEEDS_KERNELS, runs

ROOT = Path(__file__).resolve().parents[3]

#: The ways of asking other libraries, or the system, what the processor runs.
_ASKED = re.compile(
    r"get_cpu_capab|get_capabilities|torch\.cpu\b|_is_(?:avx|amx|vnni)|__cpu_features__"
    r"|import (?:cpuinfo|archspec)|/proc/cpu"
)


def asks_elsewhere(source: str) -> bool:
    return bool(_ASKED.search(source))


@pytest.mark.parametrize(
    "source",
    ["torch.backends.cpu.get_cpu_capability()", "torch.cpu._is_avx512_supported()",
     "import cpuinfo", 'open("/proc/cpuinfo")'],
)  # fmt: skip
def test_a_file_that_asks_elsewhere_is_found(source: str):
    assert asks_elsewhere(source)


def test_tests_ask_the_kernels_alone_what_they_run():
    files = sorted((ROOT / "tests").rglob("*.py"))
    found = [f.relative_to(ROOT) for f in files if asks_elsewhere(f.read_text())]
    assert found == [Path(__file__).relative_to(ROOT)]


class Kernels:
    """A stand-in for the module: it answers for a processor that runs these instruction sets."""

    def __init__(self, *run: str) -> None:
        self.run = run

    def isa(self) -> str:
        wanted = os.environ.get("LPKERNELS_ISA", "")
        if wanted and wanted not in self.run:
            raise ValueError(f"LPKERNELS_ISA={wanted}: this processor runs {', '.join(self.run)}")
        return wanted or self.run[-1]


@NEEDS_KERNELS
def test_what_runs_is_compiled_and_of_the_processor(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("LPKERNELS_ISA", raising=False)
    module = _build.load_extension()
    both = [name for name in module.compiled_sets() if name in module.sets_of_processor()]
    assert [name for name in ISAS if runs(name)] == both
    assert cpu.BACKEND.isa() == both[-1]
    assert tuple(module.sets_of_processor()) in [
        names[:count] for names in FAMILIES.values() for count in range(1, len(names) + 1)
    ]


class Compiled(Kernels):
    """A module of these sets, on a processor that runs the others too."""

    def __init__(self, compiled: list[str], of_processor: list[str]) -> None:
        super().__init__(*(name for name in compiled if name in of_processor))
        self.compiled_sets = lambda: compiled
        self.sets_of_processor = lambda: of_processor


def test_a_processor_whose_sets_are_not_compiled_warns_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("LPKERNELS_ISA", raising=False)
    moved = Compiled(["scalar", "avx512"], ["scalar", "avx2"])
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
        moved = Compiled(["scalar", "avx2"], ["scalar", "avx2", "avx512"])
        CpuBackend()._c()


@rows(
    "compiled, of_processor, line",
    ("scalar avx2", "scalar avx2", "avx2 of scalar, avx2"),
    ("scalar avx2", "scalar avx2 avx512",
     "avx2 of scalar, avx2; this processor has avx512: install again to compile it"),
    ("scalar", "scalar", "scalar of scalar: 36 to 1038 times slower than AVX-512; "
     "this processor has no set that could be compiled"),
)  # fmt: skip
def test_doctor_names_the_compiled_sets(monkeypatch, compiled, of_processor, line):
    monkeypatch.delenv("LPKERNELS_ISA", raising=False)
    module = Compiled(compiled.split(), of_processor.split())
    monkeypatch.setattr(_build, "load_extension", lambda: module)
    monkeypatch.setattr(backends, "status", lambda: {"cpu": "available"})
    assert doctor._instruction_set() == line


@NEEDS_KERNELS
def test_an_instruction_set_of_other_processors_is_refused(monkeypatch: pytest.MonkeyPatch):
    lacking = [name for name in ISAS if not runs(name)]
    names = ", ".join(name for name in ISAS if runs(name))
    for name in [*lacking, "sse2"]:
        monkeypatch.setenv("LPKERNELS_ISA", name)
        with pytest.raises(ValueError, match=f"={name}: this processor runs {names} of the"):
            cpu.BACKEND.isa()


@NEEDS_KERNELS
@pytest.mark.parametrize("name", ISAS)
def test_loops_over_instruction_sets_run(name: str, monkeypatch: pytest.MonkeyPatch):
    """Skipped for each instruction set that tests with such a loop leave out here."""
    processor.choose(name, monkeypatch)
    assert name in [isa for isa in processor.Isas(monkeypatch) if cpu.BACKEND.isa() == isa]


@pytest.mark.parametrize("count", range(1, len(ISAS) + 1), ids=lambda count: ISAS[count - 1])
def test_tests_are_skipped_beyond_what_runs(count: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processor.cpu, "BACKEND", Kernels(*ISAS[:count]))
    for isa in ISAS[:count]:
        processor.choose(isa, monkeypatch)
        assert os.environ["LPKERNELS_ISA"] == isa
    for isa in ISAS[count:]:
        assert not runs(isa)
        with pytest.raises(pytest.skip.Exception, match=f"does not run {isa}"):
            processor.choose(isa, monkeypatch)


def test_another_error_of_the_kernels_is_no_skip(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processor.cpu, "BACKEND", Kernels("scalar"))
    monkeypatch.setattr(Kernels, "isa", lambda self: int("broken"))
    with pytest.raises(ValueError, match="broken"):
        runs("avx2")


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
        f"{folder}/test_cpu.py::test_matmul_reads_any_strides",
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
