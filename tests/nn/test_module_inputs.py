"""Every layer on the inputs that torch's own tests of its modules use."""

import copy
import inspect
import pickle
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import expecttest  # noqa: F401  (common_modules needs it)
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.testing._internal.common_modules import ModuleInput, module_db
from torch.utils._python_dispatch import TorchDispatchMode

import lpkernels as lp
from lpkernels.nn import _classes
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, STOCHASTIC
from tests.nn.more_module_inputs import more_inputs

SUMS_ONLY = [cls.__name__ for cls in _classes._WITHOUT_PRODUCTS]
CLASSES = [cls.__name__ for cls in _classes._CLASSES] + SUMS_ONLY
SUMS = lp.Recipe(
    fprop=lp.Accumulator("fp32"), dgrad=lp.Accumulator("fp32"), wgrad=lp.Accumulator("fp32")
)
INFOS = {info.module_cls: info for info in module_db}


class Case(NamedTuple):
    """A layer's name, the arguments of its constructor and of its call."""

    name: str
    constructor: Any
    forward: Any


def module_inputs(name: str) -> list[ModuleInput]:
    info = INFOS[getattr(nn, name)]
    call = {"device": "cpu", "dtype": torch.float32, "requires_grad": True, "training": True}
    return info.module_inputs_func(info, **call)


def cases(most: int | None = None) -> Iterator[Any]:
    """All inputs of each class, torch's and those it leaves out, or the first `most` of torch's."""
    torch.manual_seed(0)
    for name in CLASSES:
        # torch lists no inputs for LazyLinear, which takes those of Linear without in_features.
        listed = list(module_inputs("Linear" if name == "LazyLinear" else name))[:most]
        for i, case in enumerate(listed + ([] if most else more_inputs(name))):
            constructor = case.constructor_input
            if name == "LazyLinear":
                constructor.args = constructor.args[1:]
            forward = case.forward_input
            label = f"{name}-{case.desc or i}"
            yield pytest.param(Case(name, constructor, forward), id=label)


ONE_SIZE = ("LazyLinear", "LayerNorm", "RMSNorm", "Softmax", "GELU", "BatchNorm1d")
ONE_SIZE += ("BatchNorm2d", "BatchNorm3d")
every_case = pytest.mark.parametrize("case", list(cases()))
some_cases = pytest.mark.parametrize("case", list(cases(3)))
every_class = pytest.mark.parametrize("name", CLASSES)


class Calls(TorchDispatchMode):
    """Counts the calls of the products of lpkernels."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "lpkernels":
            self.names.append(func._schema.name.partition("::_")[2])
        return func(*args, **(kwargs or {}))


def made(case: Case, module: Any, **options: Any) -> nn.Module:
    torch.manual_seed(7)
    return getattr(module, case.name)(*case.constructor.args, **case.constructor.kwargs, **options)


def run(layer: nn.Module, case: Case) -> list[torch.Tensor]:
    """The outputs and the gradients of inputs and parameters."""
    torch.manual_seed(11)
    args, kwargs = copied((case.forward.args, case.forward.kwargs))
    y = tensors(layer(*args, **kwargs))
    generator = torch.Generator().manual_seed(3)
    torch.autograd.backward(y, [torch.randn(t.shape, generator=generator) for t in y])
    leaves = [x for x in tensors((args, kwargs)) if x.is_leaf and x.requires_grad]
    return [*(t.detach() for t in y), *(t.grad for t in [*leaves, *layer.parameters()])]


def copied(value: Any) -> Any:
    """value with every tensor replaced by a leaf of its own."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, PackedSequence):
        return PackedSequence(copied(value.data), *value[1:])
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    return type(value)(map(copied, value)) if isinstance(value, tuple | list) else value


