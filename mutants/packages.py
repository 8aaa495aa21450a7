"""The sources that are mutated, by package, and the tests that concern them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_NUMBERS = ("tests/numbers", "tests/oracles")
_BACKENDS = "lpkernels/backends"
_CPU = "tests/backends/cpu"
_TECHNIQUES = "lpkernels/techniques"
_UPDATES = "tests/backends/cpu/test_update_kernels.py"
_EXPERIMENTS = "lpkernels/experiments"
_TRIED = "tests/experiments"
_SWEEPS = "accumulate cells reading specification statistics"
#: Sources without mutants: tests run them on a GPU, in Triton's interpreter or in a build of their
#: own, or for minutes in clusters and groups of processes.
UNTRIED = (
    f"{_BACKENDS}/_gpu.py",
    f"{_BACKENDS}/cuda",
    f"{_BACKENDS}/triton",
    f"{_EXPERIMENTS}/processes/replicas.py",
    f"{_EXPERIMENTS}/processes/torchrun.py",
    f"{_EXPERIMENTS}/sweeps/engines.py",
)
_LAYERS = (
    "axes calls convert observing observing_gradients policies "
    "policy_files precision running summary tracing wrong_input"
)


@dataclass(frozen=True)
class Group:
    """Files or folders of a package, with the tests that concern them.

    tests: files or folders. last: the tests that take longest, named in `tests` or not; they run
        when all others have passed.
    """

    package: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    last: tuple[str, ...] = ()

    def files(self) -> list[str]:
        """The sources, relative to the root, without those of a folder that another group names."""
        named = {source for group in GROUPS for source in group.sources}
        others = {source for source in named if not _folders(source).isdisjoint(self.sources)}
        others.update(UNTRIED)
        files = _below(self.sources, "*.py")
        return [name for name in files if others.isdisjoint({name, *_folders(name)})]

    def stages(self, file: str) -> list[list[str]]:
        """First the tests named after the source, or after its folder if the source is an
        ``__init__``; then the other tests; then `last`."""
        last = _below(self.last, "test_*.py")
        tests = [name for name in _below(self.tests, "test_*.py") if name not in last]
        path = Path(file)
        stem = (path.parent.name if path.stem == "__init__" else path.stem).strip("_")
        first = [name for name in tests if stem in Path(name).name]
        others = [name for name in tests if name not in first]
        return [stage for stage in (first, others, last) if stage]


def known(by: str) -> list[list[str]]:
    """A stage with the test that noticed a mutant: all its cases, which may have other names today.
    If the test is gone its file stands for it; if that is gone too there is no stage."""
    file, _, test = by.partition("[")[0].partition("::")
    if not (ROOT / file).is_file():
        return []
    defined = test and f"def {test}(" in (ROOT / file).read_text(encoding="utf-8")
    return [[f"{file}::{test}" if defined else file]]


def _below(names: tuple[str, ...], pattern: str) -> list[str]:
    """Files, and those of folders that match the pattern, relative to the root."""
    paths = [ROOT / name for name in names]
    files = [file for p in paths for file in (sorted(p.rglob(pattern)) if p.is_dir() else [p])]
    return [file.relative_to(ROOT).as_posix() for file in files]


def _folders(name: str) -> set[str]:
    return {folder.as_posix() for folder in Path(name).parents}


#: The package whose mutants are of C++ (`mutants.cpp`): the rules of rounding and of sums, of
#: certificates and certified sums, and of CUDA's kernels, which the C++ tests run on the host.
KERNELS = "kernels"
_RULES = (
    "csrc/common/*.h",
    "csrc/cpu/sums/certified/operand_range.h",
    "csrc/cpu/sums/certified/*_rules.h",
    "csrc/cuda/rules/*.h",
)

GROUPS = (
    Group(
        "formats",
        ("lpkernels/formats",),
        (*_NUMBERS, "tests/reference/test_twin_packing.py", "tests/functional/test_axes.py"),
    ),
    Group(
        "rounding",
        ("lpkernels/rounding.py", "lpkernels/_table_rounding.py"),
        (*_NUMBERS, "tests/reference/test_beyond.py"),
    ),
    Group("rng", ("lpkernels/rng.py",), ("tests/numbers", "tests/functional/test_seeds.py")),
    Group(
        "arithmetic",
        ("lpkernels/arithmetic",),
        (*_NUMBERS, "tests/nn/test_running.py", "tests/nn/test_precision.py", _UPDATES),
    ),
    Group("reference", ("lpkernels/reference",), ("tests/reference",)),
    Group("reference", ("lpkernels/reference/updates.py",), (_UPDATES,)),
    Group(
        "reference",
        ("lpkernels/reference/events.py",),
        ("tests/reference/test_beyond.py", "tests/backends/cpu/test_events.py"),
    ),
    Group(
        "techniques",
        (f"{_TECHNIQUES}/loss_scaling/_gradients.py", f"{_TECHNIQUES}/loss_scaling/scaler.py"),
        tuple(f"tests/techniques/loss_scaling/test_{name}.py" for name in ("scaler", "gradscaler")),
    ),
    Group(
        "techniques",
        tuple(f"{_TECHNIQUES}/cpt/{name}.py" for name in ("schedule", "tracks")),
        ("tests/techniques/cpt",),
    ),
    Group(
        "techniques",
        (f"{_TECHNIQUES}/assignment/demotion.py",),
        tuple(
            f"tests/techniques/assignment/test_{name}.py"
            for name in ("demotion", "asking", "keeping", "pins")
        ),
    ),
    Group("techniques", (f"{_TECHNIQUES}/pareto/frontier.py",), ("tests/techniques/pareto",)),
    Group(
        "techniques",
        (f"{_TECHNIQUES}/accumulation/theory.py", f"{_TECHNIQUES}/accumulation/_retention.py"),
        (
            "tests/techniques/test_accumulation_theory.py",
            "tests/techniques/test_accumulation_trace.py",
        ),
    ),
    Group(
        "functional",
        ("lpkernels/functional",),
        ("tests/functional",),
        ("tests/nn/test_layers_in_torch.py",),
    ),
    Group(
        "nn",
        ("lpkernels/nn",),
        tuple(f"tests/nn/test_{name}.py" for name in _LAYERS.split()),
        tuple(f"tests/nn/test_{name}.py" for name in ("layers_in_torch", "module_inputs")),
    ),
    Group("ops", ("lpkernels/ops",), ("tests/ops",), ("tests/functional",)),
    Group(
        "backends",
        (_BACKENDS,),
        ("tests/backends/test_backends.py", "tests/functional"),
        ("tests/reference/test_reference_backend.py", "tests/ops/test_ops.py"),
    ),
    Group(
        "backends",
        tuple(f"{_BACKENDS}/{name}.py" for name in ("cpu", "_cpu_module", "_cpu_counting")),
        tuple(
            f"{_CPU}/test_{name}_kernels.py"
            for name in ("conv", "count", "operand", "pack", "quantize", "update")
        ),
        (f"{_CPU}/test_fused.py", f"{_CPU}/test_cpu.py"),
    ),
    Group("backends", (f"{_BACKENDS}/_cpu_events.py",), (f"{_CPU}/test_events.py",)),
    Group(
        "backends",
        tuple(
            f"{_BACKENDS}/_{name}.py"
            for name in ("conv_geometry", "conv_phases", "conv_tables", "tables")
        ),
        ("tests/test_conv_tables.py",),
    ),
    Group(
        "backends",
        (f"{_BACKENDS}/planning",),
        ("tests/backends/test_planning.py", "tests/backends/triton/test_planning.py"),
    ),
    Group(
        "experiments",
        (_EXPERIMENTS,),
        tuple(f"{_TRIED}/test_{name}.py" for name in ("processes", "records")),
        (f"{_TRIED}/training", f"{_TRIED}/sweeps/test_cells.py"),
    ),
    Group(
        "experiments",
        (f"{_EXPERIMENTS}/measuring",),
        (f"{_TRIED}/measuring", f"{_TRIED}/sweeps/test_accumulate.py"),
    ),
    Group(
        "experiments",
        (f"{_EXPERIMENTS}/training",),
        (f"{_TRIED}/training", f"{_TRIED}/test_records.py"),
    ),
    Group("experiments", (f"{_EXPERIMENTS}/workloads",), (f"{_TRIED}/workloads",)),
    Group(
        "experiments",
        (f"{_EXPERIMENTS}/sweeps",),
        (
            *(f"{_TRIED}/sweeps/test_{name}.py" for name in _SWEEPS.split()),
            f"{_TRIED}/sweeps/frontiers",
            "tests/report/test_report_sweeps.py",
            "tests/report/test_report_frontiers.py",
        ),
        tuple(
            f"{_TRIED}/sweeps/test_{name}.py"
            for name in ("sweep", "frontier_command", "sweep_command")
        ),
    ),
    Group(
        KERNELS,
        tuple(
            path.relative_to(ROOT).as_posix() for rule in _RULES for path in sorted(ROOT.glob(rule))
        ),
        (_CPU,),
    ),
)
PACKAGES = tuple(dict.fromkeys(group.package for group in GROUPS))
