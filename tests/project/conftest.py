"""setup.py, for the tests of the package and of its build."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def setup() -> ModuleType:
    """setup.py as a module, which builds nothing when it is imported."""
    pytest.importorskip("setuptools", reason="setuptools is not installed")
    spec = importlib.util.spec_from_file_location("lpkernels_setup", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
