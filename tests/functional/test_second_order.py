"""Second derivatives: torch's under wide sums, and the contract's to the bit."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import lpkernels as lp
from lpkernels import functional as LF
from lpkernels.arithmetic.by_product import along_axis
from lpkernels.reference import twin
from lpkernels.rng import SECOND_OF_DW, SECOND_OF_DX, Role, derive_seed
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import ACCUMULATORS_ONLY, DETERMINISTIC, STOCHASTIC
from tests.functional.scaled_layers import PRETRAINING, SQUARE, K
from tests.support.autograd import SEED, Steps, how, leaves, transposed

WIDE = lp.Recipe(fprop="fp32", dgrad="fp32", wgrad="fp32")
# Norms and softmax have no recipe of sums alone that is not torch's in one tensor.
NEAR = lp.Recipe(input="e8m22", grad_output="e8m22", fprop="fp32", dgrad="fp32", wgrad="fp32")
STRIDES = {"stride": 2, "padding": 1, "groups": 2}
TRANSPOSED = {**STRIDES, "output_padding": 1}
LAYERS = [
    ("linear", LF.linear, F.linear, {}, [(5, 3, 8), (6, 8), (6,)]),
    ("linear of a vector", LF.linear, F.linear, {}, [(8,), (6, 8), (6,)]),
    ("conv1d", LF.conv1d, F.conv1d, STRIDES, [(3, 4, 7), (6, 2, 3), (6,)]),
    ("conv2d", LF.conv2d, F.conv2d, STRIDES, [(3, 4, 7, 6), (6, 2, 3, 3), (6,)]),
    ("transposed", LF.conv_transpose2d, F.conv_transpose2d, TRANSPOSED,
     [(3, 4, 5, 4), (4, 3, 3, 3), (6,)]),
    ("bmm", LF.bmm, torch.bmm, {}, [(3, 4, 5), (3, 5, 2)]),
    ("broadcast", lp.matmul, torch.matmul, {}, [(2, 1, 4, 5), (3, 5, 2)]),
    ("baddbmm", LF.baddbmm, torch.baddbmm, {"alpha": 0.5, "beta": 2.0},
     [(1, 2), (3, 4, 5), (3, 5, 2)]),
    ("bilinear", LF.bilinear, F.bilinear, {}, [(3, 2, 4), (3, 2, 5), (6, 4, 5), (6,)]),
    ("einsum", lambda a, b, **o: LF.einsum("nij,kj->nk", a, b, **o),
     lambda a, b: torch.einsum("nij,kj->nk", a, b), {}, [(3, 2, 5), (4, 5)]),
    ("attention", LF.scaled_dot_product_attention, F.scaled_dot_product_attention, {},
     [(2, 4, 5), (2, 6, 5), (2, 6, 3)]),
    ("matmul with an accumulator", lambda a, b, recipe: lp.matmul(a, b, "fp32"), torch.matmul, {},
     [(2, 1, 4, 5), (3, 5, 2)]),
    ("matmul with an initial", lambda a, b, c, recipe: lp.matmul(a, b, "fp32", initial=c),
     lambda a, b, c: a @ b + c, {}, [(4, 5), (5, 2), (2,)]),
    ("lstm cell", lambda x, h, c, u, w, **o: LF.lstm_cell(x, (h, c), u, w, **o)[0],
     lambda x, h, c, u, w: torch.lstm_cell(x, (h, c), u, w)[0], {},
     [(3, 4), (3, 2), (3, 2), (8, 4), (8, 2)]),
]  # fmt: skip
WITHOUT_PRODUCTS = [
    ("softmax", lambda x, **o: LF.softmax(x, 1, **o), lambda x: F.softmax(x, 1), {}, [(4, 5, 3)]),
    ("layer norm", lambda x, *p, **o: LF.layer_norm(x, (5, 3), *p, **o),
     lambda x, *p: F.layer_norm(x, (5, 3), *p), {}, [(4, 5, 3), (5, 3), (5, 3)]),
    ("layer norm alone", lambda x, **o: LF.layer_norm(x, (5,), **o),
     lambda x: F.layer_norm(x, (5,)), {}, [(4, 5)]),
    ("rms norm", lambda x, w, **o: LF.rms_norm(x, (5,), w, **o),
     lambda x, w: F.rms_norm(x, (5,), w), {}, [(4, 5), (5,)]),
    ("group norm", lambda x, *p, **o: LF.group_norm(x, 2, *p, **o),
     lambda x, *p: F.group_norm(x, 2, *p), {}, [(4, 6, 3), (6,), (6,)]),
    ("batch norm", lambda x, *p, **o: LF.batch_norm(x, None, None, *p, True, **o),
     lambda x, *p: F.batch_norm(x, None, None, *p, True), {}, [(4, 6, 3), (6,), (6,)]),
    ("batch norm in evaluation",
     lambda x, *p, **o: LF.batch_norm(x, torch.ones(6), torch.full((6,), 2.0), *p, **o),
     lambda x, *p: F.batch_norm(x, torch.ones(6), torch.full((6,), 2.0), *p), {},
     [(4, 6, 3), (6,), (6,)]),
]  # fmt: skip


def by_autograd(f: Callable[..., Tensor], tensors: list[Tensor], again: bool) -> Any:
    return torch.autograd.grad(f(*tensors), tensors, create_graph=again)


def by_transforms(f: Callable[..., Tensor], tensors: list[Tensor], again: bool) -> Any:
    return torch.func.grad(f, tuple(range(len(tensors))))(*tensors)


def second_derivatives(
    call: Callable[..., Tensor], tensors: list[Tensor], gradient: Any = by_autograd
) -> list[Tensor]:
    """The gradients of a function of the result, of all gradients and of their products."""
    generator = torch.Generator().manual_seed(4)

    def read(x: Tensor) -> Tensor:
        return (x * torch.randn(x.shape, generator=generator)).sum() + x.square().sum()

    def of_result(*tensors: Tensor) -> Tensor:
        return read(call(*tensors))

    def of_gradients(*tensors: Tensor) -> Any:
        return sum(map(read, gradient(of_result, list(tensors), True)))

    return list(gradient(of_gradients, tensors, False))


@pytest.mark.parametrize("are_leaves", [True, False], ids=["leaves", "results"])
@pytest.mark.parametrize(
    "name, call, torchs, options, shapes",
    [pytest.param(*row, id=row[0]) for row in (*LAYERS, *WITHOUT_PRODUCTS)],
)
def test_wide_sums_have_torchs_second_derivatives(
    name: str, call: Any, torchs: Any, options: Any, shapes: Any, are_leaves: bool
) -> None:
    torch.manual_seed(0)
    recipe = NEAR if (name, call, torchs, options, shapes) in WITHOUT_PRODUCTS else WIDE
    tensors = leaves(*shapes)
    if not are_leaves:
        tensors = [x * 1.5 for x in tensors]
    got = second_derivatives(lambda *xs: call(*xs, recipe=recipe, **options), tensors)
    want = second_derivatives(lambda *xs: torchs(*xs, **options), tensors)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5 * b.abs().max().item())


@pytest.mark.parametrize(
    "call, options, shapes",
    [pytest.param(row[1], *row[3:], id=row[0]) for row in (*LAYERS, *WITHOUT_PRODUCTS)],
)
def test_torchs_transforms_have_the_bits_of_autograd(call: Any, options: Any, shapes: Any) -> None:
    torch.manual_seed(0)
    tensors = leaves(*shapes)
    take = partial(call, recipe=DETERMINISTIC, **options)
    want = second_derivatives(take, tensors)
    got = second_derivatives(take, [x.detach() for x in tensors], by_transforms)
    for a, b in zip(got, want, strict=True):
        assert_bit_equal(a, b)


def of_gradients(
    call: Callable[..., Tensor], tensors: list[Tensor], count: int = 2
) -> tuple[list[Tensor], list[np.ndarray]]:
    """The gradients that reach the result's gradient and the first tensors from the gradients of
    all tensors, and the arrays (tensors, g, then what comes in for each gradient)."""
    y = call(*tensors)
    torch.manual_seed(2)
    g = torch.randn_like(y, requires_grad=True)
    first = torch.autograd.grad(y, tensors, g, create_graph=True)
    incoming = [torch.randn_like(x) for x in first]
    got = torch.autograd.grad(first, [g, *tensors[:count]], incoming)
    return list(got), [x.detach().numpy() for x in (*tensors, g, *incoming)]


def rounded_as(steps: Steps, x: np.ndarray, quantizer: Any, role: Role) -> np.ndarray:
    """x by a quantizer with the draws of a role."""
    x = np.ascontiguousarray(x)
    return (
        x if quantizer is None else twin.quantize(x, quantizer, seed=derive_seed(steps.seed, role))
    )


def contracts(recipe: lp.Recipe, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The gradients of g, x and w that the contract says, for matrices x and w and a bias."""
    x, w, _, g, v, u, t = arrays
    first = Steps(recipe)
    gq, xq, wq = (
        first.rounded(g, "grad_output"),
        first.rounded(x, "input"),
        first.rounded(w, "weight"),
    )
    of_v, of_u = (Steps(recipe, derive_seed(SEED, key)) for key in (SECOND_OF_DX, SECOND_OF_DW))
    vq = rounded_as(of_v, v, recipe.grad_output, Role.INPUT)
    uq = rounded_as(of_u, u, recipe.grad_output, Role.WEIGHT)
    dg = of_v.matmul(vq, transposed(wq), "fprop") + of_u.matmul(xq, transposed(uq), "fprop")
    dx = of_u.rounded(of_u.matmul(gq, uq, "dgrad"), "grad_input")
    dw = of_v.rounded(of_v.matmul(transposed(gq), vq, "wgrad"), "grad_weight")
    return [dg + t, dx, dw]


