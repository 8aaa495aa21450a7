"""Every layer in the rest of torch: autocast, checkpoints, layouts, optimizers, transforms."""

import io
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.utils.rnn import pack_sequence
from torch.utils.checkpoint import checkpoint

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, STOCHASTIC
from tests.loops import each
from tests.nn.layer_cases import LAYERS, converted, first, inputs, leaves, plain, same, step

SUMS = lp.Recipe(fprop="fp32", dgrad="fp32", wgrad="fp32")
NATIVE = lp.Recipe(input="e4m3", weight="e5m2", grad_output="e5m2")
X = torch.randn(3, 4, 8)
every_layer = each("name", LAYERS)
with_parameters = each("name", [n for n in LAYERS if n not in ("Softmax", "GELU")])
# oneDNN has no LSTM with projections, and vmap calls an operator once for each sample.
pytestmark = pytest.mark.filterwarnings(
    "ignore:LSTM with projections", "ignore:There is a performance drop"
)


@every_layer
@each("dtype, recipe", [torch.bfloat16, torch.float16], [DETERMINISTIC, NATIVE])
def test_autocast_changes_nothing(name: str, dtype: torch.dtype, recipe: lp.Recipe) -> None:
    layer = converted(name, recipe)
    narrow = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs(name))
    wide = [x.float() if x.is_floating_point() else x for x in narrow]

    def cast(*args: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=dtype):
            y = layer(*args)
        used = recipe.weight if name == "Embedding" else recipe.input
        assert used is None or first(y).dtype == torch.float32
        return y

    got, want = step(layer, cast, *narrow), step(layer, layer, *wide)
    # The gradient of an input has the dtype of that input.
    same([t.float() for t in got], [c.to(t.dtype).float() for t, c in zip(got, want, strict=True)])


@every_layer
@each("dtype", [torch.bfloat16, torch.float16])
def test_defaults_that_depend_on_the_dtype_are_torchs(name: str, dtype: torch.dtype) -> None:
    # Small inputs show an epsilon. torch before 2.7 takes that of the 16-bit dtype.
    wide = name == "RMSNorm" and torch.__version__ < (2, 7)
    torchs = plain(name).to(torch.float32 if wide else dtype)
    args = [x * 2**-9 if x.is_floating_point() else x for x in inputs(name)]
    narrow = [x.to(dtype) if x.is_floating_point() else x for x in args]
    want = first(torchs(*(x.float() if wide else x for x in narrow))).float()
    torchs.to(dtype)
    got = first(lp.convert(torchs, {type(torchs): SUMS})(*narrow)).float()
    torch.testing.assert_close(got, want, rtol=2**-6, atol=2**-7 * want.abs().max().item())


@every_layer
@each("reentrant, packs", [False, True], [False, True])
def test_checkpoints_draw_the_same(name: str, reentrant: bool, packs: bool) -> None:
    if reentrant and name == "Embedding":
        pytest.skip("no input requires a gradient")
    layer = converted(name, STOCHASTIC)

    def forward(*args: torch.Tensor) -> Any:
        with lp.functional.packed_activations(packs):
            return layer(*args)

    def recomputed(*args: torch.Tensor) -> Any:
        return checkpoint(forward, *args, use_reentrant=reentrant)

    same(step(layer, recomputed, *inputs(name)), step(layer, layer, *inputs(name)))


@every_layer
def test_converts_on_the_meta_device(name: str) -> None:
    layer, args = converted(name, STOCHASTIC).to("meta"), inputs(name)
    y, *gradients = step(layer, layer, *(x.to("meta") for x in args))
    assert y.is_meta and y.shape == first(plain(name)(*args)).shape
    assert all(g.is_meta for g in gradients)


@every_layer
def test_fake_tensors_have_its_shapes(name: str) -> None:
    layer, args = converted(name, STOCHASTIC), inputs(name)
    want = first(layer(*args)).shape
    with FakeTensorMode() as fake:
        parameters = {k: fake.from_tensor(p) for k, p in layer.named_parameters()}
        state = parameters | {k: fake.from_tensor(b) for k, b in layer.named_buffers()}
        y = first(functional_call(layer, state, tuple(map(fake.from_tensor, args))))
        assert y.shape == want
        if parameters:
            found = torch.autograd.grad(y.sum(), list(parameters.values()))
            assert [g.shape for g in found] == [p.shape for p in parameters.values()]


@every_layer
def test_seed_from_makes_a_layer_repeat_itself(name: str) -> None:
    layer = converted(name, STOCHASTIC).eval()
    runs = []
    for _ in range(2):
        with lp.seed_from(torch.tensor(3)):
            runs.append(first(layer(*inputs(name))))
    assert_bit_equal(*runs)
    assert not torch.equal(runs[0], first(layer(*inputs(name))))


