"""torch.compile and torch.export: one graph for a layer, whatever its seeds, batch, formats and
precisions, and whatever torch computes again in backward; programs with eager's bits."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._functorch.config
from torch import nn
from torch.utils.checkpoint import checkpoint

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, STOCHASTIC
from tests.nn.layer_cases import (
    LAYERS,
    SLOW_TO_COMPILE,
    assert_steps_alike,
    changed,
    converted,
    inputs,
    same,
    step,
)
from tests.support.autograd import compiled, fresh_compiler, graphs  # noqa: F401

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def other_formats(recipe: lp.Recipe) -> lp.Recipe:
    """A recipe of the same structure, whose codes have fewer bits."""
    return changed(
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
    for name in LAYERS
    for dynamic in (False, True)
    for quick in [dynamic and name not in SLOW_TO_COMPILE]
]


@pytest.mark.parametrize(("name", "dynamic"), LAYERS_AND_SIZES)
def test_layer_is_one_graph(name: str, dynamic: bool) -> None:
    layer = converted(name, STOCHASTIC)
    run = compiled(layer, dynamic)
    for n in (9, 11) if dynamic else (5, 5):
        args = inputs(name, n)
        if dynamic and name in ("LSTM", "GRU", "RNN"):
            # A graph has every step of a sequence, and each step takes long when sizes are symbols.
            args = (args[0][:, :1],)
        assert_steps_alike(layer, run, *args)
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
    layer = converted("Linear", DETERMINISTIC)
    run, args = compiled(layer), inputs("Linear")
    for recipe in (DETERMINISTIC, changed(DETERMINISTIC, **change)):
        layer.recipe = recipe
        assert_steps_alike(layer, run, *args)
    assert graphs() == 2


def encoder() -> tuple[nn.Module, torch.Tensor]:
    block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return block, torch.randn(2, 5, 8)


def small() -> tuple[nn.Module, torch.Tensor]:
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(15, 4))
    return model, torch.randn(4, 2, 7)


# inductor takes 10 seconds, most of them for the C++ compiler that it starts.
@pytest.mark.parametrize("make, backend", [(encoder, "aot_eager"), (small, "inductor")])
def test_model_is_one_graph_with_its_bits(make: Any, backend: str) -> None:
    torch.manual_seed(0)
    model, x = make()
    lp.convert(model, STOCHASTIC)
    run = compiled(model, backend=backend)
    for _ in range(2):
        assert_steps_alike(model, run, x)
        lp.set_recipe(model, other_formats(STOCHASTIC))
    assert graphs() == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_compiled_model_of_16_bits_rounds_between_its_layers(dtype: torch.dtype) -> None:
    """inductor computes what lies between operators in float32, and would leave casts out."""
    model = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 7), nn.Linear(7, 4)).to(dtype)
    lp.convert(model, lp.Recipe(fprop="e8m20", dgrad="e8m20", wgrad="e8m20"))
    x = torch.randn(5, 6).to(dtype)
    assert_steps_alike(model, compiled(model, backend="inductor"), x)


def test_compiled_layers_keep_their_bits_elsewhere() -> None:
    layer, args = converted("Linear", STOCHASTIC), inputs("Linear")
    want = step(layer, layer, *args)

    def under_autocast(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return layer(x)

    def recomputed(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(layer, x, use_reentrant=False)

    for run in (under_autocast, recomputed, copy.deepcopy(layer)):
        same(step(layer, compiled(run), *args)[:2], want[:2])
    with torch.inference_mode():
        torch.manual_seed(5)
        same([compiled(layer)(*args)], want[:1])


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


def train(model: nn.Module, change: Callable[[nn.Module, int], Any], steps: int) -> None:
    """Steps of model, compiled, and of its copy, eager, each after the same change: one graph."""
    other, run, x = copy.deepcopy(model), compiled(model), batch()
    for i in range(steps):
        change(model, i)
        change(other, i)
        assert_steps_alike(model, run, x, other=other)
    same(model.buffers(), other.buffers())
    assert graphs() == 1


@pytest.mark.parametrize("steps", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_precision_for_every_step_is_one_graph(steps: int) -> None:
    train(network("cpt_fu2021"), lambda m, i: lp.set_precision(m, 2 + i % 7, 8 - i % 5), steps)


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
    model = network(replace(recipe, fprop=lp.Accumulator("e6m9"), dgrad=lp.Accumulator("e6m9")))
    widths = sorted(formats or (3, 5, 8))
    table: Any = {} if formats is None else {"formats": formats}

    def change(m: nn.Module, i: int) -> None:
        lp.set_precision(m, widths[i % len(widths)], widths[0], **table)

    train(model, change, 2 * len(widths))


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


def test_exported_model_takes_other_batches_and_travels(tmp_path: Path) -> None:
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


DRAWN = lp.Recipe(
    input="e4m3:stochastic", weight="e4m3:stochastic", output="e5m4:stochastic",
    fprop=lp.Accumulator("e6m5", "stochastic"), dgrad="e6m9", wgrad="e6m9",
)  # fmt: skip


def wide_network() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers = nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 16)
    return lp.convert(nn.Sequential(*layers), DRAWN), torch.randn(256, 16)


def budget(share: float) -> Any:
    return torch._functorch.config.patch(activation_memory_budget=share)


# Before, the budgets .1, .5 and .9 of the first backend moved the weights' gradients by up to 3.7.
@pytest.mark.parametrize(
    ("backend", "share"),
    [
        *(("aot_eager", share) for share in (0.01, 0.1, 0.5, 0.9)),
        ("aot_eager_default_partitioner", 0.5),
        pytest.param("inductor", 0.5, marks=pytest.mark.slow),
    ],
)
def test_a_memory_budget_leaves_the_draws(backend: str, share: float) -> None:
    model, x = wide_network()
    with budget(share):
        got = step(model, compiled(model, backend=backend), x)
    state = torch.get_rng_state()
    same(got, step(model, model, x))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("region", [False, True])
def test_a_budget_of_nothing_is_refused_where_something_is_drawn(region: bool) -> None:
    model, x = wide_network()
    around = getattr(torch.autograd.graph, "region_activation_memory_budget", None)
    if region and around is None:
        pytest.skip("this torch has no budgets of regions")

    def run(x: torch.Tensor) -> torch.Tensor:
        with around(0.0) if region else nullcontext():
            return model(x)

    with nullcontext() if region else budget(0):
        with pytest.raises(Exception, match=r"memory budget of 0 .* keeps nothing"):
            compiled(run)(x)
        with torch.no_grad():
            assert compiled(model)(x).shape == (256, 16)
        # A recipe that draws nothing has eager's bits there too.
        torch._dynamo.reset()
        lp.set_recipe(model, lp.Recipe(input="e4m3", fprop="e6m5"))
        assert_steps_alike(model, compiled(model), x)
