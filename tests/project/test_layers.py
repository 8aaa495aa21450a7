"""Data flows one way, the map names files that exist, and no folder is crowded."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.project.lines import ROOT, SOURCES, budget, check

# A row holds what a layer may import beside itself; the rows stand in the order of the data flow.
NUMBERS = {"formats", "rng", "rounding", "arithmetic", "recipes"}
LAYERS = {
    "_build": set(), "_first_use": set(), "_table": set(), "schemas": set(),
    "formats": set(), "rng": set(),
    "rounding": {"formats", "rng"},
    "arithmetic": {"formats", "rounding", "rng"},
    "recipes": {"formats", "rounding", "rng", "arithmetic"}, "reference": NUMBERS,
    "backends": NUMBERS | {"_build", "_first_use", "reference"}, "ops": NUMBERS | {"backends"},
    "functional": NUMBERS | {"ops"},
    "nn": NUMBERS | {"_build", "_first_use", "_table", "schemas", "functional"},
    "techniques": NUMBERS | {"_first_use", "_table", "schemas", "functional", "nn"},
    "__init__": NUMBERS
    | {"_build", "_first_use", "reference", "backends", "functional", "nn", "techniques"}
    | {"experiments"},
    "experiments": NUMBERS
    | {"_build", "__init__", "schemas", "reference", "functional", "nn", "techniques"},
    "report": NUMBERS | {"_build", "__init__", "functional", "nn", "techniques", "experiments"},
}  # fmt: skip
LAYERS["cli"] = set(LAYERS)
LAYERS["__main__"] = {"report", "cli"}
# It stands behind the command, so that nothing here imports it: users of the other library do.
LAYERS["integrations"] = NUMBERS | {"nn"}
# The rooms of the experiments and what each may import beside itself.
ROOMS: dict[str, set[str]] = {
    "settings": set(),
    "processes": {"settings"},
    "workloads": {"settings"},
    "records": {"settings", "processes", "workloads", "training", "measuring"},
    "training": {"settings", "processes", "workloads", "records"},
    "measuring": {"settings", "records", "workloads"},
    "sweeps": {"settings", "processes", "workloads", "records", "training", "measuring"},
    "__init__": {"records"},
}
# A technique reaches the loop as a callback, and by no other way.
WITHOUT_TECHNIQUES = ("experiments.training", "experiments.workloads", "experiments.processes")
CALLBACKS = "experiments.training.callbacks"
EXTRA = {"techniques.accumulation.measuring": {"backends", "reference"}}

# Third-party packages and the only places that may import them, by the start of the module's name.
THIRD_PARTY = {
    "numpy": ("",), "torch": tuple(LAYERS.keys() - NUMBERS), "triton": ("backends.triton",),
    "matplotlib": ("report",), "sklearn": ("experiments.workloads",),
    "mnist1d": ("experiments.workloads",), "scipy": ("experiments.sweeps.statistics",),
    "joblib": ("experiments.sweeps",),
    "pandas": ("experiments", "report", "cli.sweep"),
    "transformers": ("integrations",), "ray": ("experiments.sweeps",),
    "dask": ("experiments.sweeps",), "distributed": ("experiments.sweeps",),
    "rich": ("experiments", "report", "cli"), "typer": ("cli",),
    "pydantic": ("experiments", "cli._options"),
}  # fmt: skip
# Adapters know the registry, never one another.
ADAPTERS = {"_reference", "cpu", "cuda", "triton", "native"}


def module_name(path: Path, package: Path) -> str:
    parts = list(path.relative_to(package).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def walked(path: Path) -> Iterator[tuple[ast.Import | ast.ImportFrom, list[str]]]:
    """The imports of a file, inside functions too, and the names that each imports as it stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield node, [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            yield node, [f"{node.module}.{alias.name}" for alias in node.names]


def imported(path: Path, name: str) -> list[str]:
    """Absolute names of all that a file imports."""
    found = []
    own = ["lpkernels", *name.split(".")]
    package = own if path.name == "__init__.py" else own[:-1]
    if name == "__init__":
        package = ["lpkernels"]
    for node, names in walked(path):
        if isinstance(node, ast.Import):
            found += names
            continue
        base = package[: len(package) - node.level + 1] if node.level else []
        origin = ".".join([*base, *([node.module] if node.module else [])])
        # `from lpkernels import ops` imports a layer, `from lpkernels.ops import x` a name.
        deep = origin in ("lpkernels", "lpkernels.backends", "lpkernels.experiments")
        found += [f"{origin}.{alias.name}" if deep else origin for alias in node.names]
    return found


def underscore_errors(path: Path, name: str) -> list[str]:
    """A file's imports that are private to another package than the file's own."""
    own = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = []
    for node, names in walked(path):
        for target in names if not getattr(node, "level", 0) else ():
            top, *parts = target.split(".")
            private = [i for i, part in enumerate(parts) if re.match("_(?!_)", part)]
            if top == "lpkernels" and private and own[: private[0]] != parts[: private[0]]:
                found.append(f"{name} imports {target}, which is private")
    return found


def layer_error(name: str, target: str) -> str:
    """Why module `name` must not import `target`; empty when it may."""
    layer = name.split(".")[0]
    top, *rest = target.split(".")
    if top != "lpkernels":
        places = THIRD_PARTY.get(top)
        allowed = places is None or any(name.startswith(place) for place in places)
        return "" if allowed else f"{name} imports {top}"
    other = rest[0] if rest else "__init__"
    if other == "_C":
        return "" if name in ("backends.cpu", "backends.cuda", "_build") else f"{name} imports _C"
    # A public name of the package itself (lpkernels.quantize) comes from __init__.
    other = other if other in LAYERS else "__init__"
    if layer == other == "backends" and len(rest) > 1:
        mine, theirs = name.split(".")[1:2], rest[1]
        if mine and mine[0] in ADAPTERS and theirs in ADAPTERS and theirs != mine[0]:
            return f"{name} imports the adapter {theirs}"
    if layer == other == "experiments":
        return room_error(name, rest)
    loop = name.startswith(WITHOUT_TECHNIQUES) and not name.startswith(CALLBACKS)
    if loop and other == "techniques":
        return f"{name} imports techniques: only a callback may"
    if layer not in LAYERS:
        return f"{name} belongs to no layer: give it a row in {Path(__file__).name}"
    allowed = LAYERS[layer] | EXTRA.get(name, set()) | {layer}
    return "" if other in allowed else f"{name} imports {other}"


def room_error(name: str, target: list[str]) -> str:
    """Why a module of the experiments must not import another; empty when it may."""
    mine, theirs = (path[1] if len(path) > 1 else "__init__" for path in (name.split("."), target))
    if mine not in ROOMS:
        return f"{name} is in no room of the experiments: give it a row in {Path(__file__).name}"
    # `from lpkernels.experiments import records` names a room too.
    return "" if theirs in ROOMS[mine] | {mine, "__init__"} else f"{name} imports {theirs}"


def python_errors(root: Path) -> list[str]:
    package = root / "lpkernels"
    errors = []
    for path in sorted(package.rglob("*.py")):
        name = module_name(path, package)
        errors += [layer_error(name, target) for target in imported(path, name)]
        errors += underscore_errors(path, name)
    return sorted({error for error in errors if error})


def native_errors(root: Path) -> list[str]:
    errors = []
    for path in sorted((root / "csrc").rglob("*.*")):
        place = path.relative_to(root / "csrc").as_posix()
        for header in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)', path.read_text(), re.MULTILINE):
            torchs = re.match(r"(torch|ATen|c10)/", header)
            binds = header.startswith("pybind11/") and not path.name.startswith("bindings")
            above = place.startswith("common/") and re.search(r"(^|/)(cpu|cuda)/", header)
            errors += [f"{place} includes {header}"] * bool(torchs or binds or above)
    return errors


