"""The backends that do the arithmetic, and the choice between them.

Every backend returns the same bits; they differ in speed and in what they need to run.
``reference`` needs NumPy alone, ``cpu`` the compiled extension, ``cuda`` the extension built with
nvcc and a device, ``triton`` the triton package and a device, or its interpreter.

An adapter is one module with one object named ``BACKEND`` that follows the `Backend` protocol.
Modules are imported on first use, so a missing compiler, extension or driver shows up in `status`,
never as a failing ``import lpkernels``.

``backend="auto"`` takes the first of these that can do the operation: cpu, reference for tensors on
the CPU; cuda, triton, reference (through copies on the host) for tensors on a CUDA device. There
the outer additions of native chunks ask triton first, and trees, compensated sums and aligned
blocks are triton's alone: without it they are refused. The environment variable LPKERNELS_BACKEND,
read at each call, replaces "auto". A backend named explicitly runs, or raises with the reason. At
its first use a backend rounds a handful of values with known results (`_selftest`).
"""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import TYPE_CHECKING, Any, cast

import torch

from lpkernels.arithmetic.products import Convolution  # noqa: F401
from lpkernels.backends._protocol import (  # noqa: F401
    BINS,
    COUNTS,
    KINDS,
    NOT_FUSED,
    Backend,
    DrawKey,
    Fused,
    How,
    Parts,
    Product,
    Rounding,
    Scales,
    Update,
    UpdateTensors,
    broadcast_batch,
    broadcast_shapes,
    fprop_of,
    matmul_of,
    new_parts,
)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__[:5])}, and "
            "backend= of a function, or the environment variable LPKERNELS_BACKEND, chooses a "
            "backend"
        )


# The interface of backends, imported above, is the package's own.
__all__ = ["status", "take_tiers"]

_MODULES = {
    "reference": "lpkernels.backends._reference",
    "cpu": "lpkernels.backends.cpu",
    "cuda": "lpkernels.backends.cuda",
    "triton": "lpkernels.backends.triton",
}
# The backends that "auto" asks, by device. cuda stands before triton, whose machine code for sm_90
# has 1.08 times its instructions over ten pairs of kernels of matrices and 1.19 times over three of
# convolutions: counted at commit 3cd4b131, never measured on a device.
_AUTO = {"cpu": ("cpu", "reference"), "cuda": ("cuda", "triton", "reference")}


# The dictionary behind os.environ, which encodes every name that it is asked for: a microsecond, of
# the ten that a small product takes.
ENVIRONMENT: Any = getattr(os.environ, "_data", os.environ)
VARIABLE: Any = "LPKERNELS_BACKEND"
if ENVIRONMENT is not os.environ:
    VARIABLE = os.environ.encodekey(VARIABLE)

_loaded: dict[str, Backend] = {}
# The fault that the self-test of every backend used so far found; "" is none.
_checked: dict[str, str] = {}
#: Earlier choices of "auto", by operation and device.
choices: dict[tuple[str, torch.device], Backend] = {}


def names() -> tuple[str, ...]:
    """The names of all backends, whether or not they can run here."""
    return tuple(_MODULES)


def get(name: str) -> Backend:
    """The adapter called `name`, imported now if it was not yet.

    Raises:
        ValueError: there is no backend of that name.
        RuntimeError: its adapter cannot be imported; the message says why.
    """
    if name not in _MODULES:
        raise ValueError(f"backend: unknown name {name!r}; expected one of {('auto', *_MODULES)}")
    if reason := _why_not_loaded(name):
        raise RuntimeError(f"backend {name!r} cannot be used: {reason}")
    return _loaded[name]


def status() -> dict[str, str]:
    """For every backend "available", or the reason why it is not.

    >>> lp.backends.status()["reference"]
    'available'
    """
    state = {name: _why_not(name) or _checked.get(name) or "available" for name in _MODULES}
    if state["cuda"] == "available" != state["triton"]:
        state["triton"] += (
            "; without it counts, codes, block and affine formats and updates of tensors on a CUDA "
            "device are made by the reference, on the host, and trees, compensated sums and "
            "aligned blocks are refused"
        )
    return state


def take_tiers() -> dict[str, float]:
    """The share of products that each tier of the cpu backend's kernels did since the last call.

    All tiers give the same bits; operands, formats and modes decide which of them may run.

    Returns:
        {"hardware": ..., "certified": ..., "float": ..., "double": ...}, adding to 1, or all 0 if
        nothing ran.

    Raises:
        RuntimeError: there is no cpu backend here.

    >>> _ = lp.backends.take_tiers()
    >>> _ = lp.matmul(torch.ones(8, 8), torch.ones(8, 8), "e5m10")
    >>> round(sum(lp.backends.take_tiers().values()), 6)
    1.0
    """
    # Chosen as for a product: the self-test of a first use must not count.
    backend = select("cpu", "matmul", torch.device("cpu"))
    return cast(Any, backend).take_tiers()


