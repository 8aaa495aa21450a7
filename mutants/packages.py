"""The sources that are mutated, by package, and the tests that concern them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_NUMBERS = ("tests/numbers", "tests/oracles")
_TECHNIQUES = "lpkernels/techniques"
_MASKS = "tests/techniques/test_accumulation_masks.py"
_UPDATES = "tests/backends/cpu/test_update_kernels.py"


@dataclass(frozen=True)
class Group:
    """Files or folders of a package, with the tests that concern them."""

    package: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]

    def files(self) -> list[str]:
        """The sources, relative to the root, without those of a folder that another group names."""
        files = []
        for source in self.sources:
            path = ROOT / source
            files += sorted(path.rglob("*.py")) if path.is_dir() else [path]
        named = {source for group in GROUPS if group is not self for source in group.sources}
        return [name for p in files if (name := p.relative_to(ROOT).as_posix()) not in named]

    def stages(self, file: str) -> list[list[str]]:
        """First the tests whose name contains the source's name, if there are any, then all."""
        stem = Path(file).stem.strip("_")
        found = {p for test in self.tests for p in (ROOT / test).rglob(f"test_*{stem}*.py")}
        first = sorted(p.relative_to(ROOT).as_posix() for p in found)
        return [first, [*self.tests]] if first else [[*self.tests]]


GROUPS = (
    Group("formats", ("lpkernels/formats",), (*_NUMBERS, "tests/reference/test_twin_packing.py")),
    Group("rounding", ("lpkernels/rounding.py",), (*_NUMBERS, "tests/reference/test_beyond.py")),
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
        ("lpkernels/reference/events.py", "lpkernels/reference/masked.py"),
        ("tests/reference/test_beyond.py", "tests/backends/cpu/test_events.py", _MASKS),
    ),
    Group(
        "techniques",
        (f"{_TECHNIQUES}/loss_scaling/_scale.py", f"{_TECHNIQUES}/loss_scaling/scaler.py"),
        tuple(
            f"tests/techniques/loss_scaling/test_{name}.py"
            for name in ("scaler", "gradscaler", "wrong_input", "closures")
        ),
    ),
    Group(
        "techniques",
        tuple(f"{_TECHNIQUES}/cpt/{name}.py" for name in ("schedule", "profiles", "cost")),
        ("tests/techniques/cpt",),
    ),
    Group(
        "techniques",
        (
            f"{_TECHNIQUES}/assignment/knapsack.py",
            f"{_TECHNIQUES}/assignment/demotion.py",
            f"{_TECHNIQUES}/assignment/scoring",
        ),
        tuple(
            f"tests/techniques/assignment/test_{name}.py"
            for name in ("knapsack", "demotion", "scoring", "asking", "keeping", "pins")
        ),
    ),
    Group("techniques", (f"{_TECHNIQUES}/pareto/frontier.py",), ("tests/techniques/pareto",)),
    Group(
        "techniques",
        (f"{_TECHNIQUES}/accumulation/theory.py", f"{_TECHNIQUES}/accumulation/_retention.py"),
        (
            "tests/techniques/test_accumulation_theory.py",
            "tests/techniques/test_accumulation_refusals.py",
        ),
    ),
)
PACKAGES = tuple(dict.fromkeys(group.package for group in GROUPS))
