"""lp.matmul: shapes, accumulators, gradients, draws and messages, on every backend."""

import itertools

import numpy as np
import pytest
import torch

import lpkernels as lp
from lpkernels.reference import twin
from lpkernels.rng import SITE_OUTPUT, Role, derive_seed
from tests.compare import assert_bit_equal

SEED = 987654321
ACCUMULATORS = [
    lp.Accumulator("e6m9"),
    lp.Accumulator("e5m4", "toward_zero", chunk=3, outer="e6m6"),
    lp.Accumulator("e5m7", "stochastic", product="e5m5", product_rounding="stochastic"),
]
# (a, b): vectors, matrices, batches, and broadcasting of either or both.
SHAPES = [
    ((5,), (5,)),
    ((5,), (5, 3)),
    ((4, 5), (5,)),
    ((4, 5), (5, 3)),
    ((2, 4, 5), (5, 3)),
    ((2, 4, 5), (5,)),
    ((5,), (2, 5, 3)),
    ((4, 5), (2, 5, 3)),
    ((2, 4, 5), (2, 5, 3)),
    ((2, 1, 4, 5), (3, 5, 2)),
    ((3, 1, 2, 5), (1, 4, 5, 2)),
    ((1, 4, 5), (2, 5, 3)),
    ((2, 4, 0), (0, 3)),
    ((0, 4, 5), (5, 3)),
    ((0, 5), (5, 3)),
    ((4, 5), (5, 0)),
    ((1, 4, 5), (0, 5, 3)),
]


def operands(a_shape, b_shape) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(a_shape), torch.randn(b_shape)


def product(a: np.ndarray, b: np.ndarray, acc: lp.Accumulator, role: Role) -> np.ndarray:
    return twin.matmul(a, b, None, acc, seed=derive_seed(SEED, role))


def matrices(a: torch.Tensor, b: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    left, right = a.detach().numpy(), b.detach().numpy()
    return left if left.ndim > 1 else left[None], right if right.ndim > 1 else right[:, None]


@pytest.mark.parametrize("acc", ACCUMULATORS, ids=str)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_matmul_matches_the_reference(shapes, acc, backend):
    a, b = operands(*shapes)
    got = lp.matmul(a, b, acc, generator=torch.tensor(SEED), backend=backend)
    want = product(*matrices(a, b), acc, Role.DIRECT).reshape(torch.matmul(a, b).shape)
    assert_bit_equal(got, want)


def longhand(rows: np.ndarray, cols: np.ndarray, shape, acc, role) -> np.ndarray:
    """rows @ cols, summed over the leading dimensions in which shape is broadcast, as one sum.

    Every matrix of the result is made alone: its k runs over the matrices that share it, in
    row-major order, and then over the summed axis. The keys of draws need a whole product, so the
    matrices are stacked into one.
    """
    batch = np.broadcast_shapes(rows.shape[:-2], cols.shape[:-2])
    rows = np.broadcast_to(rows, (*batch, *rows.shape[-2:]))
    cols = np.broadcast_to(cols, (*batch, *cols.shape[-2:]))
    own = (1,) * (len(batch) + 2 - len(shape)) + tuple(shape[:-2])
    lefts, rights = [], []
    for index in itertools.product(*(range(n) for n in own)):
        same = [
            at
            for at in itertools.product(*(range(n) for n in batch))
            if all(i == j or n == 1 for i, j, n in zip(at, index, own, strict=True))
        ]
        empty_rows = np.empty((rows.shape[-2], 0), np.float32)
        empty_cols = np.empty((0, cols.shape[-1]), np.float32)
        lefts.append(np.concatenate([empty_rows, *(rows[at] for at in same)], axis=-1))
        rights.append(np.concatenate([empty_cols, *(cols[at] for at in same)], axis=0))
    if not lefts:
        return np.empty(shape, np.float32)
    return product(np.stack(lefts), np.stack(rights), acc, role).reshape(shape)


@pytest.mark.parametrize("acc", ACCUMULATORS, ids=str)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_matmul_gradients_are_one_sum_each(shapes, acc, backend):
    a, b = (x.requires_grad_() for x in operands(*shapes))
    y = lp.matmul(a, b, acc, generator=torch.tensor(SEED), backend=backend)
    grad = torch.randn(y.shape)
    y.backward(grad)
    left, right = matrices(a, b)
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    g = grad.numpy().reshape(*batch, left.shape[-2], right.shape[-1])
    want_a = longhand(g, right.swapaxes(-1, -2), left.shape, acc, Role.DGRAD)
    # That of b is made as a linear layer makes the gradient of its weight (N, K).
    weight = right.swapaxes(-1, -2).shape
    want_b = longhand(g.swapaxes(-1, -2), left, weight, acc, Role.WGRAD).swapaxes(-1, -2)
    assert_bit_equal(a.grad, want_a.reshape(a.shape), "gradient of a")
    assert_bit_equal(b.grad, np.ascontiguousarray(want_b).reshape(b.shape), "gradient of b")


@pytest.mark.parametrize("acc", ["fp32", "native"])
def test_matmul_in_fp32_is_torch_within_fp32_rounding(acc, backend):
    results = []
    for function in (torch.matmul, lambda a, b: lp.matmul(a, b, acc, backend=backend)):
        torch.manual_seed(2)
        a, b = (x.requires_grad_() for x in operands((3, 1, 4, 50), (2, 50, 6)))
        y = function(a, b)
        y.backward(torch.ones_like(y))
        results.append((y, a.grad, b.grad))
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("acc", [None, lp.NATIVE, "native"], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.complex64])
def test_matmul_native_is_torch_matmul(dtype, acc):
    a, b = torch.ones(2, 3, dtype=dtype), torch.ones(3, 4, dtype=dtype)
    out = torch.empty(2, 4, dtype=dtype)
    assert torch.equal(lp.matmul(a, b, acc), torch.matmul(a, b))
    assert lp.matmul(a, b, acc, out=out) is out
    assert torch.equal(out, torch.matmul(a, b))


