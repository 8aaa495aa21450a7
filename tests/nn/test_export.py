"""torch.export: a program with the layer's bits, for inference."""

import pytest
import torch
from torch import nn

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, STOCHASTIC
from tests.nn.layer_cases import LAYERS, SLOW_TO_COMPILE, converted, first, inputs

# Strict export names what a layer changes; torch.nn's recurrent layers assign tensors.
pytestmark = pytest.mark.filterwarnings("ignore:While compiling", "ignore:The tensor attributes")


def operators(program: torch.export.ExportedProgram) -> list[str]:
    targets = (str(node.target) for node in program.graph.nodes)
    return [each.split(".")[1] for each in targets if each.startswith("lpkernels.")]


# Strict export traces a layer as torch.compile does.
LAYERS_AND_STRICTNESS = [
    pytest.param(name, strict, id=f"{name}-{strict=}", marks=[pytest.mark.slow] * slow)
    for name in LAYERS
    for strict in (False, True)
    for slow in [strict and name in SLOW_TO_COMPILE]
]


@pytest.mark.parametrize("name, strict", LAYERS_AND_STRICTNESS)
def test_exported_layer_has_its_bits(name: str, strict: bool) -> None:
    args = inputs(name)
    # A batch norm that trains computes its sums, and changes its running statistics.
    layer = converted(name, DETERMINISTIC).train(not strict)
    program = torch.export.export(layer, args, strict=strict)
    names = operators(program)
    assert names and "_pack" not in names
    got = first(program.module()(*args))
    assert_bit_equal(got, first(converted(name, DETERMINISTIC).train(not strict)(*args)))


def test_exported_model_takes_other_batches_and_travels(tmp_path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)
    )
    tables = lp.Recipe(input="posit8es1", weight="nf4", fprop="posit11es2")
    recipes = {nn.Linear: tables, "*": DETERMINISTIC, nn.BatchNorm2d: DETERMINISTIC}
    lp.convert(model, recipes).eval()
    dynamic = {"input": {0: torch.export.Dim("n", min=2)}}
    program = torch.export.export(model, (torch.randn(4, 1, 6, 6),), dynamic_shapes=dynamic)
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    for n in (2, 7):
        x = torch.randn(n, 1, 6, 6)
        assert_bit_equal(loaded(x), model(x))


def test_exported_stochastic_layer_draws_at_each_call() -> None:
    layer, args = converted("Linear", STOCHASTIC), inputs("Linear")
    run = torch.export.export(layer, args).module()
    torch.manual_seed(1)
    got = [run(*args) for _ in range(2)]
    torch.manual_seed(1)
    for y in got:
        assert_bit_equal(y, layer(*args))
    assert not torch.equal(*got)


def test_exported_program_refuses_gradients() -> None:
    layer, args = converted("Linear", DETERMINISTIC), inputs("Linear")
    y = torch.export.export(layer, args).module()(*args)
    with pytest.raises(NotImplementedError, match="train the model and export it for inference"):
        y.sum().backward()
