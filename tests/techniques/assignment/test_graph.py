"""Operations, groups, formats and assignments as plain data, as a table and as a file."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import lpkernels as lp
from lpkernels.techniques import assignment, saving, state
from lpkernels.techniques.assignment import Assignment, Formats, Op, Pins, demote, group
from tests.compare import assert_bit_equal
from tests.loops import each, rows
from tests.support.refusals import refuses
from tests.techniques.assignment.networks import chain, homes, ops_from

FOLDER = Path(assignment.__file__).parent
DATA = [FOLDER / f"{name}.py" for name in ("graph", "operations", "rules")]
FREE = (
    "__future__|lpkernels.(schemas|formats|arithmetic|_table)|lpkernels.techniques.(saving|checks"
)
FREE += f"|state|assignment.({'|'.join(path.stem for path in DATA)}))"


@each("path", [*DATA, Path(saving.__file__), Path(state.__file__)])
def test_the_data_side_imports_no_torch(path: Path):
    text = path.read_text().replace("lpkernels import ", "lpkernels.")
    text = text.replace("lpkernels.techniques import ", "lpkernels.techniques.")
    for name in re.findall(r"^ *(?:from|import) (torch|lpkernels[\w.]*)", text, re.MULTILINE):
        assert re.match(FREE, name), name


def test_the_chain_has_10830_elements_and_a_weight_is_with_what_it_multiplies():
    groups = group(chain())
    assert [each.index for each in groups] == [0, 1, 2, 3]
    assert [each.numel for each in groups] == [584, 6736, 3348, 162]
    # The paper's code counts the loss once a sample.
    assert [each.numel for each in group(chain(loss_numel=4))] == [584, 6736, 3348, 168]
    found = homes(groups)
    assert found["in.Y"] == found["conv1.weight.P"] == found["conv1.weight.GP"] == 0
    assert found["conv1.Y"] == found["bn1.bias.P"] == found["relu1.GY"] == 1
    assert found["conv2.weight.P"] == 1
    assert found["pool.Y"] == found["fc.weight.P"] == found["fc.bias.GP"] == 2
    assert found["fc.Y"] == found["log_softmax.Y"] == found["nll.GY"] == 3
    tensors = {t.key: t for each in groups for t in each.tensors}
    kinds = {key: tensors[f"bn1{key}"].kind for key in (".Y", ".GY", ".bias.P", ".bias.GP")}
    assert list(kinds.values()) == ["activation", "grad_activation", "weight", "grad_weight"]
    assert [tensors[f"bn1{key}"].numel for key in kinds] == [1024, 1024, 4, 4]
    assert len(tensors) == 2 * (11 + 8)


RESIDUAL = "in, conv_a* in w, bn_a conv_a w, relu bn_a, conv_b* relu w, bn_b conv_b w"


def test_a_projection_takes_the_join_and_what_follows():
    """A block whose shortcut is a convolution after the others, then one that reads the block."""
    shortcut = "conv_s* in w, bn_s conv_s w, add bn_b bn_s, out add, next* out w"
    found = homes(group(ops_from(f"{RESIDUAL}, {shortcut}")))
    assert found["conv_a.w.P"] == found["conv_s.w.P"] == found["in.Y"] == 0
    assert found["conv_a.Y"] == found["bn_a.Y"] == found["bn_a.w.P"] == found["relu.Y"] == 1
    assert found["conv_b.w.P"] == 1
    assert found["conv_b.Y"] == found["bn_b.Y"] == found["bn_b.w.GP"] == 2
    assert found["conv_s.Y"] == found["bn_s.Y"] == found["bn_s.w.P"] == 3
    assert found["add.Y"] == found["add.GY"] == found["out.Y"] == found["next.w.P"] == 3
    assert found["next.Y"] == 4
    # Without a projection the join is with the second convolution.
    found = homes(group(ops_from(f"{RESIDUAL}, add bn_b in, out add, next* out w")))
    assert found["conv_b.Y"] == found["add.Y"] == found["out.Y"] == found["next.w.P"] == 2


def test_a_fire_module_has_both_expanding_weights_in_the_squeezing_group():
    fire = "in, squeeze* in w, relu squeeze, expand1* relu w, expand3* relu w"
    found = homes(group(ops_from(f"{fire}, cat expand1 expand3, last cat")))
    assert found["relu.Y"] == found["expand1.w.P"] == found["expand3.w.P"] == 1
    assert found["expand1.Y"] == 2
    assert found["expand3.Y"] == found["cat.Y"] == found["last.Y"] == 3
    # A second input opens a group, and a lookup does not.
    ops = ops_from("words w, places w, image, sum words places image")
    found = homes(group(ops))
    assert [found[f"{op.name}.Y"] for op in ops] == [0, 0, 1, 1]
    assert found["places.w.P"] == 0


def test_a_shared_parameter_is_one_tensor_where_the_first_reads_it():
    ops = [
        Op("in", False, (), {}, 4),
        Op("a", True, ("in",), {"weight": 6}, 4),
        Op("b", True, ("a",), {"a.weight": 6, ".scale": 2}, 4),
        Op("c", False, ("b",), {".scale": 2}, 4),
    ]
    found = homes(group(ops))
    assert found["a.weight.P"] == 0
    assert found["scale.P"] == 1
    assert sum("weight" in key for key in found) == 2


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
        (("a", False, (1,)), {}, TypeError, "inputs must be names of Ops"),
        (("a", False, (), {}, -1), {}, ValueError, r"elements of the result: .* got -1"),
        (("a", False, (), {}, 2.0), {}, TypeError, "of the result: expected an int, got float 2.0"),
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


def test_the_table_has_a_row_for_each_group():
    assert str(demote(group(chain(loss_numel=4)), 0.6)).splitlines() == [
        "group  from   to     tensors  elements   low    bits",
        "    0  in     in           4       584    0%   9,344",
        "    1  conv1  relu1       12     6,736  100%  56,256",
        "    2  conv2  pool        16     3,348    0%  53,568",
        "    3  fc     nll          6       168    0%   2,688",
        "low-precision ratio 0.6216, 121,856 bits of 173,376 in high precision, bit ratio 0.5943",
    ]
    # A network without elements has no ratio.
    made = demote(group([Op("in", False, (), {}, 0)]), 0.0)
    assert (made.ratio, made.bits, made.bit_ratio) == (0.0, 0, 0.0)
    assert "of none in high precision" in str(made)


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
