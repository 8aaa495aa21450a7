"""Which changes of the sources make other cells."""

import importlib
from pathlib import Path

import pytest

from lpkernels.experiments.sweeps import sources
from lpkernels.experiments.sweeps.sources import (
    cell_name,
    config_digits,
    hash_of_package,
    sources_hash,
    version_of,
)
from lpkernels.experiments.training.config import RunConfig

STATISTICS = "experiments/sweeps/statistics.py"


def write(path: Path, text: str = "1") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def package(root: Path) -> Path:
    for name in ("a.py", "report/b.py", "cli/c.py", STATISTICS, "n/d.py"):
        write(root / "lpkernels" / name)
    return root / "lpkernels"


@pytest.mark.parametrize(
    "name, counts",
    [
        *((name, True) for name in ("a.py", "n/d.py", "n/new.py", "../csrc/cpu/x.cpp")),
        ("_C.cpython-311.so", True),
        *((name, False) for name in ("n/notes.txt", "report/b.py", "cli/c.py", STATISTICS)),
    ],
)
def test_what_can_change_a_result_changes_the_hash(tmp_path: Path, name: str, counts: bool) -> None:
    root = package(tmp_path)
    before = hash_of_package(root)
    write(root / name, "2")
    assert (hash_of_package(root) != before) == counts


def test_the_built_module_counts_only_without_its_sources_and_the_place_does_not(
    tmp_path: Path,
) -> None:
    root = package(tmp_path / "a")
    before = hash_of_package(root)
    assert hash_of_package(package(tmp_path / "b")) == before
    write(root.parent / "csrc" / "x.cpp")
    before = hash_of_package(root)
    (root / "_C.so").write_text("built")
    assert hash_of_package(root) == before


def test_a_cell_is_named_by_all_but_the_name_of_its_run() -> None:
    config = RunConfig(name="a")
    assert cell_name(config) == cell_name(RunConfig(name="b"))
    for other in ({"seed": 1}, {"threads": 1}, {"lr": 0.2}, {"loss_scale": 2.0}):
        assert cell_name(config.replace(**other)) != cell_name(config)
    assert version_of(cell_name(config)) == sources_hash(config)[:8]
    # A field at its default is no part of the name.
    given = RunConfig.of(epochs=3, loss_scale=1.0, clip=None, model="")
    assert config_digits(given) == config_digits(RunConfig.of(epochs=3))
    assert config_digits(given.replace(clip=1.0)) != config_digits(given)


def test_the_module_of_a_workload_of_ones_own_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "my_workload_of_a_test.py"
    module.write_text("def f(): ...\n")
    importlib.invalidate_caches()
    config = RunConfig.of(data="my_workload_of_a_test:f")
    before = sources_hash(config)
    assert before != sources_hash(RunConfig())
    sources._module_hash.cache_clear()
    module.write_text("def f(): return 1\n")
    assert sources_hash(config) != before


def test_looking_at_a_module_imports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("theirs/__init__.py", "theirs/deep/__init__.py"):
        write(tmp_path / name, "raise SystemExit('imported')")
    write(tmp_path / "theirs/deep/data.py", "one")
    monkeypatch.syspath_prepend(tmp_path)
    config = RunConfig.of(data="theirs.deep.data:make")
    assert len(sources.sources_hash(config)) == 64
    for name in ("theirs.shallow", "no_such_module_here", "no_such.module"):
        with pytest.raises(ValueError, match=f"module {name!r} cannot be found"):
            sources.sources_hash(RunConfig.of(data=f"{name}:make"))
