"""Recurrent layers and cells under a recipe."""

from typing import Any

import pytest
import torch
from torch import nn

import lpkernels as lp
from lpkernels.functional.cells import CELLS
from lpkernels.rng import derive_seed
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import ACCUMULATORS_ONLY, DETERMINISTIC, STOCHASTIC
from tests.support.autograd import SEED, close, flat, gradients, output_gradients, same, signed
from tests.support.refusals import refused

SUMS = lp.Recipe(fprop="fp32", dgrad="fp32", wgrad="fp32")
F = lp.functional
L, N, IN, H = 4, 3, 5, 6
PACKED = torch.tensor([3, 2, 2, 1])
KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
every_kind = pytest.mark.parametrize("kind", KINDS)
padded_or_packed = pytest.mark.parametrize("batch_sizes", [None, PACKED])


def leaf(*shape: int) -> torch.Tensor:
    return (torch.randn(shape) / 2).requires_grad_()


def weights(kind: str, projection: int = 0, layers: int = 1) -> list[torch.Tensor]:
    gates, out = CELLS[kind].gates, projection or H
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


def seed_of(*path: int) -> torch.Tensor:
    """The seed at the end of a path of products in products; each index is from 1."""
    seed = SEED
    for index in path:
        seed = derive_seed(seed, 15 + index)
    return signed(seed)


class Steps:
    """A layer of one direction, made of steps of `linear` and torch's own autograd of the cell."""

    def __init__(self, kind: str, recipe: lp.Recipe, batch_sizes: torch.Tensor | None) -> None:
        self.cell, self.recipe = CELLS[kind], recipe
        self.sizes = [N] * L if batch_sizes is None else batch_sizes.tolist()

    def linear(self, x: Any, w: Any, b: Any, *path: int) -> torch.Tensor:
        x = x.detach().requires_grad_()
        return x, F.linear(x, w, b, recipe=self.recipe, generator=seed_of(1, *path))

    def run(self, x: torch.Tensor, hx: Any, w: Any, gs: list[torch.Tensor]) -> list[torch.Tensor]:
        """y, the last states, and the gradients of x, hx and the weights.

        gs are the gradients of y and of the last states.
        """
        w_ih, w_hh, b_ih, b_hh, *w_hr = w
        rows = x.reshape(-1, IN).split(self.sizes)
        descending, zx = self.linear(torch.cat(rows[::-1]), w_ih, b_ih)
        now = [state[0].detach() for state in (hx if isinstance(hx, tuple) else (hx,))]
        tape: list[Any] = []
        blocks = zx.split(self.sizes[::-1])[::-1]
        for step, block in enumerate(blocks):
            tape.append(self.step(block.detach(), now, w_hh, b_hh, w_hr, step))
            pairs = zip(tape[-1][0], now, strict=True)
            now = [torch.cat([t.detach(), s[len(t) :]]) for t, s in pairs]
        y = torch.cat([outputs[0].detach() for outputs, _ in tape])
        back = [*gs[1:]]
        g_zx, g_zh, hs, g_p, ps = [], [], [], [], []
        blocks = gs[0].reshape(len(y), -1).split(self.sizes)
        for (outputs, leaves), g in zip(tape[::-1], blocks[::-1], strict=True):
            count = len(g)
            g = [back[0][:count] + g, *(b[:count] for b in back[1:])]
            if w_hr:
                (p_of, p) = leaves["p"]
                g_p.append(g[0])
                ps.append(p_of)
                g[0] = torch.autograd.grad(p, p_of, g[0])[0]
            zx_, zh_, *old = leaves["cell"]
            ends = [leaves["h"], *outputs[1:]]
            d_zx, d_zh, *d_old = torch.autograd.grad(
                ends, [zx_, zh_, *old], g[: len(ends)], allow_unused=True
            )
            h_of, zh = leaves["zh"]
            d_h = torch.autograd.grad(zh, h_of, d_zh)[0]
            d_old[0] = d_h if d_old[0] is None else d_h + d_old[0]
            back = [torch.cat([d, b[count:]]) for d, b in zip(d_old, back, strict=True)]
            g_zx.append(d_zx)
            g_zh.append(d_zh)
            hs.append(h_of)
        of_x, *of_ih = torch.autograd.grad(zx, [descending, w_ih, b_ih], torch.cat(g_zx))
        of_x = torch.cat(of_x.split(self.sizes[::-1])[::-1]).reshape(x.shape)
        _, zh = self.linear(torch.cat(hs), w_hh, b_hh, 1)
        of_hh = torch.autograd.grad(zh, [w_hh, b_hh], torch.cat(g_zh))
        of_hr = ()
        if w_hr:
            _, p = self.linear(torch.cat(ps), w_hr[0], None, 2)
            of_hr = torch.autograd.grad(p, w_hr, torch.cat(g_p))
        of_w = [of_ih[0], of_hh[0], of_ih[1], of_hh[1], *of_hr]
        shaped = y.reshape(*x.shape[:-1], -1)
        return [shaped, *(s[None] for s in now), of_x, *(b[None] for b in back), *of_w]

    def step(self, zx: Any, now: Any, w_hh: Any, b_hh: Any, w_hr: Any, step: int) -> Any:
        count = len(zx)
        of_h, zh = self.linear(now[0][:count], w_hh, b_hh, 1, step + 1)
        inputs = [t.detach().requires_grad_() for t in (zx, zh, *(s[:count] for s in now))]
        h, c = self.cell.forward(*inputs, *([None] * (2 - len(now))))[:2]
        leaves = {"zh": (of_h, zh), "cell": inputs, "h": h}
        if w_hr:
            leaves["p"] = self.linear(h, w_hr[0], None, 2, step + 1)
        return [leaves["p"][1] if w_hr else h, *([] if c is None else [c])], leaves


