"""Masked gradients: gradients of the products that the sums did not lose."""

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn

import lpkernels as lp
from lpkernels.reference import events
from lpkernels.rng import Role, derive_seed
from lpkernels.techniques.accumulation import mask_gradients
from tests.loops import each
from tests.support.computes import Computes
from tests.support.refusals import refuses

NARROW = lp.Recipe(fprop="e4m2")


def linear(recipe: lp.Recipe = NARROW) -> lp.nn.Linear:
    torch.manual_seed(0)
    return lp.nn.Linear(40, 5, recipe=recipe)


def gradients(layer: nn.Module, x: Tensor, g: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    layer.zero_grad()
    layer(x).backward(g)
    return [x.grad, *(p.grad.clone() for p in layer.parameters())]


def lost(x: Tensor, w: Tensor, acc: lp.Accumulator, bits: int, seed: int = 0) -> Tensor:
    """The mask (R, K, O) of products that have one of the bits, their own or their chunk's."""
    found = events.matmul_events(x.numpy(), w.t().contiguous().numpy(), acc, seed=seed, bits=True)
    mask = torch.from_numpy(found.products) & bits != 0
    if found.chunks is not None:
        outer = torch.from_numpy(found.chunks) & bits != 0
        mask |= outer.repeat_interleave(acc.chunk, 1)[:, : mask.shape[1]]
    return mask


def passed_back(x: Tensor, w: Tensor, g: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of x (R, K) and w (O, K) where the products of the mask pass none."""
    passed = g.unsqueeze(1) * ~mask
    return (passed * w.t()).sum(2), (passed * x.unsqueeze(2)).sum(0).t()


BITS = {"swamped": events.SWAMPED, "overflowed": events.OVERFLOWED}
SEQUENTIAL = ["e4m2", "e3m2none_sat", "e4m2_chunk8:outer=e4m1"]
LOST = list(itertools.product(SEQUENTIAL, [["swamped"], ["overflowed"], ["swamped", "overflowed"]]))


@each("name, masks", LOST)
def test_lost_products_pass_no_gradient(name: str, masks: list[str]):
    recipe = lp.Recipe(fprop=name)
    layer, x, g = linear(recipe), torch.randn(6, 40) * 3, torch.randn(6, 5)
    w = layer.weight.detach()
    mask = lost(x, w, recipe.fprop, sum(BITS[kind] for kind in masks))
    assert not mask.all()
    assert mask.any() or masks == ["overflowed"]
    dx, dw, db = gradients(mask_gradients(layer, masks), x, g)
    torch.testing.assert_close((dx, dw), passed_back(x, w, g, mask))
    torch.testing.assert_close(db, g.sum(0))


def test_the_forward_pass_stays_to_the_bit():
    plain = linear(lp.Recipe(input="e5m2:stochastic", fprop="e4m3:stochastic", output="e5m3"))
    masked = mask_gradients(copy.deepcopy(plain))
    x = torch.randn(2, 7, 40)
    results = []
    for layer in (plain, masked):
        torch.manual_seed(3)
        results.append(layer(x))
    assert torch.equal(*results)


def test_a_running_range_is_that_of_the_layer():
    recipe = lp.Recipe(input="affine4", input_range="running:0.5", fprop=lp.Accumulator("e5m2"))
    plain, masked = linear(recipe), linear(recipe)
    mask_gradients(masked, masks=["swamped"])
    x = torch.randn(4, 40)
    assert torch.equal(masked(x), plain(x))
    assert torch.equal(masked.eval()(2 * x), plain.eval()(2 * x))
    assert torch.equal(masked.input_range, plain.input_range)


def test_stochastic_sums_are_masked_by_their_own_draws():
    recipe = lp.Recipe(fprop="e4m2:stochastic")
    layer = mask_gradients(linear(recipe), ["swamped"])
    x, g = torch.randn(6, 40), torch.randn(6, 5)
    seed = torch.tensor(11)
    with lp.seed_from(seed):
        dx, _, _ = gradients(layer, x, g)
    with lp.seed_from(seed):
        used = lp.functional.seeds.seed_for(True, None)
    w = layer.weight.detach()
    mask = lost(x, w, recipe.fprop, events.SWAMPED, derive_seed(int(used), Role.FPROP))
    torch.testing.assert_close(dx, passed_back(x, w, g, mask)[0])


def test_wide_sums_have_the_straight_through_gradient():
    recipe = lp.Recipe(input="e4m3", weight="e4m3", grad_output="e5m2", fprop="e8m23")
    x, g = torch.randn(6, 40), torch.randn(6, 5)
    plain = gradients(linear(recipe), x, g)
    torch.testing.assert_close(gradients(mask_gradients(linear(recipe)), x, g), plain)


def test_a_recursive_mask_reaches_back_to_the_start_of_the_sum():
    layer = mask_gradients(linear(lp.Recipe(fprop="e3m3none_sat")), ["overflowed"], recursive=True)
    layer.weight.data.fill_(1.0)
    x = torch.zeros(1, 40)
    x[0, 10] = x[0, 20] = x[0, 30] = 20.0  # max is 30: the second addition overflows
    dx, _, _ = gradients(layer, x, torch.ones(1, 5))
    # Position 30 overflows as well, so all positions up to it are lost.
    assert dx[0].nonzero().flatten().tolist() == list(range(31, 40))
    once = mask_gradients(layer, ["overflowed"])
    dx, _, _ = gradients(once, x, torch.ones(1, 5))
    assert (dx[0] == 0).nonzero().flatten().tolist() == [20, 30]


@each("shape", [(2, 3, 7, 6), (3, 7, 6)])
def test_convolutions(shape: tuple[int, ...]):
    sizes = {"stride": 2, "padding": 1, "dilation": 1}
    layer = lp.nn.Conv2d(3, 4, 3, **sizes, recipe=NARROW)
    x = torch.randn(shape) * 2
    y = layer(x)
    g = torch.randn_like(y)
    batch = x if x.dim() == 4 else x.unsqueeze(0)
    rows = nn.functional.unfold(batch, 3, **sizes).transpose(1, 2).flatten(0, 1)
    w = layer.weight.detach().flatten(1)
    top = (g if g.dim() == 4 else g.unsqueeze(0)).movedim(1, -1).flatten(0, -2)
    back, want = passed_back(rows, w, top, lost(rows, w, NARROW.fprop, 3))
    back = back.reshape(len(batch), -1, 27).transpose(1, 2)
    image = nn.functional.fold(back, batch.shape[2:], 3, **sizes)
    masked = mask_gradients(copy.deepcopy(layer))
    assert torch.equal(masked(x), y)
    dx, dw, db = gradients(masked, x, g)
    torch.testing.assert_close(dx, image.reshape(shape))
    torch.testing.assert_close(dw, want.reshape(dw.shape))
    torch.testing.assert_close(db, top.sum(0))


CONVS = {
    "strided, dilated": ((8, 9), lambda r: lp.nn.Conv2d(4, 6, (3, 2), 2, (1, 2), 2, recipe=r)),
    "grouped": ((6, 5), lambda r: lp.nn.Conv2d(4, 6, 3, padding=1, groups=2, recipe=r)),
    "depthwise": ((6, 5), lambda r: lp.nn.Conv2d(4, 8, 3, groups=4, recipe=r)),
    "1 dimension": ((11,), lambda r: lp.nn.Conv1d(4, 6, 3, 2, padding=1, groups=2, recipe=r)),
    "3 dimensions": ((4, 5, 3), lambda r: lp.nn.Conv3d(4, 6, (2, 3, 1), padding=1, recipe=r)),
}


@each("name, batch", CONVS, [(2,), ()])
def test_wide_convolutions_have_the_straight_through_gradient(name: str, batch: tuple[int, ...]):
    spatial, make = CONVS[name]
    layer = make(lp.Recipe(fprop="e8m23"))
    x = torch.randn(*batch, 4, *spatial)
    g = torch.randn_like(layer(x))
    plain = gradients(layer, x, g)
    torch.testing.assert_close(gradients(mask_gradients(layer), x, g), plain)


@each("rounding", ["nearest_even", "stochastic"])
def test_groups_are_convolutions_of_their_own(rounding: str):
    recipe = lp.Recipe(fprop=f"e4m2:{rounding}")
    layer = mask_gradients(lp.nn.Conv2d(6, 9, 3, groups=3, bias=False, recipe=recipe))
    x, seed = torch.randn(2, 6, 5, 5) * 2, torch.tensor(7)
    g = torch.randn_like(layer(x))
    with lp.seed_from(seed):
        dx, dw = gradients(layer, x, g)
    with lp.seed_from(seed):
        used = derive_seed(int(lp.functional.seeds.seed_for(True, None)), Role.FPROP)
    taps = nn.functional.unfold(x, 3).transpose(1, 2).flatten(0, 1)
    top = g.movedim(1, -1).flatten(0, -2)
    w = layer.weight.detach().flatten(1)
    for group in range(3):
        ours, outputs = slice(18 * group, 18 * group + 18), slice(3 * group, 3 * group + 3)
        left = taps[:, ours].contiguous()
        # The events are found for all outputs, as their columns are numbered across the groups.
        lost_here = lost(left, w, recipe.fprop, 3, used)[..., outputs]
        assert 0.05 < lost_here.float().mean() < 0.9
        back, want = passed_back(left, w[outputs], top[:, outputs], lost_here)
        torch.testing.assert_close(dw[outputs], want.reshape(3, 2, 3, 3))
        image = nn.functional.fold(back.reshape(2, 9, 18).transpose(1, 2), (5, 5), 3)
        torch.testing.assert_close(dx[:, 2 * group : 2 * group + 2], image)


def test_one_dimension_is_two_with_a_height_of_one():
    shared = {"groups": 2, "recipe": NARROW}
    flat = lp.nn.Conv1d(4, 6, 3, 2, padding=1, dilation=2, **shared)
    tall = lp.nn.Conv2d(4, 6, (1, 3), (1, 2), padding=(0, 1), dilation=(1, 2), **shared)
    with torch.no_grad():
        tall.weight.copy_(flat.weight.unsqueeze(2))
        tall.bias.copy_(flat.bias)
    x = torch.randn(3, 4, 12) * 2
    g = torch.randn_like(flat(x))
    ours = gradients(mask_gradients(flat), x, g)
    theirs = gradients(mask_gradients(tall), x.unsqueeze(2), g.unsqueeze(2))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other.reshape(one.shape))


def test_a_model_is_masked_in_place_and_reverted():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    lp.convert(model, NARROW)
    assert mask_gradients(model) is model
    keys = list(model.state_dict())
    model(torch.randn(2, 1, 6, 6)).sum().backward()
    lp.set_recipe(model, lp.Recipe())
    plain = model(torch.ones(1, 1, 6, 6))
    lp.revert(model)
    assert type(model[0]) is nn.Conv2d and type(model[3]) is nn.Linear
    assert torch.equal(model(torch.ones(1, 1, 6, 6)), plain)
    assert list(model.state_dict()) == keys


def test_no_masks_give_the_straight_through_gradient_back():
    layer, x, g = linear(), torch.randn(6, 40), torch.randn(6, 5)
    plain = gradients(layer, x, g)
    mask_gradients(layer)
    assert not torch.equal(gradients(layer, x, g)[0], plain[0])
    mask_gradients(layer, [])
    assert torch.equal(gradients(layer, x, g)[0], plain[0])


def test_gradients_are_quantised_as_the_recipe_says():
    recipe = lp.Recipe(grad_input="e4m2", grad_weight="e5m1", fprop="e4m2")
    dx, dw, _ = gradients(mask_gradients(linear(recipe)), torch.randn(6, 40), torch.randn(6, 5))
    assert torch.equal(lp.quantize(dx, "e4m2"), dx)
    assert torch.equal(lp.quantize(dw, "e5m1"), dw)
    # One row is a batch of one.
    x, g = torch.randn(6, 40), torch.randn(6, 5)
    whole = gradients(mask_gradients(linear()), x, g)
    layer = mask_gradients(linear())
    torch.testing.assert_close(gradients(layer, x[0], g[0])[0], whole[0][0])


MODES = ["zeros", "reflect", "replicate", "circular"]


@each("mode, padding", MODES, [1, (2, 1), "same", "valid"])
def test_what_is_padded_is_padded_first_and_folded_back(mode: str, padding):
    kernel = (4, 2) if padding == "same" else 3
    layer = lp.nn.Conv2d(3, 4, kernel, padding=padding, padding_mode=mode, recipe=NARROW)
    x = torch.randn(2, 3, 6, 5) * 2
    y = layer(x)
    g = torch.randn_like(y)
    masked = mask_gradients(copy.deepcopy(layer))
    assert torch.equal(masked(x), y)
    dx, dw, db = gradients(masked, x, g)
    inner = lp.nn.Conv2d(3, 4, kernel, recipe=NARROW)
    inner.load_state_dict(layer.state_dict())
    sides = layer._reversed_padding_repeated_twice
    image = x.clone().requires_grad_()
    padded = nn.functional.pad(image, sides, **({} if mode == "zeros" else {"mode": mode}))
    want, *of_layer = gradients(mask_gradients(inner), padded.detach(), g)
    padded.backward(want)
    torch.testing.assert_close(dx, image.grad)
    torch.testing.assert_close([dw, db], of_layer)


TREE = lp.Recipe(fprop="e5m3:order=pairwise")
APART = lp.Recipe(input="block8_k_e4m3", weight="block8_k_e4m3", fprop="e5m3")
LAZY = lp.convert(nn.LazyLinear(2), NARROW)
REFUSED = [
    (3, {}, TypeError, "must be a torch.nn.Module, got int"),
    (nn.Linear(4, 4), {}, ValueError, "no emulated layer"),
    (linear(), {"masks": ["lost"]}, ValueError, "a sequence of swamped, overflowed"),
    (linear(), {"masks": "swamped"}, ValueError, "a sequence of"),
    (linear(lp.Recipe(dgrad="e5m3")), {}, ValueError, "dgrad in e5m3.*native"),
    (linear(TREE), {}, NotImplementedError, "fprop in e5m3:order=pairwise.*does not add one"),
    (linear(APART), {}, NotImplementedError, "codes for each product.*round every tensor once"),
    (LAZY, {}, NotImplementedError, "is none of lp.nn's Linear, Conv1d"),
]
test_what_cannot_be_masked_is_refused = refuses(
    mask_gradients, [((model,), *row) for model, *row in REFUSED]
)


def test_a_recipe_set_later_is_checked_too():
    layer = mask_gradients(linear())
    layer.recipe = lp.Recipe(fprop="e4m2", wgrad="e5m3")
    with pytest.raises(ValueError, match="wgrad in e5m3"):
        layer(torch.randn(2, 40))


def test_products_called_as_functions_and_tables_are_not_masked():
    model = Computes(
        lambda own, x: own.layer(own.table(x)) @ own.layer.weight,
        table=nn.Embedding(3, 4),
        layer=nn.Linear(4, 4),
    )
    net = mask_gradients(lp.convert(model, lp.Recipe(weight="e4m3", fprop="e4m2")))
    assert type(net.layer).__name__ == "MaskedLinear"
    assert type(net.table) is lp.nn.Embedding
    net(torch.tensor([2, 0])).sum().backward()
    assert type(lp.revert(net)) is Computes
