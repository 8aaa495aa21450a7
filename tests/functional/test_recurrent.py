"""Recurrent layers and cells under a recipe."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels.rng import derive_seed
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, RECIPES, STOCHASTIC
from tests.support.autograd import SEED, Steps, flat, gradients, output_gradients, same, signed

SUMS = lp.Recipe(fprop="fp32", dgrad="fp32", wgrad="fp32")
F = lp.functional
L, N, IN, H = 4, 3, 5, 6
PACKED = torch.tensor([3, 2, 2, 1])
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
every_kind = pytest.mark.parametrize("kind", GATES)
padded_or_packed = pytest.mark.parametrize("batch_sizes", [None, PACKED], ids=["padded", "packed"])


def leaf(*shape: int) -> torch.Tensor:
    return (torch.randn(shape) / 2).requires_grad_()


def weights(kind: str, projection: int = 0, layers: int = 1) -> list[torch.Tensor]:
    gates, out = GATES[kind], projection or H
    made = []
    for i in range(layers):
        shapes = [(gates * H, out if i else IN), (gates * H, out), (gates * H,), (gates * H,)]
        made += [leaf(*shape) for shape in shapes + [(projection, H)] * bool(projection)]
    return made


def states(kind: str, count: int = 1, out: int = H) -> Any:
    h = leaf(count, N, out)
    return (h, leaf(count, N, H)) if kind == "lstm" else h


def split(hx: Any) -> list[Any]:
    """The states of two layers or directions, apart."""
    of_each = isinstance(hx, tuple)
    return [tuple(s[i : i + 1] for s in hx) if of_each else hx[i : i + 1] for i in (0, 1)]


def sequence(batch_sizes: torch.Tensor | None) -> torch.Tensor:
    return leaf(L, N, IN) if batch_sizes is None else leaf(int(batch_sizes.sum()), IN)


def seed_of(*path: int) -> int:
    """The seed at the end of a path of products in products; each index is from 1."""
    seed = SEED
    for index in path:
        seed = derive_seed(seed, 15 + index)
    return seed


def cell(kind: str, zx: Tensor, zh: Tensor, h: Tensor, c: Tensor | None) -> tuple[Tensor, ...]:
    """The new states, by torch's page."""
    if kind == "lstm":
        zi, zf, zg, zo = (zx + zh).chunk(4, -1)
        c = zf.sigmoid() * c + zi.sigmoid() * zg.tanh()
        return zo.sigmoid() * c.tanh(), c
    if kind == "gru":
        (xr, xz, xn), (hr, hz, hn) = zx.chunk(3, -1), zh.chunk(3, -1)
        n = (xn + (xr + hr).sigmoid() * hn).tanh()
        return (n + (xz + hz).sigmoid() * (h - n),)
    return ((zx + zh).tanh() if kind == "rnn_tanh" else (zx + zh).relu(),)


class StepsOfState:
    """A weight that every step multiplies: its products, and the one sum of its gradient, by the
    reference."""

    def __init__(self, recipe: lp.Recipe, w: Tensor, b: Tensor | None, *path: int) -> None:
        self.recipe, self.path, self.whole = recipe, path, Steps(recipe, seed_of(*path))
        self.w = self.whole.rounded(w.detach().numpy(), "weight")
        self.b = None if b is None else self.whole.rounded(b.detach().numpy(), "bias")
        self.inputs: dict[int, np.ndarray] = {}
        self.gradients: dict[int, np.ndarray] = {}

    def forward(self, h: Tensor, step: int) -> Tensor:
        of_step = Steps(self.recipe, seed_of(*self.path, step + 1))
        self.inputs[step] = of_step.rounded(h.detach().numpy(), "input")
        y = of_step.matmul(self.inputs[step], self.w.T, "fprop", self.b)
        return torch.from_numpy(of_step.rounded(y, "output"))

    def backward(self, g: Tensor, step: int) -> Tensor:
        of_step = Steps(self.recipe, seed_of(*self.path, step + 1))
        self.gradients[step] = of_step.rounded(g.numpy(), "grad_output")
        dh = of_step.matmul(self.gradients[step], self.w, "dgrad")
        return torch.from_numpy(of_step.rounded(dh, "grad_input"))

    def of_weight(self) -> list[np.ndarray]:
        """The gradients of the weight and of the bias: one sum each, the last step's rows first."""
        steps = sorted(self.inputs, reverse=True)
        g, x = (np.concatenate([rows[i] for i in steps]) for rows in (self.gradients, self.inputs))
        dw = self.whole.rounded(self.whole.matmul(g.T, x, "wgrad"), "grad_weight")
        return [dw, *([] if self.b is None else [self.whole.bias_gradient(g)])]


