"""Which products a plan sees: lengths of the three GEMMs, composite layers, functions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lpkernels.arithmetic.products import longest_residue
from lpkernels.techniques.accumulation import plan


def mean_square(y: Tensor) -> Tensor:
    return y.square().mean() * 1024


def lengths(model: nn.Module, sample, loss=mean_square) -> dict[str, list[int]]:
    rows = plan(model, sample, loss=loss, operand="e5m2").rows
    found: dict[str, list[int]] = {}
    for row in rows:
        found.setdefault(row.layer, []).append(row.length)
    return found


def grad(*size: int) -> Tensor:
    return torch.randn(*size, requires_grad=True)


def test_lengths_of_linear_layers():
    model = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 7))
    # Nobody asks for the gradient of the sample, so the first layer has no dgrad.
    assert lengths(model, torch.randn(5, 3, 12)) == {"0": [12, 15], "2": [20, 7, 15]}
    assert lengths(model, grad(5, 12)) == {"0": [12, 20, 5], "2": [20, 7, 5]}
    assert lengths(nn.Linear(12, 20), torch.randn(12)) == {"Linear": [12, 1]}


@pytest.mark.parametrize(
    ("layer", "sample", "expected"),
    [
        (nn.Conv2d(3, 8, 3, padding=1), (2, 3, 6, 5), [27, 72, 60]),
        (nn.Conv2d(3, 8, 3, stride=2, padding=1), (2, 3, 6, 6), [27, 32, 18]),
        (nn.Conv2d(4, 8, 3, groups=2), (2, 4, 6, 6), [18, 36, 32]),
        (nn.Conv2d(3, 8, 3, stride=2, dilation=2), (1, 3, 9, 9), [27, 72, 9]),
        (nn.Conv2d(3, 8, 5, stride=3), (1, 3, 11, 11), [75, 32, 9]),
        (nn.Conv2d(3, 8, 2, padding="same"), (1, 3, 5, 5), [12, 32, 25]),
        (nn.Conv1d(3, 8, 4), (2, 3, 9), [12, 32, 12]),
        (nn.Conv3d(2, 3, 2), (1, 2, 3, 3, 3), [16, 24, 8]),
        (nn.Conv2d(3, 8, 3), (3, 6, 6), [27, 72, 16]),
        (nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 5, 5), [16, 54, 50]),
        (nn.ConvTranspose1d(4, 6, 4, padding=1), (4, 7), [16, 24, 7]),
    ],
    ids=lambda value: repr(value) if isinstance(value, nn.Module) else "",
)
def test_lengths_of_convolutions(layer: nn.Module, sample: tuple[int, ...], expected: list[int]):
    found = plan(layer, grad(*sample), loss=mean_square, operand="e5m2").rows
    assert [row.length for row in found] == expected
    assert [row.gemm for row in found] == ["fprop", "dgrad", "wgrad"]


@pytest.mark.parametrize("taps", range(1, 6))
@pytest.mark.parametrize("stride", range(1, 5))
@pytest.mark.parametrize("dilation", range(1, 5))
def test_longest_sum_of_a_strided_dgrad(taps: int, stride: int, dilation: int):
    size = stride * 24 + 2 * dilation * taps
    ones = torch.ones(1, 1, size)
    y = F.conv1d(ones, torch.ones(1, 1, taps), stride=stride, dilation=dilation)
    met = F.conv_transpose1d(
        torch.ones_like(y), torch.ones(1, 1, taps), stride=stride, dilation=dilation
    )
    assert longest_residue(taps, stride, dilation) == int(met.max())


class Heads(nn.Module):
    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT) @ k + torch.bmm(q, q.mT).matmul(k).sum()


def test_products_of_functions_share_the_recipe_of_their_module():
    sample = (grad(2, 3, 8), grad(2, 3, 8))
    made = plan(Heads(), sample, loss=mean_square, operand="bf16")
    rows = {}
    for row in made.rows:
        rows.setdefault(row.layer, []).append(row.length)
    assert rows == {
        "matmul": [8, 3, 3],
        "matmul_2": [3, 8, 3],
        "bmm": [8, 3, 3],
        "matmul_3": [3, 8, 3],
    }
    assert list(made) == [""]
    widest = max(row.format.man_bits for row in made.rows if row.gemm == "dgrad")
    assert made[""].dgrad.fmt.man_bits == widest


def test_broadcast_operands_sum_over_what_was_broadcast():
    class Shared(nn.Module):
        def forward(self, x: Tensor, w: Tensor) -> Tensor:
            return torch.matmul(x, w)

    assert lengths(Shared(), (grad(4, 5, 8), grad(8, 3))) == {"matmul": [8, 3, 20]}
    assert lengths(Shared(), (grad(8), grad(8))) == {"matmul": [8, 1, 1]}
    assert lengths(Shared(), (grad(5, 8), grad(8))) == {"matmul": [8, 1, 5]}


@pytest.mark.parametrize(
    "model",
    [
        nn.LSTM(5, 6, 2, bidirectional=True),
        nn.LSTM(5, 6, batch_first=True, bias=False),
        nn.GRU(5, 6, 2),
        nn.RNN(5, 6, nonlinearity="relu"),
        nn.RNN(5, 6, bidirectional=True),
        nn.MultiheadAttention(8, 2),
        nn.MultiheadAttention(8, 2, kdim=5, vdim=3, batch_first=True),
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0),
    ],
    ids=repr,
)
def test_composite_layers_compute_what_torch_does_while_traced(model: nn.Module):
    """The output and the gradient that the loss sees are those of torch's own layer."""
    torch.manual_seed(0)
    sample = inputs_of(model)
    outputs: list[Tensor] = []

    def loss(y) -> Tensor:
        y = y[0] if isinstance(y, tuple) else y
        outputs.append(y.detach())
        return mean_square(y)

    rows = plan(model, sample, loss=loss, operand="bf16").rows
    expected = model(*sample)
    expected = expected[0] if isinstance(expected, tuple) else expected
    torch.testing.assert_close(outputs[0], expected.detach())
    assert {row.gemm for row in rows} == {"fprop", "dgrad", "wgrad"}
    assert all(row.exponents is not None for row in rows)