# Each product of a step is that of `linear` with the step's seed. The one sum of its gradient is
# that of `linear` with the seed of all steps. Operands that both of them read must not draw.
BY_STEP = lp.Recipe(
    weight="e5m2",
    bias="e5m4",
    output="e5m6:stochastic",
    grad_input="e5m5:stochastic",
    grad_weight="e5m3:stochastic",
    fprop=lp.Accumulator("e5m7", "stochastic"),
    dgrad=lp.Accumulator("e6m9", "stochastic", chunk=2),
    wgrad=lp.Accumulator("e5m8", "stochastic", chunk=3),
)
STEPS = {"deterministic": DETERMINISTIC, "by step": BY_STEP, "accumulators": ACCUMULATORS_ONLY}


@pytest.mark.parametrize("recipe", STEPS.values())
@pytest.mark.parametrize("kind, projection", [*((kind, 0) for kind in KINDS), ("lstm", 2)])
@padded_or_packed
def test_layer_is_its_steps(kind: str, projection: int, batch_sizes: Any, recipe: lp.Recipe):
    x, hx, w = sequence(batch_sizes), states(kind, out=projection or H), weights(kind, projection)
    call = {"batch_sizes": batch_sizes, "recipe": recipe, "generator": torch.tensor(SEED)}
    got = gradients(getattr(F, kind)(x, hx, w, **call), [x, hx, w])
    of_y, *of_states = output_gradients(*(t.shape for t in got[: 1 + len(flat(hx))]))
    gs = [of_y, *(g[0] for g in of_states)]
    same(got, Steps(kind, recipe, batch_sizes).run(x, hx, w, gs))


@every_kind
def test_reverse_direction_is_the_layer_on_the_reversed_sequence(kind: str) -> None:
    x, hx, w = leaf(L, N, IN), states(kind, 2), weights(kind) + weights(kind)
    options: dict[str, Any] = {"recipe": DETERMINISTIC}
    y, *last = getattr(F, kind)(x, hx, w, bidirectional=True, **options)
    got = gradients([y, *last], [x, hx, w])
    halves = split(hx)
    ahead = getattr(F, kind)(x, halves[0], w[:4], **options)
    back = getattr(F, kind)(x.flip(0), halves[1], w[4:], **options)
    both = [torch.cat([ahead[0], back[0].flip(0)], -1)]
    both += [torch.cat(pair) for pair in zip(ahead[1:], back[1:], strict=True)]
    same(got, gradients(both, [x, hx, w]))


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
def test_layer_without_gradient_is_the_same(kind: str) -> None:
    x, hx, w = leaf(L, N, IN), states(kind), weights(kind)
    call = {"recipe": STOCHASTIC, "generator": torch.tensor(SEED)}
    got = flat(getattr(F, kind)(x, hx, w, **call))
    with torch.no_grad():
        same(flat(getattr(F, kind)(x, hx, w, **call)), got)


