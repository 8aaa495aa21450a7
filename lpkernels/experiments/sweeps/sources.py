"""Which version of the package makes a result: a hash of the sources that can change one."""

import hashlib
import json
import sys
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path

import lpkernels
from lpkernels.experiments.settings import plain
from lpkernels.experiments.training.config import RunConfig

# The sources that only read results; a change in them retrains nothing.
_STATISTICS = ("statistics", "results")
_FOLDERS = ("report/", "cli/", "experiments/sweeps/frontiers/")
_READERS = (*_FOLDERS, *(f"experiments/sweeps/{name}.py" for name in _STATISTICS))


@cache
def package_hash() -> str:
    """The hash of the Python sources and of csrc, or of the built module where csrc is not; 64
    hexadecimal digits. The files are read when a process first asks for the hash."""
    return hash_of_package(Path(lpkernels.__file__).resolve().parent)


def hash_of_package(package: Path) -> str:
    """As `package_hash`, of the package in that folder."""
    found = {p.relative_to(package).as_posix(): p for p in package.rglob("*.py")}
    files = [path for name, path in found.items() if not name.startswith(_READERS)]
    native = package.parent / "csrc"
    if native.is_dir():
        files += [p for p in native.rglob("*") if p.is_file()]
    else:
        files += package.glob("_C*.so")
    whole = hashlib.sha256()
    for name, path in sorted((p.relative_to(package.parent).as_posix(), p) for p in files):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        whole.update(f"{name} {content}\n".encode())
    return whole.hexdigest()


def sources_hash(config: RunConfig) -> str:
    """The package's hash; for a workload of the user's own, of its module's source with it."""
    module, colon, _ = config.workload.data.partition(":")
    if not colon:
        return package_hash()
    return hashlib.sha256(f"{package_hash()} {_module_hash(module)}".encode()).hexdigest()


@cache
def _module_hash(module: str) -> str:
    """Raises ValueError where the module has no source."""
    found = _found(module)
    if found is None or not found.origin or not Path(found.origin).is_file():
        raise ValueError(
            f"data: module {module!r} cannot be found; put its folder on PYTHONPATH, also where "
            "workers run"
        )
    return hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()


def _found(module: str) -> ModuleSpec | None:
    """Where a module would be imported from. Nothing is imported, and so no code of the folders on
    the path runs: importlib.util.find_spec would import the packages that the module lies in."""
    parts, found, path = module.split("."), None, None
    for number in range(1, len(parts) + 1):
        name = ".".join(parts[:number])
        specs = (finder.find_spec(name, path) for finder in sys.meta_path)
        found = next((spec for spec in specs if spec is not None), None)
        if found is None:
            return None
        path = found.submodule_search_locations
    return found


# 64 bits of a hash: two of a million configurations are the same by chance once in 10^7 sweeps.
_CONFIG_DIGITS = 16
_SOURCES_DIGITS = 8


def config_digits(config: RunConfig) -> str:
    """The part of a cell's name that says its configuration.

    The run's name, by which tables call it, is no part of it: a renamed arm keeps its cells. Fields
    at their defaults are no part of it either: a later version with more fields still finds the
    cells of an earlier one, and tells them apart by the sources.
    """
    usual = RunConfig().flat()
    values = {k: plain(v) for k, v in config.flat().items() if k != "name" and v != usual[k]}
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_CONFIG_DIGITS]


def cell_name(config: RunConfig) -> str:
    """The name of a cell's folder: hashes of the configuration and of the sources.

    Raises: ValueError: the module of its workload cannot be found.
    """
    return f"{config_digits(config)}-{sources_hash(config)[:_SOURCES_DIGITS]}"


def version_of(name: str) -> str:
    """The part of a cell's name that says which sources made it."""
    return name.rpartition("-")[2]
