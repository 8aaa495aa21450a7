"""summary: the sizes of products, their modules, and the emulated share."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.support.autograd import Computes, OwnBackward

SUMS = lp.Recipe(fprop="e5m7")
NATIVE = lp.Recipe(input="e4m3")


class Net(nn.Module):
    """Layers, products called as functions, and attention that stays torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 6, (3, 2), stride=(2, 3), padding=1, groups=2)
        self.norm = nn.BatchNorm2d(6)
        self.up = nn.ConvTranspose2d(6, 4, 3, stride=2, dilation=2)
        self.head = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(self.up(self.norm(self.conv(x))), 0.1, self.training)
        y = self.head(y.mean(-1).mT)
        y = y @ y.mT @ y
        y = y.unsqueeze(1)
        return F.scaled_dot_product_attention(y, y, y)


X = torch.randn(2, 4, 7, 8)


def listed(model: nn.Module) -> list[tuple[Any, ...]]:
    found = lp.nn.summary(model, X).rows
    return [(row.name, row.product, row.lengths, row.calls, row.macs) for row in found]


def test_rows_have_the_sizes_of_the_products() -> None:
    # conv has 2 x 4 x 3 positions, and 2 of its 6 taps meet one input. The dilation of up is a
    # multiple of the stride, so all 9 taps meet one output. head and the products have 2 x 11 rows
    # of 4 or 6.
    expected = [
        ("conv", "conv", (12, 6, 24), 1, 24 * 72),
        ("up", "conv_transpose", (54, 36, 24), 1, 24 * 216),
        ("head", "matmul", (4, 6, 22), 1, 22 * 24),
        ("", "matmul", (6, 11, 11), 1, 2 * 11 * 11 * 6),
        ("", "matmul", (11, 6, 11), 1, 2 * 11 * 11 * 6),
        ("", "attention", None, 1, 2 * 11 * 11 * 12),
    ]
    assert listed(Net()) == expected
    assert listed(lp.convert(Net(), lp.Recipe())) == expected
    # Emulated attention is listed as its two products, with lengths.
    expected[3:] = [(*row[:3], 2, 2 * row[4]) for row in expected[3:5]]
    for recipe in (SUMS, NATIVE):
        assert listed(lp.convert(Net(), {"*": recipe, nn.BatchNorm2d: recipe})) == expected


@pytest.mark.parametrize("recipe, arguments, emulated", [
    (SUMS, {}, ["conv", "up", "head", "", ""]),
    (NATIVE, {}, ["conv", "up", "head", "", ""]), ("fp32", {}, []),
    (SUMS, {"functions": False}, ["conv", "up", "head"]),
    (NATIVE, {"exclude": ["head", "conv"]}, ["up", "", ""]), (SUMS, {"include": Net}, ["", ""]),
    (lp.recipe("nvfp4"), {"exclude": ["conv", "up"]}, ["head", "", ""]),
])  # fmt: skip
def test_share_is_that_of_the_emulated_products(recipe: Any, arguments: Any, emulated: list[str]):
    found = lp.nn.summary(lp.convert(Net(), recipe, **arguments), X)
    assert [row.name for row in found.rows if row.emulated] == emulated
    share = sum(row.macs for row in found.rows if row.emulated) / found.macs
    assert found.share == share
    assert found.emulated_macs == round(share * found.macs)


def test_fused_layers_of_torch_have_the_multiply_adds_of_their_parts() -> None:
    x = torch.randn(2, 3, 8)
    for layer in (nn.MultiheadAttention(8, 2, batch_first=True), nn.LSTM(8, 4, batch_first=True)):
        arguments = (x, x, x) if isinstance(layer, nn.MultiheadAttention) else (x,)
        trained = lp.nn.summary(layer, *arguments).macs
        assert trained == lp.nn.summary(layer.eval(), *arguments).macs
    assert trained == 2 * 3 * (4 * 4 * 8 + 4 * 4 * 4)
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    trained = lp.nn.summary(block, x).macs
    assert trained == lp.nn.summary(block.eval(), x).macs


def test_a_recurrent_layer_sums_its_weight_gradient_over_all_steps() -> None:
    x = torch.randn(5, 3, 8)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 4, 2]))
    layer = nn.GRU(8, 4, num_layers=2, bidirectional=True)
    for given, steps in ((x, 15), (packed, 11)):
        for recipe in ("fp32", SUMS):
            found = lp.nn.summary(lp.convert(layer, recipe), given).rows
            # The rows are the products of the input and of the state, for layers 0 and 1, whose
            # inputs are equally wide.
            assert {row.lengths for row in found} == {(8, 12, steps), (4, 12, steps)}
            assert sum(row.macs for row in found) == steps * 4 * (8 * 12 + 4 * 12)