def test_layers_import_only_to_the_left_and_csrc_includes_no_torch_and_binds_in_one_place():
    assert python_errors(ROOT) == native_errors(ROOT) == []


def borrowed_tests(root: Path) -> list[str]:
    """Imports of one test module from another; what is shared belongs to tests/support."""
    return [
        f"{path.relative_to(root).as_posix()} imports {target}"
        for path in sorted((root / "tests").rglob("*.py"))
        for _, names in walked(path)
        for target in names
        if re.match(r"tests\..*\btest_", target)
    ]


def test_no_test_module_imports_another() -> None:
    assert borrowed_tests(ROOT) == []


MOST = 34
FOLDERS = tuple(budget(ROOT))


def sources(root: Path) -> list[Path]:
    found = [path for folder in FOLDERS for path in (root / folder).rglob("*")]
    return [path for path in found if path.suffix in SOURCES]


def crowded(root: Path) -> list[str]:
    """Folders with more sources than `MOST`, sub-folders not counted."""
    counts = Counter(path.parent.relative_to(root).as_posix() for path in sources(root))
    return sorted(folder for folder, count in counts.items() if count > MOST)


def test_no_folder_is_crowded() -> None:
    assert crowded(ROOT) == []


def test_no_source_has_more_than_600_lines() -> None:
    assert [path for path in sources(ROOT) if len(path.read_text().splitlines()) > 600] == []


def test_folders_stay_within_their_lines() -> None:
    table, within = check(ROOT)
    assert within, table
