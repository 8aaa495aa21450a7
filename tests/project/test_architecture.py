"""The map of the package names files that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
# A path in backticks: with a folder, and either a folder of ours or a file.
PATH = re.compile(r"`((?:lpkernels|csrc|tests|bench|docs)(?:/[\w.]+)*)`")


def test_every_file_of_the_map_exists() -> None:
    named = PATH.findall(PAGE.read_text())
    assert len(named) > 50
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_package_is_on_the_map() -> None:
    text = PAGE.read_text()
    packages = [path.parent for path in (ROOT / "lpkernels").glob("*/__init__.py")]
    missing = [p.name for p in packages if f"lpkernels/{p.name}" not in text]
    assert missing == []