def test_a_model_that_trains_goes_on_as_if_nothing_had_run() -> None:
    net = lp.convert(Net(), lp.Recipe(input="e4m3:stochastic"))
    random, means = torch.get_rng_state(), net.norm.running_mean.clone()
    lp.nn.summary(net, X, backward=True)
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(net.norm.running_mean, means) and net.conv.weight.grad is None


def test_a_model_on_the_meta_device_is_counted() -> None:
    net = lp.convert(Net(), SUMS).to("meta")
    found = lp.nn.summary(net, X.to("meta"))
    assert found.share == lp.nn.summary(lp.convert(Net(), SUMS), X).share


def shares(summary: lp.nn.Summary, **of: Any) -> list[tuple[Any, ...]]:
    """(name, gemm, calls, macs, emulated) of the rows that have these attributes."""
    chosen = (r for r in summary.rows if all(getattr(r, k) == v for k, v in of.items()))
    return [(row.name, row.gemm, row.calls, row.macs, row.emulated) for row in chosen]


def test_the_backward_pass_counts_by_the_module_whose_graph_it_is() -> None:
    body = Computes(
        lambda m, x: OwnBackward.apply(m.head(x), m.w), w=nn.Parameter(torch.randn(6, 5))
    )
    body.head = nn.Linear(4, 6)
    model = lp.convert(nn.Sequential(nn.Linear(3, 4), body), lp.Recipe(input="e5m2"))
    found = lp.nn.summary(model, torch.randn(2, 3), backward=True)
    assert shares(found, gemm="fprop") == [
        ("0", "fprop", 1, 24, True), ("1.head", "fprop", 1, 48, True), ("1", "fprop", 1, 60, True)
    ]  # fmt: skip
    # The Function's own backward pass follows the recipe; the input wants no gradient. Of this
    # recipe dgrad rounds nothing.
    assert shares(found, name="1.head", gemm="dgrad") == [("1.head", "dgrad", 1, 48, False)]
    assert shares(found, name="1.head", gemm="wgrad") == [("1.head", "wgrad", 1, 48, True)]
    assert shares(found, name="0", gemm="wgrad") == [("0", "wgrad", 1, 24, True)]
    assert not shares(found, name="0", gemm="dgrad")
    assert shares(found, name="1", gemm="backward") == [("1", "backward", 2, 120, True)]


SCALED = lp.Quantizer("block32_k_fp8_e4m3")


@pytest.mark.parametrize("recipe, emulated", [
    ("fp32", ""), (SUMS, "fprop"), (lp.Recipe(dgrad="e5m7"), "dgrad"),
    (lp.Recipe(input="e4m3"), "fprop wgrad"), (lp.Recipe(weight="e4m3"), "fprop dgrad"),
    (lp.Recipe(grad_output="e4m3"), "dgrad wgrad"), (lp.Recipe(output="e4m3"), "fprop"),
    (lp.Recipe(grad_weight="e4m3"), "wgrad"), ("mxfp8", "fprop dgrad wgrad"),
    (lp.Recipe(wgrad_input=SCALED), "wgrad"),
])  # fmt: skip
def test_a_product_is_emulated_where_it_differs_from_torchs(recipe: Any, emulated: str) -> None:
    """And the result of a product that is not is torch's to the bit."""
    layer, x = nn.Linear(64, 32), torch.randn(32, 64, requires_grad=True)

    def results() -> dict[str, torch.Tensor]:
        y = layer(x)
        gradients = torch.autograd.grad(y.sum(), [x, layer.weight])
        return {"fprop": y, "dgrad": gradients[0], "wgrad": gradients[1]}

    want = results()
    lp.convert(layer, lp.recipe(recipe) if isinstance(recipe, str) else recipe)
    got, found = results(), lp.nn.summary(layer, x, backward=True)
    assert {row.gemm for row in found.rows if row.emulated} == {*emulated.split()}
    assert found.macs == 3 * 32 * 64 * 32
    for gemm in want.keys() - {*emulated.split()}:
        assert_bit_equal(got[gemm], want[gemm])


WIDE = torch.randn(5, 2, 4, requires_grad=True)
ROWS, STATE = WIDE[:, 0].detach().requires_grad_(), torch.randn(5, 3, requires_grad=True)
NARROW_SUMS = lp.Recipe(fprop="e5m7", dgrad="e5m7", wgrad="e5m7")