@pytest.mark.parametrize("backend", ["reference", "cpu", "auto"])
@pytest.mark.parametrize("recipe", [DETERMINISTIC, STOCHASTIC, ACCUMULATORS_ONLY], ids="dsa")
@pytest.mark.parametrize("are_leaves", [True, False], ids=["leaves", "results"])
def test_every_product_is_rounded_as_that_of_its_place(
    recipe: lp.Recipe, backend: str, are_leaves: bool
) -> None:
    torch.manual_seed(0)
    tensors = leaves((5, 7), (6, 7), (6,))
    if not are_leaves:
        tensors = [x * 1.5 for x in tensors]
    got, arrays = of_gradients(lambda *xs: LF.linear(*xs, recipe=recipe, **how(backend)), tensors)
    for a, b in zip(got, contracts(recipe, arrays), strict=True):
        assert_bit_equal(a, b)


@pytest.mark.parametrize("options", [STRIDES, TRANSPOSED], ids=["conv", "transposed"])
def test_the_products_of_convolutions_are_their_three_passes(options: dict[str, int]) -> None:
    call = LF.conv_transpose2d if options is TRANSPOSED else LF.conv2d
    torch.manual_seed(0)
    tensors = leaves((2, 4, 5, 5), (4, 3, 3, 3) if options is TRANSPOSED else (6, 2, 3, 3), (6,))
    run: Any = lambda recipe: lambda *xs: call(*xs, recipe=recipe, **options)  # noqa: E731
    got, arrays = of_gradients(run(DETERMINISTIC), tensors)
    x, w, _, g, v, u, t = map(torch.tensor, arrays)
    fields = {name: getattr(DETERMINISTIC, name) for name in ("fprop", "dgrad", "wgrad")}
    sums = lp.Recipe(**fields)
    rounded = {name: lp.quantize(s, getattr(DETERMINISTIC, name)) for name, s in
               (("input", x), ("weight", w), ("grad_output", g))}  # fmt: skip
    vq, uq = (lp.quantize(s, DETERMINISTIC.grad_output) for s in (v, u))
    dg = run(sums)(vq, rounded["weight"]) + run(sums)(rounded["input"], uq)
    vq.requires_grad_()
    uq.requires_grad_()
    gq = rounded["grad_output"]
    (dx,) = torch.autograd.grad(run(sums)(x.requires_grad_(), uq.detach()), x, gq)
    (dw,) = torch.autograd.grad(run(sums)(vq.detach(), w.requires_grad_()), w, gq)
    assert_bit_equal(got[0], dg.detach() + t.reshape(-1, 1, 1))
    assert_bit_equal(got[1], lp.quantize(dx, DETERMINISTIC.grad_input))
    assert_bit_equal(got[2], lp.quantize(dw, DETERMINISTIC.grad_weight))


