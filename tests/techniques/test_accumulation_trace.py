"""Which products a plan sees, from a batch or from shapes alone; the blocks of its table."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import lpkernels as lp
from lpkernels.experiments.workloads.bundled import network
from lpkernels.techniques.accumulation import min_mantissa_bits, plan
from lpkernels.techniques.accumulation.planning import PlanRow
from tests.nn.observed import of_weight
from tests.support.autograd import Computes, OwnBackward
from tests.support.techniques import grad, mean_square


def lengths(model: nn.Module, sample: Tensor | tuple[Tensor, ...]) -> dict[str, list[int]]:
    lengths_by_layer: dict[str, list[int]] = {}
    for row in plan(model, sample, loss=mean_square, operand="e5m2").rows:
        lengths_by_layer.setdefault(row.layer, []).append(row.length)
    return lengths_by_layer


def test_lengths_of_linear_layers():
    model = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 7))
    # Nobody asks for the gradient of the sample, so the first layer has no dgrad.
    assert lengths(model, torch.randn(5, 3, 12)) == {"0": [12, 15], "2": [20, 7, 15]}
    assert lengths(model, grad(5, 12)) == {"0": [12, 20, 5], "2": [20, 7, 5]}
    assert lengths(nn.Linear(12, 20), torch.randn(12)) == {"Linear": [12, 1]}
    twice = nn.Sequential(layer := nn.Linear(6, 6), nn.Tanh(), layer)
    assert list(plan(twice, grad(5, 6), loss=mean_square, operand="e5m2")) == ["0"]


CONVOLUTIONS = [
    (nn.Conv2d(3, 8, 3, stride=2, padding=1), (2, 3, 6, 6), [27, 32, 18]),
    (nn.Conv2d(4, 8, 3, groups=2), (2, 4, 6, 6), [18, 36, 32]),
    (nn.Conv2d(3, 8, 3, stride=2, dilation=2), (1, 3, 9, 9), [27, 72, 9]),
    (nn.Conv2d(3, 8, 2, padding="same"), (1, 3, 5, 5), [12, 32, 25]),
    (nn.Conv1d(3, 8, 4), (2, 3, 9), [12, 32, 12]),
    (nn.Conv3d(2, 3, 2), (1, 2, 3, 3, 3), [16, 24, 8]),
    (nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 5, 5), [16, 54, 50]),
    (nn.ConvTranspose1d(4, 6, 4, padding=1), (4, 7), [16, 24, 7]),
]


@pytest.mark.parametrize("layer, sample, expected", CONVOLUTIONS)
def test_lengths_of_convolutions(layer: nn.Module, sample: tuple[int, ...], expected: list[int]):
    rows = plan(layer, grad(*sample), loss=mean_square, operand="e5m2").rows
    assert [row.length for row in rows] == expected
    assert [row.gemm for row in rows] == ["fprop", "dgrad", "wgrad"]


def test_products_of_functions_share_the_recipe_of_their_module():
    model = Computes(lambda own, q, k: (q @ k.mT) @ k + torch.bmm(q, q.mT).matmul(k).sum())
    table = plan(model, (grad(2, 3, 8), grad(2, 3, 8)), loss=mean_square, operand="bf16")
    short, long = [3, 8, 3], [8, 3, 3]
    names = {"matmul": long, "matmul_2": short, "bmm": long, "matmul_3": short}
    assert {row.layer for row in table.rows} == names.keys() and list(table) == [""]
    for name, length in names.items():
        assert [row.length for row in table.rows if row.layer == name] == length
    widest = max(row.format.man_bits for row in table.rows if row.gemm == "dgrad")
    assert table[""].dgrad.fmt.man_bits == widest


def test_broadcast_operands_sum_over_what_was_broadcast():
    shared = Computes(lambda own, x, w: x @ w)
    assert lengths(shared, (grad(4, 5, 8), grad(8, 3))) == {"matmul": [8, 3, 20]}
    assert lengths(shared, (grad(8), grad(8))) == {"matmul": [8, 1, 1]}
    assert lengths(shared, (grad(5, 8), grad(8))) == {"matmul": [8, 1, 5]}
    assert lengths(shared, (grad(8), grad(2, 8, 3))) == {"matmul": [8, 6, 1]}


# Inputs of one shape are one tensor, as for self-attention.
COMPOSITES = [
    (nn.LSTM(5, 6, 2, bidirectional=True), [(4, 2, 5)]),
    (nn.GRU(5, 6, 2), [(4, 2, 5)]),
    (nn.RNN(5, 6, nonlinearity="relu"), [(4, 2, 5)]),
    (nn.MultiheadAttention(8, 2, batch_first=True), [(4, 2, 8)] * 3),
    (nn.MultiheadAttention(8, 2, kdim=5, vdim=3), [(4, 2, 8), (3, 2, 5), (3, 2, 3)]),
    (nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0), [(4, 2, 8), (3, 2, 8)]),
]


@pytest.mark.parametrize("model, shapes", COMPOSITES)
def test_composite_layers_have_all_three_products(model: nn.Module, shapes: list):
    inputs = {shape: grad(*shape) for shape in shapes}
    sample = tuple(inputs[shape] for shape in shapes)
    table = plan(model, sample, loss=mean_square, operand="bf16")
    assert table.uncovered == "" and "no row" not in str(table)
    assert {row.gemm for row in table.rows} == {"fprop", "dgrad", "wgrad"}
    assert all(row.exponents is not None for row in table.rows)


def test_products_that_the_trace_does_not_see_are_named_below_the_table():
    parts = {"layer": nn.Linear(4, 4), "w": nn.Parameter(torch.randn(4, 4))}
    model = Computes(lambda m, x: torch.cdist(OwnBackward.apply(m.layer(x), m.w), x), **parts)
    table = plan(model, torch.randn(2, 4), loss=torch.sum, operand="e5m2")
    assert table.uncovered == (
        "products that reach torch and have no row here: aten::_cdist_forward x1, "
        "aten::_cdist_backward x1, aten::mm x2"
    )
    assert str(table).splitlines()[-1] == table.uncovered


def test_lengths_of_attention_and_recurrent_layers():
    attend = Computes(lambda own, *x: F.scaled_dot_product_attention(*x, is_causal=True))
    expected = lengths(attend, (grad(2, 4, 6, 8), grad(2, 4, 6, 8), grad(2, 4, 6, 3)))
    assert expected == {"scores": [8, 6, 6], "values": [6, 3, 6]}
    expected = lengths(nn.MultiheadAttention(8, 2), (grad(5, 3, 8),) * 3)
    assert expected == {
        **{name: [8, 8, 15] for name in ("in_proj_q", "in_proj_k", "in_proj_v", "out_proj")},
        "scores": [4, 5, 5],
        "values": [5, 4, 5],
    }
    # There are four gates of 7; the weight's gradient is one sum over 6 steps of 3 samples.
    expected = {"ih_l0": [5, 28, 18], "hh_l0": [7, 28, 18]}
    assert lengths(nn.LSTM(5, 7), grad(6, 3, 5)) == expected


X = torch.ones(2, 4)
ATEN = torch.ops.aten
EINSUM = of_weight(lambda x, w: torch.einsum("ij,kj->ik", x, x))


def convolution(x: Tensor, w: Tensor) -> Tensor:
    numbers = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    return ATEN.convolution(x.view(1, 1, 2, 4), w.view(4, 1, 2, 2), None, *numbers)


LAYER, OVERFLOWING = nn.Linear(4, 4), nn.Linear(4, 4)
nn.init.constant_(OVERFLOWING.weight, 1e6)
UNTRACED = [
    (EINSUM, X, r"the model|module.*einsum.*not traced"),
    (nn.Sequential(EINSUM), X, r"'0' \(Computes\).*einsum"),
    (of_weight(lambda x, w: torch.linalg.vecdot(x, w[0])), X, "vecdot"),
    (of_weight(lambda x, w: torch.linalg.multi_dot([x, w, w])), X, "multi_dot"),
    (of_weight(convolution), X, "torch's convolution"),
    (nn.LSTM(4, 4, proj_size=2), X.unsqueeze(1), "proj_size"),
    (nn.Bilinear(4, 4, 2), (X, X), "bilinear"),
    (torch.jit.script(nn.Linear(4, 4)), X, "TorchScript"),
]
MODELS = [
    (nn.LazyLinear(4), X, "run the model on a batch first"),
    (lp.nn.Linear(4, 4), X, r"lp.revert\(model\)"),
    (nn.ReLU(), grad(2, 4), "no matrix product"),
    (of_weight(lambda x, w: (x @ w).detach()), X, "no gradient"),
    (nn.Linear(4, 4).requires_grad_(False), X, "no gradient"),
    (LAYER, X * math.inf, "input of 'Linear' holds infinities"),
    (OVERFLOWING, X, "weight of 'Linear' reaches 1e\\+06, which overflows"),
]
REFUSED = [
    *((row, NotImplementedError) for row in UNTRACED), *((row, ValueError) for row in MODELS),
]  # fmt: skip


@pytest.mark.parametrize("row, error", REFUSED)
def test_what_cannot_be_planned_is_refused(row: tuple[Any, Any, str], error: Any) -> None:
    model, sample, message = row
    with pytest.raises(error, match=message):
        plan(model, sample, loss=mean_square, operand="e4m3")


META = torch.device("meta")


class Stored(TorchDispatchMode):
    """The dtypes of all operators' results that have a storage: those outside the meta device."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = (x for x in tree_leaves(result) if isinstance(x, Tensor))
        self.dtypes |= {x.dtype for x in tensors if not x.is_meta}
        return result