@every_layer
def test_zero_rows_are_as_in_torch(name: str) -> None:
    args = inputs(name, 0)
    layer, torchs = converted(name, DETERMINISTIC), plain(name)
    try:
        want = step(torchs, torchs, *args)
    except (RuntimeError, ValueError):
        with pytest.raises((RuntimeError, ValueError)):
            step(layer, layer, *args)
    else:
        assert [t.shape for t in step(layer, layer, *args)] == [t.shape for t in want]


def strided(x: torch.Tensor) -> torch.Tensor:
    """The values of x, every second in memory, the dimensions in reverse order."""
    wide = torch.zeros([2 * n for n in x.shape[::-1]], dtype=x.dtype)
    view = wide[tuple(slice(None, None, 2) for _ in x.shape)].permute(*range(x.dim())[::-1])
    return view.copy_(x)


@every_layer
def test_strides_change_no_bit(name: str) -> None:
    layer, args = converted(name, DETERMINISTIC), inputs(name)
    want = step(layer, layer, *args)
    same(step(layer, lambda *xs: layer(*map(strided, xs)), *args), want)
    for parameter in layer.parameters():
        parameter.data = strided(parameter.data)
    same(step(layer, layer, *args), want)


@each("name", ["Conv2d", "ConvTranspose2d", "BatchNorm2d"])
def test_channels_last_changes_no_bit(name: str) -> None:
    layer, (x,) = converted(name, DETERMINISTIC), inputs(name)
    want = step(layer, layer, x)
    layer.to(memory_format=torch.channels_last)
    same(step(layer, layer, x.contiguous(memory_format=torch.channels_last)), want)


@every_layer
def test_gradients_are_those_of_the_tensors_that_ask(name: str) -> None:
    layer, args = converted(name, DETERMINISTIC), inputs(name)
    y = first(layer(*leaves(args)))
    wanted = [x.is_floating_point() for x in args] + [True] * len(list(layer.parameters()))
    full = iter(step(layer, layer, *args)[1:])
    for i in [None, *(i for i, asks in enumerate(wanted) if asks)]:
        xs = [x.clone() for x in args]
        tensors = [*xs, *layer.parameters()]
        for j, t in enumerate(tensors):
            t.requires_grad_(j == i)
        y = first(layer(*xs))
        assert y.requires_grad is (i is not None)
        if i is not None:
            found = torch.autograd.grad(y.square().sum(), tensors[i], allow_unused=True)[0]
            assert_bit_equal(torch.zeros(()) if found is None else found, next(full))


@with_parameters
@each("optimizer, options", [("SGD", {"momentum": 0.9, "foreach": True}), ("Adam", {})])
def test_optimizers_change_weights_in_place(name: str, optimizer: str, options: Any) -> None:
    layer, args = converted(name, DETERMINISTIC), inputs(name)
    own = getattr(torch.optim, optimizer)(layer.parameters(), 0.1, **options)
    for _ in range(2):
        own.zero_grad()
        first(layer(*args)).square().sum().backward()
        own.step()
    twin = plain(name)
    before = first(converted(name, DETERMINISTIC)(*args))
    twin.load_state_dict(layer.state_dict())
    got = first(layer.eval()(*args))
    assert_bit_equal(got, first(lp.convert(twin, {type(twin): DETERMINISTIC}).eval()(*args)))
    assert not torch.equal(got, before)


@with_parameters
def test_state_goes_both_ways_through_a_file(name: str) -> None:
    layer, torchs = converted(name, DETERMINISTIC), plain(name)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(1)
    for source, target in ((layer, torchs), (torchs, converted(name, DETERMINISTIC))):
        file = io.BytesIO()
        torch.save(source.state_dict(), file)
        file.seek(0)
        target.load_state_dict(torch.load(file, weights_only=True))
        same(target.parameters(), source.parameters())


def test_packed_sequences_go_through_a_converted_layer() -> None:
    layer = lp.convert(nn.GRU(8, 6, bidirectional=True), DETERMINISTIC)
    packed = pack_sequence([X[0], X[1, :2]])
    y, last = layer(packed)
    apart = layer(X[0])
    assert_bit_equal(last[:, 0], apart[1])
    assert type(y) is type(packed)


@every_layer
def test_a_second_derivative_is_refused(name: str) -> None:
    layer, args = converted(name, DETERMINISTIC), leaves(inputs(name))
    asked = [t for t in (*args, *layer.parameters()) if t.requires_grad]
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.autograd.grad(first(layer(*args)).square().sum(), asked, create_graph=True)


