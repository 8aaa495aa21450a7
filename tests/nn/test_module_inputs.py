"""Every layer on the inputs that torch's own tests of its modules use."""

import ast
import copy
import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import partial
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


of = FunctionInput
#: A constructor of a layer, and a call of it.
Input = tuple[FunctionInput, FunctionInput]


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape).requires_grad_()


def packed(*, is_sorted: bool) -> FunctionInput:
    lengths = torch.tensor([4, 2, 1] if is_sorted else [2, 4, 1])
    sequences = pack_padded_sequence(torch.randn(4, 3, 3), lengths, False, is_sorted)
    return of(PackedSequence(sequences.data.detach().requires_grad_(), *sequences[1:]))


def recurrent_inputs(**options: Any) -> dict[str, Input]:
    return {
        "packed": (of(3, 4), packed(is_sorted=True)),
        "packed unsorted": (of(3, 4, 2, bidirectional=True), packed(is_sorted=False)),
        "packed with options": (of(3, 4, **options), packed(is_sorted=True)),
        "dropout": (of(3, 4, 3, dropout=0.5), of(leaf(4, 2, 3))),
    }


def attention_inputs() -> dict[str, Input]:
    sizes, plain = of(4, 2, kdim=6, vdim=2, batch_first=True), of(4, 2, batch_first=True)
    masks = {"attn_mask": torch.rand(3, 5) < 0.3, "key_padding_mask": torch.zeros(2, 5).bool()}
    masks["key_padding_mask"][0, 4] = True
    causal = nn.Transformer.generate_square_subsequent_mask(3)
    call = partial(of, leaf(2, 3, 4), leaf(2, 5, 6), leaf(2, 5, 2))
    return {
        "other sizes, masks": (sizes, call(**masks)),
        "no weights": (sizes, call(need_weights=False)),
        "all heads": (sizes, call(average_attn_weights=False)),
        "causal": (plain, of(*[leaf(2, 3, 4)] * 3, attn_mask=causal, is_causal=True)),
        "dropout": (of(4, 2, dropout=0.5), of(*[leaf(3, 2, 4)] * 3)),
    }


def convolution_inputs(dims: int) -> dict[str, Input]:
    x = of(leaf(2, 4, *(6, 5, 4)[:dims]))
    return {
        "strided groups": (of(4, 6, 2, stride=2, padding=1, dilation=2, groups=2), x),
        "same dilated": (of(4, 3, 2, padding="same", dilation=2), x),
        "valid": (of(4, 3, 2, padding="valid"), x),
        **{
            mode: (of(4, 3, 3, padding=1, padding_mode=mode, bias=False), x)
            for mode in ("reflect", "replicate", "circular")
        },
    }


def transposed_inputs(dims: int) -> dict[str, Input]:
    x = leaf(2, 4, *(4, 3, 2)[:dims])
    options = {"stride": 3, "padding": 1, "output_padding": 2, "groups": 2, "dilation": 2}
    sizes = [2 * n + 2 for n in x.shape[2:]]
    return {
        "strided groups": (of(4, 6, 2, **options), of(x)),
        "output size": (of(4, 3, 3, stride=2, bias=False), of(x, output_size=sizes)),
    }


ROWS = of(torch.tensor([[1, 3, 1], [0, 2, 1]]))
#: Further inputs of a class, by what they show; a lazy form has none of its own.
FURTHER: dict[str, Callable[[], dict[str, Input]]] = {
    "LSTM": partial(recurrent_inputs, proj_size=2),
    "GRU": partial(recurrent_inputs, bias=False),
    "RNN": partial(recurrent_inputs, nonlinearity="relu"),
    "MultiheadAttention": attention_inputs,
    **{f"Conv{n}d": partial(convolution_inputs, n) for n in (1, 2, 3)},
    **{f"ConvTranspose{n}d": partial(transposed_inputs, n) for n in (1, 2, 3)},
    "Embedding": lambda: {
        "padding": (of(4, 3, padding_idx=1), ROWS),
        "frequencies": (of(4, 3, scale_grad_by_freq=True), ROWS),
        "norms": (of(4, 3, max_norm=1.0), ROWS),
    },
}


