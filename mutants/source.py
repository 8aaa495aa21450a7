"""An import hook that gives a module another source or file, here and in processes started here."""

from __future__ import annotations

import json
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType
from typing import Any

__all__ = ["inherit", "replace"]

_VARIABLE = "LPKERNELS_MUTANT"
_ROOT = Path(__file__).resolve().parents[1]


def replace(name: str, path: str, source: str | None) -> None:
    """From here on the module `name` is made of `source` or, without one, of the file `path`.
    Python processes that this one starts import mutants/processes/sitecustomize.py first, by way of
    ``PYTHONPATH``."""
    os.environ[_VARIABLE] = json.dumps([name, path, source])
    paths = [str(_ROOT / "mutants/processes"), str(_ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    inherit()


def inherit() -> None:
    """Does what `replace` did in the process that started this one."""
    sys.meta_path.insert(0, _Finder(*json.loads(os.environ[_VARIABLE])))


class _Finder(MetaPathFinder):
    def __init__(self, name: str, path: str, source: str | None) -> None:
        self.name, self.path, self.source = name, path, source

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        if self.source is None:
            return spec_from_file_location(fullname, self.path)
        loader = _Loader(fullname, self.path)
        loader.source = self.source
        return spec_from_file_location(fullname, self.path, loader=loader)


class _Loader(SourceFileLoader):
    source: str

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.source, self.path, "exec", dont_inherit=True)