def composed(
    kind: str, recipe: lp.Recipe, x: Any, hx: Any, w: Any, sizes: list[int], gs: list[Tensor],
    path: int = 1,
) -> list[Any]:  # fmt: skip
    """y, the last states, and the gradients of x, hx and the weights, of a layer of one direction.

    Every rounding and every product is the reference's; only the cell's gradient is torch's. gs are
    the gradients of y and of the last states. path: the number of the direction's seed.
    """
    w_ih, w_hh, b_ih, b_hh, *w_hr = w
    of_input, of_state = Steps(recipe, seed_of(path)), StepsOfState(recipe, w_hh, b_hh, path, 1)
    of_output = StepsOfState(recipe, w_hr[0], None, path, 2) if w_hr else None
    # The last step's rows come first.
    rows = torch.cat(x.detach().reshape(-1, IN).split(sizes)[::-1]).numpy()
    zx = of_input.product(rows, w_ih.detach().numpy(), b_ih.detach().numpy())
    states = [state[0].detach() for state in flat(hx)]
    tape: list[Any] = []
    y: list[Tensor] = []
    for step, block in enumerate(torch.from_numpy(zx).split(sizes[::-1])[::-1]):
        now = [state[: sizes[step]] for state in states]
        inputs = leaves_of(block, of_state.forward(now[0], step), *now)
        new = cell(kind, *inputs, *[None] * (4 - len(inputs)))
        tape.append((inputs, new))
        h = new[0].detach() if of_output is None else of_output.forward(new[0], step)
        y.append(h)
        ends = [h, *(state.detach() for state in new[1:])]
        states = [torch.cat([t, s[len(t) :]]) for t, s in zip(ends, states, strict=True)]
    back, of_zx = list(gs[1:]), []
    for step in reversed(range(len(sizes))):
        count, (inputs, new) = sizes[step], tape[step]
        g = [state[:count] for state in back]
        g[0] = g[0] + gs[0].reshape(sum(sizes), -1).split(sizes)[step]
        if of_output is not None:
            g[0] = of_output.backward(g[0], step)
        d_zx, d_zh, *d_old = torch.autograd.grad(new, inputs, g, allow_unused=True)
        d_h = of_state.backward(d_zh, step)
        d_old[0] = d_h if d_old[0] is None else d_h + d_old[0]
        back = [torch.cat([d, b[count:]]) for d, b in zip(d_old, back, strict=True)]
        of_zx.append(d_zx)
    dx, dw, db = of_input.gradients(torch.cat(of_zx).numpy())
    dx = torch.cat(torch.from_numpy(dx).split(sizes[::-1])[::-1]).reshape(x.shape)
    dw_hh, db_hh = of_state.of_weight()
    of_hr = [] if of_output is None else of_output.of_weight()
    shaped = torch.cat(y).reshape(*x.shape[:-1], -1)
    last = [state[None] for state in (*states, *back)]
    return [shaped, *last[: len(states)], dx, *last[len(states) :], dw, dw_hh, db, db_hh, *of_hr]


def leaves_of(*tensors: Tensor) -> list[Tensor]:
    return [t.detach().requires_grad_() for t in tensors]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("kind, projection", [*((kind, 0) for kind in GATES), ("lstm", 2)])
@padded_or_packed
def test_layer_is_its_steps_by_the_reference(
    kind: str, projection: int, batch_sizes: Any, recipe: lp.Recipe
) -> None:
    x, hx, w = sequence(batch_sizes), states(kind, out=projection or H), weights(kind, projection)
    call = {"batch_sizes": batch_sizes, "recipe": recipe, "generator": torch.tensor(SEED)}
    got = gradients(getattr(F, kind)(x, hx, w, **call), [x, hx, w])
    of_y, *of_states = output_gradients(*(t.shape for t in got[: 1 + len(flat(hx))]))
    sizes = [N] * L if batch_sizes is None else batch_sizes.tolist()
    same(got, composed(kind, recipe, x, hx, w, sizes, [of_y, *(g[0] for g in of_states)]))


