"""The place where this backend runs here: a CUDA device, or Triton's interpreter on the CPU."""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from lpkernels import backends

# Nothing here can be imported without it.
collect_ignore_glob = [] if find_spec("triton") else ["*.py"]
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mine = {item for item in items if Path(__file__).parent in item.path.parents}
    for item in mine:
        item.add_marker("triton")
        # The interpreter computes with NumPy, which reports every NaN and overflow.
        item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))
    if INTERPRETED:
        # Tests that ask for no device read plans, launches or compiled kernels. They run without
        # the interpreter, which compiles nothing and would only repeat them.
        left_out = {item for item in mine if "device" not in item.fixturenames}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session", autouse=True)
def interpreter_without_repetition() -> Iterator[None]:
    """The interpreter puts its own functions into triton.language when a kernel starts, and looks
    for more to replace in every call of a device function; it checks every integer operation for
    overflow and forgets the result unless it debugs; and it lists NumPy's types for every value.
    These take most of its time. Here a call inside a kernel leaves the modules alone that are
    patched already, overflow is looked for only in debugging, and types are looked up once."""
    if not INTERPRETED:
        yield
        return
    import triton.language as tl
    from triton.runtime import interpreter

    patch_lang, np_type, builder = (
        interpreter._patch_lang, interpreter._get_np_dtype, interpreter.interpreter_builder
    )  # fmt: skip
    types: dict[str, Any] = {}

    @cache
    def languages(function: Any) -> list[Any]:
        return [x for x in function.__globals__.values() if x is tl or x is tl.core]

    def patch_what_is_left(function: Any) -> Any:
        if any(tl.core.is_builtin(language.load) for language in languages(function)):
            return patch_lang(function)
        return interpreter._LangPatchScope()

    def np_type_once(dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in types:
            types[name] = np_type(dtype)
        return types[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", patch_what_is_left)
        patch.setattr(interpreter, "_get_np_dtype", np_type_once)
        options = replace(builder.options, sanitize_overflow=builder.options.debug)
        patch.setattr(builder, "options", options)
        yield


@pytest.fixture
def device() -> str:
    """The device of the backend's tensors; the test is skipped where there is none."""
    reason = backends.status()["triton"]
    if reason != "available":
        pytest.skip(f"triton: {reason}")
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def ways() -> tuple[str]:
    """A device has one set of instructions."""
    return ("",)


@pytest.fixture
def adapter() -> Any:
    return backends.get("triton")


@pytest.fixture
def tile_tiers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The certified kernels' flags for all products so far: `_problem.TileTiers` of each."""
    from lpkernels.backends.triton.certified import stages

    found: list[Any] = []
    inner = stages.launch

    def launch(*arguments: object) -> Any:
        found.append(inner(*arguments))
        return found[-1]

    monkeypatch.setattr(stages, "launch", launch)
    return found
