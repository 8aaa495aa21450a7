"""Every layer: the axes it refuses, its life in the rest of torch (autocast, checkpoints, layouts,
transforms, batched gradients, TorchScript), its exported program, and its precision."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import jvp, vmap
from torch.utils.checkpoint import checkpoint

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, STOCHASTIC
from tests.nn.layer_cases import (
    LAYERS,
    SLOW_TO_COMPILE,
    assert_steps_alike,
    converted,
    every_layer,
    first,
    inputs,
    leaves,
    plain,
    same,
    step,
)

NATIVE = lp.Recipe(input="e4m3", weight="e5m2", grad_output="e5m2")
# The gates of recurrent layers and softmax have gradients of torch's between ours.
TORCHS_BACKWARD = "MultiheadAttention LSTM GRU RNN LSTMCell GRUCell RNNCell Softmax".split()
# oneDNN has no LSTM with projections, vmap calls an operator once for each sample, TorchScript is
# deprecated, and strict export names the tensors that torch.nn's recurrent layers assign.
pytestmark = pytest.mark.filterwarnings(
    "ignore:LSTM with projections", "ignore:There is a performance drop", "ignore:.torch.jit",
    "ignore:While compiling", "ignore:The tensor attributes",
)  # fmt: skip


def known_ranks(name: str) -> dict[str, int]:
    """The ranks of the tensors of a layer that are known before a call."""
    of_input, weight, bias, output = LAYERS[name].ranks
    ranks = {"input": of_input, "weight": weight, "bias": bias, "output": output}
    ranks |= {"grad_input": of_input, "grad_weight": weight, "grad_output": output}
    return {tensor: rank for tensor, rank in ranks.items() if rank}


@every_layer
def test_an_axis_is_refused_as_soon_as_the_rank_is_known(name: str) -> None:
    layer, function = converted(name, lp.Recipe()), LAYERS[name].function
    for tensor, rank in known_ranks(name).items():
        for axis in (rank, -rank - 1):
            recipe = lp.Recipe(**{tensor: f"affine4_axis{axis}"})
            match = f"runs along axis {axis}, but {function}'s {tensor} has {rank} dimension"
            with pytest.raises(ValueError, match=f"^{function}: .*{match}"):
                layer.recipe = recipe
            with pytest.raises(ValueError, match=f"^convert: '': .*{match}"):
                converted(name, recipe)
    assert layer.recipe == lp.Recipe()


@every_layer
def test_no_layer_refuses_an_axis_that_a_call_takes(name: str) -> None:
    ranks = known_ranks(name) or {"input": 1}
    for axes in ({t: rank - 1 for t, rank in ranks.items()}, {t: -ranks[t] for t in ranks}):
        recipe = lp.Recipe(**{t: f"block2_axis{axis}_e2m1" for t, axis in axes.items()})
        converted(name, recipe)(*inputs(name))


@pytest.mark.parametrize(
    "layer",
    [nn.Softmax(-1), nn.Embedding(4, 4), nn.LayerNorm(4, elementwise_affine=False)],
)
def test_a_layer_without_products_refuses_blocks_along_a_sum(layer: nn.Module) -> None:
    match = "has blocks along 'k', the summed dimension of a matrix product, but there is none"
    for name in ("deepseek_v3", "mxfp4_sr", "mxfp8"):
        with pytest.raises(ValueError, match=match):
            lp.convert(layer, {type(layer): name})


@pytest.mark.parametrize(
    "layer",
    [nn.Linear(4, 3, bias=False), nn.Conv1d(4, 3, 1, bias=False), nn.GRU(4, 3, bias=False),
     nn.LayerNorm((2, 3))],
)  # fmt: skip
def test_a_tensor_that_a_layer_lacks_is_not_asked_for_its_axis(layer: nn.Module) -> None:
    lp.convert(layer, {type(layer): lp.Recipe(bias="affine4_axis1")})


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
        # A layer with weights has them in float32.
        assert first(y).dtype == (torch.float32 if [*layer.parameters()] else dtype)
        return y

    def uncast(*args: torch.Tensor) -> Any:
        y = layer(*args)
        return y if [*layer.parameters()] else y.to(dtype)

    got, want = step(layer, cast, *narrow), step(layer, uncast, *wide)
    # The gradient of an input has the dtype of that input.
    same([t.float() for t in got], [c.to(t.dtype).float() for t, c in zip(got, want, strict=True)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_default_epsilon_of_rms_norm_is_torchs(dtype: torch.dtype) -> None:
    """Small inputs show it; torch before 2.7 takes that of the 16-bit dtype."""
    wide = torch.float32 if torch.__version__ < (2, 7) else dtype
    torchs, narrow = plain("RMSNorm").to(wide), (inputs("RMSNorm")[0] * 2**-9).to(dtype)
    want = torchs(narrow.to(wide)).float()
    got = lp.convert(torchs.to(dtype), {nn.RMSNorm: lp.Recipe(fprop="fp32")})(narrow).float()
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

    assert_steps_alike(layer, recomputed, *inputs(name))


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
    """Derivatives of the second or third order, and in forward mode."""
    layer, args = converted(name, DETERMINISTIC).eval(), inputs(name)
    xs = leaves(args)
    asked = [t for t in (*xs, *layer.parameters()) if t.requires_grad]
    # Roundings alone are the identity in every order.
    refused = pytest.raises(NotImplementedError, match=r"no (second|third) derivative")
    with nullcontext() if name == "Embedding" else refused:
        gradients = [first(layer(*xs))]
        for _ in range(2):
            value = sum(x.square().sum() for x in gradients)
            gradients = torch.autograd.grad(
                value, asked, create_graph=True, materialize_grads=True, allow_unused=True
            )
    x, *rest = args
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
def test_torchscript_is_refused(name: str) -> None:
    layer = converted(name, DETERMINISTIC).eval()
    for model in (layer, nn.Sequential(layer)):
        with pytest.raises(NotImplementedError, match=r"torch\.export"):
            torch.jit.script(model)
    with pytest.raises(NotImplementedError, match=r"torch\.export"):
        torch.jit.trace(layer, inputs(name), check_trace=False)


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
    targets = {str(node.target) for node in program.graph.nodes}
    ours = {target.split(".")[1] for target in targets if target.startswith("lpkernels.")}
    assert ours and "_pack" not in ours
    got = first(program.module()(*args))
    assert_bit_equal(got, first(converted(name, DETERMINISTIC).train(not strict)(*args)))


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