@every_kind
@padded_or_packed
def test_layer_by_the_fp32_recipe_is_torchs(kind: str, batch_sizes: Any) -> None:
    x, hx, w = sequence(batch_sizes), states(kind), weights(kind)
    more = (x, hx) if batch_sizes is None else (x, batch_sizes, hx)
    last = (False,) if batch_sizes is None else ()
    want = getattr(torch, kind)(*more, w, True, 1, 0.0, False, False, *last)
    same(flat(getattr(F, kind)(x, hx, w, batch_sizes=batch_sizes)), flat(want))


def test_dropout_between_layers_is_torchs() -> None:
    torch.manual_seed(1)
    layer = nn.LSTM(IN, H, 2, dropout=0.5)
    x = torch.randn(L, N, IN)
    torch.manual_seed(5)
    want = flat(layer(x))
    torch.manual_seed(5)
    close(flat(lp.convert(layer, SUMS)(x)), want)


@every_kind
def test_cell_is_a_layer_of_one_step(kind: str) -> None:
    x, hx, w = leaf(N, IN), states(kind), weights(kind)
    now = tuple(s[0] for s in hx) if kind == "lstm" else hx[0]
    w_ih, w_hh, b_ih, b_hh = w
    tensors = [x, hx, w]
    got = getattr(F, kind + "_cell")(x, now, w_ih, w_hh, b_ih, b_hh, recipe=DETERMINISTIC)
    _, *last = getattr(F, kind)(x[None], hx, w, recipe=DETERMINISTIC)
    same(gradients(got, tensors), gradients([s[0] for s in last], tensors))
    want = getattr(torch, kind + "_cell")(x, now, w_ih, w_hh, b_ih, b_hh)
    same(flat(getattr(F, kind + "_cell")(x, now, w_ih, w_hh, b_ih, b_hh)), flat(want))


def test_products_of_a_cell_draw_apart() -> None:
    x = torch.randn(N, H)
    w = torch.randn(H, H)
    call = {"recipe": STOCHASTIC, "generator": torch.tensor(SEED)}
    y = F.rnn_relu_cell(x, x, w, w, **call)
    zx = F.linear(x, w, **call)
    assert not torch.equal(y, torch.relu(zx + zx))
    zh = F.linear(x, w, recipe=STOCHASTIC, generator=signed(derive_seed(SEED, 16)))
    assert_bit_equal(y, torch.relu(zx + zh))


X, HX, W = torch.randn(L, N, IN), torch.randn(1, N, H), weights("gru")
CELL = (torch.randn(N, IN), torch.randn(N, H), W[0], W[1])
ERRORS = [
    (lambda: F.gru(X[0], HX, W, recipe=SUMS), ValueError, r"gru: input has shape \(3, 5\)"),
    (lambda: F.gru(X[0], HX, W, batch_sizes=PACKED, recipe=SUMS), ValueError, "whose sum is the"),
    (lambda: F.gru(X, HX, W[:3], recipe=SUMS), ValueError, "gru: got 3 weights for 1 layers"),
    (lambda: F.gru(X, HX[:, :2], W, recipe=SUMS), ValueError, r"states have the shapes \[\(1, 2"),
    (lambda: F.gru(X[..., :4], HX, W, recipe=SUMS), ValueError, r"expected \(gates \* H, 4\)"),
    (lambda: F.gru_cell(CELL[1], *CELL[1:], recipe=SUMS), ValueError, "linear: x has shape"),
    (lambda: F.gru_cell(*CELL[:1], X, *CELL[2:], recipe=SUMS), ValueError, "gru_cell: input has s"),
]
test_refusals = refused(ERRORS)
