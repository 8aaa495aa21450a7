"""Operations, groups, formats and assignments as plain data, as a table and as a file."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import lpkernels as lp
from lpkernels.techniques.assignment import Assignment, Formats, Op, Pins, demote, group
from tests.compare import assert_bit_equal
from tests.loops import each, rows
from tests.support.refusals import refuses
from tests.techniques.assignment.networks import chain, ops_from


def test_the_chain_has_10830_elements_and_gradients_are_with_their_tensors():
    groups = group(chain())
    assert [(each.index, each.numel) for each in groups] == [
        (0, 584),
        (1, 6736),
        (2, 3348),
        (3, 162),
    ]
    # The paper's code counts the loss once a sample.
    assert [each.numel for each in group(chain(loss_numel=4))] == [584, 6736, 3348, 168]
    tensors = {t.key: t for each in groups for t in each.tensors}
    assert len(tensors) == 2 * (11 + 8)
    for values, gradients in (("bn1.Y", "bn1.GY"), ("bn1.bias.P", "bn1.bias.GP")):
        one, other = tensors[values], tensors[gradients]
        assert (one.group, one.numel) == (other.group, other.numel)
        assert other.kind == {"activation": "grad_activation", "weight": "grad_weight"}[one.kind]


RESIDUAL = "in, conv_a* in w, bn_a conv_a w, relu bn_a, conv_b* relu w, bn_b conv_b w"
SHARED = [
    Op("in", False, (), {}, 4), Op("a", True, ("in",), {"weight": 6}, 4),
    Op("b", True, ("a",), {"a.weight": 6, ".scale": 2}, 4),
    Op("c", False, ("b",), {".scale": 2}, 4),
]  # fmt: skip


@rows(
    "ops, expected",
    # A weight is with what it multiplies.
    (chain(),
     "in conv1.weight | conv1 bn1 bn1.weight bn1.bias relu1 conv2.weight | "
     "conv2 bn2 bn2.weight bn2.bias relu2 pool fc.weight fc.bias | fc log_softmax nll"),
    # A block whose shortcut is a convolution after the others, then one that reads the block: the
    # projection takes the join and what follows.
    (f"{RESIDUAL}, conv_s* in w, bn_s conv_s w, add bn_b bn_s, out add, next* out w",
     "in conv_a.w conv_s.w | conv_a bn_a bn_a.w relu conv_b.w | conv_b bn_b bn_b.w | "
     "conv_s bn_s bn_s.w add out next.w | next"),
    # Without a projection the join is with the second convolution.
    (f"{RESIDUAL}, add bn_b in, out add, next* out w",
     "in conv_a.w | conv_a bn_a bn_a.w relu conv_b.w | conv_b bn_b bn_b.w add out next.w | next"),
    # In a fire module the squeezing group has both expanding weights.
    ("in, squeeze* in w, relu squeeze, left* relu w, right* relu w, cat left right, last cat",
     "in squeeze.w | squeeze relu left.w right.w | left | right cat last"),
    # A second input opens a group, and a lookup does not.
    ("words w, places w, image, sum words places image",
     "words words.w places places.w | image sum"),
    # A shared parameter is one tensor where the first reads it.
    (SHARED, "in a.weight | a scale | b c"),
)  # fmt: skip
def test_tensors_of_each_group(ops: Any, expected: str):
    groups = group(ops_from(ops) if isinstance(ops, str) else ops)
    names = [
        " ".join(t.key[:-2] for t in each.tensors if t.kind in ("activation", "weight"))
        for each in groups
    ]
    assert " | ".join(names) == expected


A, B = Op("a", False, (), {".w": 3}), Op("b", False, ("a",), {".w": 4})
test_ops_that_do_not_fit_together_are_refused = refuses(
    group,
    [
        (([],), {}, ValueError, "expected at least one Op, got none"),
        ((["conv"],), {}, TypeError, "expected Ops, got str: 'conv'"),
        (([A, A],), {}, ValueError, "two Ops are called 'a'"),
        (([B],), {}, ValueError, "'b' reads 'a', which is no earlier Op"),
        (([A, B],), {}, ValueError, "parameter 'w' has 3 elements before and 4 in 'b'"),
    ],
)
test_fields_of_another_type_are_refused = refuses(
    Op,
    [
        (("", False, ()), {}, ValueError, "name must be text that is not empty, got ''"),
        (("a", False, "b"), {}, TypeError, "inputs must be names of Ops, as a tuple, got 'b'"),
        (("a", False, (), {}, -1), {}, ValueError, r"elements of the result: .* got -1"),
        (("a", False, (), {"w": True}), {}, TypeError, "elements of w: expected an int, got bool"),
    ],
)


PAPER = Formats()
GROUPS = group(chain())
MADE = demote(
    GROUPS, 0.4, formats=Formats(weight=("bf16", "fp8_e5m2:stochastic")),
    pins=Pins(high="in.*", low=["fc.*"]),
)  # fmt: skip


def test_an_assignment_comes_back(tmp_path: Path):
    path = tmp_path / "a.json"
    MADE.save(path)
    assert Assignment.load(path, GROUPS) == MADE
    promoted = MADE.promoted(["conv2.Y", "relu1.Y"])
    promoted.save(str(path))
    assert Assignment.load(path) == promoted
    # Each tensor takes one line.
    assert len(path.read_text().splitlines()) == 7 + len(MADE.tensors)


def test_tensors_have_the_formats_of_their_precision():
    assert str(MADE.format_of("conv2.weight.P")) == "e5m2:stochastic"
    assert str(MADE.format_of("conv1.weight.P")) == "e8m7"
    assert MADE.is_low("relu1.Y")
    assert not MADE.is_low("in.Y")
    for call in (MADE.format_of, lambda key: MADE.promoted([key])):
        with pytest.raises(ValueError, match=r"no tensor has the key 'relu9\.Y'"):
            call("relu9.Y")


def chain_with(**fields: Callable[[Op], Any]) -> list[Op]:
    return [replace(op, **{name: of(op) for name, of in fields.items()}) for op in chain()]


@rows(
    "ops, match",
    (chain()[:-1], "it is of another model: the model lacks 'nll.GY', 'nll.Y'; trace"),
    (chain_with(name=lambda op: f"x{op.name}", inputs=lambda op: ()),
     "it lacks 'xbn1.GY', 'xbn1.Y', 'xbn1.bias.GP' and 35 more and the model lacks 'bn1.GY'"),
    (chain_with(numel=lambda op: 2 * op.numel),
     "it is of another batch: 22 tensors have other sizes; 'in.Y' has 256 elements in it "
     "and 512 in the model"),
    (chain_with(params=lambda op: dict.fromkeys(op.params, 9)),
     "it is of another model: 16 tensors have other sizes; 'conv1.weight.P' has 36 elements"),
)  # fmt: skip
def test_an_assignment_of_something_else_is_refused(tmp_path: Path, ops: list[Op], match: str):
    MADE.save(tmp_path / "a.json")
    with pytest.raises(ValueError, match=match):
        Assignment.load(tmp_path / "a.json", group(ops))


@rows(
    "text, match",
    ("no json", "expected the JSON of .lpkernels assignment"),
    ('{"what": "lpkernels assignment", "schema": 9}',
     "expected schema 2, got 9"),
    ('{"what": "lpkernels assignment", "schema": 2}', "a field is missing .*: 'tensors'"),
)  # fmt: skip
def test_other_files_are_refused(tmp_path: Path, text: str, match: str):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=match):
        Assignment.load(path)


LOW, GRADIENT, HIGH = PAPER.activation.low, PAPER.grad_activation.low, PAPER.activation.high
VECTORS = {
    "FP(4,3,4)": (
        LOW,
        {
            1.0: 1.0, 1.0625: 1.125, 1.1875: 1.25, -1.0625: -1.125, 29.0: 30.0, 30.9: 30.0,
            31.0: 30.0, -100.0: -30.0, 2.0**-13: 2.0**-13, 2.0**-14: 2.0**-13,
            0.999 * 2.0**-14: 0.0, 0.00137: 0.0013427734375, 2.0**-10: 2.0**-10,
        },
    ),
    "FP(5,2,0)": (
        GRADIENT,
        {
            1.125: 1.25, 1.375: 1.5, 122879.0: 114688.0, 122880.0: math.inf, -1e9: -math.inf,
            2.0**-17: 2.0**-16, 3 * 2.0**-17: 2.0**-15,
        },
    ),
    "FP(6,9,0) forward": (
        HIGH,
        {1 + 2.0**-10: 1 + 2.0**-9, 1 + 2.0**-11: 1.0, 2.0**33: 8581545984.0,
         2.0**-40: 2.0**-39, 1 / 3: 0.33349609375},
    ),
    "FP(6,9,0) backward": (PAPER.grad_activation.high, {2.0**33: math.inf, 1 / 3: 0.33349609375}),
}  # fmt: skip


@each("quantizer, values", VECTORS.values())
def test_values_round_as_in_the_papers_code(quantizer: lp.Quantizer, values: dict[float, float]):
    got = lp.quantize(torch.tensor(list(values), dtype=torch.float32), quantizer)
    assert_bit_equal(got, torch.tensor(list(values.values()), dtype=torch.float32))


def test_gradients_of_weights_stay_at_16_bits_and_only_forward_saturates():
    assert PAPER.grad_weight.low == PAPER.grad_weight.high == PAPER.grad_activation.high
    assert [x.low.fmt.bits for x in (PAPER.weight, PAPER.grad_activation)] == [8, 8]
    assert PAPER.weight.high.fmt.bits == PAPER.grad_weight.low.fmt.bits == 16
    for kinds, overflow in (
        ((PAPER.weight, PAPER.activation), "saturate"),
        ((PAPER.grad_weight, PAPER.grad_activation), "infinity"),
    ):
        assert {one.fmt.overflow for kind in kinds for one in kind} == {overflow}


def test_any_format_may_be_taken_for_a_kind():
    formats = Formats(weight=("fp16", "affine4"), activation=lp.FixedFormat(8, 4))
    assert str(formats.of("weight", True)) == "affine4"
    assert formats.activation.low == formats.activation.high
    assert formats.grad_weight == PAPER.grad_weight
    assert Formats.same("bf16", "fp8_e5m2:stochastic").grad_weight.low.is_stochastic


test_formats_that_cannot_be_are_refused = refuses(
    Formats,
    [
        ((), {"weight": ("fp16",)}, ValueError, r"weight must be \(high, low\), got 1 of them"),
        ((), {"weight": ("fp8_e5m2", "fp16")}, ValueError,
         "low precision e5m10 has 16 bits, more"),
        ((), {"activation": ("fp16", 8)}, TypeError, "Formats: activation: expected a Quantizer"),
        ((), {"weight": "float8"}, ValueError, "Formats: weight: "),
        ((), {"activation": ("fp16", lp.BlockFormat("fp4_e2m1", 32))}, ValueError,
         "depend on the tensor's shape; take a format whose codes have one width"),
    ],
)  # fmt: skip
