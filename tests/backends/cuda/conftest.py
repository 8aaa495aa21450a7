"""The places where the cuda adapter runs: the host, by its kernels' own code (`cuda_host`), and a
device where one is.

The host runs the same index maps, tables, plans and arithmetic as a device, but not what only a
device has: launches, barriers and its instructions.
"""

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from lpkernels.backends.cuda import BACKEND
from tests.backends import sass
from tests.backends.sass import Kernels
from tests.support import cuda_host


@pytest.fixture(params=["host", pytest.param("device", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The device of the adapter's tensors: "cpu" where the host runs the kernels, or "cuda"."""
    on_host = request.param == "host"
    reason = cuda_host.reason() if on_host else BACKEND.why_not()
    if reason:
        pytest.skip(reason)
    with cuda_host.on_host() if on_host else contextlib.nullcontext():
        yield "cpu" if on_host else "cuda"


@pytest.fixture
def ways() -> tuple[str]:
    """A device has one set of instructions."""
    return ("",)


@pytest.fixture
def adapter() -> Any:
    return BACKEND


@pytest.fixture
def host() -> Iterator[ModuleType]:
    """The module whose kernels the adapter's products and updates run on the host."""
    if reason := cuda_host.reason():
        pytest.skip(reason)
    with cuda_host.on_host() as loaded:
        yield loaded


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """The kernels for sm_90 inside lpkernels._C."""
    cubins = sass.in_library("sm_90", tmp_path_factory.mktemp("cubins"))
    if not cubins:
        pytest.skip("lpkernels._C was not built for sm_90")
    return Kernels(cubins)
