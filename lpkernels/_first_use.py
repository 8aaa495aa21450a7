"""Submodules, and functions of submodules, that are imported when they are first used: ``import
lpkernels`` loads the others."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any


def on_first_use(
    package: str, modules: Collection[str], functions: Mapping[str, str] = MappingProxyType({})
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package that imports these submodules on first use, and
    the submodules of these functions, {name: submodule}.

    A type checker takes a module's ``__getattr__`` for the promise of any attribute: a package
    hides it from type checkers, and imports the submodules under TYPE_CHECKING for them.
    """

    def load(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name in functions:
            return getattr(importlib.import_module(f"{package}.{functions[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules, *functions})

    return load, names