#: The rule of Sakr et al. 2019, without a margin.
SAKR: dict[str, Any] = {"metric": "vrr", "margin": 0}


def widths(row: PlanRow) -> dict[str, Any]:
    """The fields of a row that follow from its widths."""
    names = ("man_bits", "chunk_bits", "format", "accumulator", "notes")
    return {name: getattr(row, name) for name in names}


# Products of a sum, and mantissa bits of one sum and in chunks of 64, for products of 5 bits
# without zeros: the bits are worked out from the paper's formula for the lengths of ResNet-18.
RESNET18 = {
    "stem": [(7 * 7 * 3, 5, 4), (256 * 112**2, 17, 11)],
    "stages.0": [(9 * 64, 7, 4), (9 * 64, 7, 4), (256 * 56**2, 14, 10)],
    "stages.1": [(9 * 128, 7, 4), (9 * 128, 7, 4), (256 * 28**2, 13, 8)],
    "stages.2": [(9 * 256, 8, 4), (9 * 256, 8, 4), (256 * 14**2, 11, 7)],
    "stages.3": [(9 * 512, 9, 4), (9 * 512, 9, 4), (256 * 7**2, 10, 5)],
    "head": [(512, 6, 4), (1000, 7, 4), (256, 6, 4)],
}


def test_resnet18_is_planned_by_stages_without_any_storage():
    stored = Stored()
    with stored:
        work = network("resnet18-imagenet", batch=256, device="meta")
        assert sum(p.numel() for p in work.model.parameters()) == 11_689_512
        table, default = (
            plan(work.model, work.sample, loss=work.loss, operand="e5m2", chunk=64, **options)
            for options in (SAKR, {})
        )
    # The formula of the bits is computed in float64, and nothing of the model is.
    assert stored.dtypes <= {torch.float64, torch.uint8}
    rows: dict[str, list[tuple[int, int, int]]] = {}
    for row in table.blocks:
        rows.setdefault(row.layer, []).append((row.length, row.man_bits, row.chunk_bits))
    assert rows == RESNET18
    assert len(table.rows) == 62 and len(table) == 21
    head, *lines = str(table).splitlines()
    assert head.split() == "block gemm length m_p nzr normal chunked exponents accumulator".split()
    stem = "wgrad 3211264 5 100% 17 11/64 not measured e8m11_chunk64"
    assert lines[1].split() == stem.split() and len(lines) == 17
    for sakr, row in zip(table.rows, default.rows, strict=True):
        bits = [min_mantissa_bits(row.length, 5, chunk=c, metric="nmse") + 1 for c in (None, 64)]
        assert [row.man_bits, row.chunk_bits] == bits
        assert replace(row, **widths(sakr)) == sakr


