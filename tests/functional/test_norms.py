"""Norms and softmax under a recipe."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import lpkernels as lp
from lpkernels.rng import derive_seed
from tests.functional.layer_recipes import RECIPES
from tests.support.autograd import (
    SEED,
    Steps,
    assert_composed,
    close,
    gradients,
    leaves,
    output_gradients,
)

SUMS = lp.Recipe(fprop="fp32", dgrad="fp32", wgrad="fp32")
F = lp.functional
every_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


class TensorSteps:
    """The steps of a call as the reference makes them, on tensors."""

    def __init__(self, recipe: lp.Recipe) -> None:
        self.recipe = recipe
        # The second sum over the same rows is a product of its own, with a seed of its own.
        self.products = [Steps(recipe), Steps(recipe, derive_seed(SEED, 16))]

    def rounded(self, x: torch.Tensor, field: str) -> torch.Tensor:
        return torch.from_numpy(self.products[0].rounded(x.numpy(), field))

    def sums(
        self, a: torch.Tensor, b: torch.Tensor | None, name: str, index: int = 0, role: str = ""
    ) -> torch.Tensor:
        """The sum of a * b over each row, or of a."""
        if b is None:
            left, right = a, torch.ones(a.shape[1], 1)
        else:
            left, right = a[:, None], b[:, :, None]
        sums = self.products[index].matmul(left.numpy(), right.numpy(), name, role=role)
        return torch.from_numpy(sums.reshape(-1))


def composed_softmax(recipe: lp.Recipe, x: torch.Tensor) -> list[torch.Tensor]:
    step = TensorSteps(recipe)
    x = step.rounded(x, "input")
    e = torch.exp(x - x.amax(1, keepdim=True))
    y = e / step.sums(e, None, "fprop")[:, None]
    g = step.rounded(*output_gradients(y.shape), "grad_output")
    dx = y * (g - step.sums(g, y, "dgrad")[:, None])
    return [step.rounded(y, "output"), step.rounded(dx, "grad_input")]


@every_recipe
def test_softmax_is_its_steps_by_the_reference(recipe: lp.Recipe, backends: list[str]) -> None:
    (x,) = leaves((4, 7))
    want = composed_softmax(recipe, x.detach())
    assert_composed(partial(F.softmax, x, 1, recipe=recipe), x, want, backends)


Rows = Callable[[torch.Tensor], torch.Tensor]


def channels(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(0, 1).flatten(1)


def unchannelled(rows: torch.Tensor) -> torch.Tensor:
    return rows.reshape(6, 4, 5).transpose(0, 1)


LAST_AXIS = (
    lambda x: x.reshape(-1, 5),
    lambda r: r.reshape(4, 6, 5),
    lambda x: x.reshape(-1, 5).t(),
    (5,),
)
# For x (4, 6, 5), each kind has the call, the rows that share a mean, the way back from them, the
# rows that share a weight, and the shape of the weight in x.
KINDS: dict[str, tuple[Any, Rows, Rows, Rows, tuple[int, ...]]] = {
    "layer": (lambda x, w, b, **o: F.layer_norm(x, (5,), w, b, 1e-3, **o), *LAST_AXIS),
    "rms": (lambda x, w, b, **o: F.rms_norm(x, (5,), w, 1e-3, **o), *LAST_AXIS),
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


def composed_norm(
    kind: str, recipe: lp.Recipe, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor
) -> list[torch.Tensor]:
    """y and the gradients of x, w and, except for an RMS norm, b."""
    step, (_, rows, unrowed, shared, shape) = TensorSteps(recipe), KINDS[kind]
    centred = kind != "rms"
    r = rows(step.rounded(x, "input"))
    count = r.shape[1]
    d = r - (step.sums(r, None, "fprop") / count)[:, None] if centred else r
    scale = torch.rsqrt(step.sums(d, d, "fprop", 1) / count + 1e-3)
    xhat = unrowed(d * scale[:, None])
    wq = step.rounded(w, "weight").reshape(shape)
    y = xhat * wq
    y = y + step.rounded(b, "bias").reshape(shape) if centred else y
    g = step.rounded(*output_gradients(y.shape), "grad_output")
    h = rows(g * wq)
    dx = h - rows(xhat) * (step.sums(h, rows(xhat), "dgrad", 1) / count)[:, None]
    if centred:
        dx = dx - (step.sums(h, None, "dgrad") / count)[:, None]
    dx = step.rounded(unrowed(dx * scale[:, None]), "grad_input")
    dw = step.rounded(step.sums(shared(g), shared(xhat), "wgrad"), "grad_weight")
    db = step.sums(shared(g), None, "wgrad", role="grad_bias")
    return [step.rounded(y, "output"), dx, dw, *([db] if centred else [])]


@every_recipe
@pytest.mark.parametrize("kind", KINDS)
def test_norm_is_its_steps_by_the_reference(kind: str, recipe: lp.Recipe, backends: list[str]):
    call, *_, shape = KINDS[kind]
    x, w, b = leaves((4, 6, 5), shape[:1], shape[:1])
    want = composed_norm(kind, recipe, x.detach(), w.detach(), b.detach())
    inputs = [x, w] if kind == "rms" else [x, w, b]
    assert_composed(partial(call, x, w, b, recipe=recipe), inputs, want, backends)


def test_batch_norm_keeps_its_statistics_and_uses_them() -> None:
    plain = nn.BatchNorm2d(3)
    layer = lp.nn.BatchNorm2d(3, recipe=SUMS)
    for x in torch.randn(3, 4, 3, 5, 2):
        close([layer(x)], [plain(x)])
    for a, c in zip(layer.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(a, c, rtol=1e-5, atol=1e-6)
    layer.eval(), plain.eval()
    (x,) = leaves((4, 3, 5, 2))
    close(gradients(layer(x), x), gradients(plain(x), x))
