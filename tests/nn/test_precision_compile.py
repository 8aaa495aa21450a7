"""torch.compile: precisions change at every step, and nothing is compiled again."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.nn.layer_cases import same, step
from tests.support.compiling import compiled, fresh_compiler, graphs  # noqa: F401

FLOATS = {3: "e2m0", 4: "e2m1", 5: "e3m1", 6: "e3m2", 7: "e4m2", 8: "e4m3fn_sat"}
WITH_CODES = {4: "e2m1", 6: "e3m2", 8: "e4m3fn"}
BLOCKS = {4: "block4_e2m1", 6: "block8_e3m2", 8: "block4_e4m3"}
FIXED = lp.Recipe(input="fixed8_f4", weight="fixed8_f6:stochastic", grad_output="ufixed8_f4")


pytestmark = pytest.mark.usefixtures("fresh_compiler")


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
        same(step(model, run, x), step(other, other, x))


@pytest.mark.parametrize("steps", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_precision_for_every_step_is_one_graph(steps: int) -> None:
    model = network("cpt_fu2021")
    other = copy.deepcopy(model)
    train(model, other, ((2 + i % 7, 8 - i % 5) for i in range(steps)))
    assert graphs() == 1
    same(model.buffers(), other.buffers())


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
def test_precisions_of_any_family_are_one_graph(
    recipe: lp.Recipe, formats: dict[int, str] | None
) -> None:
    recipe = replace(recipe, fprop=lp.Accumulator("e6m9"), dgrad=lp.Accumulator("e6m9"))
    model = network(recipe)
    widths = sorted(formats or (3, 5, 8))
    table = {} if formats is None else {"formats": formats}
    train(model, copy.deepcopy(model), [(bits, widths[0]) for bits in [*widths, *widths]], **table)
    assert graphs() == 1


@pytest.mark.parametrize("formats", [WITH_CODES, BLOCKS], ids=["floats", "blocks"])
def test_what_is_kept_for_backward_has_the_widest_formats_size(formats: dict[int, str]) -> None:
    first = next(iter(formats.values()))
    layer = lp.nn.Linear(10, 3, recipe=lp.Recipe(input=first, fprop="e6m9", wgrad="e6m9"))
    run, x, sizes = compiled(layer), torch.randn(4, 10), []
    widest = lp.pack(lp.quantize(x, formats[8]), formats[8]).numel()

    def seen(t: torch.Tensor) -> torch.Tensor:
        sizes.extend([t.numel()] * (t.dtype == torch.uint8))
        return t

    for bits in formats:
        layer.set_precision(bits, None, formats=formats)
        with torch.autograd.graph.saved_tensors_hooks(seen, lambda t: t):
            run(x)
    assert sizes == [widest] * len(formats) and graphs() == 1


def test_backward_has_the_precision_of_its_forward() -> None:
    model = network("cpt_fu2021")
    want = step(model, model, batch())
    run, x = compiled(model), batch().requires_grad_()
    torch.manual_seed(5)
    y = run(x)
    lp.set_precision(model, 2, 2)
    y.square().sum().backward()
    same([y.detach(), x.grad, *(p.grad for p in model.parameters())], want)


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
        same(step(model, run, x), step(other, other, x))
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
    same(program.buffers(), want.buffers())
