"""Products of matrices and passes of convolutions: operands, and the bits that a backend gives."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic import Accumulator
from lpkernels.arithmetic.products import output_size
from lpkernels.backends import NOT_FUSED, Fused
from tests.cases import ConvCase, accumulators_named
from tests.compare import assert_bit_equal

SEED, ROLE = torch.tensor(-1234567890123456789), 4
PASSES = ("fprop", "dgrad", "wgrad")
#: One accumulator for every family of kernels of the cuda backend.
KERNELS = accumulators_named("""
    fp32 e5m10 e6m9_chunk5:outer=e5m7 e4m3fn_sat e5m7_chunk16:toward_zero e6m9_chunk8:stochastic
    e6m9_chunk8:stochastic:outer_rounding=nearest_even
    e5m5_chunk7:stochastic:product=e4m3:product_rounding=stochastic
""")
Make = Callable[[tuple[int, ...]], Tensor]
#: x, w, dy and the bias of a convolution.
Tensors = tuple[Tensor, Tensor, Tensor, Tensor]


def in_sequence(acc: Accumulator) -> bool:
    """Whether products are added in sequence and in chunks: csrc/cuda makes these sums alone."""
    return acc.order == "sequential" and acc.block is None


def few_bits(shape: tuple[int, ...]) -> Tensor:
    return torch.randint(-7, 8, shape) * torch.exp2(torch.randint(-4, 3, shape))


def special(shape: tuple[int, ...]) -> Tensor:
    """Values of few bits, zeros of both signs, an infinity, a NaN, a subnormal."""
    x = few_bits(shape).float()
    if x.numel() > 8:
        at = torch.randint(0, x.numel(), (4,))
        x.view(-1)[at] = torch.tensor([-0.0, float("inf"), -float("nan"), 1e-45])
    return x


def lanes_of_all_kinds(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Values in lanes that are, in turn, moderate, 2^80 apart, huge and special."""
    x = torch.randn(shape, generator=generator)
    lanes = x.unsqueeze(0) if x.dim() == 1 else x
    wide = torch.randint(-40, 40, lanes.shape, generator=generator).float()
    lanes[..., 1::4, :] *= torch.exp2(wide)[..., 1::4, :]
    lanes[..., 2::4, :] *= 3e37
    special = lanes[..., 3::4, :]
    choice = torch.rand(special.shape, generator=generator)
    for limit, value in ((0.5, -0.0), (0.3, 1e-45), (0.2, float("inf")), (0.1, float("nan"))):
        special[choice < limit] = value
    return x


def sums_in_float32(acc: Accumulator) -> Accumulator:
    """An accumulator in sequence with the same bits as exact native chunks."""
    return Accumulator("fp32", chunk=acc.chunk, outer=acc.outer, outer_rounding=acc.rounding)


def assert_product(
    backend: Any, a: Tensor, b: Tensor, acc: Accumulator, device: str = "cpu", *,
    bias: Tensor | None = None, initial: Tensor | None = None, fused: Fused = NOT_FUSED,
    seed: Tensor | None = SEED, role: int = ROLE, by: str = "reference",
    like: Accumulator | None = None, name: str = "",
) -> None:  # fmt: skip
    """The backend's product of a and b on a device has the bits of the product that another backend
    makes on the CPU, with the accumulator `like` if there is one."""
    product, how = ops.matmul_of(a, b, bias, initial), ops.How(acc.to_ints(), seed, role, fused)
    want = ops.multiply(product, how._replace(acc=(like or acc).to_ints()), by)
    *tensors, seed = (None if x is None else x.to(device) for x in (a, b, bias, initial, seed))
    got = backend.multiply(ops.matmul_of(*tensors), how._replace(seed=seed))
    assert got.device.type == device
    assert_bit_equal(got, want, f"{name} {tuple(a.shape)} @ {tuple(b.shape)} {acc} {fused}")


def output_shape(case: ConvCase) -> tuple[int, ...]:
    x, w, *geometry, _ = case
    return (x[0], w[0], *output_size(x[2:], w[2:], *geometry))


def tensors_of(case: ConvCase, make: Make = special) -> Tensors:
    shapes = (case.input_shape, case.weight_shape, output_shape(case), case.weight_shape[:1])
    x, w, dy, bias = (make(shape).float() for shape in shapes)
    return x, w, dy, bias


def convolve(
    backend: Any, name: str, case: ConvCase, tensors: Tensors, acc: Accumulator,
    fused: Fused = NOT_FUSED, seed: Tensor | None = SEED,
) -> Tensor:  # fmt: skip
    """A pass by a backend, or by the operators if `backend` is a name."""
    x, w, dy, bias = tensors
    conv = ops.Convolution(case.stride, case.padding, case.dilation, case.groups)
    product = {
        "fprop": lambda: ops.fprop_of(x, w, bias, conv),
        "dgrad": lambda: ops.Product("conv_dgrad", dy, w, case.input_shape, conv),
        "wgrad": lambda: ops.Product("conv_wgrad", x, dy, case.weight_shape, conv),
    }[name]()
    how = ops.How(acc.to_ints(), seed, ROLE, fused)
    if isinstance(backend, str):
        return ops.multiply(product, how, backend)
    return backend.multiply(product, how)


def assert_pass(
    backend: Any, name: str, case: ConvCase, tensors: Tensors, acc: Accumulator,
    device: str = "cpu", *, fused: Fused = NOT_FUSED, by: str = "reference",
    like: Accumulator | None = None,
) -> None:  # fmt: skip
    """The backend's pass on a device has the bits of the pass that another backend makes of
    contiguous copies on the CPU, with the accumulator `like` if there is one."""
    x, w, dy, bias = (t.contiguous() for t in tensors)
    want = convolve(by, name, case, (x, w, dy, bias), like or acc, fused)
    x, w, dy, bias = (t.to(device) for t in tensors)
    got = convolve(backend, name, case, (x, w, dy, bias), acc, fused, SEED.to(device))
    assert got.device.type == device
    assert_bit_equal(got, want, f"{name} {case} {acc} {fused}")