class Case(NamedTuple):
    """A layer's class, the arguments of its constructor and of its call, and special features."""

    layer: str
    constructor: Any
    forward: Any
    label: str

    @property
    def name(self) -> str:
        """For the id of a case."""
        return f"{self.layer} ({self.label})"


def module_inputs(name: str) -> list[ModuleInput]:
    """The inputs of torch's own tests; LazyLinear takes those of Linear without in_features."""
    info = INFOS[nn.Linear if name == "LazyLinear" else getattr(nn, name)]
    call = {"device": "cpu", "dtype": torch.float32, "requires_grad": True, "training": True}
    found = info.module_inputs_func(info, **call)
    for case in found if name == "LazyLinear" else ():
        case.constructor_input.args = case.constructor_input.args[1:]
    return found


def cases(name: str, most: int | None = None) -> Iterator[Case]:
    """All inputs of this class, torch's and further ones, or the first `most` of torch's."""
    for i, case in enumerate(module_inputs(name)[:most]):
        yield Case(name, case.constructor_input, case.forward_input, case.desc or str(i))
    if most is None and name in FURTHER:
        for label, (constructor, call) in FURTHER[name]().items():
            yield Case(name, constructor, call, label)


torch.manual_seed(0)
CASES = [case for name in CLASSES for case in cases(name)]
SOME = [case for name in CLASSES for case in cases(name, 3)]


def made(case: Case, module: Any, **options: Any) -> nn.Module:
    torch.manual_seed(7)
    return getattr(module, case.layer)(*case.constructor.args, **case.constructor.kwargs, **options)


def run(layer: nn.Module, case: Case) -> list[torch.Tensor]:
    """The outputs and the gradients of inputs and parameters."""
    torch.manual_seed(11)
    args, kwargs = copy.deepcopy((case.forward.args, case.forward.kwargs))
    y = tensors(layer(*args, **kwargs))
    generator = torch.Generator().manual_seed(3)
    torch.autograd.backward(y, [torch.randn(t.shape, generator=generator) for t in y])
    leaves = [x for x in tensors((args, kwargs)) if x.is_leaf and x.requires_grad]
    return [*(t.detach() for t in y), *(t.grad for t in [*leaves, *layer.parameters()])]


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
    assert not operators.products_of_torch
    (first, *_) = *case.forward.args, *case.forward.kwargs.values()
    multiplies = case.layer != "Embedding" and first.data.numel() > 0
    assert bool(operators.emulated) == multiplies


@pytest.mark.parametrize("case", SOME)
def test_converted_and_copied_layers_are_the_one_built(case: Case) -> None:
    converted = lp.convert(made(case, nn), {getattr(nn, case.layer): STOCHASTIC})
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
    assert vars(converted).keys() == vars(plain).keys()


@pytest.mark.parametrize("case", SOME)
def test_layer_looks_like_torchs(case: Case) -> None:
    layer, plain = made(case, lp.nn, recipe="fp8_wang2018"), made(case, nn)
    assert isinstance(layer, getattr(nn, case.layer))
    assert list(layer.state_dict()) == list(plain.state_dict())
    # A layer with layers inside shows its recipe on a line of its own.
    head, lines, rest = repr(plain).partition("(\n")
    with_recipe = f"{head}{lines}  recipe=fp8_wang2018\n{rest}"
    assert repr(layer) == (with_recipe if lines else repr(plain)[:-1] + ", recipe=fp8_wang2018)")
    run(layer, case)
    run(plain, case)
    assert type(layer) is getattr(lp.nn, type(plain).__name__)
    for source, target in ((plain, layer), (layer, plain)):
        for parameter in source.parameters():
            parameter.data += 1
        target.load_state_dict(source.state_dict())
        same(target.parameters(), source.parameters())


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
