"""Launches that are recorded and not started, and the kernels that Triton compiles for them,
without a GPU."""

import contextlib
import importlib
import pkgutil
import warnings
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from lpkernels import backends
from lpkernels.backends import triton as package
from lpkernels.backends.triton._launch import EXACT
from tests.support import replay

#: Name -> target; gfx942 needs the wave size of CDNA.
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
#: Every target; what is compiled for others than sm_90 is for `make prove`.
EVERY = pytest.mark.parametrize(
    "target", [pytest.param(t, marks=[pytest.mark.slow] * (t != "sm_90")) for t in TARGETS]
)
#: Counts and registers are those of the compiler that Triton 3.7 brings along.
COUNTED = triton.__version__.startswith("3.7")


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


@contextlib.contextmanager
def recorded(target: str = "sm_90") -> Iterator[list[Launch]]:
    """Inside this context, kernels are recorded as they would be launched on a target."""
    calls: list[Launch] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.version, "hip", "6.0" if TARGETS[target].backend == "hip" else None)
        for name, holders in kernels().items():
            for module in holders:
                patch.setattr(module, name, Recorder(getattr(module, name), calls))
        yield calls


#: Calls beside those of the replay: sums of torch's own, whose bits are not on record.
_NATIVE = [
    f'lp.matmul({a}(9, 64), {b}(64, 40), "native_chunk16:{rest}")'
    for a, b in (("x", "y"), ("x3", "x4"))
    for rest in ("outer=e6m9", "outer=fp32", "stochastic:outer=e5m7", "to_odd:outer=fixed12_f4")
]


@cache
def replayed(target: str = "sm_90") -> list[Launch]:
    """The launches that the calls of tests/data/replay.txt start on a target, as Triton tells them
    apart: those with one key are compiled once."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(mock.patch.object(backends, "select", lambda *_: package.BACKEND))
        stack.enter_context(mock.patch.dict(backends.choices, clear=True))
        calls = stack.enter_context(recorded(target))
        for text in (*(call.text for call in replay.calls()), *_NATIVE):
            # The backend lacks some operations, and what kernels did not write may have no codes.
            with contextlib.suppress(AttributeError, NotImplementedError, ValueError):
                replay.run(text)
    return list({f"{x.kernel} {bound(x, target)[2:]}": x for x in calls}.values())


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


def _pointed(value: Any) -> Any:
    """A tensor of each torch.dtype; it begins at a multiple of 16 bytes, as torch allocates it."""
    if isinstance(value, torch.dtype):
        return torch.empty(1, dtype=value)
    if isinstance(value, tuple):
        parts = map(_pointed, value)
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def compiled(
    kernel: Any, target: str = "sm_90", *, options: dict[str, Any] | None = None, **arguments: Any
) -> Any:
    """The kernel that `triton.compile` makes of a call.

    options: of the compiler, beyond those that every kernel has. arguments: every parameter and
        num_warps by name; a torch.dtype stands for a pointer.
    """
    names = [parameter.name for parameter in kernel.params if not parameter.is_constexpr]
    told = {name: value for name, value in arguments.items() if name not in names}
    told |= {"num_stages": 1, **EXACT, **(options or {})}
    values = tuple(_pointed(arguments[name]) for name in names)
    return compiled_launch(Launch(kernel, values, told), target)


def keys(launches: list[Launch]) -> list[str]:
    """The keys under which Triton keeps compiled kernels."""
    found = [f"{launch.kernel} {bound(launch, 'sm_90')[2:]}" for launch in launches]
    launches.clear()
    return found
