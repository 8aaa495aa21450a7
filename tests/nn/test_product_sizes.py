"""The multiply-adds of operators: by torch's own counter and by hand; no name is forgotten."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

import lpkernels as lp
from lpkernels.nn._product_sizes import _LOOKS_LIKE, NO_PRODUCT, SIZES, sizes_of
from tests.support.autograd import Computes

# Operators of torch that multiply matrices, and whose multiply-adds nobody has written down.
NOT_COUNTED = frozenset(
    """
    _cholesky_solve_helper _compute_linear_combination _cslt_sparse_mm _cudnn_attention_backward
    _cudnn_attention_forward _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet
    _linalg_solve_ex _linalg_svd _lstm_mps _mps_convolution_transpose _slow_conv2d_backward
    _sparse_mm_reduce_impl_backward _sparse_semi_structured_addmm _sparse_semi_structured_mm
    _dyn_quant_matmul_4bit _foreach_mm _mixed_dtypes_linear _mps_convolution
    _scaled_dot_product_attention_math_for_mps _sparse_semi_structured_linear
    _triton_multi_head_attention _weight_int4pack_mm _weight_int4pack_mm_for_cpu
    _weight_int4pack_mm_with_scales_and_zeros _weight_int8pack_mm linear_backward
    miopen_convolution miopen_convolution_add_relu miopen_convolution_relu
    miopen_depthwise_convolution miopen_rnn miopen_rnn_backward mkldnn_linear_backward
    mkldnn_linear_backward_input mkldnn_linear_backward_weights
    _spsolve _triton_scaled_dot_attention cholesky cholesky_inverse cholesky_solve
    cudnn_convolution_transpose geqrf linalg_cholesky_ex linalg_eig linalg_eigvals
    linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq
    linalg_lu linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp linalg_pinv linalg_qr
    linalg_solve_triangular lstm_mps_backward miopen_convolution_transpose mps_convolution_backward
    mps_convolution_transpose_backward ormqr quantized_gru quantized_lstm slow_conv_transpose2d
    slow_conv_transpose3d triangular_solve
    """.split()
)
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])


@pytest.mark.skipif(VERSION < (2, 11), reason="nobody went through the names of older versions")
def test_every_operator_of_torch_that_looks_like_a_product_is_decided() -> None:
    """Whoever sees this fail with a new torch decides: counted, not counted, or no product."""
    names = {
        n.removeprefix("aten::") for n in torch._C._dispatch_get_all_op_names() if "aten::" in n
    }
    decided = {name.removeprefix("aten::") for name in SIZES} | NOT_COUNTED | NO_PRODUCT
    undecided = set()
    for name in names:
        packet = name.partition(".")[0]
        # A composite operator runs as others, which are seen.
        composite = torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", COMPOSITE)
        if _LOOKS_LIKE.search(packet) and not composite:
            undecided |= {packet} - decided
    assert not undecided
    assert all(sizes_of(f"aten::{name}", [], None) for name in NOT_COUNTED)
    assert not NOT_COUNTED & NO_PRODUCT and not (NOT_COUNTED | NO_PRODUCT) & {*SIZES}


def meta(*shape: int) -> Tensor:
    return torch.empty(shape, device="meta", dtype=torch.float32)


# torch's counter takes the second dimension of flash attention for heads.
Q, K, V, G = meta(2, 6, 6, 8), meta(2, 6, 6, 8), meta(2, 6, 6, 4), meta(2, 6, 6, 4)
ENDS = torch.tensor([0, 2, 5]), torch.tensor([0, 1, 6])
IMAGE, KERNEL = meta(2, 4, 9, 8), meta(6, 4, 3, 2)
NUMBERS = (None, [2, 1], [1, 0], [1, 2], False, [0, 0], 1)
CONV = torch.ops.aten.convolution(IMAGE, KERNEL, *NUMBERS)
UP = (meta(2, 6, 4, 5), meta(6, 3, 3, 2), None, [2, 1], [1, 0], [1, 2], True, [0, 0], 1)
BACK = [True, True, True]
ROWS = meta(5, 6, 8), meta(6, 6, 8), meta(6, 6, 8)


@pytest.mark.parametrize("name, arguments, result", [
    ("mm", (meta(3, 4), meta(4, 5)), meta(3, 5)),
    ("addmm", (meta(5), meta(3, 4), meta(4, 5)), meta(3, 5)),
    ("bmm", (meta(2, 3, 4), meta(2, 4, 5)), meta(2, 3, 5)),
    ("baddbmm", (meta(2, 3, 5), meta(2, 3, 4), meta(2, 4, 5)), meta(2, 3, 5)),
    ("_scaled_mm", (meta(3, 4), meta(4, 5), meta(1), meta(1)), meta(3, 5)),
    *((name, (IMAGE, KERNEL, *NUMBERS), CONV) for name in (
        "convolution", "_convolution", "convolution_overrideable")),
    ("convolution", UP, torch.ops.aten.convolution(*UP)),
    ("cudnn_convolution", (IMAGE, KERNEL, [1, 0], [2, 1], [1, 2], 1, False, False, True), CONV),
    ("convolution_backward", (CONV, IMAGE, KERNEL, [6], *NUMBERS[1:], BACK),
     (IMAGE, KERNEL, meta(6))),
    *((f"_scaled_dot_product_{name}_attention", (Q, K, V), (G,)) for name in (
        "flash", "efficient", "cudnn")),
    *((f"_scaled_dot_product_{name}_attention_backward", (G, Q, K, V), (Q, K, V)) for name in (
        "flash", "efficient", "cudnn")),
    ("_flash_attention_forward", (Q, K, V, None, None, 6, 6), (G,)),
    ("_efficient_attention_forward", (Q, K, V, None, None, None, 6, 6), (G,)),
    ("_flash_attention_backward", (G, Q, K, V, G, G, None, None, 6, 6), (Q, K, V)),
    ("_efficient_attention_backward", (G, Q, K, V, None, G, None, None, 6, 6), (Q, K, V)),
    ("_flash_attention_forward", (*ROWS, *ENDS, 3, 5), (ROWS[0],)),
    ("_flash_attention_backward", (ROWS[0], *ROWS, G, G, *ENDS, 3, 5), ROWS),
])  # fmt: skip
def test_multiply_adds_are_half_of_torchs_operations(name: str, arguments: Any, result: Any):
    sizes = sizes_of(f"aten::{name}", arguments, result)
    formula = flop_registry[getattr(torch.ops.aten, name)]
    assert sizes is not None and sizes.macs
    assert 2 * sizes.macs == formula(*arguments, out_val=result)


A, B, SQUARE = torch.randn(3, 4), torch.randn(4, 5), torch.eye(4) + torch.rand(4, 4) / 8
SPARSE = A * torch.tensor([1.0, 0, 0, 1])
INDICES, OFFSETS = torch.tensor([0, 3, 3, 1]), torch.tensor([0, 2])
GROUPS = torch.tensor([3, 8], dtype=torch.int32)


def grouped(*shapes: tuple[int, ...], offsets: Tensor | None = GROUPS) -> Tensor:
    if not hasattr(torch, "_grouped_mm"):
        pytest.skip("this torch has no grouped products")
    a, b = (torch.ones(shape, dtype=torch.bfloat16) for shape in shapes)
    return torch._grouped_mm(a, b, offs=offsets)


@pytest.mark.filterwarnings("ignore:.*chain_matmul", "ignore:Sparse CSR")
@pytest.mark.parametrize("compute, macs", [
    # What calls reach torch below Python, whatever they are called above.
    (lambda: torch.addmm(torch.ones(5), A, B), 60), (lambda: torch.ones(3, 5).addmm_(A, B), 60),
    (lambda: torch.ones(2, 3, 5).baddbmm_(A.expand(2, 3, 4), B.expand(2, 4, 5)), 120),
     (lambda: torch.linalg.matrix_power(SQUARE, 3), 128),
    (lambda: torch.outer(A[0], A[1]), 0),
    # Two columns of three are not zero.
    (lambda: torch.sparse.mm(SPARSE.to_sparse(), B), 30), (lambda: SPARSE.to_sparse_csr() @ B, 30),
    (lambda: torch.sparse.sampled_addmm(SQUARE.tril().to_sparse_csr(), SQUARE, SQUARE), 40),
    (lambda: grouped((8, 16), (2, 16, 32)), 8 * 16 * 32),
    (lambda: grouped((2, 8, 16), (2, 16, 32), offsets=None), 2 * 8 * 16 * 32),
    (lambda: grouped((16, 8), (8, 32)), 16 * 8 * 32),
    (lambda: torch.cdist(A, A), 36), (lambda: torch.cdist(B.expand(30, 4, 5)[:, 0], B), 600),
    (lambda: torch.conv_tbc(torch.ones(5, 2, 3), torch.ones(2, 3, 4), torch.ones(4)), 8 * 24),
    (lambda: torch.nn.functional.embedding_bag(INDICES, B, OFFSETS), 20),
    (lambda: torch._int_mm(*[torch.ones(32, 32, dtype=torch.int8)] * 2), 32**3),
    (lambda: torch.bilinear(A, B.mT[:3], torch.ones(2, 4, 4), None), 3 * (32 + 8)),
])  # fmt: skip
def test_multiply_adds_of_calls(compute: Callable[[], Any], macs: int) -> None:
    summary = lp.nn.summary(Computes(lambda m, x: compute()), A)
    assert summary.macs == macs and not summary.not_counted and not summary.emulated_macs


@pytest.mark.parametrize("name, compute", [
    ("aten::_linalg_svd", lambda: torch.linalg.svd(SQUARE)),
    ("aten::_linalg_solve_ex", lambda: torch.linalg.solve(SQUARE, B)),
    ("matmul", lambda: torch.sparse.mm(SPARSE.to_sparse(), B.to_sparse())),
    ("aten::linalg_matrix_exp", lambda: torch.linalg.matrix_exp(SQUARE)),
])  # fmt: skip
def test_products_of_unknown_size_are_named(name: str, compute: Callable[[], Any]) -> None:
    summary = lp.nn.summary(Computes(lambda m, x: compute()), A)
    assert [(row.product, row.macs) for row in summary.not_counted] == [(name, None)]
    assert f"nobody knows the multiply-adds: {name} x1" in str(summary)


@torch.library.custom_op("tests::gemm_of_another_library", mutates_args=())
def gemm(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def test_an_operator_of_another_library_is_named_by_its_look() -> None:
    (row,) = lp.nn.summary(Computes(lambda m, x: gemm(A, B)), A).rows
    assert (row.product, row.macs) == ("tests::gemm_of_another_library", None)
