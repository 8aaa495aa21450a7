"""Norms, softmax and GELU under a recipe."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lpkernels as lp
from lpkernels.reference import twin
from lpkernels.rng import SITE_OUTPUT, SITE_QUANTIZE, Role, derive_seed
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, RECIPES

SEED = 987654321
SUMS = lp.Recipe(fprop="fp32", dgrad="fp32", wgrad="fp32")
F = lp.functional
recipes = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


class Reference:
    """The steps of a call as the reference makes them, on tensors."""

    def __init__(self, recipe: lp.Recipe) -> None:
        self.recipe = recipe

    def rounded(self, x: torch.Tensor, field: str, site: int = SITE_QUANTIZE) -> torch.Tensor:
        quantizer = getattr(self.recipe, field)
        if quantizer is None:
            return x
        seed = derive_seed(SEED, Role[field.upper()])
        return torch.from_numpy(
            twin.quantize(x.contiguous().numpy(), quantizer, seed=seed, site=site)
        )

    def sums(self, a: torch.Tensor, b: torch.Tensor, product: str, role: str, index: int) -> Any:
        """The sum of a * b over each row."""
        seed = derive_seed(SEED if index == 0 else derive_seed(SEED, 15 + index), Role[role])
        left, right = (t.contiguous().numpy() for t in (a, b))
        if (b == 1).all():
            y = twin.matmul(
                left, right[:1].T.copy(), None, getattr(self.recipe, product), seed=seed
            )
        else:
            left, right = left[:, None], right[:, :, None].copy()
            y = twin.matmul(left, right, None, getattr(self.recipe, product), seed=seed)
        return torch.from_numpy(y.reshape(-1))


def expected_softmax(recipe: lp.Recipe, x: torch.Tensor, dy: torch.Tensor) -> list[torch.Tensor]:
    ref = Reference(recipe)
    e = ref.rounded(x[None], "input")[0]
    e = torch.exp(e - e.amax(1, keepdim=True))
    y = e / ref.sums(e, torch.ones_like(e), "fprop", "FPROP", 0)[:, None]
    g = ref.rounded(dy[None], "grad_output")[0]
    dx = y * (g - ref.sums(g, y, "dgrad", "DGRAD", 0)[:, None])
    out = ref.rounded(y[None], "output", SITE_OUTPUT)[0]
    return [out, ref.rounded(dx[None], "grad_input")[0]]


@recipes
def test_softmax_equals_the_composition_of_the_reference(recipe: lp.Recipe, backend: str) -> None:
    x, dy = torch.randn(4, 7, requires_grad=True), torch.randn(4, 7)
    y = F.softmax(x, 1, recipe=recipe, generator=torch.tensor(SEED), backend=backend)
    got = [y.detach(), torch.autograd.grad(y, x, dy)[0]]
    for a, c in zip(got, expected_softmax(recipe, x.detach(), dy), strict=True):
        assert_bit_equal(a, c)


Rows = Callable[[torch.Tensor], torch.Tensor]


def channels(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(0, 1).flatten(1)


def unchannelled(rows: torch.Tensor) -> torch.Tensor:
    return rows.reshape(6, 4, 5).transpose(0, 1)


# For x (4, 6, 5), each kind has the call, the rows that share a mean, the way back from them, the
# rows that share a weight, and the shape of the weight in x.
KINDS: dict[str, tuple[Any, Rows, Rows, Rows, tuple[int, ...]]] = {
    "layer": (
        lambda x, w, b, **o: F.layer_norm(x, (5,), w, b, 1e-3, **o),
        lambda x: x.reshape(-1, 5),
        lambda r: r.reshape(4, 6, 5),
        lambda x: x.reshape(-1, 5).t(),
        (5,),
    ),
    "rms": (
        lambda x, w, b, **o: F.rms_norm(x, (5,), w, 1e-3, **o),
        lambda x: x.reshape(-1, 5),
        lambda r: r.reshape(4, 6, 5),
        lambda x: x.reshape(-1, 5).t(),
        (5,),
    ),
    "group": (
        lambda x, w, b, **o: F.group_norm(x, 2, w, b, 1e-3, **o),
        lambda x: x.reshape(8, 15),
        lambda r: r.reshape(4, 6, 5),
        channels,
        (6, 1),
    ),
    "batch": (
        lambda x, w, b, **o: F.batch_norm(x, None, None, w, b, True, 0.1, 1e-3, **o),
        channels,
        unchannelled,
        channels,
        (6, 1),
    ),
}


def expected_norm(
    kind: str, recipe: lp.Recipe, x: Any, w: Any, b: Any, dy: torch.Tensor
) -> list[torch.Tensor]:
    ref = Reference(recipe)
    _, rows, unrowed, shared, shape = KINDS[kind]
    centred = kind != "rms"
    r = rows(ref.rounded(x, "input"))
    count = r.shape[1]
    mean = (
        ref.sums(r, torch.ones_like(r), "fprop", "FPROP", 0) / count
        if centred
        else r.new_zeros(len(r))
    )
    d = r - mean[:, None]
    scale = torch.rsqrt(ref.sums(d, d, "fprop", "FPROP", 1) / count + 1e-3)
    xhat = unrowed(d * scale[:, None])
    wq = ref.rounded(w, "weight").reshape(shape)
    y = xhat * wq
    y = y + ref.rounded(b, "bias").reshape(shape) if centred else y
    g = ref.rounded(dy, "grad_output")
    h = rows(g * wq)
    dx = h - rows(xhat) * (ref.sums(h, rows(xhat), "dgrad", "DGRAD", 1) / count)[:, None]
    if centred:
        dx = dx - (ref.sums(h, torch.ones_like(h), "dgrad", "DGRAD", 0) / count)[:, None]
    dw = ref.sums(shared(g), shared(xhat), "wgrad", "WGRAD", 0)
    db = ref.sums(shared(g), torch.ones_like(shared(g)), "wgrad", "GRAD_BIAS", 0)
    out = ref.rounded(y, "output", SITE_OUTPUT)
    dx = ref.rounded(unrowed(dx * scale[:, None]), "grad_input")
    return [out, dx, ref.rounded(dw, "grad_weight"), *([db] if centred else [])]


@recipes
@pytest.mark.parametrize("kind", KINDS)
def test_norm_equals_the_composition_of_the_reference(
    kind: str, recipe: lp.Recipe, backend: str
) -> None:
    call, *_, shape = KINDS[kind]
    x, dy = torch.randn(4, 6, 5, requires_grad=True), torch.randn(4, 6, 5)
    w, b = (torch.randn(shape[0], requires_grad=True) for _ in range(2))
    y = call(x, w, b, recipe=recipe, generator=torch.tensor(SEED), backend=backend)
    leaves = [x, w, b] if kind != "rms" else [x, w]
    got = [y.detach(), *torch.autograd.grad(y, leaves, dy)]
    want = expected_norm(kind, recipe, x.detach(), w.detach(), b.detach(), dy)
    for a, c in zip(got, want, strict=True):
        assert_bit_equal(a, c)


def test_batch_norm_keeps_its_statistics_and_uses_them() -> None:
    plain = nn.BatchNorm2d(3)
    layer = lp.nn.BatchNorm2d(3, recipe=SUMS)
    for x in torch.randn(3, 4, 3, 5, 2):
        torch.testing.assert_close(layer(x), plain(x), rtol=1e-5, atol=1e-5)
    for a, c in zip(layer.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(a, c, rtol=1e-5, atol=1e-6)
    layer.eval(), plain.eval()
    x = torch.randn(4, 3, 5, 2, requires_grad=True)
    y, want = layer(x), plain(x)
    torch.testing.assert_close(y, want, rtol=1e-5, atol=1e-5)
    got, want = (torch.autograd.grad(t.square().sum(), x)[0] for t in (y, want))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_gelu_stands_between_its_quantizers() -> None:
    x, dy = torch.randn(4, 7, requires_grad=True), torch.randn(4, 7)
    y = F.gelu(x, approximate="tanh", recipe=DETERMINISTIC)
    inner = lp.quantize(x.detach(), "e4m3").requires_grad_()
    want = nn.functional.gelu(inner, approximate="tanh")
    assert_bit_equal(y, lp.quantize(want, "e5m6"))
    dx = torch.autograd.grad(want, inner, lp.quantize(dy, "e4m2"))[0]
    assert_bit_equal(torch.autograd.grad(y, x, dy)[0], lp.quantize(dx, "e5m5"))


def test_narrow_inputs_are_widened() -> None:
    x = torch.randn(4, 6, 5, dtype=torch.bfloat16, requires_grad=True)
    for call in (
        lambda t: F.layer_norm(t, (5,), recipe=SUMS),
        lambda t: F.softmax(t, 1, recipe=SUMS),
        lambda t: F.gelu(t, recipe=DETERMINISTIC),
    ):
        y = call(x)
        assert y.dtype == torch.float32
        assert_bit_equal(y, call(x.float()))
        assert torch.autograd.grad(y.sum(), x)[0].dtype == torch.bfloat16


def test_softmax_of_a_scalar_is_one() -> None:
    assert F.softmax(torch.tensor(3.0), 0, recipe=SUMS) == 1


def test_norms_are_converted_by_their_class_only() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU())
    lp.convert(model, DETERMINISTIC)
    assert [type(m).__module__.partition(".")[0] for m in model] == ["lpkernels", "torch", "torch"]
    lp.convert(model, SUMS, include=nn.LayerNorm)
    assert type(model[1]) is lp.nn.LayerNorm and model[1].recipe == SUMS
    lp.set_recipe(model, "fp8_wang2018")
    assert model[1].recipe == SUMS
    lp.set_recipe(model, {nn.LayerNorm: DETERMINISTIC})
    assert model[1].recipe == DETERMINISTIC
    lp.convert(model, {nn.GELU: DETERMINISTIC})
    assert type(model[2]) is lp.nn.GELU
    lp.revert(model)
    assert [type(m) for m in model] == [nn.Linear, nn.LayerNorm, nn.GELU]


X, W = torch.randn(4, 6, 5), torch.ones(5)
ERRORS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: F.layer_norm(X, (6,), recipe=SUMS), ValueError, r"layer_norm: input has shape"),
    (lambda: F.layer_norm(X, (), recipe=SUMS), ValueError, r"layer_norm: input has shape"),
    (lambda: F.layer_norm(X, (5,), X[0, 0, :3], recipe=SUMS), ValueError, r"bias \[\(3,\)\]"),
    (lambda: F.layer_norm(X.double(), (5,), recipe=SUMS), TypeError, "input is float64"),
    (lambda: F.layer_norm(X, (5,), recipe=SUMS, backend="x"), ValueError, "unknown backend 'x'"),
    (lambda: F.layer_norm(X, (5,), recipe=SUMS, generator=3), TypeError, "generator must be"),
    (lambda: F.rms_norm(X, (6,), recipe=SUMS), ValueError, "rms_norm: input has shape"),
    (lambda: F.group_norm(X, 4, recipe=SUMS), ValueError, "num_groups=4 with 6 channels"),
    (lambda: F.group_norm(X, 2, W, recipe=SUMS), ValueError, "group_norm: input has shape"),
    (
        lambda: F.batch_norm(X[:1, :, :1], None, None, training=True, recipe=SUMS),
        ValueError,
        "more than 1 value per channel",
    ),
    (lambda: F.batch_norm(X, None, None, recipe=SUMS), ValueError, "running_var unless training"),
    (lambda: F.softmax(X, 3, recipe=SUMS), IndexError, "softmax: dim=3"),
    (lambda: F.softmax(X.double(), 1, recipe=SUMS), TypeError, "input is float64"),
    (lambda: F.gelu(X.double(), recipe=DETERMINISTIC), TypeError, "input is float64"),
]


@pytest.mark.parametrize("call, error, match", ERRORS, ids=[match for _, _, match in ERRORS])
def test_refusals(call: Callable[[], Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


def test_what_a_norm_returns_may_be_changed_in_place() -> None:
    x, dy = torch.randn(2, 3, 5).unbind()
    gradients = []
    for change in (torch.Tensor.mul, torch.Tensor.mul_):
        leaf = x.clone().requires_grad_()
        change(F.layer_norm(leaf, [5], recipe=SUMS), 2).backward(dy)
        gradients.append(leaf.grad)
    assert_bit_equal(*gradients)
