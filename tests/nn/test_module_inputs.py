"""Every layer on the inputs that torch's own tests of its modules use."""

import ast
import inspect
from collections.abc import Iterable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import expecttest  # noqa: F401  (common_modules needs it)
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.testing._internal.common_modules import FunctionInput, ModuleInput, module_db

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, STOCHASTIC
from tests.nn.layer_cases import same, twins
from tests.support.autograd import Operators

PUBLIC = {name: getattr(lp.nn, name) for name in lp.nn.__all__}
CLASSES = [n for n, x in PUBLIC.items() if isinstance(x, type) and issubclass(x, nn.Module)]
SUMS = lp.Recipe(fprop="fp32", dgrad="fp32", wgrad="fp32")
INFOS = {info.module_cls: info for info in module_db}


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape).requires_grad_()


def listed(desc: str, constructor: FunctionInput, *args: Any, **kwargs: Any) -> ModuleInput:
    return ModuleInput(constructor, FunctionInput(*args, **kwargs), desc=desc)


def packed(features: int, enforce_sorted: bool) -> PackedSequence:
    lengths = torch.tensor([4, 2, 1] if enforce_sorted else [2, 4, 1])
    packed = pack_padded_sequence(torch.randn(4, 3, features), lengths, False, enforce_sorted)
    return PackedSequence(packed.data.detach().requires_grad_(), *packed[1:])


def recurrent_inputs(name: str) -> list[ModuleInput]:
    options = {"projections": {"proj_size": 2}} if name == "LSTM" else {}
    if name == "RNN":
        options["relu"] = {"nonlinearity": "relu"}
    found = [
        listed("packed", FunctionInput(3, 4), packed(3, True)),
        listed("packed unsorted", FunctionInput(3, 4, 2, bidirectional=True), packed(3, False)),
        listed("dropout", FunctionInput(3, 4, 3, dropout=0.5), leaf(4, 2, 3)),
    ]
    return found + [
        listed(f"packed {key}", FunctionInput(3, 4, **more), packed(3, True))
        for key, more in options.items()
    ]


def attention_inputs() -> list[ModuleInput]:
    query, key, value = leaf(2, 3, 4), leaf(2, 5, 6), leaf(2, 5, 2)
    masks = {
        "attn_mask": torch.rand(3, 5) < 0.3,
        "key_padding_mask": torch.tensor([[False] * 4 + [True], [False] * 5]),
    }
    other = FunctionInput(4, 2, kdim=6, vdim=2, batch_first=True)
    plain = FunctionInput(4, 2, batch_first=True)
    causal = torch.nn.Transformer.generate_square_subsequent_mask(3)
    return [
        listed("other sizes, masks", other, query, key, value, **masks),
        listed("no weights", other, query, key, value, need_weights=False),
        listed("all heads", other, query, key, value, average_attn_weights=False),
        listed("causal", plain, *[leaf(2, 3, 4)] * 3, attn_mask=causal, is_causal=True),
        listed("dropout", FunctionInput(4, 2, dropout=0.5), *[leaf(3, 2, 4)] * 3),
    ]


def convolution_inputs(dims: int) -> list[ModuleInput]:
    x = leaf(2, 4, *(6, 5, 4)[:dims])
    strided = FunctionInput(4, 6, 2, stride=2, padding=1, dilation=2, groups=2)
    modes = [
        listed(mode, FunctionInput(4, 3, 3, padding=1, padding_mode=mode, bias=False), x)
        for mode in ("reflect", "replicate", "circular")
    ]
    same = listed("same dilated", FunctionInput(4, 3, 2, padding="same", dilation=2), x)
    valid = listed("valid", FunctionInput(4, 3, 2, padding="valid"), x)
    return [listed("strided groups", strided, x), same, valid, *modes]


def transposed_inputs(dims: int) -> list[ModuleInput]:
    x = leaf(2, 4, *(4, 3, 2)[:dims])
    options = {"stride": 3, "padding": 1, "output_padding": 2, "groups": 2, "dilation": 2}
    sized = FunctionInput(4, 3, 3, stride=2, bias=False)
    return [
        listed("strided groups", FunctionInput(4, 6, 2, **options), x),
        listed("output size", sized, x, output_size=[2 * n + 2 for n in x.shape[2:]]),
    ]


def embedding_inputs() -> list[ModuleInput]:
    rows = torch.tensor([[1, 3, 1], [0, 2, 1]])
    return [
        listed("padding", FunctionInput(4, 3, padding_idx=1), rows),
        listed("frequencies", FunctionInput(4, 3, scale_grad_by_freq=True), rows),
        listed("norms", FunctionInput(4, 3, max_norm=1.0), rows),
    ]


