"""torch.compile: one graph for a layer, whatever its seeds, batch, formats and precisions."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, STOCHASTIC
from tests.nn import layer_cases
from tests.support.autograd import compiled, fresh_compiler, graphs  # noqa: F401

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def other_formats(recipe: lp.Recipe) -> lp.Recipe:
    """A recipe of the same structure, whose codes have fewer bits."""
    return layer_cases.changed(
        recipe,
        input="e4m2:stochastic",
        weight=lp.Quantizer("e5m1", "stochastic", random_bits=9),
        output="e5m7:stochastic",
        grad_output="e5m1:stochastic",
        fprop=lp.Accumulator("e6m8", "stochastic", order="pairwise"),
        dgrad=lp.Accumulator("fixed16_f8", "stochastic"),
        wgrad=lp.Accumulator("e5m6", "stochastic", chunk=3),
    )


# One layer of every kind is compiled for batches of all sizes; the others, and graphs of one size,
# are slow.
LAYERS_AND_SIZES = [
    pytest.param(name, dynamic, marks=[] if quick else pytest.mark.slow, id=f"{name}-{dynamic=}")
    for name in layer_cases.LAYERS
    for dynamic in (False, True)
    for quick in [dynamic and name not in layer_cases.SLOW_TO_COMPILE]
]


@pytest.mark.parametrize(("name", "dynamic"), LAYERS_AND_SIZES)
def test_layer_is_one_graph(name: str, dynamic: bool) -> None:
    layer = layer_cases.converted(name, STOCHASTIC)
    run = compiled(layer, dynamic)
    for n in (9, 11) if dynamic else (5, 5):
        args = layer_cases.inputs(name, n)
        if dynamic and name in ("LSTM", "GRU", "RNN"):
            # A graph has every step of a sequence, and each step takes long when sizes are symbols.
            args = (args[0][:, :1],)
        layer_cases.same(layer_cases.step(layer, run, *args), layer_cases.step(layer, layer, *args))
        layer.recipe = other_formats(STOCHASTIC)
    assert graphs() == 1


@pytest.mark.parametrize(
    "change",
    [
        {"input": None}, {"fprop": lp.NATIVE}, {"weight": "block4_e2m1"},
        {"grad_output": "e4m2:stochastic"},
    ],
    ids=["no quantizer", "native product", "blocks", "draws"],
)  # fmt: skip
def test_another_structure_is_another_graph(change: dict[str, Any]) -> None:
    layer = layer_cases.converted("Linear", DETERMINISTIC)
    run, args = compiled(layer), layer_cases.inputs("Linear")
    for recipe in (DETERMINISTIC, layer_cases.changed(DETERMINISTIC, **change)):
        layer.recipe = recipe
        layer_cases.same(layer_cases.step(layer, run, *args), layer_cases.step(layer, layer, *args))
    assert graphs() == 2


class Block(nn.Module):
    """The block of a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu_(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(y)) + x)


def resnet() -> tuple[nn.Module, torch.Tensor]:
    stem = [nn.Conv2d(3, 4, 3, 2), Block()]
    model = nn.Sequential(*stem, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    return model, torch.randn(3, 3, 9, 9)


def encoder() -> tuple[nn.Module, torch.Tensor]:
    block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return block, torch.randn(2, 5, 8)


def small() -> tuple[nn.Module, torch.Tensor]:
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(15, 4))
    return model, torch.randn(4, 2, 7)


# inductor takes 10 seconds, most of them for the C++ compiler that it starts.
@pytest.mark.parametrize(
    "make, backend", [(resnet, "aot_eager"), (encoder, "aot_eager"), (small, "inductor")]
)
def test_model_is_one_graph_with_its_bits(make: Any, backend: str) -> None:
    torch.manual_seed(0)
    model, x = make()
    lp.convert(model, STOCHASTIC)
    run = compiled(model, backend=backend)
    for _ in range(2):
        layer_cases.same(layer_cases.step(model, run, x), layer_cases.step(model, model, x))
        lp.set_recipe(model, other_formats(STOCHASTIC))
    assert graphs() == 1


def test_compiled_layers_keep_their_bits_elsewhere() -> None:
    layer, args = layer_cases.converted("Linear", STOCHASTIC), layer_cases.inputs("Linear")
    want = layer_cases.step(layer, layer, *args)

    def under_autocast(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return layer(x)

    def recomputed(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(layer, x, use_reentrant=False)

    for run in (under_autocast, recomputed, copy.deepcopy(layer)):
        layer_cases.same(layer_cases.step(layer, compiled(run), *args)[:2], want[:2])
    with torch.inference_mode():
        torch.manual_seed(5)
        layer_cases.same([compiled(layer)(*args)], want[:1])


FLOATS = {3: "e2m0", 4: "e2m1", 5: "e3m1", 6: "e3m2", 7: "e4m2", 8: "e4m3fn_sat"}
BLOCKS = {4: "block4_e2m1", 6: "block8_e3m2", 8: "block4_e4m3"}
FIXED = lp.Recipe(input="fixed8_f4", weight="fixed8_f6:stochastic", grad_output="ufixed8_f4")


def network(recipe: Any) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3))
    return lp.convert(model, recipe)


