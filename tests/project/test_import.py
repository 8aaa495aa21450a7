"""The cost of ``import lpkernels``: nothing heavy, and the compiled module may be absent."""

import json
import pickle
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import lpkernels
from lpkernels import _build
from lpkernels.techniques import assignment, cpt

HEAVY = (
    "matplotlib", "pandas", "sklearn", "tensorboard", "transformers", "triton", "typer", "rich",
    "joblib", "pydantic", "lpkernels._C",
)  # fmt: skip

# An entry of None makes every import of that name fail, as if it were not installed.
BLOCKED = "import sys; sys.modules.update(dict.fromkeys({names!r})); "


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# Modules that `import lpkernels` leaves out until somebody uses them.
LATER = tuple(f"lpkernels.{name}" for name in ("techniques.", "nn.observing", "reference"))
# A module of the core that is not needed at once goes to LATER.
MOST = 112


# The modules that a new process imports, beyond torch's, after each of these statements.
STATEMENTS = (
    "import lpkernels",
    "lpkernels.techniques.cpt",
    f"pickle.loads({pickle.dumps(cpt.Schedule((3, 8)))!r})",
    "import rich",
)


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    code = "import json, pickle, sys, torch; known = {*sys.modules}; after = {}\n" + "\n".join(
        f"{each}; after[{each!r}] = [*(sys.modules.keys() - known)]" for each in STATEMENTS
    )
    return json.loads(run(f"{code}\nprint(json.dumps(after))"))


def ours(modules: list[str]) -> list[str]:
    return [name for name in modules if name.split(".")[0] == "lpkernels"]


def test_import_loads_no_technique_and_no_reference(loaded):
    modules = ours(loaded["import lpkernels"])
    assert [name for name in modules if name.startswith(LATER)] == []
    assert 50 < len(modules) <= MOST


def test_import_brings_in_nothing_heavy_and_a_technique_is_loaded_alone(loaded):
    heavy = {statement: {*HEAVY} & {*modules} for statement, modules in loaded.items()}
    assert heavy["import lpkernels"] == set()
    assert "rich" in heavy["import rich"]
    assert not any("pydantic" in names for names in heavy.values())
    names = loaded["lpkernels.techniques.cpt"]
    techniques = {name.split(".")[2] for name in names if name.startswith("lpkernels.techniques.")}
    assert "cpt" in techniques
    assert not techniques & {"accumulation", "assignment", "loss_scaling", "pareto"}


PUBLIC = (lpkernels, lpkernels.experiments, lpkernels.nn, lpkernels.functional, assignment)


@pytest.mark.parametrize("package", [*PUBLIC, lpkernels.techniques])
def test_public_names_are_there_and_listed_once(package):
    assert [name for name in package.__all__ if not hasattr(package, name)] == []
    assert len(package.__all__) == len(set(package.__all__))


def test_numpy_and_torch_alone_are_enough_to_round_and_for_doctor_and_version():
    code = BLOCKED.format(names=HEAVY) + (
        "import torch, lpkernels as lp\n"
        "print(lp.quantize(torch.tensor([1.1]), 'e4m3fn').item(), lp.backends.status()['cpu'])\n"
        "from lpkernels_command import main\n"
        "for asked in ('--version', 'doctor', 'formats'):\n"
        "    sys.argv[1:] = [asked]\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as stop:\n"
        "        print(stop.code)"
    )
    rounded, version, torch_line, *found, stopped = run(code).splitlines()
    value, reason = rounded.split(" ", 1)
    assert value == "1.125" and "lpkernels._C" in reason
    assert version == f"lpkernels {lpkernels.__version__}"
    assert torch_line == f"torch {torch.__version__}"
    (triton,) = (line for line in found if line.startswith("backend triton"))
    assert triton.endswith("'triton', which is not installed: pip install 'lpkernels[triton]'")
    assert stopped.startswith('lpkernels: the command needs rich: pip install "lpkernels[lab]"; ')


@pytest.mark.parametrize("info, match", [
    (None, "never built here"), ("not json", "never built here"),
    ('{"extension": false, "reason": "no compiler"}', "C\\+\\+ module: no compiler"),
    ('{"extension": true, "reason": ""}', "was built but does not load"),
])  # fmt: skip
def test_load_extension_repeats_why_it_is_absent(monkeypatch, tmp_path, info, match):
    if info is not None:
        (tmp_path / _build.INFO).write_text(info)
    monkeypatch.setattr(_build, "_PACKAGE", tmp_path)
    monkeypatch.setitem(sys.modules, "lpkernels._C", None)
    with pytest.raises(ImportError, match=match):
        _build.load_extension()
    assert _build.why_no_extension() == _build.why_no_cuda() != ""


def test_why_no_cuda_repeats_the_reason_of_the_build(monkeypatch, tmp_path):
    record = tmp_path / _build.INFO
    record.write_text(json.dumps({"extension": True, "cuda_reason": "nvcc was not found"}))
    monkeypatch.setattr(_build, "_PACKAGE", tmp_path)
    module = SimpleNamespace(has_cuda=False)
    monkeypatch.setitem(sys.modules, "lpkernels._C", module)
    assert _build.why_no_extension() == ""
    assert "nvcc was not found; the triton backend runs" in _build.why_no_cuda()
    assert "LPKERNELS_CUDA=native with nvcc on PATH, and install again" in _build.why_no_cuda()
