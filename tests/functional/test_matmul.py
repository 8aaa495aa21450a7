"""lp.matmul: shapes, accumulators, gradients, draws and messages, on every backend."""

import itertools

import numpy as np
import pytest
import torch

import lpkernels as lp
from lpkernels import ops
from lpkernels.reference import twin
from lpkernels.rng import SITE_OUTPUT, Role, derive_seed
from tests.compare import assert_bit_equal
from tests.support.autograd import SEED, gradients, how, leaves, output_gradients, same

ACCUMULATORS = [
    lp.Accumulator("e6m9"),
    lp.Accumulator("e5m4", "toward_zero", chunk=3, outer="e6m6"),
    lp.Accumulator("e5m7", "stochastic", product="e5m5", product_rounding="stochastic"),
]
# (a, b): vectors, matrices, batches, and broadcasting of either or both.
SHAPES = [
    ((5,), (5,)), ((5,), (5, 3)), ((4, 5), (5,)), ((4, 5), (5, 3)), ((2, 4, 5), (5, 3)),
    ((2, 4, 5), (5,)), ((5,), (2, 5, 3)), ((4, 5), (2, 5, 3)), ((2, 4, 5), (2, 5, 3)),
    ((2, 1, 4, 5), (3, 5, 2)), ((3, 1, 2, 5), (1, 4, 5, 2)), ((1, 4, 5), (2, 5, 3)),
    ((2, 4, 0), (0, 3)), ((0, 4, 5), (5, 3)), ((0, 5), (5, 3)), ((4, 5), (5, 0)),
    ((1, 4, 5), (0, 5, 3)),
]  # fmt: skip


def product(a: np.ndarray, b: np.ndarray, acc: lp.Accumulator, role: Role) -> np.ndarray:
    return twin.matmul(a, b, None, acc, seed=derive_seed(SEED, role))


def matrices(a: torch.Tensor, b: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """a and b as stacks of matrices."""
    left, right = a.detach().numpy(), b.detach().numpy()
    return left if left.ndim > 1 else left[None], right if right.ndim > 1 else right[:, None]


@pytest.mark.parametrize("acc", ACCUMULATORS)
@pytest.mark.parametrize("shapes", SHAPES)
def test_matmul_matches_the_reference(shapes, acc, backends):
    a, b = leaves(*shapes)
    want = product(*matrices(a, b), acc, Role.DIRECT).reshape(torch.matmul(a, b).shape)
    for backend in backends:
        got = lp.matmul(a, b, acc, **how(backend))
        assert_bit_equal(got, want, f"{backend} {shapes} {acc}")
        got = lp.matmul(a.detach(), b.detach(), acc, **how(backend))
        assert_bit_equal(got, want, f"{backend} {shapes} {acc}, of tensors without gradients")


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


@pytest.mark.parametrize("acc", ACCUMULATORS)
@pytest.mark.parametrize("shapes", SHAPES)
def test_matmul_gradients_are_one_sum_each(shapes, acc, backends):
    a, b = leaves(*shapes)
    left, right = matrices(a, b)
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    (g,) = output_gradients(torch.matmul(a, b).shape)
    g = g.numpy().reshape(*batch, left.shape[-2], right.shape[-1])
    want_a = longhand(g, right.swapaxes(-1, -2), left.shape, acc, Role.DGRAD)
    # That of b is made as a linear layer makes the gradient of its weight (N, K).
    weight = right.swapaxes(-1, -2).shape
    want_b = longhand(g.swapaxes(-1, -2), left, weight, acc, Role.WGRAD).swapaxes(-1, -2)
    want = [want_a.reshape(a.shape), np.ascontiguousarray(want_b).reshape(b.shape)]
    ways = ({"acc": acc}, {"recipe": lp.Recipe(fprop=acc, dgrad=acc, wgrad=acc)})
    for backend, way in itertools.product(backends, ways):
        y = lp.matmul(a, b, **way, **how(backend))
        same(gradients(y, [a, b])[1:], want, f"{backend} {shapes} {acc}: gradient")


@pytest.mark.parametrize("acc", [None, lp.NATIVE, "native"])
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


@pytest.mark.parametrize("acc", [None, "e6m9"])
def test_matmul_output_rounds_last(acc, backend):
    tensors, quantizer = leaves((4, 9), (9, 3)), lp.Quantizer("e5m2", "stochastic")
    plain, *want = gradients(lp.matmul(*tensors, acc, backend=backend), tensors)
    seed = derive_seed(SEED, Role.OUTPUT)
    rounded = twin.quantize(plain.numpy(), quantizer, seed=seed, site=SITE_OUTPUT)
    call = {"output": quantizer, **how(backend)}
    same(gradients(lp.matmul(*tensors, acc, **call), tensors), [rounded, *want])


def test_matmul_output_of_narrow_operands_is_float32_under_autocast():
    a = torch.full((2, 2), 1 + 2**-7, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = lp.matmul(a, a, output="e5m20")
    assert y.dtype == torch.float32
    assert y[0, 0].item() == 2 * (1 + 2**-7) ** 2


def test_matmul_writes_out(backend):
    a, b = torch.randn(4, 9), torch.randn(9, 3)
    want = lp.matmul(a, b, "e6m9", backend="reference")
    for out in (torch.empty(4, 3), torch.empty(3, 4).t(), torch.empty(0)):
        assert lp.matmul(a, b, "e6m9", out=out, backend=backend) is out
        assert_bit_equal(out, want)


@pytest.mark.parametrize("wanted, role", [(0, Role.DGRAD), (1, Role.WGRAD)])
def test_matmul_computes_only_the_gradient_asked_for(wanted, role):
    operands = [torch.randn(4, 5), torch.randn(5, 3)]
    operands[wanted].requires_grad_()
    y = lp.matmul(*operands, "e6m9")
    assert len([x for x in y.grad_fn.saved_tensors if x is not None]) == 1
    with pytest.MonkeyPatch.context() as patch:
        roles, original = [], ops.multiply
        patch.setattr(ops, "multiply", lambda *args: roles.append(args[1].role) or original(*args))
        y.sum().backward()
    assert roles == [role]


@pytest.mark.parametrize("acc", ACCUMULATORS)
@pytest.mark.parametrize("shape", [(), (3,), (5, 1), (2, 1, 3), (2, 5, 3)])
def test_matmul_from_a_start_matches_the_reference(shape, acc, backends):
    a, b, c = tensors = leaves((2, 5, 12), (12, 3), shape)
    start = np.broadcast_to(c.detach().numpy(), (2, 5, 3))
    operands, seed = (a.detach().numpy(), b.detach().numpy()), derive_seed(SEED, Role.DIRECT)
    y = torch.from_numpy(twin.matmul(*operands, None, acc, seed=seed, initial=start))
    of_operands = gradients(lp.matmul(a, b, acc, **how()), [a, b])[1:]
    of_start = output_gradients((2, 5, 3))[0].sum_to_size(shape)
    want = [lp.quantize(y, "e3m2"), *of_operands, of_start]
    for backend in backends:
        got = lp.matmul(a, b, acc, initial=c, output="e3m2", **how(backend))
        same(gradients(got, tensors), want, backend)


def test_the_gradient_of_a_start_has_its_dtype():
    a, b, c = torch.ones(5, 12), torch.ones(12, 3), torch.zeros(3, dtype=torch.float16)
    lp.matmul(a, b, "e6m9", initial=c.requires_grad_()).sum().backward()
    assert c.grad.dtype is torch.float16 and c.grad.tolist() == [5, 5, 5]