def turned(rows: Tensor, sizes: list[int]) -> Tensor:
    """The rows of the last position first."""
    return torch.cat(rows.split(sizes)[::-1])


@pytest.mark.parametrize("recipe", [DETERMINISTIC, STOCHASTIC], ids=["deterministic", "stochastic"])
@every_kind
@padded_or_packed
def test_each_direction_is_its_steps_by_the_reference(
    kind: str, batch_sizes: Any, recipe: lp.Recipe
) -> None:
    x, hx, w = sequence(batch_sizes), states(kind, 2), weights(kind) + weights(kind)
    sizes = [N] * L if batch_sizes is None else batch_sizes.tolist()
    call = {"batch_sizes": batch_sizes, "recipe": recipe, "generator": torch.tensor(SEED)}
    got = gradients(getattr(F, kind)(x, hx, w, bidirectional=True, **call), [x, hx, w])
    of_y, *of_states = output_gradients(*(t.shape for t in got[: 1 + len(flat(hx))]))
    rows, of_rows, count = x.detach().reshape(-1, IN), of_y.reshape(-1, 2 * H), len(of_states)
    results = []
    for i, (order, state) in enumerate(zip((sizes, sizes[::-1]), split(hx), strict=True)):
        operands = [rows, of_rows[:, H * i : H * (i + 1)]]
        x_rows, g_rows = [turned(t, sizes) for t in operands] if i else operands
        gs = [g_rows, *(g[i] for g in of_states)]
        results.append(
            composed(kind, recipe, x_rows, state, w[4 * i : 4 * i + 4], order, gs, path=i + 1)
        )
    ahead, back = results
    y = torch.cat([ahead[0], turned(back[0], sizes[::-1])], -1)
    dx = ahead[1 + count] + turned(back[1 + count], sizes[::-1])
    last, of_hx = (
        [torch.cat(pair) for pair in zip(ahead[at], back[at], strict=True)]
        for at in (slice(1, 1 + count), slice(2 + count, 2 + 2 * count))
    )
    of_w = [*ahead[2 + 2 * count :], *back[2 + 2 * count :]]
    same(got, [y.reshape(of_y.shape), *last, dx.reshape(x.shape), *of_hx, *of_w])


@every_kind
def test_layers_follow_each_other(kind: str) -> None:
    x, hx, w = leaf(L, N, IN), states(kind, 2), weights(kind, layers=2)
    got = gradients(getattr(F, kind)(x, hx, w, num_layers=2, recipe=DETERMINISTIC), [x, hx, w])
    halves = split(hx)
    y, *first = getattr(F, kind)(x, halves[0], w[:4], recipe=DETERMINISTIC)
    y, *second = getattr(F, kind)(y, halves[1], w[4:], recipe=DETERMINISTIC)
    last = [torch.cat(pair) for pair in zip(first, second, strict=True)]
    same(got, gradients([y, *last], [x, hx, w]))


@every_kind
def test_cell_is_a_layer_of_one_step(kind: str) -> None:
    x, hx, w = leaf(N, IN), states(kind), weights(kind)
    now = tuple(s[0] for s in hx) if kind == "lstm" else hx[0]
    w_ih, w_hh, b_ih, b_hh = w
    tensors = [x, hx, w]
    got = getattr(F, kind + "_cell")(x, now, w_ih, w_hh, b_ih, b_hh, recipe=DETERMINISTIC)
    _, *last = getattr(F, kind)(x[None], hx, w, recipe=DETERMINISTIC)
    same(gradients(got, tensors), gradients([s[0] for s in last], tensors))


def test_products_of_a_cell_draw_apart() -> None:
    x = torch.randn(N, H)
    w = torch.randn(H, H)
    call = {"recipe": STOCHASTIC, "generator": torch.tensor(SEED)}
    y = F.rnn_relu_cell(x, x, w, w, **call)
    zx = F.linear(x, w, **call)
    assert not torch.equal(y, torch.relu(zx + zx))
    zh = F.linear(x, w, recipe=STOCHASTIC, generator=signed(derive_seed(SEED, 16)))
    assert_bit_equal(y, torch.relu(zx + zh))
