"""The numerics need NumPy alone."""

from __future__ import annotations

import ast
from pathlib import Path

from lpkernels.techniques import pareto

FOLDER = Path(pareto.__file__).parent
WITH_TORCH = {"counting.py", "recipes.py"}


def test_only_what_looks_at_models_knows_torch():
    found = set()
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] == "torch" or ".nn" in name for name in names):
                found.add(path.name)
    assert found == WITH_TORCH


def test_public_names_are_there_and_listed_once():
    assert [name for name in pareto.__all__ if not hasattr(pareto, name)] == []
    assert pareto.__all__ == sorted(set(pareto.__all__))
