"""group: which tensors are demoted together."""

import ast
from pathlib import Path

from lpkernels.techniques import assignment, saving, state
from lpkernels.techniques.assignment import Op, group
from tests.loops import each
from tests.support.refusals import refuses
from tests.techniques.assignment.networks import chain, homes, ops_from

FOLDER = Path(assignment.__file__).parent


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


DATA = [FOLDER / f"{name}.py" for name in ("graph", "operations", "rules", "request")]


@each("path", [*DATA, Path(saving.__file__), Path(state.__file__)])
def test_the_data_side_imports_no_torch(path: Path):
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            whole = node.module in ("lpkernels", "lpkernels.techniques")
            names += (
                [f"{node.module}.{a.name}" for a in node.names] if whole else [node.module or ""]
            )
    places = "schemas formats arithmetic _table".split()
    places += [f"techniques.{name}" for name in ("saving", "checks", "state")]
    places += [f"techniques.assignment.{path.stem}" for path in DATA]
    free = tuple(f"lpkernels.{place}" for place in places)
    for name in names:
        assert not name.startswith("torch"), name
        assert not name.startswith("lpkernels") or name.startswith(free), name
