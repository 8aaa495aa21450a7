"""A folder holds so few sources that a line of code is found in it."""

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST = 34
FOLDERS = ("attacks", "bench", "csrc", "examples", "lpkernels", "mutants", "proofs", "tests")
SOURCES = {".py", ".h", ".cpp", ".cu"}


def crowded(root: Path) -> list[str]:
    """Folders with more sources than `MOST`, sub-folders not counted."""
    files = [
        path for folder in FOLDERS for path in (root / folder).rglob("*") if path.suffix in SOURCES
    ]
    counts = Counter(path.parent.relative_to(root).as_posix() for path in files)
    return sorted(folder for folder, count in counts.items() if count > MOST)


def test_no_folder_is_crowded() -> None:
    assert crowded(ROOT) == []


def test_a_crowded_folder_is_found(tmp_path: Path) -> None:
    for folder, count in (("csrc/cpu", MOST + 1), ("csrc/cpu/conv", MOST), ("docs", MOST + 1)):
        (tmp_path / folder).mkdir(parents=True)
        for number in range(count):
            (tmp_path / folder / f"{number}.h").touch()
    (tmp_path / "csrc/cpu/conv/notes.md").touch()
    assert crowded(tmp_path) == ["csrc/cpu"]