def inputs_of(model: nn.Module) -> tuple[Tensor, ...]:
    if isinstance(model, nn.MultiheadAttention) and model.kdim == 5:
        return grad(2, 4, 8), grad(2, 3, 5), grad(2, 3, 3)
    if isinstance(model, nn.MultiheadAttention):
        return (grad(4, 2, 8),) * 3
    if isinstance(model, nn.TransformerDecoderLayer):
        return grad(4, 2, 8), grad(3, 2, 8)
    return (grad(4, 2, 8 if isinstance(model, nn.TransformerEncoderLayer) else 5),)


def test_lengths_of_recurrent_layers():
    found = lengths(nn.LSTM(5, 7), grad(6, 3, 5), lambda y: mean_square(y[0]))
    # There are four gates of 7; the weight's gradient is one sum over 6 steps of 3 samples.
    assert found == {"ih_l0": [5, 28, 18], "hh_l0": [7, 28, 18]}


def test_lengths_of_attention():
    class Attend(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    found = lengths(Attend(), (grad(2, 4, 6, 8), grad(2, 4, 6, 8), grad(2, 4, 6, 3)))
    assert found == {"scores": [8, 6, 6], "values": [6, 3, 6]}
    model = nn.MultiheadAttention(8, 2)
    found = lengths(model, (grad(5, 3, 8),) * 3, lambda y: mean_square(y[0]))
    assert found == {
        "in_proj": [8, 24, 15], "scores": [4, 5, 5], "values": [5, 4, 5], "out_proj": [8, 8, 15],
    }  # fmt: skip


def test_attention_masks_are_those_of_torch():
    torch.manual_seed(0)
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    x, padding = torch.randn(2, 4, 8), torch.tensor([[False] * 3 + [True], [False] * 4])
    causal = nn.Transformer.generate_square_subsequent_mask(4)
    seen: list[Tensor] = []

    def loss(y: tuple[Tensor, Tensor]) -> Tensor:
        seen.extend(y)
        return mean_square(y[0])

    arguments = {"query": x, "key": x, "value": x, "attn_mask": causal}
    arguments["key_padding_mask"] = torch.zeros(2, 4).masked_fill(padding, -math.inf)
    plan(model, arguments, loss=loss, operand="e5m2")
    expected = model(**arguments)
    torch.testing.assert_close(seen[0], expected[0])
    torch.testing.assert_close(seen[1], expected[1])