def tensors(value: Any) -> list[torch.Tensor]:
    """The floating tensors in value, in order."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    value = value.values() if isinstance(value, dict) else value
    return [t for each in value for t in tensors(each)] if isinstance(value, Iterable) else []


@every_case
def test_layer_by_the_fp32_recipe_is_torchs(case: Case) -> None:
    for a, c in zip(run(made(case, lp.nn), case), run(made(case, nn), case), strict=True):
        assert_bit_equal(a, c)


@every_case
def test_layer_summed_in_sequence_is_torchs_within_fp32(case: Case) -> None:
    with Calls() as calls:
        got = run(made(case, lp.nn, recipe=SUMS), case)
    for a, c in zip(got, run(made(case, nn), case), strict=True):
        torch.testing.assert_close(a, c, rtol=1e-5, atol=3e-5)
    assert set(calls.names) == products(case)


def products(case: Case) -> set[str]:
    """The operators that compute a layer forward and backward."""
    first = [*case.forward.args, *case.forward.kwargs.values()][0].data
    if case.name in ("Embedding", "GELU") or not first.numel():
        return set()
    biased = case.constructor.kwargs.get("bias", True)
    if "Conv" not in case.name:
        # The bias of the second product of a bilinear layer is added apart.
        return {"matmul", "add_bias"} if case.name == "Bilinear" and biased else {"matmul"}
    kinds = {"conv_fprop", "conv_dgrad", "conv_wgrad"}
    # The gradient of the bias is a matrix product.
    of_bias = {"matmul", "add_bias"} if "Transpose" in case.name else {"matmul"}
    return kinds | of_bias if biased else kinds


@every_case
@pytest.mark.parametrize("recipe", [DETERMINISTIC, STOCHASTIC], ids=["deterministic", "stochastic"])
def test_layer_in_low_precision_is_the_references(
    case: Case, recipe: lp.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = run(made(case, lp.nn, recipe=recipe), case)
    monkeypatch.setenv("LPKERNELS_BACKEND", "reference")
    for a, c in zip(got, run(made(case, lp.nn, recipe=recipe), case), strict=True):
        assert_bit_equal(a, c)


@some_cases
def test_converted_layer_is_the_one_built(case: Case) -> None:
    converted = lp.convert(made(case, nn), {getattr(nn, case.name): STOCHASTIC})
    built = made(case, lp.nn, recipe=STOCHASTIC)
    assert type(converted) is type(built)
    for a, c in zip(run(converted, case), run(built, case), strict=True):
        assert_bit_equal(a, c)
    plain = made(case, nn)
    run(plain, case)
    assert type(lp.revert(converted)) is type(plain)


# A layer has these attributes beside torch.nn's; only layers with one input have the last two.
ATTRIBUTES = {"_recipe", "_tabled", "_formats", "_built", "_rest", "_tabled_rest"}


@some_cases
def test_layer_looks_like_torchs(case: Case) -> None:
    layer, plain = made(case, lp.nn, recipe="fp8_wang2018"), made(case, nn)
    assert isinstance(layer, getattr(nn, case.name))
    assert list(layer.state_dict()) == list(plain.state_dict())
    # A layer with layers inside shows its recipe on a line of its own.
    first, lines, rest = repr(plain).partition("(\n")
    with_recipe = f"{first}{lines}  recipe=fp8_wang2018\n{rest}"
    assert repr(layer) == (with_recipe if lines else repr(plain)[:-1] + ", recipe=fp8_wang2018)")
    assert {"_recipe", "_tabled"} <= set(vars(layer)) - set(vars(plain)) <= ATTRIBUTES
    run(layer, case)
    run(plain, case)
    assert type(layer).__name__ == type(plain).__name__
    assert type(layer) is getattr(lp.nn, type(plain).__name__)
    layer.load_state_dict(plain.state_dict())
    for a, c in zip(layer.parameters(), plain.parameters(), strict=True):
        assert_bit_equal(a, c)


@some_cases
@pytest.mark.parametrize("how", ["pickle", "deepcopy"])
def test_layer_copies_keep_the_recipe(case: Case, how: str) -> None:
    layer = made(case, lp.nn, recipe=DETERMINISTIC)
    twin = pickle.loads(pickle.dumps(layer)) if how == "pickle" else copy.deepcopy(layer)
    assert type(twin) is type(layer) and twin.recipe == layer.recipe
    for a, c in zip(
        run(twin, case), run(made(case, lp.nn, recipe=DETERMINISTIC), case), strict=True
    ):
        assert_bit_equal(a, c)


CONTAINERS = (
    "TransformerEncoderLayer",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "Transformer",
)


def container_cases() -> Iterator[Any]:
    torch.manual_seed(0)
    for name in CONTAINERS:
        for i, case in enumerate(module_inputs(name)[::3]):
            label = f"{name}-{3 * i}"
            yield pytest.param(Case(name, case.constructor_input, case.forward_input), id=label)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("case", list(container_cases()))
def test_converted_container_is_torchs_within_fp32(case: Case) -> None:
    layer, plain = made(case, nn), made(case, nn)
    lp.convert(layer, SUMS)
    with Calls() as calls:
        got = run(layer, case)
    for a, c in zip(got, run(plain, case), strict=True):
        torch.testing.assert_close(a, c, rtol=1e-4, atol=1e-5)
    assert set(calls.names) == {"matmul"}
    args, kwargs = copied((case.forward.args, case.forward.kwargs))
    with torch.no_grad(), Calls() as calls:
        got = layer.eval()(*args, **kwargs)
    torch.testing.assert_close(got, plain.eval()(*args, **kwargs), rtol=1e-4, atol=1e-5)
    # Each attention has three products and out_proj; there are two hidden layers beside them.
    blocks = sum(isinstance(m, nn.MultiheadAttention) for m in layer.modules())
    assert calls.names.count("matmul") >= 4 * blocks + 2


@every_class
def test_class_has_torchs_signature_and_recipe(name: str) -> None:
    own, torchs = getattr(lp.nn, name), getattr(nn, name)
    want = inspect.signature(torchs).parameters
    got = dict(inspect.signature(own).parameters)
    assert got.pop("recipe").default == "fp32"
    if "bias" not in want:  # torch's norms have it from 2.13 on.
        got.pop("bias", None)
    assert list(got) == list(want)
    assert [p.default for p in got.values()] == [p.default for p in want.values()]
    forward = [list(inspect.signature(cls.forward).parameters) for cls in (own, torchs)]
    assert forward[0] == forward[1]


@every_class
def test_class_refuses_what_is_no_recipe(name: str) -> None:
    sizes = (4, 4, 4)[: 1 if name in ONE_SIZE else 2 if "Lazy" in name else 3]
    sizes = sizes[:2] if name in ("Linear", "Embedding") else sizes
    with pytest.raises(TypeError, match="expected a Recipe or its name, got 8"):
        getattr(lp.nn, name)(*sizes, recipe=8)
    with pytest.raises(TypeError, match="unexpected keyword argument 'biased'"):
        getattr(lp.nn, name)(*sizes, biased=True)


def test_embedding_from_pretrained() -> None:
    weight = torch.randn(4, 3)
    layer = lp.nn.Embedding.from_pretrained(weight)
    assert type(layer) is lp.nn.Embedding and layer.recipe == lp.Recipe()
    layer.recipe = lp.Recipe(weight="e4m3")
    assert_bit_equal(layer(torch.tensor([2, 0])), lp.quantize(weight, "e4m3")[[2, 0]])
