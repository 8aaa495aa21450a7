"""The tests on other processors: some are skipped there, and the others still run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lpkernels.backends import cpu
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


@NEEDS_KERNELS
def test_what_runs_is_all_up_to_the_best(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("LPKERNELS_ISA", raising=False)
    best = cpu.BACKEND.isa()
    up_to_best = [names[: names.index(best) + 1] for names in FAMILIES.values() if best in names]
    assert tuple(isa for isa in ISAS if runs(isa)) in up_to_best


@NEEDS_KERNELS
def test_an_instruction_set_of_other_processors_is_refused(monkeypatch: pytest.MonkeyPatch):
    lacking = [name for name in ISAS if not runs(name)]
    names = ", ".join(name for name in ISAS if runs(name))
    for name in [*lacking, "sse2"]:
        monkeypatch.setenv("LPKERNELS_ISA", name)
        with pytest.raises(ValueError, match=f"={name}: this processor runs {names}; unset it"):
            cpu.BACKEND.isa()


@NEEDS_KERNELS
@pytest.mark.parametrize("name", ISAS)
def test_loops_over_instruction_sets_run(name: str, monkeypatch: pytest.MonkeyPatch):
    """Skipped for each instruction set that tests with such a loop leave out here."""
    processor.choose(name, monkeypatch)
    assert name in [isa for isa in processor.Isas(monkeypatch) if cpu.BACKEND.isa() == isa]


class Kernels:
    """A stand-in for the module: it answers for a processor that runs these instruction sets."""

    def __init__(self, *run: str) -> None:
        self.run = run

    def isa(self) -> str:
        wanted = os.environ.get("LPKERNELS_ISA", "")
        if wanted and wanted not in self.run:
            raise ValueError(f"LPKERNELS_ISA={wanted}: this processor runs {', '.join(self.run)}")
        return wanted or self.run[-1]


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
