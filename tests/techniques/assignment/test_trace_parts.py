"""trace: calls that are several operations: attention and cross entropy."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lpkernels.techniques.assignment import group, trace
from tests.loops import each
from tests.support.computes import Computes
from tests.techniques.assignment.networks import homes, ops_of

LABELS = torch.arange(4) % 3
X = torch.randn(4, 6)


def test_attention_in_one_call_is_its_products():
    def attention(m: Any, x: Tensor) -> Tensor:
        q, k, v = m.qkv(x).view(2, 3, 3, 2, 4).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=m.p)

    model = Computes(attention, qkv=nn.Linear(8, 24))
    x = torch.randn(2, 3, 8)
    for model.p, names in ((0.0, ["softmax"]), (0.5, ["softmax", "dropout"])):
        ops = list(trace(model, lambda y, t: y.mean(), (x, None)))
        parts = ["scores", *names, "values"]
        assert [op.name for op in ops] == ["input", "qkv", *parts, "loss.mean"]
        assert [op.numel for op in ops[2:-1]] == [36] * (len(parts) - 1) + [48]
        assert [op.is_gemm for op in ops[2:-1]] == [True, *[False] * len(names), True]
        assert ops[-2].inputs == (names[-1], "qkv")


@each("crossed", [False, True])
def test_multi_head_attention_is_its_products(crossed: bool):
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    other = torch.randn(2, 5, 8) if crossed else None

    def attend(m: Any, x: Tensor) -> Tensor:
        memory = x if other is None else other * x.mean()
        return m.layer(x, memory, memory)[0]

    ops = ops_of(attend, torch.randn(2, 3, 8), layer=layer)
    found = {op.name.removeprefix("layer."): op for op in ops if op.name.startswith("layer.")}
    projections = [f"in_proj_{x}" for x in "qkv"] if crossed else ["in_proj"]
    assert list(found) == [*projections, "scores", "softmax", "values", "out_proj"]
    length = 5 if crossed else 3
    sizes = [48, 80, 80] if crossed else [144]
    assert [op.numel for op in found.values()] == [
        *sizes, *[2 * 2 * 3 * length] * 2, 48, 48,
    ]  # fmt: skip
    assert dict(found["out_proj"].params) == {
        "layer.out_proj.weight": 64, "layer.out_proj.bias": 8,
    }  # fmt: skip
    assert found["values"].inputs == ("layer.softmax", f"layer.{projections[-1]}")
    # There is one packed weight, whatever reads it.
    assert sum("in_proj_weight" in key for key in homes(group(ops))) == 2


@each("training", [False, True])
def test_multi_head_attention_drops_weights_in_training(training: bool):
    layer = nn.MultiheadAttention(8, 2, dropout=0.5).train(training)
    ops = ops_of(lambda m, x: m.layer(x, x, x)[0], torch.randn(3, 2, 8), layer=layer)
    assert ("layer.dropout" in [op.name for op in ops]) == training


def test_weights_of_multi_head_attention_are_told_where_the_loss_needs_them():
    layer = nn.MultiheadAttention(8, 2)
    ops = ops_of(lambda m, x: m.layer(x, x, x)[1], torch.randn(3, 2, 8), layer=layer)
    assert [op.name for op in ops][2:] == ["layer.scores", "layer.softmax", "layer.mean"]
    assert [op.numel for op in ops][2:] == [36, 36, 18]


def test_weights_of_multi_head_attention_are_those_after_dropout():
    layer = nn.MultiheadAttention(8, 2, dropout=0.5)
    ops = ops_of(lambda m, x: m.layer(x, x, x)[1], torch.randn(3, 2, 8), layer=layer)
    assert ops[-1].name == "layer.mean" and ops[-1].inputs == ("layer.dropout",)


def test_cross_entropy_inside_the_model_is_two_ops_too():
    ops = ops_of(lambda m, x: F.cross_entropy(input=m.head(x), target=LABELS, reduction="none"),
                 X, head=nn.Linear(6, 3))  # fmt: skip
    assert [(op.name, op.numel) for op in ops[2:]] == [("log_softmax", 12), ("nll_loss", 4)]
