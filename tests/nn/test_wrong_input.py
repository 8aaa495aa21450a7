"""The refusals of convert, set_recipe and a converted model, which leave nothing half done."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lpkernels as lp
from tests.functional.layer_recipes import DETERMINISTIC
from tests.nn.policy_models import Doubled, Sealed

FP8 = lp.recipe("fp8_wang2018")
BF16 = lp.recipe("bf16_mixed")
X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


class Stem(nn.Sequential):
    pass


def network() -> nn.Sequential:
    stem = Stem(nn.Linear(4, 4), nn.LayerNorm(4))
    return nn.Sequential(stem, nn.LocalResponseNorm(2), nn.Linear(4, 4), Doubled(4, 4))


def refused(
    model: nn.Module, match: str, call: Callable[[], Any], error: type[Exception] = ValueError
) -> None:
    """The call raises, and leaves every class, recipe and attribute of the model as it was."""

    def state() -> list[Any]:
        return [(type(m), [*vars(m)], getattr(m, "recipe", None)) for m in model.modules()]

    before = state()
    with pytest.raises(error, match=match):
        call()
    assert state() == before


FLOATS = lp.Recipe(input="e4m3fn_sat", weight="e4m3fn_sat", grad_output="e5m2")


def converted(recipe: Any) -> nn.Module:
    return lp.convert(network(), recipe, include=nn.Linear)


@pytest.mark.parametrize("call, error, word", [
    (lambda m: lp.convert(X, FP8), TypeError, "convert: model must"),
    (lambda m: lp.convert(m, {3: FP8}), TypeError, "key"),
    (lambda m: lp.convert(m, FP8, include=3), TypeError, "include"),
    (lambda m: lp.convert(m, FP8, exclude=m[2]), TypeError, "got Linear"),
    (lambda m: lp.convert(m, FP8, functions="no"), TypeError, "functions"),
    (lambda m: lp.convert(m, {nn.Conv3d: FP8, nn.Bilinear: BF16}), ValueError,
     r"no layer matched \(recipe for Conv3d, Bilinear\).*'2' \(Linear\)"),
    (lambda m: lp.convert(nn.ReLU(), FP8), ValueError, "torch.nn.Linear"),
    (lambda m: lp.convert(m[3], FP8, functions=False), ValueError, "Doubled has its own forward"),
    (lambda m: lp.convert(m, "policy:fp8_wang2018"), ValueError, "'policy:fp8_wang2018'"),
    (lambda m: lp.convert(m, lp.policy("fp16_mixed") | {lp.nn.FIRST: "fp32"}), ValueError,
     r"key FIRST .*'\*' .*'0\.0'"),
    (lambda m: lp.set_recipe(m, FP8), ValueError, "lp.convert"),
    (lambda m: lp.policy("fp8_wang201"), ValueError, "'fp8_wang201'.*fp8_w"),
    (lambda m: lp.policy(8), TypeError, "name .*8"),
    (lambda m: lp.nn.Policy({3: "fp32"}), TypeError, "key .*FIRST.*int"),
    (lambda m: lp.convert(m, FP8, exclude=lambda name, module: module.no), AttributeError, "no"),
    (lambda m: lp.set_precision(3, 4, 8), TypeError, "set_precision: model must"),
    (lambda m: lp.set_precision(m, 4, 8), ValueError, "the model has no layer"),
    (lambda m: lp.set_precision(converted(FLOATS), 4, 8, formats={4: "e2m1"}), ValueError,
     "8 bits as grad_output: formats"),
    (lambda m: lp.nn.Linear(3, 2, recipe=lp.Recipe()).set_precision(4, 8), ValueError, "Linear"),
])  # fmt: skip
def test_a_wrong_argument_is_refused_and_changes_nothing(
    call: Callable[[nn.Module], Any], error: type[Exception], word: str
) -> None:
    model = network()
    refused(model, word, lambda: call(model), error)


def test_classes_and_functions_that_match_no_module_of_this_model_are_no_error() -> None:
    model = network()
    rules = {nn.Conv2d: BF16, lambda name, module: False: BF16, "*": FP8}
    lp.convert(model, rules, include=["2", nn.Conv3d], exclude=nn.Conv1d)
    assert model[2].recipe == FP8 and type(model[0][0]) is nn.Linear


def misspelt() -> nn.Module:
    """A network whose layers have names that are easily misspelt."""
    blocks = nn.ModuleList([nn.Linear(4, 4), nn.ReLU()])
    return nn.ModuleDict({"stem": nn.Linear(4, 4), "blocks": blocks, "head": nn.Linear(4, 4)})


def included(pattern: Any, match: str, **options: Any) -> list[tuple[Any, ...]]:
    """Refused as a pattern of include and as a key; the pattern "2" selects a layer."""
    options = {"include": ["2", pattern], **options}
    return [
        (network, FP8, options, match),
        (network, {"2": FP8, pattern: BF16}, options, match.replace("include=", "the key ")),
    ]


@pytest.mark.parametrize("make, recipe, options, match", [
    # A module that no layer stands for.
    *included(nn.LocalResponseNorm, r"'1' \(LocalResponseNorm\)"),
    *included("1", "'1'"), *included("0", "'0'"), *included("0.1", "'0.1'"),
    *included(nn.Sequential, r"'' \(Sequential\), '0' \(Stem\)"),
    *included("3", "Doubled has its own forward", functions=False),
    # A name that fits no module, with the names that are near.
    (misspelt, FP8, {"exclude": "heda"}, "exclude='heda'.*'head'"),
    (misspelt, FP8, {"include": ["stem", "haed"]}, "include='haed'.*'head'"),
    (misspelt, {"stam": BF16, "*": FP8}, {}, "the key 'stam'.*'stem'"),
    (misspelt, {"heda": "fp32"} | lp.policy("fp8_wang2018"), {}, "the key 'heda'"),
    # A key that a wider one before it leaves nothing.
    (network, {"*": FP8, "2": BF16}, {}, r"the key '2' .*'\*'"),
    (network, {nn.Linear: FP8, "?": BF16}, {}, "narrower key first"),
    # An axis that one tensor of one layer lacks.
    (misspelt, lp.Recipe(bias="affine4_axis1"), {}, "'stem': affine4_axis1 runs along axis 1"),
    (misspelt, {"head": lp.Recipe(weight="block4_axis-3_e2m1"), "*": BF16}, {}, "'head': block4_"),
])  # fmt: skip
def test_rules_that_do_not_fit_the_model_are_refused(
    make: Callable[[], nn.Module], recipe: Any, options: Any, match: str
) -> None:
    model = make()
    refused(model, match, lambda: lp.convert(model, recipe, **options))
    if recipe != FP8 and not options:
        lp.convert(model, DETERMINISTIC)
        refused(model, f"set_recipe: .*{match}", lambda: lp.set_recipe(model, recipe))


def test_keys_that_overlap_without_one_being_lost_are_no_conflict() -> None:
    model = network()
    # The second key says of layer 2 what the first says; the last key has all other layers.
    lp.convert(model, {nn.Linear: FP8, "2": FP8, "*": BF16}, exclude=["0.*"])
    assert model[2].recipe == FP8
    # With nothing but linear layers, a last key for the rest is no mistake, and neither is a class
    # that is left over.
    lp.convert(nn.Sequential(nn.Linear(4, 4)), {nn.Linear: FP8, "*": BF16})
    lp.convert(nn.Sequential(nn.Linear(4, 4)), {"*": FP8, nn.Linear: BF16})
    lp.convert(network(), FP8, include=[nn.Linear, nn.LayerNorm], exclude="0.1")


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) @ x.mT


def exported(model: nn.Module) -> Any:
    return torch.export.export(model, (X,))


@pytest.mark.filterwarnings("ignore:.torch.jit")
@pytest.mark.parametrize(
    "freeze, match",
    [
        (torch.fx.symbolic_trace, r"'1' is a graph of torch.fx that calls matmul.* leave out '1'"),
        (lambda model: exported(model).module(), "'1' is a graph of torch.fx that calls linear, m"),
        (torch.jit.script, "'1' is a TorchScript graph that calls linear, matmul; no recipe reac"),
        (lambda model: torch.jit.trace(model, X), "'1' is a TorchScript graph that calls linear"),
        (lambda model: exported(lp.convert(model, FP8)).module(), "fx that calls lpkernels::_mul"),
    ],
)
def test_convert_refuses_a_graph_that_holds_products(freeze: Any, match: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), freeze(Scores()))
    refused(model, match, lambda: lp.convert(model, FP8))
    refused(model[1], match.replace("'1'", "''"), lambda: lp.convert(model[1], FP8))
    lp.convert(model, FP8, exclude="1")
    assert type(model[0]) is lp.nn.Linear


@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_graphs_without_products_are_no_obstacle() -> None:
    active = torch.jit.script(nn.Sequential(nn.ReLU(), nn.LayerNorm(4)))
    layers = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    model = lp.convert(nn.Sequential(layers, active), DETERMINISTIC)
    assert type(layers.get_submodule("0")) is lp.nn.Linear
    assert lp.nn.summary(model, X).share == 1.0


def test_symbolic_tracing_of_a_converted_model_is_refused() -> None:
    with pytest.raises(TypeError, match=r"linear: torch\.fx.* cannot .* torch\.export"):
        torch.fx.symbolic_trace(lp.convert(Scores(), FP8))


def test_a_compiled_model_takes_recipes() -> None:
    model = Scores()
    compiled = torch.compile(model, backend="eager")
    plain = compiled(X)
    for recipe in (DETERMINISTIC, FP8):
        lp.convert(compiled, recipe)
        assert torch.equal(compiled(X), model(X)) and not torch.equal(compiled(X), plain)
    lp.set_recipe(compiled, DETERMINISTIC)
    assert torch.equal(compiled(X), model(X))
    lp.revert(compiled)
    assert torch.equal(compiled(X), plain)


def test_a_class_that_cannot_be_derived_from_undoes_the_conversion() -> None:
    model = nn.Sequential(Scores(), lp.nn.Linear(4, 4, recipe=BF16), Sealed(4, 4))
    match = "the class Sealed cannot be derived from: Sealed is final. Nothing was converted"
    refused(model, match, lambda: lp.convert(model, FP8), TypeError)
    # Even when excluded, it would run inside Scores' mode unless it gets a class of its own.
    refused(model, match, lambda: lp.convert(model, FP8, exclude="2"), TypeError)
    lp.convert(model, FP8, exclude="2", functions=False)
    assert type(model[2]) is Sealed and model[1].recipe == FP8


@pytest.mark.parametrize(
    "move, error, match",
    [
        (lambda m: m.to("meta"), ValueError, r"x on cpu, weight on meta.*load_state_dict"),
        (lambda m: m.double(), TypeError, r"weight is float64.* model.float"),
    ],
)
def test_a_model_moved_after_conversion_says_what_is_wrong(move, error, match):
    model = move(lp.convert(nn.Sequential(Scores()), FP8))
    with pytest.raises(error, match=match):
        model(X)


def test_a_meta_model_gets_its_values_after_conversion() -> None:
    model = lp.convert(Scores(), DETERMINISTIC)
    state, want = {k: v.clone() for k, v in model.state_dict().items()}, model(X)
    model.to("meta").to_empty(device="cpu").load_state_dict(state)
    assert torch.equal(model(X), want)