@every_layer
def test_functional_call_takes_other_parameters(name: str) -> None:
    layer, args = converted(name, DETERMINISTIC), inputs(name)
    parameters = {k: 2 * p.detach() for k, p in layer.named_parameters()}
    got = first(functional_call(layer, parameters, args))
    layer.load_state_dict(parameters, strict=False)
    assert_bit_equal(got, first(layer(*args)))


@every_layer
def test_vmap_maps_a_layer_without_gradients(name: str) -> None:
    layer, args = converted(name, DETERMINISTIC).eval(), inputs(name)
    more = [torch.stack([x, x.flip(0)]) for x in args]
    with torch.no_grad():
        got = vmap(lambda *xs: first(layer(*xs)))(*more)
        want = torch.stack([first(layer(*xs)) for xs in zip(*more, strict=True)])
    if name.startswith("GRU"):
        # torch's own tanh of another shape may differ in the last bit.
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
    else:
        assert_bit_equal(got, want)


@every_layer
def test_gradients_in_transforms_are_refused(name: str) -> None:
    layer, args = converted(name, DETERMINISTIC).eval(), inputs(name)
    match = r"no gradient inside torch.func's transforms.*torch.no_grad"
    parameters = dict(layer.named_parameters())

    def loss(tensors: dict[str, torch.Tensor], *xs: torch.Tensor) -> Any:
        return first(functional_call(layer, tensors, xs)).sum()

    if not parameters:
        with pytest.raises(NotImplementedError, match=match):
            grad(lambda x: first(layer(x)).sum())(*args)
        return
    with pytest.raises(NotImplementedError, match=match):
        grad(loss)(parameters, *args)
    with pytest.raises(NotImplementedError, match=match):
        vmap(grad(loss), (None, *[0] * len(args)))(parameters, *(x[:, None] for x in args))


@each("name", [name for name in LAYERS if name != "Embedding"])
def test_forward_mode_is_refused(name: str) -> None:
    layer, (x, *rest) = converted(name, DETERMINISTIC).eval(), inputs(name)
    match = "no derivative in forward mode"
    with pytest.raises(NotImplementedError, match=match):
        jvp(lambda x: first(layer(x, *rest)), (x,), (x,))
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=match):
        layer(forward_ad.make_dual(x, x), *rest)


def test_rounding_and_products_refuse_too() -> None:
    x = torch.randn(3, 3)
    for call in (lambda x: lp.quantize(x, "e5m2"), lambda x: lp.matmul(x, x, "e6m9")):
        with pytest.raises(NotImplementedError, match=r"inside torch.func's transforms"):
            grad(lambda x, call=call: call(x).sum())(x)
        with pytest.raises(NotImplementedError, match="forward mode"):
            jvp(call, (x,), (x,))


@each("randomness", ["same", "different"])
def test_vmap_decides_whether_samples_share_draws(randomness: str) -> None:
    x = torch.full((3, 4, 5), 1.1)
    got = vmap(lambda x: lp.quantize(x, STOCHASTIC.input), randomness=randomness)(x)
    assert torch.equal(got[0], got[1]) is (randomness == "same")


def test_vmap_refuses_draws_unless_told() -> None:
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(lambda x: lp.quantize(x, STOCHASTIC.input))(torch.ones(3, 4))


WRITING: dict[str, Any] = {
    "count": lambda x, counts, out: lp.count(x, "e5m2"),
    "count into": lambda x, counts, out: lp.count(x, "e5m2", counts=counts),
    "quantize": lambda x, counts, out: lp.quantize(x, "e5m2", counts=counts),
    "in a range": lambda x, counts, out: lp.quantize(x, "affine4", range=(0, 1), counts=counts),
    "out": lambda x, counts, out: lp.quantize(x, "e5m2", out=out),
}


@each("mapped, name", [True, False], WRITING)
def test_vmap_refuses_calls_that_write(name: str, mapped: bool) -> None:
    x = torch.randn(3, 4, 5)
    shape = (3,) if mapped else ()
    counts, out = torch.zeros(*shape, 4, dtype=torch.int64), torch.zeros(*shape, 4, 5)
    places = 0 if mapped else None
    match = "outside of vmap, on the whole batch or in a loop"
    with pytest.raises(NotImplementedError, match=match):
        vmap(WRITING[name], (0, places, places))(x, counts, out)
    assert not counts.any() and not out.any()


def test_vmap_refuses_a_running_range_in_training() -> None:
    recipe = lp.Recipe(input="affine4", input_range=lp.RunningRange(0.9))
    layer = lp.nn.Linear(5, 2, recipe=recipe).requires_grad_(False)
    x = torch.randn(3, 4, 5)
    with pytest.raises(NotImplementedError, match="a running range in training"):
        vmap(layer)(x)
    assert not layer.input_range.any()
    assert_bit_equal(vmap(layer.eval())(x), torch.stack([layer(each) for each in x]))