@pytest.mark.parametrize("acc", ["e5m7", "e5m7_chunk2:stochastic"])
def test_matmul_makes_every_product_in_its_accumulator(acc: str) -> None:
    torch.manual_seed(0)
    tensors = leaves((4, 5), (5, 3))
    got, (a, b, g, v, u) = of_gradients(lambda *xs: lp.matmul(*xs, acc, **how()), tensors)
    of_v, of_u = (derive_seed(SEED, key) for key in (SECOND_OF_DX, SECOND_OF_DW))
    acc = lp.accumulator(acc)

    def product(x: np.ndarray, y: np.ndarray, seed: int, role: Role) -> np.ndarray:
        x, y = np.ascontiguousarray(x), np.ascontiguousarray(y)
        return twin.matmul(x, y, None, acc, seed=derive_seed(seed, role))

    dg = product(v, b, of_v, Role.DIRECT) + product(a, u, of_u, Role.DIRECT)
    da = product(g, u.T, of_u, Role.DGRAD)
    db = product(g.T, v, of_v, Role.WGRAD).T
    for x, want in zip(got, (dg, da, db), strict=True):
        assert_bit_equal(x, np.ascontiguousarray(want))


def test_alpha_multiplies_every_sum() -> None:
    torch.manual_seed(0)
    tensors = leaves((3, 4, 5), (3, 5, 2))
    by_alpha, _ = of_gradients(
        lambda *xs: LF.baddbmm(torch.zeros(1), *xs, alpha=4.0, recipe=ACCUMULATORS_ONLY), tensors
    )
    alone, _ = of_gradients(lambda *xs: LF.bmm(*xs, recipe=ACCUMULATORS_ONLY), tensors)
    for a, b in zip(by_alpha, alone, strict=True):
        assert_bit_equal(a, 4 * b)