@pytest.mark.parametrize("layer, inputs, macs", [
    (nn.Conv2d(2, 3, 3, stride=2), (torch.randn(4, 2, 5, 5, requires_grad=True),), 16 * 54),
    (nn.ConvTranspose1d(2, 3, 3), (torch.randn(4, 2, 5, requires_grad=True),), 20 * 18),
    (nn.Bilinear(4, 4, 3), (ROWS, ROWS), 5 * 3 * (4 * 4 + 4)), (nn.GRU(4, 3, 2), (WIDE,), None),
    (nn.LSTMCell(4, 3), (ROWS, (STATE, STATE)), 5 * 12 * (4 + 3)),
    (nn.LSTM(4, 3, proj_size=2, bidirectional=True), (WIDE,), None),
    (nn.MultiheadAttention(4, 2), (WIDE,) * 3, None),
])  # fmt: skip
@pytest.mark.parametrize("recipe", [NARROW_SUMS, lp.recipe("fp16_mixed")], ids=["sums", "operands"])
def test_both_passes_of_a_layer_are_emulated_whole(
    layer: nn.Module, inputs: Any, macs: int | None, recipe: lp.Recipe
) -> None:
    """By narrow sums, and by torch's own sums of rounded operands, which torch computes."""

    def forward(found: lp.nn.Summary) -> int:
        return sum(row.macs or 0 for row in found.rows if row.gemm == "fprop")

    plain = lp.nn.summary(lp.revert(layer), *inputs, backward=True)
    found = lp.nn.summary(lp.convert(layer, recipe), *inputs, backward=True)
    assert plain.emulated_macs == 0 and found.share == 1 and not found.not_counted
    assert {row.gemm for row in found.rows} == {"fprop", "dgrad", "wgrad"}
    assert forward(found) == forward(plain) == (macs or forward(plain))
    assert found.macs == 3 * forward(found)


def test_sums_of_norms_and_of_bias_gradients_are_no_products() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.BatchNorm1d(4), nn.Softmax(-1))
    lp.convert(model, dict.fromkeys(("0", nn.LayerNorm, nn.BatchNorm1d, nn.Softmax), NARROW_SUMS))
    found = lp.nn.summary(model, torch.randn(3, 4), backward=True)
    assert {row.name for row in found.rows} == {"0"} and found.macs == 2 * 48
    called = Computes(lambda m, x: lp.functional.layer_norm(x, (4,), recipe=NARROW_SUMS))
    assert lp.nn.summary(called, torch.randn(3, 4)).rows == ()


def test_a_module_without_a_recipe_says_that_the_call_has_one() -> None:
    called = Computes(lambda m, x: lp.functional.linear(x, torch.ones(3, 4), recipe=NARROW_SUMS))
    found = lp.nn.summary(called, torch.randn(2, 4))
    assert [(row.recipe, row.emulated) for row in found.rows] == [("", True)]
    assert "of the call" in str(found) and "recipe 1" not in str(found)


def test_inference_mode_and_checkpoints_hide_nothing() -> None:
    layer, x = nn.Linear(4, 3), torch.randn(2, 4, requires_grad=True)
    inference = Computes(torch.inference_mode()(lambda m, x: m.layer(x.clone())), layer=layer)
    assert shares(lp.nn.summary(inference, x)) == [("layer", "fprop", 1, 24, False)]
    net = lp.convert(nn.Sequential(layer), NATIVE)
    again = Computes(lambda m, x: checkpoint(m.net, x, use_reentrant=False), net=net)
    found = lp.nn.summary(again, x, backward=True)
    assert shares(found, gemm="fprop") == [("net.0", "fprop", 2, 48, True)]
    assert shares(found, gemm="wgrad") == [("net.0", "wgrad", 1, 24, True)]


def test_less_than_the_required_share_is_refused_with_what_stays_torchs() -> None:
    model = lp.convert(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), SUMS, include="0")
    found = lp.nn.summary(model, torch.randn(3, 4))
    assert found.require(0.6) is found
    with pytest.raises(
        ValueError, match=r"66.7% is emulated, and 95.0% .* 1 \(Linear\) matmul .*48"
    ):
        found.require(0.95)
    with pytest.raises(TypeError, match="share"):
        found.require("1")  # type: ignore[arg-type]
    unknown = Computes(lambda m, x: m.net(x) + torch.linalg.svdvals(x).sum(), net=model[0])
    with pytest.raises(ValueError, match=r"\(model\) \(Computes\) aten::_linalg_svd fprop: not c"):
        lp.nn.summary(unknown, torch.randn(3, 4)).require(0)
