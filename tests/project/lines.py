"""``python -m tests.project.lines``: the lines of each top folder, beside the budget.

The budget is in pyproject.toml. A commit that raises a number of it says why.
"""

import sys
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib  # type: ignore[import-not-found, no-redef, unused-ignore]

ROOT = Path(__file__).resolve().parents[2]
#: What counts as a source.
SOURCES = {".py", ".pyi", ".h", ".cpp", ".cu"}


def lines_in(folder: Path) -> int:
    """The lines of the sources in a folder and below."""
    files = [path for path in folder.rglob("*") if path.suffix in SOURCES]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def budget(root: Path) -> dict[str, int]:
    """The most lines of each top folder."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    return dict(tomllib.loads(text)["tool"]["lpkernels"]["lines"])


def check(root: Path) -> tuple[str, bool]:
    """A table of all folders of the budget, and whether each is within it."""
    most = budget(root)
    found = {folder: lines_in(root / folder) for folder in most}
    rows = [
        f"{folder:10} {count:7,} of {most[folder]:7,} lines" + " EXCEEDED" * (count > most[folder])
        for folder, count in found.items()
    ]
    return "\n".join(rows), all(found[folder] <= most[folder] for folder in most)


if __name__ == "__main__":
    table, within = check(ROOT)
    print(table)
    if not within:
        sys.exit("write less, or raise the number in pyproject.toml and say why in the commit")
