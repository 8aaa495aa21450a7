"""Every layer in the rest of torch: autocast, checkpoints, layouts, transforms, batched gradients,
TorchScript."""

from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, jvp, vmap
from torch.utils.checkpoint import checkpoint

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, STOCHASTIC
from tests.nn.layer_cases import LAYERS, converted, first, inputs, leaves, plain, same, step

SUMS = lp.Recipe(fprop="fp32", dgrad="fp32", wgrad="fp32")
NATIVE = lp.Recipe(input="e4m3", weight="e5m2", grad_output="e5m2")
X = torch.randn(3, 4, 8)
every_layer = pytest.mark.parametrize("name", LAYERS)
# The gates of recurrent layers, softmax and GELU have gradients of torch's between ours.
TORCHS_BACKWARD = "MultiheadAttention LSTM GRU RNN LSTMCell GRUCell RNNCell Softmax GELU".split()
# oneDNN has no LSTM with projections, vmap calls an operator once for each sample, and TorchScript
# is deprecated.
pytestmark = pytest.mark.filterwarnings(
    "ignore:LSTM with projections", "ignore:There is a performance drop", "ignore:.torch.jit"
)


@every_layer
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("recipe", [DETERMINISTIC, NATIVE])
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
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
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
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("packs", [False, True])
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
def test_derivatives_that_are_not_defined_are_refused(name: str) -> None:
    """Second derivatives, gradients inside torch.func's transforms, derivatives in forward mode."""
    layer, args = converted(name, DETERMINISTIC).eval(), inputs(name)
    xs = leaves(args)
    asked = [t for t in (*xs, *layer.parameters()) if t.requires_grad]
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.autograd.grad(first(layer(*xs)).square().sum(), asked, create_graph=True)
    parameters = dict(layer.named_parameters())
    x, *rest = args

    def loss(tensors: dict[str, torch.Tensor], x: torch.Tensor) -> Any:
        return first(functional_call(layer, tensors, (x, *rest))).sum()

    with pytest.raises(NotImplementedError, match=r"no gradient inside torch.func's transforms"):
        grad(loss, 0 if parameters else 1)(parameters, x)
    if x.is_floating_point():
        with pytest.raises(NotImplementedError, match="no derivative in forward mode"):
            jvp(lambda x: first(layer(x, *rest)), (x,), (x,))


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "Embedding"])
@pytest.mark.parametrize("recipe", [DETERMINISTIC, STOCHASTIC, NATIVE], ids="dsn")
def test_batched_gradients_are_those_of_one_pass_after_another(
    name: str, recipe: lp.Recipe
) -> None:
    layer, xs = converted(name, recipe), leaves(inputs(name))
    asked = [*xs, *layer.parameters()]
    y = first(layer(*xs))
    batch = torch.randn(3, *y.shape)
    options: dict[str, Any] = {"retain_graph": True, "allow_unused": True}
    got = torch.autograd.grad(y, asked, batch, is_grads_batched=True, **options)
    apart = [torch.autograd.grad(y, asked, g, **options) for g in batch]
    for gradients, one_by_one in zip(got, zip(*apart, strict=True), strict=True):
        if gradients is None:
            assert one_by_one == (None,) * 3
        elif recipe == NATIVE or name in TORCHS_BACKWARD:
            # torch's own operators may compute a batch in another order.
            torch.testing.assert_close(gradients, torch.stack(one_by_one), rtol=1e-5, atol=1e-5)
        else:
            assert_bit_equal(gradients, torch.stack(one_by_one))


@every_layer
@pytest.mark.parametrize("recipe", [DETERMINISTIC, STOCHASTIC], ids="ds")
def test_torchscript_is_refused(name: str, recipe: lp.Recipe) -> None:
    layer = converted(name, recipe).eval()
    for model in (layer, nn.Sequential(layer)):
        with pytest.raises(NotImplementedError, match=r"torch\.export"):
            torch.jit.script(model)
    with pytest.raises(NotImplementedError, match=r"torch\.export"):
        torch.jit.trace(layer, inputs(name), check_trace=False)