def select(name: str, op: str, device: torch.device) -> Backend:
    """The backend that runs `op` on tensors of `device`.

    Args:
        name: "auto", or a backend, which then runs the operation or fails.
        op: as `Backend.unsupported` takes it.
        device: where the operands are.
    Raises:
        ValueError: unknown name, in the argument or in LPKERNELS_BACKEND.
        RuntimeError: the backend asked for cannot run here, or its self-test fails.
        NotImplementedError: the named backend, or for "auto" every backend, lacks the operation on
            this device; with the reason of each.
    """
    origin = "backend"
    if name == "auto" and VARIABLE in ENVIRONMENT:
        name = os.environ["LPKERNELS_BACKEND"] or "auto"
        origin = "LPKERNELS_BACKEND"
    if name != "auto":
        return _explicit(name, op, device, origin)
    reasons = []
    for candidate in _candidates(op, device.type):
        reason = _why_not(candidate) or get(candidate).unsupported(op, device)
        if not reason:
            choices[op, device] = _tested(candidate)
            return choices[op, device]
        reasons.append(f"\n  {candidate}: {reason}")
    if not reasons:
        reasons.append(f"\n  none knows this device; move the tensors to {' or '.join(_AUTO)}")
    raise NotImplementedError(f"{op}: no backend for tensors on {device}:{''.join(reasons)}")


def _candidates(op: str, kind: str) -> tuple[str, ...]:
    """The backends that "auto" asks for tensors on a device of this kind, the first one first."""
    if kind == "cuda" and op == "accumulate":
        return ("triton", "cuda", "reference")  # Triton's kernel takes every outer format.
    if kind == "cuda" and op.removesuffix("_table").endswith(("_ordered", "_operands")):
        return ("cuda", "triton")  # On the host they would take hours.
    return _AUTO.get(kind, ())


def _explicit(name: str, op: str, device: torch.device, origin: str) -> Backend:
    if name not in _MODULES:
        raise ValueError(f"{origin}: unknown name {name!r}; expected one of {('auto', *_MODULES)}")
    reason = _why_not(name)
    if reason:
        raise RuntimeError(f"{op}: {origin}={name!r} cannot be used: {reason}")
    reason = get(name).unsupported(op, device)
    if reason:
        raise NotImplementedError(
            f"{op}: {origin}={name!r} cannot do this on {device}: {reason}; "
            'backend="auto" chooses one that can'
        )
    return _tested(name)


def _why_not_loaded(name: str) -> str:
    """Imports the adapter unless it is there; the reason why it cannot be imported, or ""."""
    if name in _loaded:
        return ""
    module = _MODULES[name]
    try:
        with _real_tensors():
            _loaded[name] = importlib.import_module(module).BACKEND
    except ModuleNotFoundError as error:
        if error.name == module:
            return "not built yet: this version of lpkernels has no adapter for it"
        # An extra has the name of the backend that needs it.
        how = f": pip install 'lpkernels[{name}]'" if error.name == name else ""
        return f"its adapter needs the module {error.name!r}, which is not installed{how}"
    except (ImportError, OSError) as error:
        return f"its adapter cannot be imported: {error}"
    return ""


def _why_not(name: str) -> str:
    """Why the backend is absent. A backend that fails its self-test is not absent: using it
    raises."""
    if name in _checked:
        return ""
    if reason := _why_not_loaded(name):
        return reason
    backend = _loaded[name]
    return "" if backend.available() else backend.why_not()


def _tested(name: str) -> Backend:
    backend = _loaded[name]
    if name not in _checked:
        with _real_tensors():
            from lpkernels.backends import _selftest

            _checked[name] = _selftest.run(backend, torch.device(_home(backend)))
    if _checked[name]:
        raise RuntimeError(f"backend {name!r} cannot be used: {_checked[name]}")
    return backend


def _real_tensors() -> contextlib.AbstractContextManager[Any]:
    """A context in which new tensors are real, also where torch.export makes fake ones.

    The first use of a backend may come while a model is traced.
    """
    if not torch._C._len_torch_dispatch_stack():
        return contextlib.nullcontext()
    # Imported late: it brings the compiler.
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def _home(backend: Backend) -> str:
    """The device that the self-test runs on: the CPU where the backend takes its tensors."""
    return "cuda" if backend.unsupported("quantize", torch.device("cpu")) else "cpu"
