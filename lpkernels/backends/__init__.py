"""The backends that do the arithmetic, and the choice between them.

Every backend returns the same bits; they differ in speed and in what they need to run.
``reference`` needs NumPy alone, ``cpu`` the compiled extension, ``cuda`` the extension built with
nvcc and a device, ``triton`` the triton package and a device, or its interpreter.

An adapter is one module with one object named ``BACKEND`` that follows the `Backend` protocol.
Modules are imported on first use, so a missing compiler, extension or driver shows up in `status`,
never as a failing ``import lpkernels``.

``backend="auto"`` takes the first of these that can do the operation: cpu, reference for tensors on
the CPU; cuda, triton, reference (through copies on the host) for tensors on a CUDA device, the
first two in the order that `gpu_choices` gives. The environment variable LPKERNELS_BACKEND, read at
each call, replaces "auto". A backend named explicitly runs, or raises with the reason. The first
use of a backend rounds a handful of values whose results are known (`_selftest`).
"""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from lpkernels.backends import _choice, _selftest

__all__ = [
    "NOT_FUSED",
    "Backend",
    "Fused",
    "broadcast_batch",
    "get",
    "gpu_choices",
    "gpu_orders",
    "names",
    "select",
    "status",
    "take_tiers",
]

_MODULES = {
    "reference": "lpkernels.backends._reference",
    "cpu": "lpkernels.backends.cpu",
    "cuda": "lpkernels.backends.cuda",
    "triton": "lpkernels.backends.triton",
}
_AUTO = {"cpu": ("cpu", "reference"), "cuda": ("cuda", "triton", "reference")}
# By operation, where instructions were counted or the reason is another.
_AUTO_OF = {(op, "cuda"): (*order, "reference") for op, order in _choice.orders().items()}


class Fused(NamedTuple):
    """Quantizers that a product applies itself, as integers; () leaves a tensor as it is.

    To its two operands as it reads them, in the order of its arguments, and to its result (bias
    included) before it is stored. None of them draws random bits or takes a scale from its tensor.
    """

    left: tuple[int, ...] = ()
    right: tuple[int, ...] = ()
    result: tuple[int, ...] = ()


NOT_FUSED = Fused()


