"""conv1d, conv2d, conv3d: values and gradients against the reference, and torch's conventions."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import lpkernels as lp
from lpkernels.reference import twin
from lpkernels.rng import SITE_OUTPUT, SITE_QUANTIZE, Role, derive_seed
from tests.cases import CONV_CASES, ConvCase
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, RECIPES, STOCHASTIC

SEED = 987654321
CONV = {1: lp.functional.conv1d, 2: lp.functional.conv2d, 3: lp.functional.conv3d}
TORCH_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def operands(case: ConvCase) -> Operands:
    """x, weight and bias that require gradients."""
    x = torch.randn(case.input_shape, requires_grad=True)
    w = torch.randn(case.weight_shape, requires_grad=True)
    return x, w, torch.randn(case.weight_shape[0], requires_grad=True)


def small_operands() -> Operands:
    return operands(CONV_CASES["conv2d_groups"])


def numbers(case: ConvCase) -> tuple[Any, ...]:
    return case.stride, case.padding, case.dilation, case.groups


def gradients(y: torch.Tensor, tensors: Operands, seed: int = 3) -> list[torch.Tensor]:
    """y and the gradients of tensors, for one fixed output gradient."""
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed))
    return [y.detach(), *torch.autograd.grad(y, tensors, g)]


def expected(case: ConvCase, tensors: Operands, recipe: lp.Recipe) -> list[np.ndarray]:
    """y, dx, dw, db composed of the reference's own quantize, conv and matmul."""

    def rounded(a: np.ndarray, quantizer: Any, role: Role, site: int = SITE_QUANTIZE) -> Any:
        seed = derive_seed(SEED, role)
        return a if quantizer is None else twin.quantize(a, quantizer, seed=seed, site=site)

    def seed(role: Role) -> dict[str, int]:
        return {"seed": derive_seed(SEED, role)}

    x, w, b = (t.detach().numpy() for t in tensors)
    xq, wq = rounded(x, recipe.input, Role.INPUT), rounded(w, recipe.weight, Role.WEIGHT)
    bq = rounded(b, recipe.bias, Role.BIAS)
    y = twin.conv_fprop(xq, wq, bq, *numbers(case), recipe.fprop, **seed(Role.FPROP))
    y = rounded(y, recipe.output, Role.OUTPUT, SITE_OUTPUT)
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(3)).numpy()
    gq = rounded(g, recipe.grad_output, Role.GRAD_OUTPUT)
    dx = twin.conv_dgrad(gq, wq, x.shape, *numbers(case), recipe.dgrad, **seed(Role.DGRAD))
    dw = twin.conv_wgrad(xq, gq, w.shape, *numbers(case), recipe.wgrad, **seed(Role.WGRAD))
    rows = np.ascontiguousarray(np.moveaxis(gq, 1, -1)).reshape(-1, w.shape[0])
    ones = np.ones((1, len(rows)), np.float32)
    db = twin.matmul(ones, rows, None, recipe.wgrad, **seed(Role.GRAD_BIAS))
    return [
        y,
        rounded(dx, recipe.grad_input, Role.GRAD_INPUT),
        rounded(dw, recipe.grad_weight, Role.GRAD_WEIGHT),
        db.reshape(-1),
    ]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("case", CONV_CASES.values(), ids=CONV_CASES)
def test_conv_equals_the_composition_of_the_reference(
    recipe: lp.Recipe, case: ConvCase, backend: str
) -> None:
    tensors, seed = operands(case), torch.tensor(SEED)
    conv = CONV[len(case.stride)]
    y = conv(*tensors, *numbers(case), recipe=recipe, generator=seed, backend=backend)
    want = expected(case, tensors, recipe)
    for name, a, c in zip(("y", "dx", "dw", "db"), gradients(y, tensors), want, strict=True):
        assert_bit_equal(a, c, name)


@pytest.mark.parametrize("case", CONV_CASES.values(), ids=CONV_CASES)
def test_conv_without_rounding_is_torch_within_fp32(case: ConvCase, backend: str) -> None:
    sums = lp.Recipe(input="fp32", fprop="fp32", dgrad="fp32", wgrad="fp32")
    tensors, dims = operands(case), len(case.stride)
    got = CONV[dims](*tensors, *numbers(case), recipe=sums, backend=backend)
    want = TORCH_CONV[dims](*tensors, *numbers(case))
    for a, c in zip(gradients(got, tensors), gradients(want, tensors), strict=True):
        torch.testing.assert_close(a, c, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CONV_CASES.values(), ids=CONV_CASES)
