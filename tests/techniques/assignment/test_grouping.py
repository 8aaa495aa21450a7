"""group: which tensors are demoted together."""

import ast
from pathlib import Path

import pytest

from lpkernels.techniques import assignment, saving
from lpkernels.techniques.assignment import Op, group
from tests.loops import each
from tests.techniques.assignment.networks import chain, homes

WITHOUT_TORCH = [
    path
    for path in sorted(Path(assignment.__file__).parent.glob("*.py"))
    if path.name != "__init__.py"
] + [Path(saving.__file__)]


def test_the_chain_has_10830_elements_with_a_loss_of_one():
    groups = group(chain())
    assert [each.index for each in groups] == [0, 1, 2, 3]
    assert [each.numel for each in groups] == [584, 6736, 3348, 162]
    assert sum(each.numel for each in groups) == 10830


def test_the_papers_code_counts_the_loss_once_a_sample_10836():
    groups = group(chain(loss_numel=4))
    assert [each.numel for each in groups] == [584, 6736, 3348, 168]
    assert sum(each.numel for each in groups) == 10836


def test_a_weight_is_with_what_it_multiplies():
    found = homes(group(chain()))
    assert found["in.Y"] == found["conv1.weight.P"] == found["conv1.weight.GP"] == 0
    assert found["conv1.Y"] == found["bn1.bias.P"] == found["relu1.GY"] == 1
    assert found["conv2.weight.P"] == 1
    assert found["pool.Y"] == found["fc.weight.P"] == found["fc.bias.GP"] == 2
    assert found["fc.Y"] == found["log_softmax.Y"] == found["nll.GY"] == 3


def test_every_tensor_has_its_kind_and_size():
    tensors = {t.key: t for each in group(chain()) for t in each.tensors}
    kinds = {key: tensors[f"bn1{key}"].kind for key in (".Y", ".GY", ".bias.P", ".bias.GP")}
    assert list(kinds.values()) == ["activation", "grad_activation", "weight", "grad_weight"]
    assert [tensors[f"bn1{key}"].numel for key in kinds] == [1024, 1024, 4, 4]
    assert len(tensors) == 2 * (11 + 8)


def residual(shortcut: bool) -> list[Op]:
    """A block, then a convolution that reads it; the block's shortcut is a convolution that runs
    after the others, or nothing."""
    ops = [
        Op("in", False, (), {}, 10),
        Op("conv_a", True, ("in",), {"w": 1}, 10),
        Op("bn_a", False, ("conv_a",), {"w": 1}, 10),
        Op("relu", False, ("bn_a",), {}, 10),
        Op("conv_b", True, ("relu",), {"w": 1}, 10),
        Op("bn_b", False, ("conv_b",), {"w": 1}, 10),
    ]
    if shortcut:
        ops.append(Op("conv_s", True, ("in",), {"w": 1}, 10))
        ops.append(Op("bn_s", False, ("conv_s",), {"w": 1}, 10))
    ops.append(Op("add", False, ("bn_b", "bn_s" if shortcut else "in"), {}, 10))
    ops.append(Op("out", False, ("add",), {}, 10))
    return [*ops, Op("next", True, ("out",), {"w": 1}, 10)]


def test_a_projection_takes_the_join_and_what_follows():
    found = homes(group(residual(shortcut=True)))
    assert found["conv_a.w.P"] == found["conv_s.w.P"] == found["in.Y"] == 0
    assert found["conv_a.Y"] == found["bn_a.Y"] == found["bn_a.w.P"] == found["relu.Y"] == 1
    assert found["conv_b.w.P"] == 1
    assert found["conv_b.Y"] == found["bn_b.Y"] == found["bn_b.w.GP"] == 2
    assert found["conv_s.Y"] == found["bn_s.Y"] == found["bn_s.w.P"] == 3
    assert found["add.Y"] == found["add.GY"] == found["out.Y"] == found["next.w.P"] == 3
    assert found["next.Y"] == 4


def test_without_a_projection_the_join_is_with_the_second_convolution():
    found = homes(group(residual(shortcut=False)))
    assert found["conv_b.Y"] == found["add.Y"] == found["out.Y"] == found["next.w.P"] == 2


def test_a_fire_module_has_both_expanding_weights_in_the_squeezing_group():
    ops = [
        Op("in", False, (), {}, 8),
        Op("squeeze", True, ("in",), {"w": 1}, 2),
        Op("relu", False, ("squeeze",), {}, 2),
        Op("expand1", True, ("relu",), {"w": 1}, 4),
        Op("expand3", True, ("relu",), {"w": 9}, 4),
        Op("cat", False, ("expand1", "expand3"), {}, 8),
        Op("last", False, ("cat",), {}, 8),
    ]
    found = homes(group(ops))
    assert found["relu.Y"] == found["expand1.w.P"] == found["expand3.w.P"] == 1
    assert found["expand1.Y"] == 2
    assert found["expand3.Y"] == found["cat.Y"] == found["last.Y"] == 3


def test_a_second_input_opens_a_group_and_a_lookup_does_not():
    ops = [
        Op("words", False, (), {"w": 5}, 4),
        Op("places", False, (), {"w": 5}, 4),
        Op("image", False, (), {}, 4),
        Op("sum", False, ("words", "places", "image"), {}, 4),
    ]
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


@each(
    "ops, error, match",
    [
        ([], ValueError, "expected at least one Op, got none"),
        (["conv"], TypeError, "expected Ops, got str: 'conv'"),
        ([Op("a", False, ()), Op("a", False, ())], ValueError, "two Ops are called 'a'"),
        ([Op("a", False, ("b",))], ValueError, "'a' reads 'b', which is no earlier Op"),
        (
            [Op("a", False, (), {".w": 3}), Op("b", False, ("a",), {".w": 4})],
            ValueError,
            "parameter 'w' has 3 elements before and 4 in 'b'",
        ),
    ],
)
def test_ops_that_do_not_fit_together_are_refused(ops: list, error: type, match: str):
    with pytest.raises(error, match=match):
        group(ops)


@each(
    "arguments, error, match",
    [
        (("", False, ()), ValueError, "name must be text that is not empty, got ''"),
        (("a", False, "b"), TypeError, "inputs must be names of Ops, as a tuple, got 'b'"),
        (("a", False, (1,)), TypeError, "inputs must be names of Ops"),
        (("a", False, (), {}, -1), ValueError, "numel must be a number of elements.*got -1"),
        (("a", False, (), {}, 2.0), ValueError, "numel must be a number of elements.*got 2.0"),
        (("a", False, (), {"w": True}), ValueError, "w must be a number of elements.*got True"),
    ],
)
def test_fields_of_another_type_are_refused(arguments: tuple, error: type, match: str):
    with pytest.raises(error, match=match):
        Op(*arguments)


@each("path", WITHOUT_TORCH)
def test_the_data_side_imports_no_torch(path: Path):
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = [] if node.module == "lpkernels" else [node.module or ""]
            names += package or [f"lpkernels.{alias.name}" for alias in node.names]
    places = "techniques.assignment techniques.saving techniques._table schemas formats arithmetic"
    free = tuple(f"lpkernels.{place}" for place in places.split())
    for name in names:
        assert not name.startswith("torch"), name
        assert not name.startswith("lpkernels") or name.startswith(free), name
        assert "tracing" not in name
