"""The list of public names, and docstrings that name every parameter."""

import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

import lpkernels
from tests.loops import each, rows
from tests.support.parameters import MODULES, missing, public, torchs

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
IMPORT = re.compile(r"from (lpkernels[\w.]*) import (\([^)]*\)|[^\n;`]*)")
ATTRIBUTE = re.compile(r"\blp((?:\.[A-Za-z]\w*)+)")


def hidden(page: str) -> list[str]:
    """The names that a page takes from modules which are not public or do not list them."""
    used = [
        (module, name.split(" as ")[0].strip())
        for module, names in IMPORT.findall(page)
        for name in names.strip("()").split(",")
        if name.strip()
    ]
    for path in ATTRIBUTE.findall(page):
        owner: object = lpkernels
        for name in path[1:].split("."):
            if not isinstance(owner, ModuleType):
                break
            used.append((owner.__name__, name))
            owner = getattr(owner, name, None)
    return [
        f"{module}.{name}"
        for module, name in used
        if module not in MODULES or name not in pytest.importorskip(module).__all__
    ]


@each("page", PAGES)
def test_pages_use_public_names_alone(page: Path) -> None:
    assert hidden(page.read_text()) == []


@rows(
    "page, found",
    ("`lp.nn.Linear.recipe` and lp.quantize", []),
    ("from lpkernels.techniques.cpt import (\n    PFQ,\n    nothing,\n)", ["nothing"]),
    ("from lpkernels.ops import pack", ["pack"]),
    ("lp.nn.Missing, lp.reference.exact", ["Missing", "reference", "exact"]),
)
def test_other_names_are_found(page: str, found: list[str]) -> None:
    assert [name.rpartition(".")[2] for name in hidden(page)] == found


def test_every_docstring_names_its_parameters() -> None:
    assert [name for name, value in public() if missing(value)] == []


def test_unnamed_parameters_are_found() -> None:
    def planted(a: int, b: int, *rest: int) -> None:
        """Takes a."""

    class Planted(torch.nn.Linear):
        def __init__(self, *args: int, out_features: int, recipe: int = 0) -> None: ...

    assert missing(planted) == ["b", "rest"]
    assert missing(Planted) == ["args", "out_features", "recipe"]
    page = "https://docs.pytorch.org/docs/stable/generated/torch.nn.Linear.html"
    Planted.__doc__ = f"torch's own: as\n there, {page}."
    assert missing(Planted) == ["recipe"]
    Planted.__init__.__doc__ = "recipe: how it computes."
    assert missing(Planted) == []
    assert {"input", "stride", "groups"} < torchs("nn.functional.conv2d")
