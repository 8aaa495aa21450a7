"""What every test gets: fixed seeds, poisoned memory, and the backends that run here.

``--skip-missing-oracles`` leaves out the test files whose oracle package is not installed, for
machines where nothing can be installed; without it a missing oracle is an error. ``--within
SECONDS`` skips the tests that would begin later.
"""

import os
import re
import time
from collections.abc import Callable, Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

#: Backends that take CPU tensors.
CPU_BACKENDS = ("reference", "cpu")
_ORACLES = ("expecttest", "gfloat", "hypothesis", "ml_dtypes")
_ID_LENGTH = 80
_END = pytest.StashKey[float | None]()
_MISSING_ORACLES = [name for name in _ORACLES if find_spec(name) is None]

if "hypothesis" not in _MISSING_ORACLES:
    from hypothesis import settings

    # Without a deadline a busy machine is no failure, and a derandomized run finds what the last
    # one found.
    settings.register_profile("lpkernels", deadline=None, derandomize=True)
    settings.load_profile("lpkernels")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--skip-missing-oracles",
        action="store_true",
        help="leave out test files whose oracle package is not installed",
    )
    parser.addoption("--within", type=float, help="skip the tests that begin later, in seconds")


def pytest_configure(config: pytest.Config) -> None:
    seconds = config.getoption("--within")
    config.stash[_END] = None if seconds is None else time.monotonic() + seconds


def pytest_runtest_setup(item: pytest.Item) -> None:
    end = item.config.stash[_END]
    if end is not None and time.monotonic() > end:
        pytest.skip(f"{item.nodeid} did not fit into --within")


def pytest_report_header(config: pytest.Config) -> str | None:
    if config.getoption("--skip-missing-oracles") and _MISSING_ORACLES:
        return f"no tests that need the missing {', '.join(_MISSING_ORACLES)}"
    return None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if not (_MISSING_ORACLES and config.getoption("--skip-missing-oracles")):
        return None
    if collection_path.suffix != ".py":
        return None
    needs = re.compile(rf"^\s*(?:from|import) (?:{'|'.join(_MISSING_ORACLES)})\b", re.MULTILINE)
    return bool(needs.search(collection_path.read_text(encoding="utf-8"))) or None


def pytest_make_parametrize_id(val: object) -> str | None:
    """A case with a name, such as a format, has it in its id; a dtype and a shape their text."""
    if isinstance(name := getattr(val, "name", None), str):
        return name
    if isinstance(val, tuple) and val and all(type(size) is int for size in val):
        return "x".join(map(str, val))
    has_text = isinstance(val, torch.dtype) or type(val).__module__.startswith("lpkernels.")
    return str(val) if has_text and len(str(val)) <= _ID_LENGTH else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure names the instruction set that the CPU kernels had to take."""
    report = yield
    if report.failed and (isa := os.environ.get("LPKERNELS_ISA")):
        report.sections.append(("LPKERNELS_ISA", isa))
    return report


@pytest.fixture(scope="session", autouse=True)
def compiler() -> None:
    """The compiler, which lists torch's functions when it is imported, before `poisoned_empty`
    replaces some; `torch.device` as a context lists them as well, when it is first entered.

    The process that hands out the tests runs none, and does without.
    """
    import torch._dynamo  # noqa: F401  (imported for that)
    from torch.utils._device import _device_constructors

    _device_constructors()


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """torch's default generator starts every test alike."""
    torch.manual_seed(0)


@pytest.fixture
def rng() -> np.random.Generator:
    """A numpy generator that starts every test alike."""
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def poisoned_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uninitialised floating-point memory reads as NaN, so a kernel that skips an element shows."""
    for name in ("empty", "empty_like", "empty_strided"):
        monkeypatch.setattr(torch, name, _poisoned(getattr(torch, name)))


def _poisoned(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def allocate_poisoned(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensor = allocate(*args, **kwargs)
        if tensor.is_floating_point() and not kwargs.get("requires_grad", False):
            tensor.fill_(float("nan"))
        return tensor

    return allocate_poisoned


@pytest.fixture
def backends() -> list[str]:
    """The backends for CPU tensors that run here, for a loop that compares each with one result.

    An absent backend is reported as skipped by the tests that take `backend`.
    """
    from lpkernels import backends

    status = backends.status()
    return [name for name in CPU_BACKENDS if status.get(name) == "available"]


@pytest.fixture(params=CPU_BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """The name of each backend for CPU tensors; skips, with the backend's reason, where absent."""
    from lpkernels import backends

    reason = backends.status().get(request.param, "not built yet")
    if reason != "available":
        pytest.skip(f"{request.param}: {reason}")
    return request.param