def more_inputs(name: str) -> list[ModuleInput]:
    """The further inputs of the class of this name; a lazy form has none of its own."""
    if name in ("LSTM", "GRU", "RNN"):
        return recurrent_inputs(name)
    if name.startswith("ConvTranspose"):
        return transposed_inputs(int(name[-2]))
    if name.startswith("Conv"):
        return convolution_inputs(int(name[-2]))
    others = {"MultiheadAttention": attention_inputs, "Embedding": embedding_inputs}
    return others[name]() if name in others else []


class Case(NamedTuple):
    """A layer's name, the arguments of its constructor and of its call, and special features."""

    name: str
    constructor: Any
    forward: Any
    label: str

    def __repr__(self) -> str:
        return f"{self.name} ({self.label})"


def module_inputs(name: str) -> list[ModuleInput]:
    info = INFOS[getattr(nn, name)]
    call = {"device": "cpu", "dtype": torch.float32, "requires_grad": True, "training": True}
    return info.module_inputs_func(info, **call)


def cases(name: str, most: int | None = None) -> Iterator[Case]:
    """All inputs of this class, torch's and further ones, or the first `most` of torch's."""
    # torch lists no inputs for LazyLinear, which takes those of Linear without in_features.
    inputs = list(module_inputs("Linear" if name == "LazyLinear" else name))[:most]
    for i, case in enumerate(inputs + ([] if most else more_inputs(name))):
        if name == "LazyLinear":
            case.constructor_input.args = case.constructor_input.args[1:]
        yield Case(name, case.constructor_input, case.forward_input, case.desc or str(i))


torch.manual_seed(0)
CASES = [case for name in CLASSES for case in cases(name)]
SOME = [case for name in CLASSES for case in cases(name, 3)]


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


@pytest.mark.parametrize("case", CASES)
def test_layer_by_the_fp32_recipe_is_torchs(case: Case) -> None:
    same(run(made(case, lp.nn), case), run(made(case, nn), case))


@pytest.mark.parametrize("case", CASES)
def test_layer_summed_in_sequence_is_torchs_within_fp32(case: Case) -> None:
    with Operators() as operators:
        got = run(made(case, lp.nn, recipe=SUMS), case)
    for a, c in zip(got, run(made(case, nn), case), strict=True):
        torch.testing.assert_close(a, c, rtol=1e-5, atol=3e-5)
    assert set(operators.emulated) == products(case)


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


