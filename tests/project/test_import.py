"""What ``import lpkernels`` costs: nothing heavy, and the compiled module may be absent."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

import lpkernels
from lpkernels import _build
from lpkernels.techniques import assignment

HEAVY = (
    "matplotlib", "pandas", "sklearn", "tensorboard", "transformers", "triton", "typer", "rich",
    "joblib", "lpkernels._C",
)  # fmt: skip

# An entry of None makes every import of that name fail, as if it were not installed.
BLOCKED = "import sys; sys.modules.update(dict.fromkeys({names!r})); "


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def heavy_modules_after(statement: str) -> list[str]:
    """The heavy modules that a statement imports and torch alone would not."""
    code = (
        "import sys, torch; before = set(sys.modules); "
        f"{statement}; print(*[n for n in {HEAVY!r} if n in sys.modules.keys() - before])"
    )
    return run(code).split()


def test_import_brings_in_nothing_heavy():
    assert heavy_modules_after("import lpkernels") == []


def test_import_check_sees_a_heavy_module():
    assert heavy_modules_after("import rich") == ["rich"]


@pytest.mark.parametrize(
    "package",
    [
        lpkernels,
        lpkernels.experiments,
        lpkernels.nn,
        lpkernels.functional,
        lpkernels.techniques,
        assignment,
    ],
)
def test_public_names_are_there_and_listed_once(package):
    assert [name for name in package.__all__ if not hasattr(package, name)] == []
    assert len(package.__all__) == len(set(package.__all__))


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("quantise", r"; did you mean quantize, Quantizer\?"),
        ("LossScaler", r"; it is lpkernels\.techniques\.loss_scaling\.LossScaler$"),
        ("Linear", r"; it is lpkernels\.nn\.Linear$"),
        ("xyzzy", r"\.$"),
    ],
)
def test_a_name_that_is_not_here_is_answered_with_its_place(name, answer):
    assert not hasattr(lpkernels, name)
    with pytest.raises(
        AttributeError, match=f"^module 'lpkernels' has no attribute '{name}'{answer}"
    ):
        getattr(lpkernels, name)


def test_import_works_without_the_optional_packages():
    run(BLOCKED.format(names=HEAVY) + "import lpkernels")


def test_without_the_extension_quantize_runs_on_the_reference():
    code = BLOCKED.format(names=("lpkernels._C",)) + (
        "import torch, lpkernels as lp; "
        "print(lp.quantize(torch.tensor([1.1]), 'e4m3fn').item(), lp.backends.status()['cpu'])"
    )
    value, reason = run(code).split(" ", 1)
    assert value == "1.125"
    assert "lpkernels._C" in reason


@pytest.mark.parametrize(
    ("info", "match"),
    [
        (None, "never built here"),
        ("not json", "never built here"),
        ({"extension": False, "reason": "no compiler"}, "C\\+\\+ module: no compiler"),
        ({"extension": True, "reason": ""}, "was built but does not load"),
    ],
)
def test_load_extension_repeats_why_it_is_absent(monkeypatch, tmp_path, info, match):
    record = tmp_path / "_build_info.json"
    if info is not None:
        record.write_text(info if isinstance(info, str) else json.dumps(info))
    monkeypatch.setattr(_build, "_INFO", record)
    monkeypatch.setitem(sys.modules, "lpkernels._C", None)
    with pytest.raises(ImportError, match=match):
        _build.load_extension()
    assert _build.why_no_extension() == _build.why_no_cuda() != ""


def test_why_no_cuda_repeats_the_reason_of_the_build(monkeypatch, tmp_path):
    record = tmp_path / "_build_info.json"
    record.write_text(json.dumps({"extension": True, "cuda_reason": "nvcc was not found"}))
    monkeypatch.setattr(_build, "_INFO", record)
    module = SimpleNamespace(has_cuda=False)
    monkeypatch.setitem(sys.modules, "lpkernels._C", module)
    assert _build.why_no_extension() == ""
    assert "nvcc was not found; install again" in _build.why_no_cuda()
