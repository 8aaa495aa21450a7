"""This installation: its version and commit, and the compiled module ``lpkernels._C`` or the reason
that there is none.

setup.py writes ``_build_info.json`` beside this file; backends and ``lpkernels doctor`` repeat its
reasons. setup.py also runs this file alone, without the package: it imports nothing of it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

INFO = "_build_info.json"
_PACKAGE = Path(__file__).resolve().parent


def version() -> str:
    """The version that pyproject.toml states: read there in a checkout, else as installed."""
    project = _PACKAGE.with_name("pyproject.toml")
    stated = r'^name = "lpkernels"\nversion = "(.+)"$'
    if project.exists() and (
        found := re.search(stated, project.read_text(encoding="utf-8"), re.MULTILINE)
    ):
        return found[1]
    return importlib.metadata.version("lpkernels")


def commit() -> str | None:
    """The commit of the checkout that holds this package, with "+" behind it if files were changed.
    Outside of a checkout: the commit that the package was built from, or None."""
    return _checkout_commit() or build_info().get("commit")


def _checkout_commit() -> str | None:
    """A package installed below some other project's checkout is not part of it."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(_PACKAGE), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != _PACKAGE.parent:
            return None
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def build_info() -> dict[str, Any]:
    """The record of setup.py: ``extension``, ``reason``, ``cuda``, ``cuda_reason``, ``commit``; an
    unpacked source distribution that was not built has the commit alone; else nothing."""
    try:
        info = json.loads((_PACKAGE / INFO).read_text())
    except (OSError, ValueError):
        return {}
    return info if isinstance(info, dict) else {}


def load_extension() -> ModuleType:
    """Import ``lpkernels._C``.

    Returns: the module.
    Raises:  ImportError: it is absent or does not load; the message says why.
    """
    try:
        return importlib.import_module("lpkernels._C")
    except ImportError as error:
        raise ImportError(_explain(error)) from error


def why_no_extension() -> str:
    """Why ``lpkernels._C`` cannot be used here; "" when it can."""
    try:
        load_extension()
    except ImportError as error:
        return str(error)
    return ""


def better_set(module: ModuleType) -> str:
    """The best instruction set of this processor, if it was not compiled; else ""."""
    best = str(module.sets_of_processor()[-1])
    return "" if best in module.compiled_sets() else best


def why_no_cuda() -> str:
    """Why ``lpkernels._C`` has no CUDA kernels; "" when it has."""
    reason = why_no_extension()
    if reason:
        return reason
    if getattr(load_extension(), "has_cuda", False):
        return ""
    recorded = build_info().get("cuda_reason") or "lpkernels._C was built without CUDA"
    return (
        f"{recorded}; the triton backend runs on a GPU without them. To have them, set "
        "LPKERNELS_CUDA=native with nvcc on PATH, and install again"
    )


def _explain(error: ImportError) -> str:
    info = build_info()
    if info.get("extension"):
        return f"lpkernels._C was built but does not load ({error}); install lpkernels again"
    if info.get("reason"):
        return f"lpkernels was installed without its C++ module: {info['reason']}"
    return "lpkernels._C was never built here; install the package, e.g. pip install -e ."