def everything() -> nn.Module:
    def forward(own: Any, x: Tensor) -> Tensor:
        x = own.attention(x, x, x, need_weights=False)[0]
        x, _ = own.memory(x)
        return own.up(own.conv(x.mT).relu())

    return Computes(
        forward,
        attention=nn.MultiheadAttention(8, 2, batch_first=True),
        memory=nn.LSTM(8, 12, batch_first=True),
        conv=nn.Conv1d(12, 6, 3, stride=2, padding=1, groups=2),
        up=nn.ConvTranspose1d(6, 4, 3, stride=2),
    )


def test_lengths_on_the_meta_device_are_those_of_a_real_batch():
    def lengths(table: Any) -> list[tuple[str, str, int]]:
        return [(row.layer, row.gemm, row.length) for row in table.rows]

    model = everything()
    small, large = (plan(model, torch.randn(n, 9, 8), loss=mean_square, operand="e4m3", batch=batch)
                    for n, batch in ((2, 32), (32, None)))  # fmt: skip
    with META:
        sample = torch.empty(32, 9, 8)
        table = plan(everything(), sample, loss=mean_square, operand="e4m3", exp_bits=6)
        scaled = plan(everything(), sample[:4], loss=mean_square, operand="e4m3", batch=32)
    assert lengths(table) == lengths(large) == lengths(small) == lengths(scaled)
    assert {(row.nzr, row.growth, row.exponents, row.headroom) for row in table.rows} == {
        (1.0, None, None, None)
    }
    for row in table.rows:
        assert row.product_bits == 7
        bits = min_mantissa_bits(row.length, 7, metric="nmse") + 1
        assert row.format == lp.FloatFormat(6, bits)
    assert {row.format.exp_bits for row in scaled.rows} == {8}
    # A plan of shapes is a plan: the model that it was made for is converted by it.
    assert table.recipes.keys() == large.recipes.keys()
    lp.convert(model, table)
    model(torch.randn(2, 9, 8)).sum().backward()


