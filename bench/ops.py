"""The operations of registry.py. A case becomes something to call, with baselines and its work."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lpkernels as lp
from bench.registry import Case
from lpkernels import ops
from lpkernels.arithmetic import as_accumulator
from lpkernels.experiments.workloads.models import Task, build_model
from lpkernels.rng import Role

SEED = 20260
_GEMM = 960


@dataclass(frozen=True)
class Job:
    """A case made ready.

    Attributes:
        run: one call; returns the tensors it made, for the gate.
        baselines: name -> one call of something that the case is compared with.
        work: what one call does, in `unit` times 1e9 ("images/s": times 1).
        other_work: the same of a baseline that does something else.
    """

    run: Callable[[], list[Tensor]]
    baselines: dict[str, Callable[[], object]]
    work: float
    unit: str
    other_work: dict[str, float] = field(default_factory=dict)

    def rate(self, seconds: float, baseline: str = "") -> float:
        work = self.other_work.get(baseline, self.work)
        return work / seconds / (1.0 if self.unit == "images/s" else 1e9)


def build(case: Case, device: str, backend: str) -> Job:
    """The case on tensors of `device`, computed by `backend` ("reference" for the gate).

    Raises: NotImplementedError: the backend has no such operation.
    """
    return _BUILDERS[case.op](case, device, backend)


def _operand(case: Case, device: str, *shape: int) -> Tensor:
    """Normal values, rounded to the format that the case's operands are in."""
    generator = torch.Generator().manual_seed(SEED + math.prod(shape))
    x = torch.randn(*shape, generator=generator)
    if case.operands:
        x = lp.quantize(x, case.operands, backend="reference" if x.numel() < 5000 else "auto")
    return x.float().to(device)


def _seed() -> Tensor:
    return torch.tensor(SEED)