class Backend(Protocol):
    """What an adapter offers. All tensors are already checked.

    Formats, quantizers and accumulators come as the tuples of integers that their ``to_ints``
    gives. ``seed`` is a 0-d int64 tensor, on the CPU or on the device, or None where nothing is
    stochastic; the adapter derives the stream from it with ``rng.derive_seed(seed, role)``.
    Operands are float32 with any strides; results are new, contiguous float32 tensors on the
    operands' device. ``acc`` has order "native" only in `accumulate`, or with chunks where the
    backend ``sums_native``; one that lacks another order, or blocks, raises NotImplementedError.

    ``fuses`` says whether its four products honour ``fused``; one that does not is only called
    with `NOT_FUSED`, and may leave the argument out.
    """

    name: str
    fuses: bool
    sums_native: bool

    def available(self) -> bool:
        """Whether this backend can run in this process."""
        ...

    def why_not(self) -> str:
        """The reason it cannot, with what to do about it; "" if it can."""
        ...

    def unsupported(self, op: str, device: torch.device) -> str:
        """Why it has no `op` for tensors on `device`; "" if it has.

        op is the name of a method, "quantize_affine" and "quantize_block" for those formats, and
        that of a product with "_ordered" behind it for trees, compensated sums and aligned blocks.
        """
        ...

    def quantize(
        self,
        x: Tensor,
        quantizer: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        site: int,
        out: Tensor,
    ) -> None:
        """Round every value of x into out, which does not overlap it.

        x is float16, bfloat16, float32 or float64, any strides; out has x's shape, any strides, and
        a dtype that holds every value of the format.
        """
        ...

    def matmul(
        self,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None,
        acc: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        fused: Fused = NOT_FUSED,
    ) -> Tensor:
        """(..., M, K) times (..., K, N), leading dimensions broadcast, plus bias (N,)."""
        ...

    def conv_fprop(
        self,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
        acc: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        fused: Fused = NOT_FUSED,
    ) -> Tensor:
        """x (N, C, *spatial), w (C_out, C / groups, *kernel), one to three spatial dimensions."""
        ...

    def conv_dgrad(
        self,
        grad_output: Tensor,
        w: Tensor,
        input_shape: list[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
        acc: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        fused: Fused = NOT_FUSED,
    ) -> Tensor:
        """The gradient of conv_fprop with respect to x."""
        ...

    def conv_wgrad(
        self,
        x: Tensor,
        grad_output: Tensor,
        weight_shape: list[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
        acc: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        fused: Fused = NOT_FUSED,
    ) -> Tensor:
        """The gradient of conv_fprop with respect to w."""
        ...

    def accumulate(
        self,
        total: Tensor,
        addend: Tensor,
        rows_cols: tuple[int, int],
        acc: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        site: int,
        k: int,
    ) -> None:
        """total = round(total + addend) in the outer format, in place.

        total is (rows, cols) and contiguous, addend broadcasts to it.
        The draws of element (i, j) have row ``rows_cols[0] + i``, column ``rows_cols[1] + j``, k.
        """
        ...

    def matmul_events(
        self,
        a: Tensor,
        b: Tensor,
        acc: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        row: Tensor,
        bits: bool,
    ) -> tuple[Tensor, tuple[int, ...], Tensor | None, Tensor | None]:
        """The sums of a (M, K) @ b (K, N), both finite, and what happened in them.

        row: (M,) int64, contiguous, on the CPU: the row keys of the draws.
        Returns what `reference.events.Events` holds: sums, counts and, with ``bits``, the uint8
        bits of the products (M, K, N) and of the chunks (M, chunks, N) or None.
        """
        ...

    def masked_gradients(
        self,
        a: Tensor,
        b: Tensor,
        g: Tensor,
        acc: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        first_col: int,
        bits: int,
        recursive: bool,
    ) -> tuple[Tensor, Tensor]:
        """`reference.masked.masked_gradients` of a (M, K), b (K, N), g (M, N), in float32 sums."""
        ...

    def pack(self, x: Tensor, fmt: tuple[int, ...]) -> Tensor:
        """The codes of float32 x, dense, as a 1-D uint8 tensor.

        Raises: ValueError: a value that fmt does not hold; the message names it.
        """
        ...

    def unpack(self, codes: Tensor, fmt: tuple[int, ...], shape: list[int]) -> Tensor:
        """The float32 values of codes."""
        ...


_loaded: dict[str, Backend] = {}
# Of every backend used so far "", or what its self-test found.
_checked: dict[str, str] = {}
# What "auto" has chosen before, by operation and device.
_chosen: dict[tuple[str, torch.device], Backend] = {}


_NO_BATCH = torch.Size(())


def broadcast_batch(a: Tensor, b: Tensor) -> torch.Size:
    """The leading dimensions of a @ b; torch.broadcast_shapes, which is slow, only where needed."""
    if a.dim() == b.dim() == 2:
        return _NO_BATCH
    left, right = a.shape[:-2], b.shape[:-2]
    return left if left == right else torch.broadcast_shapes(left, right)


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
    if name not in _loaded:
        reason, backend = _load(name)
        if backend is None:
            raise RuntimeError(f"backend {name!r} cannot be used: {reason}")
        _loaded[name] = backend
    return _loaded[name]


def status() -> dict[str, str]:
    """For every backend "available", or the reason why it is not."""
    return {name: _why_not(name) or _checked.get(name) or "available" for name in _MODULES}


def gpu_choices() -> tuple[_choice.Row, ...]:
    """The counts that order ``cuda`` and ``triton`` on a CUDA device; none of them is measured."""
    return _choice.ROWS


def gpu_orders() -> dict[str, tuple[str, str]]:
    """By operation which of ``cuda`` and ``triton`` "auto" asks first; for others ``cuda``."""
    return _choice.orders()


def take_tiers() -> dict[str, float]:
    """The share of products that each tier of the cpu backend's kernels did since the last call.

    All tiers give the same bits; operands, formats and modes decide which of them may run.

    Returns:
        {"native": ..., "certified": ..., "float": ..., "double": ...}, adding to 1, or all 0 if
        nothing ran.

    Raises:
        RuntimeError: there is no cpu backend here.
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
        NotImplementedError: it has no such operation on this device, or no backend has; with each
            one's reason.
    """
    origin = "backend"
    # Asking whether a variable is there takes half the time of asking for one that is not.
    if name == "auto" and "LPKERNELS_BACKEND" in os.environ:
        name = os.environ["LPKERNELS_BACKEND"] or "auto"
        origin = "LPKERNELS_BACKEND"
    if name != "auto":
        return _explicit(name, op, device, origin)
    chosen = _chosen.get((op, device))
    if chosen is not None:
        return chosen
    reasons = []
    for candidate in _AUTO_OF.get((op, device.type), _AUTO.get(device.type, ())):
        reason = _why_not(candidate) or get(candidate).unsupported(op, device)
        if not reason:
            _chosen[op, device] = _tested(candidate)
            return _chosen[op, device]
        reasons.append(f"\n  {candidate}: {reason}")
    if not reasons:
        reasons.append(f"\n  none knows this device; move the tensors to {' or '.join(_AUTO)}")
    raise NotImplementedError(f"{op}: no backend for tensors on {device}:{''.join(reasons)}")


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


def _load(name: str) -> tuple[str, Backend | None]:
    module = _MODULES[name]
    try:
        with _real_tensors():
            return "", importlib.import_module(module).BACKEND
    except ModuleNotFoundError as error:
        if error.name == module:
            return "not built yet: this version of lpkernels has no adapter for it", None
        return f"its adapter needs the module {error.name!r}, which is not installed", None
    except (ImportError, OSError) as error:
        return f"its adapter cannot be imported: {error}", None


def _why_not(name: str) -> str:
    """Why the backend is absent. One that fails its self-test is not absent: using it raises."""
    if name in _checked:
        return ""
    if name not in _loaded:
        reason, backend = _load(name)
        if backend is None:
            return reason
        _loaded[name] = backend
    backend = _loaded[name]
    return "" if backend.available() else backend.why_not()


def _tested(name: str) -> Backend:
    backend = _loaded[name]
    if name not in _checked:
        with _real_tensors():
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
