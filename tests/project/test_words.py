"""Sentences of comments, docstrings and pages name the thing: at most one of `WORDS` in each."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.loops import rows

ROOT = Path(__file__).resolve().parents[2]
#: Pronouns in the place of nouns: the reader of a sentence with two must guess twice.
WORDS = re.compile(r"\b(?:what|whose|those|that of|of which)\b", re.IGNORECASE)
#: The sources, with the marks of their comments, and the pages.
MARKS = {".py": "#:?", ".h": "//", ".cpp": "//", ".cu": "//", ".cuh": "//", ".md": ""}
# Of a page: blocks of code and comments, and the ends of paragraphs, list items and table cells.
UNREAD = re.compile(r"```.*?```|<!--.*?-->", re.DOTALL)
END = re.compile(r"\n\s*\n|\n(?=- |\d+\. |#)|\|")


def texts(name: str, source: str) -> Iterator[str]:
    """The page without its code, or the docstrings and blocks of comment lines of the source."""
    suffix = Path(name).suffix
    if suffix == ".md":
        yield UNREAD.sub("", source)
        return
    line = rf"[ \t]*{MARKS[suffix]}(?:[ \t].*)?\n"
    for block in re.findall(rf"^(?:{line})+", source, re.MULTILINE):
        yield re.sub(rf"^[ \t]*{MARKS[suffix]}[ \t]?", "", block, flags=re.MULTILINE)
    if suffix == ".py":
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        for node in ast.walk(ast.parse(source)):
            yield (isinstance(node, documented) and ast.get_docstring(node)) or ""


def riddles(name: str, source: str) -> list[str]:
    """The sentences with two of `WORDS` or more, each on a line."""
    paragraphs = (end for text in texts(name, source) for end in END.split(text) if end)
    sentences = (re.split(r"(?<=[.!?])\s", " ".join(each.split())) for each in paragraphs)
    return [one for found in sentences for one in found if len(WORDS.findall(one)) > 1]


def test_riddles_are_at_most_as_many_as_pyproject_says() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("git does not know this folder")
    names = [name for name in tracked.stdout.splitlines() if Path(name).suffix in MARKS]
    found = [
        f"{name}: {sentence}"
        for name in names
        for sentence in riddles(name, (ROOT / name).read_text(encoding="utf-8"))
    ]
    most = re.search(r"^riddles = (\d+)$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert most and len(found) <= int(most[1]), "\n".join([f"{len(found)} riddles:", *found])


@rows(
    "name, source, count",
    ("a.py", '"""Writes what it makes of those."""\n# What it is,\n# and whose. What.\n', 2),
    ("a.py", '"""What it is.\n\nWhose it is."""\nx = "what and what"  # what or whose\n', 0),
    ("a.h", "  // What it makes\n  // of those.\n#include <what/those.h>\n", 1),
    ("a.md", "What it is\n\nof those. That of what?\n```\nwhat, whose\n```\n", 1),
    ("a.md", "| what | whose |\n- what\n- those\n<!-- what, those -->\n", 0),
)
def test_riddles_are_found(name: str, source: str, count: int) -> None:
    assert len(riddles(name, source)) == count
