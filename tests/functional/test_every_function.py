"""What holds of every function that takes a recipe: results of torch, dtypes, draws, gradients, and
refusals of axes that a tensor lacks, of unknown backends, of wrong generators and of float64."""

import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels import functional as F
from lpkernels.backends._layout import axis_sizes
from lpkernels.reference.quantize import quantize as reference
from tests.compare import assert_bit_equal
from tests.functional.calls import CALLS, Call
from tests.functional.layer_recipes import DETERMINISTIC, STOCHASTIC
from tests.support.autograd import close, flat, gradients, how, output_gradients, same

ACC = lp.Accumulator("e8m23")
SUMS = lp.Recipe(fprop="fp32", dgrad="fp32", wgrad="fp32")
every_function = pytest.mark.parametrize("function", CALLS)
#: torch warns that the padding of an even kernel is copied.
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
every_layer = pytest.mark.parametrize("function", ["linear", "conv2d", "conv_transpose2d"])


def t(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(shape, generator=generator).requires_grad_()


@every_function
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_recipe_fp32_is_torchs_own_function(function: str, dtype: torch.dtype) -> None:
    call = CALLS[function]
    tensors = call.tensors(dtype)
    want = flat(call.torchs(*tensors))
    same(flat(call(*tensors, recipe="fp32")), want)
    same(flat(call(*tensors)), want)


@every_function
def test_sums_in_fp32_are_torchs_within_rounding(function: str) -> None:
    call = CALLS[function]
    tensors = call.tensors()
    got = gradients(call(*tensors, recipe=SUMS), tensors)
    close(got, gradients(call.torchs(*tensors), tensors))


@every_function
def test_backends_agree(function: str) -> None:
    call = CALLS[function]
    tensors = call.tensors()
    got, want = (
        gradients(call(*tensors, recipe=STOCHASTIC, **how(backend)), tensors)
        for backend in ("auto", "reference")
    )
    same(got, want)


@every_function
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_results_and_gradients_of_16_bit_operands_are_rounded_once(
    function: str, dtype: torch.dtype
) -> None:
    call = CALLS[function]
    narrow = call.tensors(dtype)
    wide = [x.detach().float().requires_grad_() for x in narrow]
    results, want = (flat(call(*x, recipe=DETERMINISTIC)) for x in (narrow, wide))
    # lp.matmul alone returns float32.
    of_result = torch.float32 if function == "matmul" else dtype
    same(results, [y.to(of_result) for y in want])
    given = [g.to(of_result) for g in output_gradients(*(y.shape for y in want))]
    got = torch.autograd.grad(results, narrow, given)
    want = torch.autograd.grad(want, wide, [g.float() for g in given])
    same(got, [g.to(dtype) for g in want], "gradient")


@every_function
def test_one_operand_of_another_dtype_makes_the_result_float32(function: str) -> None:
    call = CALLS[function]
    narrow = [x.detach() for x in call.tensors(torch.bfloat16)]
    wide = [x.float() for x in narrow]
    want = flat(call(*wide, recipe=DETERMINISTIC))
    for i, x in enumerate(wide):
        same(flat(call(*narrow[:i], x, *narrow[i + 1 :], recipe=DETERMINISTIC)), want)
    if len(narrow) > 1:
        halves = [x.half() for x in narrow]
        y = flat(call(*narrow[:-1], halves[-1], recipe=DETERMINISTIC))
        assert {x.dtype for x in y} == {torch.float32}


@every_function
def test_each_gradient_is_the_same_without_the_others(function: str) -> None:
    call = CALLS[function]
    tensors, options = call.tensors(), {"recipe": STOCHASTIC, **how()}
    results = flat(call(*tensors, **options))
    y, *want = gradients(results[0], tensors)
    with torch.no_grad():
        same(flat(call(*tensors, **options)), results)
    for i in range(len(tensors)):
        alone = [x.detach() for x in tensors]
        alone[i].requires_grad_()
        got = gradients(flat(call(*alone, **options))[0], alone[i])
        same(got, [y, want[i]], f"gradient {i}")


@every_function
def test_an_expanded_gradient_is_taken(function: str) -> None:
    call = CALLS[function]
    tensors = call.tensors()
    y = flat(call(*tensors, recipe=DETERMINISTIC))[0]
    want = torch.autograd.grad(y, tensors, torch.ones(y.shape), retain_graph=True)
    same(torch.autograd.grad(y.sum(), tensors), want)


@every_function
@pytest.mark.parametrize("recipe", [lp.Recipe(input="e4m3"), DETERMINISTIC])
def test_the_result_can_be_changed_in_place(function: str, recipe: lp.Recipe) -> None:
    call = CALLS[function]
    tensors = call.tensors()
    got, want = (
        gradients(change(flat(call(*tensors, recipe=recipe))[0], 2), tensors)
        for change in (Tensor.mul_, Tensor.mul)
    )
    same(got, want)


@every_function
def test_a_call_draws_one_seed_where_something_is_stochastic(function: str) -> None:
    call = CALLS[function]
    tensors = call.tensors()
    generator, other = (torch.Generator().manual_seed(5) for _ in range(2))
    flat(call(*tensors, recipe=DETERMINISTIC, generator=generator))[0].sum().backward()
    assert torch.equal(generator.get_state(), other.get_state())
    results = flat(call(*tensors, recipe=STOCHASTIC, generator=generator))
    results[0].sum().backward()
    seed = torch.empty((), dtype=torch.int64).random_(generator=other)
    assert torch.equal(generator.get_state(), other.get_state())
    same(flat(call(*tensors, recipe=STOCHASTIC, generator=seed)), results)


@every_layer
def test_quantizers_alone_leave_the_products_to_torch(function: str) -> None:
    call = CALLS[function]
    recipe = lp.Recipe(input="e4m3", weight="e5m2", grad_output="e5m2", output="bf16")
    x, w, b = call.tensors()
    got = gradients(call(x, w, b, recipe=recipe), [x, w, b])
    rounded = [lp.quantize(x, "e4m3"), lp.quantize(w, "e5m2"), b]
    leaves = [each.detach().requires_grad_() for each in rounded]
    y = call.torchs(*leaves)
    g = lp.quantize(*output_gradients(y.shape), "e5m2")
    close(got, [lp.quantize(y, "bf16"), *torch.autograd.grad(y, leaves, g)])


@every_function
def test_an_axis_that_a_tensor_lacks_is_refused_before_anything_is_drawn(function: str) -> None:
    call = CALLS[function]
    tensors, before = call.tensors(), torch.get_rng_state()
    for name, rank in call.rounded().items():
        plural = "" if rank == 1 else "s"
        for axis in (rank, -rank - 1):
            match = (
                f"^{call.name}: affine4_axis{axis} runs along axis {axis}, but {call.name}'s "
                rf"{name} has {rank} dimension{plural}; the axis must be in {-rank}\.\.{rank - 1}$"
            )
            with pytest.raises(ValueError, match=match):
                call(*tensors, recipe=lp.Recipe(**{name: f"affine4_axis{axis}:stochastic"}))
    assert torch.equal(torch.get_rng_state(), before)


@every_function
def test_unknown_backends_other_generators_and_float64_are_refused(function: str) -> None:
    call, recipe = CALLS[function], lp.Recipe(input="e4m3", weight="e4m3", fprop="e6m9")
    with pytest.raises(ValueError, match="unknown backend 'gpu'"):
        call(*call.tensors(), recipe=recipe, backend="gpu")
    with pytest.raises(TypeError, match="generator must be"):
        call(*call.tensors(), recipe=recipe, generator=3)
    with pytest.raises(TypeError, match="float64"):
        call(*call.tensors(torch.float64), recipe=recipe)


def torch_refuses(call: Call, i: int, tensors: list[Tensor]) -> bool:
    """Whether torch refuses the tensors; the i-th tensor has another shape than the call's.

    Of lstm all but a sequence with fewer steps are wrong: torch's own reads beyond the weights and
    frees memory that it has overwritten.
    """
    if call.name == "lstm":
        return i > 0 or tensors[0].shape[1:] != call.shapes[0][1:]
    try:
        call.torchs(*tensors)
    except (RuntimeError, ValueError, IndexError, AssertionError):
        return True
    return False


# torch looks up an embedding that nothing rounds.
@pytest.mark.parametrize("function", [name for name in CALLS if name != "embedding"])
def test_shapes_that_torch_refuses_are_refused_before_anything_is_drawn(function: str) -> None:
    call = CALLS[function]
    tensors, before = call.tensors(), torch.get_rng_state()
    for i, x in enumerate(tensors):
        lower = [x[(0,) * n] for n in range(1, x.dim() + 1)]
        for other in [x[..., :-1], x[:-1], x[None], *lower]:
            changed = [*tensors[:i], other, *tensors[i + 1 :]]
            if torch_refuses(call, i, changed):
                with pytest.raises(ValueError, match=rf"^{call.name}: "):
                    call(*changed, recipe=STOCHASTIC)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("function", [name for name in CALLS if len(CALLS[name].shapes) > 1])
def test_integers_and_mixed_devices_are_refused(function: str) -> None:
    tensors = CALLS[function].tensors()
    for i, x in enumerate(tensors):
        with pytest.raises(TypeError, match="int32"):
            CALLS[function](*tensors[:i], x.detach().int(), *tensors[i + 1 :], recipe=SUMS)
        with pytest.raises(ValueError, match="on meta"):
            CALLS[function](*tensors[:i], x.to("meta"), *tensors[i + 1 :], recipe=SUMS)


def test_the_result_of_a_product_has_the_axis_of_its_quantizer() -> None:
    match = r"matmul: affine4_axis2 runs along axis 2, but the result has shape \(3, 3\)"
    for acc in (ACC, lp.NATIVE):
        with pytest.raises(ValueError, match=match):
            lp.matmul(t(3, 4), t(4, 3), acc, output="affine4_axis2")
    with pytest.raises(ValueError, match=r"the result has shape .*; a scalar has no axis"):
        lp.matmul(t(4), t(4), ACC, output="affine4_axis0")


@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 3)])
def test_on_the_meta_device_too(shape: tuple[int, ...]) -> None:
    # A vector is rounded as a matrix of one row.
    recipe = lp.Recipe(input="affine4_axis2")
    x, w = torch.empty(shape, device="meta"), torch.empty(4, 3, device="meta")
    with pytest.raises(ValueError, match="linear's input has 2 dimensions"):
        F.linear(x, w, recipe=recipe)