def test_matmul_native_follows_autocast():
    a = torch.ones(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert lp.matmul(a, a).dtype == torch.bfloat16


@pytest.mark.parametrize("chunk", [1, 4, 64])
def test_matmul_native_chunks_round_the_outer_sum(chunk, backend):
    acc = lp.Accumulator("fp32", chunk=chunk, outer="e6m5", order="native")
    # Small integers: every inner sum is exact in any order.
    a, b = torch.randint(-4, 5, (3, 2, 30)).float(), torch.randint(-4, 5, (30, 7)).float()
    got = lp.matmul(a, b, acc, backend=backend)
    sequential = lp.Accumulator("fp32", chunk=chunk, outer="e6m5")
    assert_bit_equal(got, lp.matmul(a, b, sequential, backend="reference"))
    stochastic = lp.Accumulator(
        "fp32", "stochastic", chunk=chunk, outer="e6m3", order="native", random_bits=20
    )
    seed = torch.tensor(SEED)
    got = lp.matmul(a, b, stochastic, generator=seed, backend=backend)
    assert_bit_equal(got, lp.matmul(a, b, stochastic, generator=seed, backend="reference"))
    same = lp.Accumulator("fp32", "stochastic", chunk=chunk, outer="e6m3", random_bits=20)
    assert_bit_equal(got, lp.matmul(a, b, same, generator=seed, backend="reference"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_matmul_widens_narrow_operands_exactly(dtype, backend):
    a, b = (x.to(dtype).requires_grad_() for x in operands((4, 9), (9, 3)))
    wide = [x.detach().float().requires_grad_() for x in (a, b)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = lp.matmul(a, b, "e6m9", backend=backend)
    want = lp.matmul(*wide, "e6m9", backend="reference")
    assert_bit_equal(y, want)
    for result in (y, want):
        result.backward(torch.ones(4, 3))
    assert_bit_equal(a.grad, wide[0].grad.to(dtype))
    assert_bit_equal(b.grad, wide[1].grad.to(dtype))


@pytest.mark.parametrize("acc", [None, "e6m9"], ids=str)
def test_matmul_output_rounds_last(acc, backend):
    a, b = (x.requires_grad_() for x in operands((4, 9), (9, 3)))
    seed = torch.tensor(SEED)
    quantizer = lp.Quantizer("e5m2", "stochastic")
    y = lp.matmul(a, b, acc, output=quantizer, generator=seed, backend=backend)
    plain = lp.matmul(a, b, acc, backend=backend).detach().numpy()
    draw = derive_seed(SEED, Role.OUTPUT)
    assert_bit_equal(y, twin.quantize(plain, quantizer, seed=draw, site=SITE_OUTPUT))
    y.backward(torch.ones(4, 3))
    copies = [x.detach().clone().requires_grad_() for x in (a, b)]
    lp.matmul(*copies, acc, backend=backend).backward(torch.ones(4, 3))
    assert_bit_equal(a.grad, copies[0].grad)
    assert_bit_equal(b.grad, copies[1].grad)


def test_matmul_output_of_narrow_operands_is_float32_under_autocast():
    a = torch.full((2, 2), 1 + 2**-7, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = lp.matmul(a, a, output="e5m20")
    assert y.dtype == torch.float32
    assert y[0, 0].item() == 2 * (1 + 2**-7) ** 2


def test_matmul_does_not_depend_on_strides(backend):
    a, b = torch.randn(2, 9, 4).mT, torch.randn(3, 18)[:, ::2].mT[None].expand(2, 9, 3)
    want = lp.matmul(a.contiguous(), b.contiguous(), "e6m9", backend="reference")
    assert_bit_equal(lp.matmul(a, b, "e6m9", backend=backend), want)


def test_matmul_writes_out(backend):
    a, b = operands((4, 9), (9, 3))
    want = lp.matmul(a, b, "e6m9", backend="reference")
    for out in (torch.empty(4, 3), torch.empty(3, 4).t(), torch.empty(0)):
        assert lp.matmul(a, b, "e6m9", out=out, backend=backend) is out
        assert_bit_equal(out, want)


@pytest.mark.parametrize("needs", [(True, False), (False, True)], ids=["a", "b"])
def test_matmul_computes_only_the_gradient_asked_for(needs, monkeypatch):
    from lpkernels import ops

    a, b = (x.requires_grad_(need) for x, need in zip(operands((4, 5), (5, 3)), needs, strict=True))
    y = lp.matmul(a, b, "e6m9")
    roles = []
    original = ops.matmul
    monkeypatch.setattr(ops, "matmul", lambda *args: roles.append(args[5]) or original(*args))
    saved = [x for x in y.grad_fn.saved_tensors if x is not None]
    assert len(saved) == 1
    y.sum().backward()
    assert roles == [Role.DGRAD if needs[0] else Role.WGRAD]


def test_matmul_refuses_a_second_derivative():
    a = torch.ones(2, 2, requires_grad=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.autograd.grad(lp.matmul(a, a, "e6m9").square().sum(), a, create_graph=True)


def test_matmul_takes_one_draw_for_everything():
    a = torch.ones(3, 3, requires_grad=True)
    generator, twin_generator = (torch.Generator().manual_seed(3) for _ in range(2))
    acc = ACCUMULATORS[2]
    y = lp.matmul(a, a, acc, output="e5m2:stochastic", generator=generator)
    y.sum().backward()
    torch.empty((), dtype=torch.int64).random_(generator=twin_generator)
    assert torch.equal(generator.get_state(), twin_generator.get_state())


@pytest.mark.parametrize("acc", ACCUMULATORS, ids=str)
def test_matmul_compiles_forward_and_backward(acc):
    def function(a, b):
        return lp.matmul(a, b, acc, output="e5m7")

    torch.compiler.reset()
    results = []
    for run in (function, torch.compile(function, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(1)
        a, b = (x.requires_grad_() for x in operands((3, 4, 5), (5, 6)))
        y = run(a, b)
        y.square().sum().backward()
        results.append((y.detach(), a.grad, b.grad))
    for eager, graph in zip(*results, strict=True):
        assert_bit_equal(graph, eager)


def test_matmul_compiles_with_names_and_one_dimension():
    torch.compiler.reset()
    run = torch.compile(
        lambda a, b: lp.matmul(a, b, "e6m9_chunk4"), fullgraph=True, backend="aot_eager"
    )
    a, b = operands((9,), (2, 9, 3))
    assert_bit_equal(run(a, b), lp.matmul(a, b, "e6m9_chunk4"))


@pytest.mark.parametrize("reentrant", [True, False])
def test_matmul_draws_again_the_same_in_a_checkpoint(reentrant):
    from torch.utils.checkpoint import checkpoint

    def block(a, b):
        return lp.matmul(a, b, ACCUMULATORS[2]).square()

    grads = []
    for function in (
        block,
        lambda a, b: checkpoint(block, a, b, use_reentrant=reentrant),
    ):
        torch.manual_seed(5)
        a, b = (x.requires_grad_() for x in operands((4, 5), (5, 6)))
        function(a, b).sum().backward()
        grads.append((a.grad, b.grad))
    for want, got in zip(*grads, strict=True):
        assert_bit_equal(got, want)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda a: lp.matmul(a, torch.ones(4, 2), "e6m9"),
            ValueError,
            r"a has K=3 but b has K=4 \(shapes \(2, 3\) and \(4, 2\)\)",
        ),
        (
            lambda a: lp.matmul(a.expand(2, 2, 3), torch.ones(3, 3, 2), "e6m9"),
            ValueError,
            r"leading dimensions \(2,\) of a and \(3,\) of b do not broadcast",
        ),
        (
            lambda a: lp.matmul(a, torch.tensor(1.0), "e6m9"),
            ValueError,
            "both need at least one dimension",
        ),
        (
            lambda a: lp.matmul(a.double(), a.double().t(), "e6m9"),
            TypeError,
            r"a is float64.*round it first: lp.quantize\(a, fmt\).float\(\)",
        ),
        (
            lambda a: lp.matmul(a.double(), a.double().t(), output="e5m2"),
            TypeError,
            "a is float64, but emulated arithmetic takes",
        ),
        (lambda a: lp.matmul(a, a.t().int(), "e6m9"), TypeError, "b must be .* got torch.int32"),
        (lambda a: lp.matmul(a, [1.0], "e6m9"), TypeError, "b must be a torch.Tensor, got list"),
        (lambda a: lp.matmul(None, a, "e6m9"), TypeError, "a must be a torch.Tensor, got None"),
        (
            lambda a: lp.matmul(a, a.t().to("meta"), "e6m9"),
            ValueError,
            "all tensors must be on one device, got a on cpu, b on meta",
        ),
        (lambda a: lp.matmul(a, a.t(), "e6m9", backend="gpu"), ValueError, "backend 'gpu'"),
        (lambda a: lp.matmul(a, a.t(), backend="gpu"), ValueError, "backend 'gpu'"),
        (lambda a: lp.matmul(a, a.t(), "e6m9", generator=3), TypeError, "got int"),
        (lambda a: lp.matmul(a, a.t(), 3), TypeError, "Accumulator"),
        (lambda a: lp.matmul(a, a.t(), "e6m9:nearest"), ValueError, "nearest_even"),
        (lambda a: lp.matmul(a, a.t(), "affine4"), ValueError, "affine4"),
        (lambda a: lp.matmul(a, a.t(), "e6m9", output=3), TypeError, "Quantizer"),
        (
            lambda a: lp.matmul(a, a.t(), "e6m9", out=torch.empty(2, 3)),
            ValueError,
            r"out has shape \(2, 3\) but the result has shape \(2, 2\)",
        ),
        (
            lambda a: lp.matmul(a, a.t(), "e6m9", out=torch.empty(2, 2, dtype=torch.float16)),
            TypeError,
            "out must be torch.float32, got torch.float16",
        ),
        (
            lambda a: lp.matmul(a.requires_grad_(), a.t(), "e6m9", out=torch.empty(2, 2)),
            ValueError,
            "out= does not record gradients, but a and b requires grad",
        ),
    ],
)
def test_matmul_refuses(call, error, match):
    with pytest.raises(error, match=match):
        call(torch.ones(2, 3))