def along(x: Tensor, fmt: str, axis: int) -> Tensor:
    """The values of codes along the sum, which runs along this axis."""
    return lp.quantize(x, along_axis(lp.parse_format(fmt), axis))


SUMS = {"fprop": "e6m12", "dgrad": "e6m10", "wgrad": "e6m8"}


@pytest.mark.parametrize("requantize", ["source", "codes"])
@pytest.mark.parametrize("packs", [True, False])
def test_codes_along_another_dimension_are_made_of_what_the_first_product_read(
    requantize: str, packs: bool
) -> None:
    fields = dict.fromkeys(("input", "weight", "grad_output"), K)
    recipe = lp.Recipe(**fields, **SUMS, requantize=requantize)
    torch.manual_seed(0)
    tensors = leaves((2, 32, 64), (32, 64), (32,))
    with LF.packed_activations(packs):
        got, arrays = of_gradients(lambda *xs: LF.linear(*xs, recipe=recipe), tensors)
    x, w, _, g, v, u, t = map(torch.tensor, arrays)
    rows, of_g, of_v = (s.flatten(0, -2) for s in (x, g, v))
    codes = requantize == "codes"
    w_read = along(along(w, K, -1) if codes else w, K, -2)
    x_read = along(along(rows, K, -1) if codes else rows, K, -2)
    g_of_dgrad, g_of_wgrad = along(of_g, K, -1), along(of_g, K, -2)
    dg = lp.matmul(along(of_v, K, -1), along(w_read, K, -1).t(), SUMS["fprop"])
    dg = dg + lp.matmul(along(x_read, K, -1), along(u, K, -1).t(), SUMS["fprop"])
    dx = lp.matmul(along(g_of_wgrad, K, -1), along(u, K, -2), SUMS["dgrad"])
    dw = lp.matmul(along(g_of_dgrad, K, -2).t(), along(of_v, K, -2), SUMS["wgrad"])
    assert_bit_equal(got[0], dg.reshape(g.shape) + t)
    assert_bit_equal(got[1], dx.reshape(x.shape))
    assert_bit_equal(got[2], dw)