def test_softmax_counts_axes_in_the_tensor_that_it_is_given() -> None:
    x, plain = t(3, 4), lp.Recipe(input="fp32")
    for axis in (0, 1):
        fmt = f"affine2_axis{axis}"
        want = F.softmax(lp.quantize(x, fmt), 1, recipe=plain)
        assert_bit_equal(F.softmax(x, 1, recipe=lp.Recipe(input=fmt)), want)


def test_bilinear_counts_axes_in_the_bias_and_the_result() -> None:
    x1, x2, w, b, plain = t(5, 3), t(5, 4), t(6, 3, 4), t(6), lp.Recipe(input="fp32")
    want = F.bilinear(x1, x2, w, lp.quantize(b, "block4_e2m1"), recipe=plain)
    assert_bit_equal(F.bilinear(x1, x2, w, b, recipe=lp.Recipe(bias="block4_e2m1")), want)
    want = lp.quantize(F.bilinear(x1, x2, w, b, recipe=plain), "block4_e2m1")
    assert_bit_equal(F.bilinear(x1, x2, w, b, recipe=lp.Recipe(output="block4_e2m1")), want)


@pytest.mark.parametrize("fmt", ["affine4_axis2", "block4_axis-3_e2m1"])
def test_no_backend_takes_another_axis(fmt: str) -> None:
    quantizer = lp.Quantizer(fmt)
    with pytest.raises(ValueError, match=r"the tensor has shape \(3, 4\); the axis must be in -2"):
        axis_sizes(torch.Size((3, 4)), quantizer.to_ints())
    with pytest.raises(IndexError):
        reference(t(3, 4).detach().numpy(), quantizer)