def test_conv_with_native_products_is_torch_on_quantised_operands(case: ConvCase) -> None:
    recipe = lp.Recipe(input="e4m3", weight="e5m2", grad_output="e5m2")
    tensors, conv = operands(case), TORCH_CONV[len(case.stride)]
    got = gradients(CONV[len(case.stride)](*tensors, *numbers(case), recipe=recipe), tensors)
    rounded = (
        lp.quantize(tensors[0], "e4m3").detach().requires_grad_(),
        lp.quantize(tensors[1], "e5m2").detach().requires_grad_(),
        tensors[2],
    )
    y = conv(*rounded, *numbers(case))
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(3))
    want = [y, *torch.autograd.grad(y, rounded, lp.quantize(g, "e5m2"))]
    for a, c in zip(got, want, strict=True):
        torch.testing.assert_close(a, c, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("native", ["fprop", "dgrad", "wgrad"])
def test_conv_each_product_has_its_own_accumulator(native: str) -> None:
    fields = {"fprop": "e5m7", "dgrad": "e5m6", "wgrad": "e5m5"}
    tensors, case = small_operands(), CONV_CASES["conv2d_groups"]

    def run(recipe: lp.Recipe) -> list[torch.Tensor]:
        return gradients(lp.functional.conv2d(*tensors, *numbers(case), recipe=recipe), tensors)

    mixed, emulated = run(lp.Recipe(**{**fields, native: lp.NATIVE})), run(lp.Recipe(**fields))
    of = {"fprop": (0,), "dgrad": (1,), "wgrad": (2, 3)}[native]
    for i, (got, rounded, plain) in enumerate(zip(mixed, emulated, run(lp.Recipe()), strict=True)):
        if i in of:
            torch.testing.assert_close(got, plain, rtol=1e-5, atol=1e-5)
        else:
            assert_bit_equal(got, rounded)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("kernel, dilation", [(3, 1), (2, 1), (4, 3)], ids=str)
def test_conv_same_padding_is_torchs(dims: int, kernel: int, dilation: int) -> None:
    sums = lp.Recipe(fprop="fp32", dgrad="fp32", wgrad="fp32")
    sizes = (kernel, 3, kernel)[:dims]
    case = ConvCase((2, 2, 6, 5, 7)[: dims + 2], (3, 2, *sizes), (1,) * dims, (), (), 1)
    tensors = operands(case)
    got = CONV[dims](*tensors, 1, "same", dilation, recipe=sums)
    want = TORCH_CONV[dims](*tensors, 1, "same", dilation)
    for a, c in zip(gradients(got, tensors), gradients(want, tensors), strict=True):
        torch.testing.assert_close(a, c, rtol=1e-5, atol=1e-5)


def test_conv_valid_padding_is_none() -> None:
    x, w, b = small_operands()
    got = lp.functional.conv2d(x, w, b, padding="valid", groups=2, recipe=DETERMINISTIC)
    assert_bit_equal(got, lp.functional.conv2d(x, w, b, groups=2, recipe=DETERMINISTIC))


def test_conv_sizes_may_be_one_number() -> None:
    x, w, b = small_operands()
    got = lp.functional.conv2d(x, w, b, 2, [1], (1,), 2, recipe=DETERMINISTIC)
    want = lp.functional.conv2d(x, w, b, (2, 2), (1, 1), (1, 1), 2, recipe=DETERMINISTIC)
    assert_bit_equal(got, want)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_conv_without_a_batch_dimension(dims: int) -> None:
    x, w = torch.randn(1, 2, *(5,) * dims), torch.randn(3, 2, *(3,) * dims)
    got = CONV[dims](x[0], w, recipe=DETERMINISTIC)
    assert_bit_equal(got, CONV[dims](x, w, recipe=DETERMINISTIC)[0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_conv_fp32_recipe_is_torchs_own_function(dtype: torch.dtype) -> None:
    x, w, b = (t.to(dtype) for t in small_operands())
    got = lp.functional.conv2d(x, w, b, padding="same", groups=2, recipe="fp32")
    assert_bit_equal(got, F.conv2d(x, w, b, padding="same", groups=2))
    assert_bit_equal(lp.functional.conv2d(x, w, groups=2), F.conv2d(x, w, groups=2))


@pytest.mark.parametrize("needs", list(itertools.product([False, True], repeat=3)), ids=str)
def test_conv_computes_the_gradients_asked_for(needs: tuple[bool, ...]) -> None:
    def conv(*tensors: torch.Tensor) -> torch.Tensor:
        seed = torch.tensor(SEED)
        return lp.functional.conv2d(*tensors, groups=2, recipe=STOCHASTIC, generator=seed)

    tensors = small_operands()
    every = gradients(conv(*tensors), tensors)[1:]
    some = [t.detach().requires_grad_(n) for t, n in zip(tensors, needs, strict=True)]
    y = conv(*some)
    assert y.requires_grad == any(needs)
    if any(needs):
        y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(3)))
    for tensor, need, want in zip(some, needs, every, strict=True):
        assert (tensor.grad is not None) == need
        if need:
            assert_bit_equal(tensor.grad, want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_conv_widens_narrow_operands_exactly(dtype: torch.dtype) -> None:
    narrow = [t.detach().to(dtype).requires_grad_() for t in small_operands()]
    wide = [t.detach().float().requires_grad_() for t in narrow]

    def run(tensors: list[torch.Tensor], padding: str | int) -> list[torch.Tensor]:
        y = lp.functional.conv2d(*tensors, padding=padding, groups=2, recipe=DETERMINISTIC)
        return gradients(y, tensors)

    for padding in (1, "same"):
        got, want = run(narrow, padding), run(wide, padding)
        assert_bit_equal(got[0], want[0])
        for a, c in zip(got[1:], want[1:], strict=True):
            assert_bit_equal(a, c.to(dtype))


def test_conv_does_not_depend_on_the_memory_format(backend: str) -> None:
    tensors = small_operands()
    last = [t.detach().requires_grad_() for t in tensors]
    for i in (0, 1):
        last[i] = last[i].detach().contiguous(memory_format=torch.channels_last).requires_grad_()

    def run(each: Any) -> list[torch.Tensor]:
        y = lp.functional.conv2d(*each, groups=2, recipe=STOCHASTIC, backend=backend)
        return gradients(y, each)

    torch.manual_seed(1)
    want = run(tensors)
    torch.manual_seed(1)
    for a, c in zip(run(last), want, strict=True):
        assert_bit_equal(a, c)


@pytest.mark.parametrize("order", ["sequential", "native"])
def test_conv_results_have_row_major_strides_where_a_size_is_one(backend: str, order: str) -> None:
    """The strides decide which kernel torch's batch norm picks, and so its last bits."""
    acc = lp.Accumulator(order=order, chunk=4, outer="e6m9")
    recipe = lp.Recipe(fprop=acc, dgrad=acc, wgrad=acc)
    x = torch.randn(2, 3, 1, 1, requires_grad=True)
    w = torch.randn(4, 3, 1, 1, requires_grad=True)
    y = lp.functional.conv2d(x, w, recipe=recipe, backend=backend)
    results = {"y": y, **dict(zip("xw", torch.autograd.grad(y.sum(), (x, w)), strict=True))}
    strides = {name: t.stride() for name, t in results.items()}
    assert strides == {"y": (4, 1, 1, 1), "x": (3, 1, 1, 1), "w": (3, 1, 1, 1)}


def test_conv_takes_an_expanded_gradient() -> None:
    tensors = small_operands()
    y = lp.functional.conv2d(*tensors, groups=2, recipe=DETERMINISTIC)
    want = torch.autograd.grad(y, tensors, torch.ones(y.shape), retain_graph=True)
    for a, c in zip(torch.autograd.grad(y.sum(), tensors), want, strict=True):
        assert_bit_equal(a, c)


def test_conv_result_can_be_changed_in_place() -> None:
    x, w, b = small_operands()
    for recipe in (lp.Recipe(input="e4m3"), DETERMINISTIC):
        for image in (x, x[0]):
            y = lp.functional.conv2d(image, w, b, groups=2, recipe=recipe)
            y.relu_().sum().backward()
    assert x.grad is not None


def test_conv_stochastic_repeats_under_manual_seed() -> None:
    tensors = small_operands()

    def run() -> list[torch.Tensor]:
        return gradients(lp.functional.conv2d(*tensors, groups=2, recipe=STOCHASTIC), tensors)

    torch.manual_seed(1)
    first, second = run(), run()
    torch.manual_seed(1)
    for a, c in zip(first, run(), strict=True):
        assert_bit_equal(a, c)
    assert not torch.equal(first[0], second[0])


def test_conv_compiles_into_one_graph() -> None:
    tensors = small_operands()

    def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return lp.functional.conv2d(x, w, b, padding="same", groups=2, recipe=STOCHASTIC)

    torch.manual_seed(1)
    want = gradients(layer(*tensors), tensors)
    torch.manual_seed(1)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for a, c in zip(gradients(compiled(*tensors), tensors), want, strict=True):
        assert_bit_equal(a, c)


@pytest.mark.parametrize(
    "recipe", [DETERMINISTIC, lp.Recipe(input="e4m3")], ids=["emulated", "native products"]
)
def test_conv_emulation_ignores_autocast(recipe: lp.Recipe) -> None:
    tensors = small_operands()
    want = gradients(lp.functional.conv2d(*tensors, groups=2, recipe=recipe), tensors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = gradients(lp.functional.conv2d(*tensors, groups=2, recipe=recipe), tensors)
    for a, c in zip(got, want, strict=True):
        assert_bit_equal(a, c)


X, W, B = torch.ones(2, 4, 5, 5), torch.ones(6, 2, 3, 3), torch.ones(6)


@pytest.mark.parametrize(
    "arguments, keywords, error, match",
    [
        ((X.double(), W, B), {}, TypeError, r"conv2d: x is float64.*quantize\(x, fmt\).float\(\)"),
        ((X, W.int(), B), {}, TypeError, r"weight must be float.*int32"),
        ((X[0, 0], W, B), {}, ValueError, r"x has shape \(5, 5\).*\(N, C_in, H, W\)"),
        ((X, W[0], B), {}, ValueError, r"weight \(2, 3, 3\)"),
        ((X, W, B), {"groups": 1}, ValueError, r"C_in=4 but weight has C_in / groups=2 with gro"),
        ((X, W, B), {"groups": 4}, ValueError, r"groups=4 with C_in=4 and C_out=6; expected"),
        ((X, W, B), {"groups": 0}, ValueError, r"groups=0 with"),
        ((X, W, B[:3]), {}, ValueError, r"bias has shape \(3,\).*must be \(6,\)"),
        ((X, W.to("meta"), B), {}, ValueError, r"one device.*weight on meta"),
        ((X, W, B), {"stride": 0}, ValueError, r"stride=0; expected an int or 2 ints, each at le"),
        ((X, W, B), {"dilation": (1, 1, 1)}, ValueError, r"dilation=\(1, 1, 1\); expected"),
        ((X, W, B), {"padding": -1}, ValueError, r"padding=-1; .* at least 0"),
        ((X, W, B), {"stride": 1.5}, TypeError, r"stride=1.5; expected an int or 2 ints"),
        ((X, W, B), {"padding": "full"}, ValueError, r"padding='full'; expected \"same\", \"valid"),
        ((X, W, B), {"padding": "same", "stride": 2}, ValueError, r"\"same\" needs stride 1"),
        ((X, W, B), {"dilation": 3}, ValueError, r"kernel \(3, 3\) .* spans \(7, 7\) .* \(5, 5\)"),
        ((X, W, B), {"recipe": "fp9"}, ValueError, r"unknown name 'fp9'"),
        ((X, W, B), {"backend": "gpu"}, ValueError, r"unknown backend 'gpu'"),
        ((X, W, B), {"generator": 3}, TypeError, r"generator must be a torch.Generator.*got int"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_conv_refuses_wrong_arguments(
    arguments: tuple[Any, ...], keywords: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        lp.functional.conv2d(*arguments, **{"recipe": DETERMINISTIC, "groups": 2, **keywords})
