"""A plan of attention, recurrent layers and called products is what convert() takes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lpkernels as lp
from lpkernels.techniques.accumulation import AccumulatorPlan, plan
from tests.compare import assert_bit_equal
from tests.nn.observed import of_weight
from tests.nn.policy_models import Attention
from tests.support.plans import mean_square


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own = Attention()
        self.torchs = nn.MultiheadAttention(8, 2, batch_first=True)
        self.memory = nn.LSTM(8, 12, num_layers=2, bidirectional=True, batch_first=True)
        self.cell = nn.GRUCell(24, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.own(x)
        x = x + self.torchs(x, x, x, need_weights=False)[0]
        x, _ = self.memory(x)
        h = x.new_zeros(len(x), 8)
        for step in x.unbind(1):
            h = self.cell(step, h)
        return F.linear(self.head(h), torch.eye(5))


def check_recipes(model: nn.Module, made: AccumulatorPlan) -> None:
    """Check that every row's product has a recipe in its module that is wide enough for it."""
    lp.convert(model, made)
    modules = dict(model.named_modules())
    for row in made.rows:
        recipe = modules[made.modules[row.layer]].recipe
        acc = getattr(recipe, row.gemm)
        assert recipe.input == made.operands.input
        assert acc.order != "native"
        assert acc.fmt.man_bits >= row.format.man_bits
        assert acc.fmt.exp_bits >= row.format.exp_bits


def test_every_product_of_the_model_has_a_recipe():
    model, x = Net(), torch.randn(2, 3, 8)
    plain = model(x)
    made = plan(model, x, loss=mean_square, operand="e5m2")
    assert list(made) == ["own.qkv", "own", "own.out", "torchs", "memory", "cell", "head", ""]
    layers = {name: {r.layer for r in made.rows if made.modules[r.layer] == name} for name in made}
    assert layers["torchs"] == {f"torchs.{x}" for x in ("in_proj", "scores", "values", "out_proj")}
    assert layers["cell"] == {"cell.ih", "cell.hh"}
    check_recipes(model, made)
    y = model(x)
    assert not torch.equal(y, plain)
    mean_square(y).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    narrow = made.narrowed(1)["torchs"].fprop.fmt.man_bits
    assert narrow == max(1, made["torchs"].fprop.fmt.man_bits - 1)


def test_the_converted_layer_computes_by_the_planned_accumulators():
    layer, x = nn.LSTM(6, 4), torch.randn(5, 2, 6)
    made = plan(layer, x, loss=mean_square, operand="e5m2")
    assert list(made) == [""]
    lp.convert(layer, made)
    ours = lp.nn.LSTM(6, 4, recipe=made[""])
    ours.load_state_dict(layer.state_dict())
    assert_bit_equal(layer(x)[0], ours(x)[0])


@pytest.mark.parametrize(
    ("kind", "gates"), [(nn.RNNCell, 1), (nn.LSTMCell, 4), (nn.GRUCell, 3)], ids=str
)
def test_cells_compute_what_torch_does(kind: type[nn.Module], gates: int):
    cell, x = kind(5, 4), torch.randn(3, 5)
    seen = []
    made = plan(cell, x, loss=lambda y: seen.append(y) or mean_square(y), operand="fp32")
    torch.testing.assert_close(seen[0], cell(x))
    lengths = {(row.layer, row.gemm): row.length for row in made.rows}
    assert lengths["ih", "fprop"] == 5 and lengths["hh", "fprop"] == 4
    assert lengths["hh", "wgrad"] == 3
    assert ("hh", "dgrad") not in lengths and gates * 4 == len(cell.bias_ih)


def test_what_convert_does_not_emulate_has_rows_alone():
    model = of_weight(lambda x, w: torch.mv(x, w[0]))
    made = plan(model, torch.randn(3, 4), loss=mean_square, operand="bf16")
    assert [row.layer for row in made.rows] == ["mv", "mv"]
    assert made.recipes == {} and made.modules == {}


def test_gpt2_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config)
    tokens = torch.randint(50, (2, 9))

    def loss(y: object) -> Tensor:
        return F.cross_entropy(y.logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()) * 256

    made = plan(model, tokens, loss=loss, operand="e5m2", chunk=8)
    wanted = ["transformer.h.0.attn.c_attn", "transformer.h.0.attn", "transformer.h.0.mlp.c_fc"]
    assert set(wanted) <= set(made) and "lm_head" in made
    check_recipes(model, made)
    loss(model(tokens)).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
