"""Submodules that are imported when they are first used: ``import lpkernels`` loads the others."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection
from types import ModuleType


def on_first_use(
    package: str, modules: Collection[str]
) -> tuple[Callable[[str], ModuleType], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package that imports these submodules on first use.

    A type checker takes a module's ``__getattr__`` for the promise of any attribute: a package
    hides it from type checkers, and imports the submodules under TYPE_CHECKING for them.
    """

    def load(name: str) -> ModuleType:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return load, names
