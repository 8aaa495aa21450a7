"""What this installation built: the compiled module ``lpkernels._C``, or the reason there is none.

setup.py writes ``_build_info.json`` beside this file; backends and ``lpkernels doctor`` repeat its
reasons.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

_INFO = Path(__file__).with_name("_build_info.json")


def build_info() -> dict[str, Any]:
    """What setup.py recorded: ``extension``, ``reason``, ``cuda``, ``cuda_reason``; else empty."""
    try:
        info = json.loads(_INFO.read_text())
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


def why_no_cuda() -> str:
    """Why ``lpkernels._C`` has no CUDA kernels; "" when it has."""
    reason = why_no_extension()
    if reason:
        return reason
    if getattr(load_extension(), "has_cuda", False):
        return ""
    recorded = build_info().get("cuda_reason") or "lpkernels._C was built without CUDA"
    return f"{recorded}; install again with nvcc on PATH (LPKERNELS_CUDA=1 insists on it)"


def _explain(error: ImportError) -> str:
    info = build_info()
    if info.get("extension"):
        return f"lpkernels._C was built but does not load ({error}); install lpkernels again"
    if info.get("reason"):
        return f"lpkernels was installed without its C++ module: {info['reason']}"
    return "lpkernels._C was never built here; install the package, e.g. pip install -e ."