def test_operands_with_scales_are_those_of_the_place() -> None:
    """Sums by scale take the format of the place, and square tiles as they were read."""
    acc = "fp32_chunkscale"
    recipe = lp.Recipe(
        input=K, weight="tile32x32_k_e4m3_up", grad_output="block32_k_e5m2_up",
        fprop=acc, dgrad=acc, wgrad=acc,
    )  # fmt: skip
    torch.manual_seed(0)
    tensors = leaves((32, 64), (32, 64))
    got, arrays = of_gradients(lambda *xs: LF.linear(*xs, recipe=recipe), tensors)
    x, w, g, v, u = map(torch.tensor, arrays)
    tiles, blocks, of_g = "tile32x32_e4m3_up", "block32_axis{}_e4m3_up", "block32_axis{}_e5m2_up"

    def scaled(x: Tensor, fmt: str, axis: int = -1) -> Any:
        return lp.scaled(x, fmt.format(axis))

    def again(x: Tensor, fmt: str, axis: int) -> Any:
        """Codes along an axis of the values of codes along the other one."""
        return scaled(scaled(x, fmt, -3 - axis).dequantize(), fmt, axis)

    first = lp.matmul(scaled(v, blocks), scaled(w.t().contiguous(), tiles), acc)
    second = lp.matmul(again(x, blocks, -1), scaled(u.t().contiguous(), tiles), acc)
    assert_bit_equal(got[0], first + second)
    assert_bit_equal(got[1], lp.matmul(again(g, of_g, -1), scaled(u, tiles), acc))
    gt = again(g.t().contiguous(), of_g, -1)
    assert_bit_equal(got[2], lp.matmul(gt, scaled(v, blocks, -2), acc))


@pytest.mark.parametrize(
    "name", ["mxfp4_sr", "nvfp4", "nvfp4_pretraining", "deepseek_v3", "te_block"]
)
def test_scaled_recipes_come_near(name: str) -> None:
    """Transforms too are undone and made again: an operand in other coordinates would be noise."""
    torch.manual_seed(0)
    tensors = [x * 1.0 for x in leaves((2, 128, 128), (128, 128), (128,))]
    got = second_derivatives(lambda *xs: LF.linear(*xs, recipe=name), tensors)
    for a, b in zip(got, second_derivatives(F.linear, tensors), strict=True):
        assert (a - b).norm() < 0.25 * b.norm()


@pytest.mark.parametrize("recipe", [PRETRAINING, lp.Recipe(weight=SQUARE, input=K, grad_output=K)])
def test_operands_that_are_broadcast_come_near(recipe: lp.Recipe) -> None:
    torch.manual_seed(0)
    tensors = leaves((2, 1, 64, 64), (3, 64, 64))
    got = second_derivatives(lambda *xs: lp.matmul(*xs, recipe=recipe), tensors)
    for a, b in zip(got, second_derivatives(torch.matmul, tensors), strict=True):
        assert (a - b).norm() < 0.25 * b.norm()