def test_a_small_batch_gives_zeros_and_exponents_to_the_lengths_of_another():
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3))
    x = torch.randn(8, 64)
    own, large = (
        plan(model, x, loss=mean_square, operand="e5m2", batch=batch).rows for batch in (None, 4096)
    )
    for a, b in zip(own, large, strict=True):
        assert (a.nzr, a.exponents, a.growth) == (b.nzr, b.exponents, b.growth)
        length = a.length * (512 if a.gemm == "wgrad" else 1)
        assert b.length == length
        assert b.man_bits == min_mantissa_bits(length, 5, nzr=b.nzr, metric="nmse") + 1
        assert a.format.exp_bits == b.format.exp_bits
    assert any(row.nzr < 1 for row in large)


ON_META, NOTHING = nn.Linear(4, 4, device=META), torch.empty(2, 4, device=META)
FORMATS = {
    "e5m2": 5, "fixed8_f4": 13, "ufixed8_f4": 15, "fixed1_f0": 0, "e4m0": 0, "block32_e2m1": 3,
    "posit8es1": 9, "affine8": 47, "fp32": 47,
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_products_have_the_mantissas_of_their_formats(name: str):
    """As products of values, each exact in so many bits, one row of the format with all of them."""
    fmt = lp.parse_format(name)
    table = plan(ON_META, NOTHING, loss=torch.sum, operand=fmt)
    assert {row.product_bits for row in table.rows} == {FORMATS[name]}
    if hasattr(fmt, "values") and fmt.bits <= 8:
        # The odd part of a value, once it is a whole number, has its mantissa's bits and one more.
        whole = [int(abs(v) * 2**40) for v in fmt.values() if v]
        widest = max((v // (v & -v)).bit_length() for v in whole) - 1
        assert FORMATS[name] == 2 * widest + (widest > 0)


def test_operands_of_three_formats_meet_in_three_products():
    recipe = lp.Recipe(input="e4m3", weight="e2m1", grad_output="e5m2")
    sample = torch.empty(2, 4, device=META, requires_grad=True)
    table = plan(ON_META, sample, loss=torch.sum, operand=recipe)
    assert [row.product_bits for row in table.rows] == [3 + 1 + 1, 2 + 1 + 1, 3 + 2 + 1]


NAMES = {
    "stem": "stem", "own.qkv": "own", "in_proj": "in_proj", "3": "3", "3.conv.0": "3",
    "features.3": "features.3", "stages.0.1.conv1": "stages.0", "layer1.0.conv1": "layer1",
    "layer1.1.downsample.0": "layer1", "stages.1.0.shortcut.0": "stages.1",
    "blocks.11.mlp.2": "blocks", "transformer.h.0.attn.scores": "transformer.h",
}  # fmt: skip


def test_layers_of_one_stage_are_a_block():
    table = plan(ON_META, NOTHING, loss=torch.sum, operand="e5m2")
    rows = [replace(table.rows[0], layer=name) for name in NAMES]
    plans = [type(table)((row,), table.operands, {}) for row in rows]
    assert [single.blocks[0].layer for single in plans] == list(NAMES.values())


def test_a_block_is_as_wide_as_its_widest_layers():
    class Block(nn.Module):
        def __init__(self, width: int, scale: float) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(width, 64, bias=False), scale

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x * self.scale)

    model = nn.Sequential()
    model.add_module("body", nn.ModuleList([Block(512, 1.0), Block(64, 2.0**-20)]))
    model.forward = lambda x: model.body[1](model.body[0](x))  # type: ignore[method-assign]
    table = plan(model, grad(4, 512), loss=mean_square, operand="fixed8_f4")
    assert [row.layer for row in table.blocks] == ["body"] * 3
    for block in table.blocks:
        rows = [row for row in table.rows if row.gemm == block.gemm]
        assert len(rows) == 2
        assert block.man_bits == max(row.man_bits for row in rows)
        assert block.length == max(row.length for row in rows)
        assert block.format.man_bits == max(row.format.man_bits for row in rows)
        assert block.format.exp_bits == max(row.format.exp_bits for row in rows)
        ranges = [row.exponents for row in rows if row.exponents]
        assert block.exponents == (
            (min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else None
        )


def test_a_batch_needs_the_examples_of_a_sample() -> None:
    model = Computes(lambda own: own.w @ own.w, w=nn.Parameter(torch.eye(2)))
    with pytest.raises(ValueError, match="batch=8"):
        plan(model, (), batch=8, loss=mean_square, operand="e5m2")