def _matmul(case: Case, device: str, backend: str) -> Job:
    m, k, n = case.shape
    a, b = _operand(case, device, m, k), _operand(case, device, k, n)
    acc = as_accumulator(case.spec)
    if case.spill:
        # The deviation of a sum of 960 products is near 2^5: it becomes half the maximum.
        binades = math.frexp(acc.fmt.max)[1] - 6
        b = b * 2.0 ** (binades // 2 - 1)
        a[:: case.spill] *= 2.0 ** (binades - binades // 2 + 1)
    seed = _seed() if acc.is_stochastic else None
    baselines: dict[str, Callable[[], object]] = {"torch": lambda: torch.mm(a, b)}
    if "tf32" in case.baselines:
        baselines["tf32"] = lambda: _with_tf32(a, b)
    if "bf16" in case.baselines:
        half_a, half_b = a.bfloat16(), b.bfloat16()
        baselines["bf16"] = lambda: torch.mm(half_a, half_b)

    def run(isa: str) -> list[Tensor]:
        if not isa:
            return [lp.matmul(a, b, acc, generator=seed, backend=backend)]
        with _variable("LPKERNELS_ISA", isa):
            return [lp.matmul(a, b, acc, generator=seed, backend=backend)]

    if case.isa and not _runs(case.isa):
        raise NotImplementedError(f"this processor does not run {case.isa}")
    for isa in sorted(_ISAS.intersection(case.baselines)) if device == "cpu" else ():
        if _runs(isa):
            baselines[isa] = partial(run, isa)
    return Job(partial(run, case.isa), baselines, m * k * n, "GMAC/s")


def _scaled_matmul(case: Case, device: str, backend: str) -> Job:
    m, k, n = case.shape
    x, w = (_operand(replace(case, operands=""), device, *size) for size in ((m, k), (k, n)))
    left, right = case.operands.split(",")
    a, b = lp.scaled(x, left), lp.scaled(w, right)
    baselines: dict[str, Callable[[], object]] = {"torch": lambda: torch.mm(x, w)}
    if "hopper_fp8" in case.baselines:
        codes = lp.quantize(x, "e4m3fn"), lp.quantize(w, "e4m3fn")
        baselines["hopper_fp8"] = lambda: lp.matmul(*codes, "hopper_fp8", backend=backend)
    if case.isa and not _runs(case.isa):
        raise NotImplementedError(f"this processor does not run {case.isa}")

    def run() -> list[Tensor]:
        with _variable("LPKERNELS_ISA", case.isa):
            return [lp.matmul(a, b, case.spec, backend=backend)]

    return Job(run, baselines, m * k * n, "GMAC/s")


_ISAS = {"scalar", "avx2", "avx512", "avx512fp16", "neon", "neonfp16"}


def _runs(isa: str) -> bool:
    """Whether this processor has the instructions."""
    one = torch.ones(1, 1)
    try:
        with _variable("LPKERNELS_ISA", isa):
            lp.matmul(one, one, "e6m9", backend="cpu")
    except (ValueError, RuntimeError, NotImplementedError):
        return False
    return True


def _with_tf32(a: Tensor, b: Tensor) -> Tensor:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        return torch.mm(a, b)
    finally:
        torch.set_float32_matmul_precision(before)


def _quantize(case: Case, device: str, backend: str, *, into: bool) -> Job:
    x = _operand(case, device, *case.shape)
    fmt, _, rounding = case.spec.partition(":")
    seed = _seed() if rounding == "stochastic" else None
    # A fresh result costs its memory, so the baseline allocates too.
    out = torch.empty_like(x) if into else None
    copy = torch.empty_like(x)
    baseline: Callable[[], object] = (lambda: copy.copy_(x)) if into else (lambda: x.clone())
    baselines = {"torch": baseline}
    for name, find in (("torchao", _torchao), ("microxcaling", _microxcaling)):
        theirs = find(x, fmt) if name in case.baselines and seed is None else None
        if theirs is not None:
            baselines[name] = theirs
    return Job(
        lambda: [lp.quantize(x, fmt, rounding, generator=seed, out=out, backend=backend)],
        baselines,
        # Every element is read once and written once.
        2 * x.element_size() * x.numel(),
        "GB/s",
    )


def _torchao(x: Tensor, fmt: str) -> Callable[[], object] | None:
    """torchao's codes and scales of x in one of its formats, where it is installed."""
    elements = {"mxfp8": torch.float8_e4m3fn, "mxfp4": torch.float4_e2m1fn_x2}
    if importlib.util.find_spec("torchao") is None or x.shape[-1] % 32:
        return None
    if fmt in elements:
        from torchao.prototype.mx_formats.mx_tensor import to_mx

        return lambda: to_mx(x, elements[fmt], 32)
    if fmt == "nvfp4":
        from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize

        return lambda: nvfp4_quantize(x, 16, x.abs().amax() / 2688)
    return None


def _microxcaling(x: Tensor, fmt: str) -> Callable[[], object] | None:
    """microxcaling's values of x, where a checkout of it is on PYTHONPATH."""
    element = {"mxfp8": "fp8_e4m3", "mxfp4": "fp4_e2m1"}.get(fmt)
    if element is None or importlib.util.find_spec("mx") is None:
        return None
    quantize = importlib.import_module("mx.mx_ops")._quantize_mx
    return lambda: quantize(x, 8, element, axes=[-1], block_size=32, round="even")


def _codes(case: Case, device: str, backend: str, *, unpack: bool) -> Job:
    x = _operand(case, device, *case.shape)
    q: Tensor | lp.Scaled = lp.quantize(x, case.spec, backend=backend)
    if isinstance(lp.parse_format(case.spec), lp.BlockFormat):
        q = lp.scaled(x, case.spec, backend=backend)
    codes = lp.pack(q) if isinstance(q, lp.Scaled) else lp.pack(q, case.spec)
    values = lp.unpack(codes, case.spec, x.shape)

    def run() -> list[Tensor]:
        if unpack:
            return [lp.unpack(codes, case.spec, x.shape)]
        return [lp.pack(q) if isinstance(q, lp.Scaled) else lp.pack(q, case.spec)]

    # A copy of the values in float32, whichever way the codes go.
    return Job(run, {"torch": values.clone}, 2 * x.element_size() * x.numel(), "GB/s")


def _count(case: Case, device: str, backend: str, *, into: bool, bins: int) -> Job:
    x = _operand(case, device, *case.shape)
    fmt, _, rounding = case.spec.partition(":")
    seed = _seed() if rounding == "stochastic" else None
    out = torch.empty_like(x)
    counts = torch.zeros(ops.COUNTS + bins, dtype=torch.int64, device=device)
    rest = {"generator": seed, "backend": backend}

    def run() -> list[Tensor]:
        if into:
            return [lp.quantize(x, fmt, rounding, out=out, counts=counts, **rest), counts]
        return [lp.count(x, fmt, rounding, counts=counts, **rest)]

    size = x.element_size() * x.numel()
    baselines: dict[str, Callable[[], object]] = {
        "torch": (lambda: out.copy_(x)) if into else (lambda: x.sum()),
        "quantize": lambda: lp.quantize(x, fmt, rounding, out=out, **rest),
    }
    # Every element is read once, and written once or not at all.
    work = 2 * size if into else size
    return Job(run, baselines, work, "GB/s", {"quantize": 2 * size})


def _conv(case: Case, device: str, backend: str, *, gemm: str) -> Job:
    batch, c_in, c_out, image, kernel, step, groups = case.shape
    stride, padding, dilation = [step] * 2, [kernel // 2] * 2, [1, 1]
    x = _operand(case, device, batch, c_in, image, image)
    w = _operand(case, device, c_out, c_in // groups, kernel, kernel)
    y = F.conv2d(x, w, None, stride, padding, dilation, groups)
    g = _operand(case, device, *y.shape)
    acc = as_accumulator(case.spec)
    seed = _seed() if acc.is_stochastic else None
    conv = ops.Convolution(tuple(stride), tuple(padding), tuple(dilation), groups)

    def how(role: Role) -> ops.How:
        return ops.How(acc.to_ints(), seed, role)

    def backward(mask: list[bool]) -> object:
        call = torch.ops.aten.convolution_backward
        return call(g, x, w, None, stride, padding, dilation, False, [0, 0], groups, mask)

    runs: dict[str, tuple[Callable[[], Tensor], Callable[[], object]]] = {
        "fprop": (
            lambda: ops.multiply(ops.fprop_of(x, w, None, conv), how(Role.FPROP), backend),
            lambda: F.conv2d(x, w, None, stride, padding, dilation, groups),
        ),
        "dgrad": (
            lambda: ops.multiply(
                ops.Product("conv_dgrad", g, w, x.shape, conv), how(Role.DGRAD), backend
            ),
            lambda: backward([True, False, False]),
        ),
        "wgrad": (
            lambda: ops.multiply(
                ops.Product("conv_wgrad", x, g, w.shape, conv), how(Role.WGRAD), backend
            ),
            lambda: backward([False, True, False]),
        ),
    }
    run, baseline = runs[gemm]
    baselines = {"torch": baseline}
    if "gemm" in case.baselines:
        # The baseline is the rate that the same accumulator reaches on a matrix product.
        a, b = _operand(case, device, _GEMM, _GEMM), _operand(case, device, _GEMM, _GEMM)
        baselines["gemm"] = lambda: lp.matmul(a, b, acc, generator=seed, backend=backend)
    # Taps on padding and between strides are no work: the same count for the three products.
    work = y.numel() * c_in // groups * kernel**2
    return Job(lambda: [run()], baselines, work, "GMAC/s", {"gemm": float(_GEMM**3)})


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """The environment with `name` set: what modules and kernels read at each call."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _fp8(accumulator: str) -> lp.Recipe:
    sums = dict.fromkeys(("fprop", "dgrad", "wgrad"), accumulator)
    return lp.Recipe(input="e4m3fn_sat", weight="e4m3fn_sat", grad_output="e5m2_sat", **sums)


#: Recipes of FP8 operands: one with chunks on tensor cores, one with every multiply-add rounded.
_RECIPES = {
    "fp8_native64": _fp8("native_chunk64:outer=e6m9"),
    "fp8_mac_e6m9": _fp8("e6m9"),
}


def _model(depth: int, width: int) -> nn.Module:
    """A ResNet for images of 32 x 32. It is the one of He et al. 2016, section 4.2; with 18 layers
    it is the one of their table 1 with a first layer for small images."""
    task = Task("images", (3, 32, 32), 10)
    if depth != 18:
        return build_model(f"resnet{depth}", task, width=width)
    return build_model("resnet18", task).to(memory_format=torch.channels_last)


def _train_step(case: Case, device: str, backend: str) -> Job:
    batch, depth, width, image = case.shape
    x = _operand(case, device, batch, 3, image, image)
    if depth == 18:
        x = x.contiguous(memory_format=torch.channels_last)
    labels = (torch.arange(batch) % 10).to(device)

    def step_of(recipe: str | None) -> Callable[[], list[Tensor]]:
        with torch.random.fork_rng():
            torch.manual_seed(SEED)
            model = _model(depth, width).to(device)
        if recipe is not None:
            lp.convert(model, _RECIPES.get(recipe) or lp.recipe(recipe))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def step() -> list[Tensor]:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
            return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

        return step

    emulated = step_of(case.spec)

    def run() -> list[Tensor]:
        with _variable("LPKERNELS_BACKEND", backend):
            return emulated()

    return Job(run, {"torch": step_of(None)}, batch, "images/s")


_BUILDERS: dict[str, Callable[[Case, str, str], Job]] = {
    "matmul": _matmul,
    "scaled_matmul": _scaled_matmul,
    "quantize": lambda *call: _quantize(*call, into=False),
    "quantize_out": lambda *call: _quantize(*call, into=True),
    "pack": lambda *call: _codes(*call, unpack=False),
    "unpack": lambda *call: _codes(*call, unpack=True),
    "quantize_counting": lambda *call: _count(*call, into=True, bins=0),
    "quantize_histogram": lambda *call: _count(*call, into=True, bins=ops.BINS),
    "count": lambda *call: _count(*call, into=False, bins=0),
    "count_histogram": lambda *call: _count(*call, into=False, bins=ops.BINS),
    "conv_fprop": lambda *call: _conv(*call, gemm="fprop"),
    "conv_dgrad": lambda *call: _conv(*call, gemm="dgrad"),
    "conv_wgrad": lambda *call: _conv(*call, gemm="wgrad"),
    "train_step": _train_step,
}
