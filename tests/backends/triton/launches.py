"""Launches that are recorded and not started, and the kernels that Triton compiles for them,
without a GPU."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
import triton
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from lpkernels.backends import triton as package
from tests.backends.triton.ahead_of_time import TARGETS

__all__ = ["Launch", "bound", "compiled_launch", "kernels", "keys", "modules", "recorded"]


class Launch(NamedTuple):
    """A kernel, its arguments, its constants and options, and its grid."""

    kernel: Any
    arguments: tuple[Any, ...]
    told: dict[str, Any]
    grid: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return self.kernel.fn.__name__

    def constant(self, name: str) -> Any:
        return self.told.get(name)

    def argument(self, name: str) -> Any:
        """The argument of this name, or None where the kernel has none."""
        names = self.kernel.arg_names
        return self.arguments[names.index(name)] if name in names else None


class Recorder:
    """A stand-in for a kernel, which takes launches and starts nothing."""

    def __init__(self, kernel: Any, calls: list[Launch]):
        self.kernel, self.calls = kernel, calls

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **told: self.calls.append(Launch(self.kernel, args, told, grid))


def modules() -> list[ModuleType]:
    """Every file of the backend."""
    names = [name for _, name, _ in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    return [package, *map(importlib.import_module, names)]


def kernels() -> dict[str, list[ModuleType]]:
    """Every kernel of the backend by name, with the files that hold it."""
    found: dict[str, list[ModuleType]] = {}
    for module in modules():
        for name, value in vars(module).items():
            if isinstance(value, JITFunction) and name.endswith("_kernel"):
                found.setdefault(name, []).append(module)
    return found


@contextmanager
def recorded(target: str = "sm_90") -> Iterator[list[Launch]]:
    """Inside this context, kernels are recorded as they would be launched on a target."""
    calls: list[Launch] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.version, "hip", "6.0" if TARGETS[target].backend == "hip" else None)
        for name, holders in kernels().items():
            for module in holders:
                patch.setattr(module, name, Recorder(getattr(module, name), calls))
        yield calls


def bound(launch: Launch, target: str) -> tuple[Any, ...]:
    """The launch's backend and arguments, and the values to which these specialise the kernel."""
    backend = make_backend(TARGETS[target])
    kernel = launch.kernel
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    return backend, *binder(*launch.arguments, **launch.told)


def compiled_launch(launch: Launch, target: str) -> Any:
    """The kernel that `triton.compile` makes of the launch."""
    backend, arguments, specialization, _ = bound(launch, target)
    options, signature, constants, attributes = launch.kernel._pack_args(
        backend, launch.told, arguments, specialization, None
    )
    source = ASTSource(launch.kernel, signature, constants, attributes)
    return triton.compile(source, target=TARGETS[target], options=options.__dict__)


def keys(launches: list[Launch]) -> list[str]:
    """The keys under which Triton keeps compiled kernels."""
    found = [f"{launch.kernel} {bound(launch, 'sm_90')[2:]}" for launch in launches]
    launches.clear()
    return found