def batch() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(3, 2, 4, 4)


def train(model: nn.Module, other: nn.Module, bits: Any, **table: Any) -> None:
    """Steps of model, compiled, and of its copy, eager, in the same precisions."""
    run, x = compiled(model), batch()
    for forward, backward in bits:
        for each in (model, other):
            lp.set_precision(each, forward, backward, **table)
        layer_cases.same(layer_cases.step(model, run, x), layer_cases.step(other, other, x))


@pytest.mark.parametrize("steps", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_precision_for_every_step_is_one_graph(steps: int) -> None:
    model = network("cpt_fu2021")
    other = copy.deepcopy(model)
    train(model, other, ((2 + i % 7, 8 - i % 5) for i in range(steps)))
    assert graphs() == 1
    layer_cases.same(model.buffers(), other.buffers())


@pytest.mark.parametrize(
    ("recipe", "formats"),
    [
        (FIXED, None),
        (lp.Recipe(input="e2m0", weight="e2m0", grad_output="e2m1:stochastic"), FLOATS),
        (lp.Recipe(input="block4_e2m1", weight="block4_e2m1:stochastic"), BLOCKS),
        (lp.Recipe(input="e4m3", weight="e4m3", grad_output="e4m3"), BLOCKS | {6: "e3m2"}),
        (lp.Recipe(input="affine4_sym", weight="affine4_axis0"), {4: "affine4", 6: "affine9"}),
    ],
    ids=["fixed", "floats", "blocks", "families", "affine"],
)
def test_precisions_of_any_family_are_one_graph(recipe: lp.Recipe, formats: dict[int, str] | None):
    recipe = replace(recipe, fprop=lp.Accumulator("e6m9"), dgrad=lp.Accumulator("e6m9"))
    model = network(recipe)
    widths = sorted(formats or (3, 5, 8))
    table = {} if formats is None else {"formats": formats}
    train(model, copy.deepcopy(model), [(bits, widths[0]) for bits in [*widths, *widths]], **table)
    assert graphs() == 1


def test_backward_has_the_precision_of_its_forward() -> None:
    model = network("cpt_fu2021")
    want = layer_cases.step(model, model, batch())
    run, x = compiled(model), batch().requires_grad_()
    torch.manual_seed(5)
    y = run(x)
    lp.set_precision(model, 2, 2)
    y.square().sum().backward()
    layer_cases.same([y.detach(), x.grad, *(p.grad for p in model.parameters())], want)


def test_evaluation_in_the_running_range_is_one_graph_more() -> None:
    model = network(replace(lp.recipe("cpt_fu2021"), input_range="running:0.5:debiased"))
    run, x = compiled(model), batch()
    for _ in range(2):
        run(x)
    model.eval()
    for bits in (3, 5, 8):
        lp.set_precision(model, bits, None)
        with torch.no_grad():
            assert_bit_equal(run(2 * x), model(2 * x))
    assert graphs() == 2


def test_accumulators_set_at_every_step_are_one_graph() -> None:
    model = network(lp.Recipe(input="affine4", fprop="e6m9", dgrad="e6m9", wgrad="e6m9"))
    other, x = copy.deepcopy(model), batch()
    run = compiled(model)
    for i in range(12):
        for each in (model, other):
            for layer in (each[0], each[3]):
                layer.set_accumulator(f"e6m{3 + i % 6}")
        layer_cases.same(layer_cases.step(model, run, x), layer_cases.step(other, other, x))
    assert graphs() == 1


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_exported_program_has_the_range_and_the_precision_of_its_layer(training: bool) -> None:
    model, x = network("cpt_fu2021"), batch()
    model(x)
    lp.set_precision(model.train(training), 3, 8)
    program = torch.export.export(model, (x,)).module()
    lp.set_precision(model, 4, 8)
    want = copy.deepcopy(model)
    lp.set_precision(want, 3, 8)
    assert_bit_equal(program(2 * x), want(2 * x))
    layer_cases.same(program.buffers(), want.buffers())


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [lp.Recipe(fprop="e6m9"), "fp16_mixed", DETERMINISTIC])
def test_package_of_aotinductor_has_eagers_bits(recipe: lp.Recipe, tmp_path: Path) -> None:
    layers = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 5)
    model = lp.convert(nn.Sequential(*layers), recipe).eval()
    x = torch.randn(3, 1, 8, 8)
    rows = {"input": {0: torch.export.Dim("rows")}}
    program = torch.export.export(model, (x,), dynamic_shapes=rows)
    package = str(tmp_path / "model.pt2")
    torch._inductor.aoti_compile_and_package(program, package_path=package)
    run = torch._inductor.aoti_load_package(package)
    for batch in (x, torch.randn(7, 1, 8, 8)):
        assert_bit_equal(run(batch), model(batch))