@pytest.mark.parametrize("case, recipe", list(zip(CASES[::5], cycle([DETERMINISTIC, STOCHASTIC]))))
def test_layer_in_low_precision_is_the_references(case: Case, recipe: lp.Recipe) -> None:
    got = run(made(case, lp.nn, recipe=recipe), case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LPKERNELS_BACKEND", "reference")
        same(got, run(made(case, lp.nn, recipe=recipe), case))


@pytest.mark.parametrize("case", SOME)
def test_converted_and_copied_layers_are_the_one_built(case: Case) -> None:
    converted = lp.convert(made(case, nn), {getattr(nn, case.name): STOCHASTIC})
    built = made(case, lp.nn, recipe=STOCHASTIC)
    copies = twins(built)
    want = run(built, case)
    for layer in (converted, *copies):
        # A lazy layer is of its own class until it runs.
        assert layer.recipe == STOCHASTIC
        same(run(layer, case), want)
        assert type(layer) is type(built)
    plain = made(case, nn)
    run(plain, case)
    assert type(lp.revert(converted)) is type(plain)


# A layer has these attributes beside torch.nn's; only layers with one input have the last two.
ATTRIBUTES = {
    "_recipe",
    "_assigned",
    "_tabled",
    "_formats",
    "_built",
    "_rounded",
    "_tabled_rounded",
}


@pytest.mark.parametrize("case", SOME)
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
    for source, target in ((plain, layer), (layer, plain)):
        for parameter in source.parameters():
            parameter.data += 1
        target.load_state_dict(source.state_dict())
        same(target.parameters(), source.parameters())


def container_cases() -> Iterator[Case]:
    torch.manual_seed(0)
    for kind in ("EncoderLayer", "DecoderLayer", "Encoder", ""):
        # torch's inputs are products of options with two values each, which 7 steps through.
        for i, case in enumerate(module_inputs(name := f"Transformer{kind}")[::7]):
            yield Case(name, case.constructor_input, case.forward_input, str(7 * i))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("case", list(container_cases()))
def test_converted_container_is_torchs_within_fp32(case: Case) -> None:
    layer, plain = made(case, nn), made(case, nn)
    lp.convert(layer, SUMS)
    with Operators() as operators:
        got = run(layer, case)
    for a, c in zip(got, run(plain, case), strict=True):
        torch.testing.assert_close(a, c, rtol=1e-4, atol=1e-5)
    assert set(operators.emulated) == {"matmul"}
    args, kwargs = copied((case.forward.args, case.forward.kwargs))
    with torch.no_grad(), Operators() as operators:
        got = layer.eval()(*args, **kwargs)
    torch.testing.assert_close(got, plain.eval()(*args, **kwargs), rtol=1e-4, atol=1e-5)
    # Each attention has three products and out_proj; there are two hidden layers beside them.
    blocks = sum(isinstance(m, nn.MultiheadAttention) for m in layer.modules())
    assert operators.emulated.count("matmul") >= 4 * blocks + 2


def stub_arguments() -> dict[str, list[str]]:
    """The arguments of each class in the stub that type checkers read, its own or its base's."""
    arguments: dict[str, list[str]] = {}
    for node in ast.parse(Path(lp.nn.__file__).with_suffix(".pyi").read_text()).body:
        if not isinstance(node, ast.ClassDef):
            continue
        base = node.bases[0] if node.bases else None
        arguments[node.name] = arguments.get(getattr(base, "id", ""), [])
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                listed = (*method.args.args[1:], *method.args.kwonlyargs)
                arguments[node.name] = [argument.arg for argument in listed]
    return arguments


@pytest.mark.parametrize("name", CLASSES)
def test_class_has_torchs_signature_and_recipe(name: str) -> None:
    own, torchs = getattr(lp.nn, name), getattr(nn, name)
    want = inspect.signature(torchs)
    got = inspect.signature(own).parameters
    assert got["recipe"].default == "fp32"
    assert [p for p in got.values() if p.name != "recipe"] == list(want.parameters.values())
    if torch.__version__ >= (2, 13) and "args" not in got:
        assert stub_arguments()[name] == list(got)
    forward = [list(inspect.signature(cls.forward).parameters) for cls in (own, torchs)]
    assert forward[0] == forward[1]
    subclass = type("Subclass", (own,), {"__init__": lambda self, n: None})
    assert list(inspect.signature(subclass).parameters) == ["n"]


def test_the_stub_has_the_public_names() -> None:
    stub = ast.parse(Path(lp.nn.__file__).with_suffix(".pyi").read_text())
    imported = [a.asname for n in stub.body if isinstance(n, ast.ImportFrom) for a in n.names]
    names = {*filter(None, imported), *(name for name in stub_arguments() if name[0] != "_")}
    # The conversion of models is public in lpkernels itself.
    conversion = {"convert", "revert", "set_precision", "set_recipe"}
    assert names == {*lp.nn.__all__, *conversion, "observing"} and conversion < {*lp.__all__}


PROGRAM = """
import lpkernels as lp
conv = lp.nn.Conv2d(3, 8, 3, padding=1, recipe="fp8_wang2018")
conv.recipe = lp.recipe("fp32")
reveal_type(conv.recipe)
reveal_type(lp.nn.LazyLinear(3).weight)
lp.nn.Linear(3)
lp.nn.LSTM(3, 4, recpe="fp32")
"""


@pytest.mark.slow
def test_mypy_knows_the_arguments_of_a_users_layers(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    report, *_ = api.run(["--strict", "--config-file=", f"--cache-dir={tmp_path}", str(program)])
    assert 'type is "lpkernels.arithmetic' in report and "Found 2 errors" in report
    assert 'argument "out_features"' in report and 'keyword argument "recpe"' in report


def test_embedding_from_pretrained() -> None:
    weight = torch.randn(4, 3)
    layer = lp.nn.Embedding.from_pretrained(weight)
    assert type(layer) is lp.nn.Embedding and layer.recipe == lp.Recipe()
    layer.recipe = lp.Recipe(weight="e4m3")
    assert_bit_equal(layer(torch.tensor([2, 0])), lp.quantize(weight, "e4m3")[[2, 0]])


def test_recipe_can_be_assigned() -> None:
    layer = lp.nn.Linear(5, 3)
    layer.recipe = "bf16_mixed"
    assert layer.recipe == lp.recipe("bf16_mixed")
    with pytest.raises(ValueError, match="unknown name 'fp9'"):
        layer.recipe = "fp9"
    layer.recipe = lp.Recipe(input="e4m3")
    assert repr(layer) == repr(nn.Linear(5, 3))[:-1] + ", recipe=Recipe(input='e4m3'))"
    with pytest.raises(TypeError, match="expected a Recipe or its name"):
        lp.nn.Conv2d(2, 3, 1, recipe=None)


def test_conv_adds_the_gradients_of_padding_in_float32() -> None:
    layer = lp.nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular", recipe=DETERMINISTIC)
    x = torch.randn(1, 1, 4, dtype=torch.bfloat16, requires_grad=True)
    wide = x.detach().float().requires_grad_()
    layer(x).sum().backward()
    layer(wide).sum().backward()
    assert_bit_equal(x.grad, wide.grad.to(torch.bfloat16))
