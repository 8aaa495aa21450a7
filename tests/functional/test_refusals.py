"""What the functions refuse: the error's type, and the name or the value that its message must
contain. What all functions refuse alike is in test_every_function.py."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import lpkernels as lp
from tests.functional.scaled_layers import MXFP8
from tests.support.refusals import refused

F = lp.functional
RECIPE = lp.Recipe(input="e4m3", fprop="fp32", dgrad="fp32", wgrad="fp32")


def ones(*shape: int) -> Tensor:
    return torch.ones(shape)


def by_recipe(function: Any) -> Any:
    return partial(function, recipe=RECIPE)


einsum, layer_norm, group_norm = map(by_recipe, (F.einsum, F.layer_norm, F.group_norm))
batch_norm, softmax, gru, lstm = map(by_recipe, (F.batch_norm, F.softmax, F.gru, F.lstm))
gru_cell, attention = map(by_recipe, (F.gru_cell, F.scaled_dot_product_attention))
conv = partial(F.conv2d, recipe=RECIPE, groups=2)
up = partial(F.conv_transpose2d, recipe=RECIPE, groups=2)
matmul = partial(lp.matmul, acc="e6m9")
quantize = lp.quantize


def multi_head(*inputs: Tensor, **options: Any) -> Any:
    call = {"in_proj_weight": ones(24, 8), "in_proj_bias": None, "bias_k": None, "bias_v": None}
    call |= {"add_zero_attn": False, "dropout_p": 0.0, "out_proj_weight": ones(8, 8)}
    call |= {"embed_dim_to_check": 8, "num_heads": 2, "out_proj_bias": None, "recipe": RECIPE}
    return F.multi_head_attention_forward(*inputs, **(call | options))


def grad(x: Tensor) -> Tensor:
    return x.clone().requires_grad_()


def meta(x: Tensor) -> Tensor:
    return x.to("meta")


def codes_of(x: Tensor, fmt: str) -> lp.Scaled:
    return lp.scaled(x, fmt, backend="reference")


# Operands of a linear layer, of convolutions, of products, of einsum, of norms, of attention.
X, W, B = ones(4, 5), ones(3, 5), ones(3)
IMAGE, KERNEL, TRANSPOSED, BIAS = ones(2, 4, 5, 5), ones(6, 2, 3, 3), ones(4, 3, 3, 3), ones(6)
LEFT, RIGHT, THIRD = ones(2, 3, 4), ones(2, 4, 5), ones(2, 3, 4)
A, C = ones(3, 4), ones(4, 5)
BATCH = ones(4, 6, 5)
Q, K, V, E = ones(2, 3, 4, 8), ones(2, 3, 5, 8), ones(2, 3, 5, 6), ones(4, 2, 8)
# Of a recurrent layer: the sequence, the state, the weights, the lengths of a packed one.
SEQUENCE, STATE, LENGTHS = ones(4, 3, 5), ones(1, 3, 6), torch.tensor([3, 2, 2, 1])
GATES = [ones(18, 5), ones(18, 6), ones(18), ones(18)]
SECOND = [ones(18, 6), ones(18, 6), ones(18), ones(18)]
RISING = torch.tensor([1, 2])
# Of an lstm whose hidden state has 2 of 3 values: w_hr stands last.
PROJECTED, PAIR_OF_STATES = [ones(12, 5), ones(12, 2), ones(2, 3)], (ones(1, 3, 2), ones(1, 3, 3))
SEPARATE = {"use_separate_proj_weight": True, "q_proj_weight": ones(8, 8)}
VECTOR, MATRIX, BY_SUM = ones(4), ones(4, 6), lp.BlockFormat("e4m3", axis="k")
EXPANDED, CODES = ones(1).expand(4), torch.zeros(3, dtype=torch.uint8)
PAIR, PAIR_SCALE = ones(2), ones(1)
ROW, COLUMN = torch.zeros(2, 64), torch.zeros(64, 3)
MX = codes_of(ROW, "mxfp8")
WIDE = "block16_e4m3_se8m22"
TRANSFORMED = {"wgrad_input": "fp32:rht16", "wgrad_grad_output": "fp32:rht16"}
BY_SCALE = lp.Recipe(input="tensor_e4m3", fprop="fp32_chunkscale")
IMAGES, KERNELS = ones(2, 16, 4, 4), ones(8, 16, 3, 3)
IN_IMAGE = lp.Recipe(input="block16_axis1_e4m3_up", wgrad_input="fp32", fprop="fp32_chunkscale")
SCALE = "fp32_chunkscale"
STEPS = {"rounding": "toward_zero", "block": 8, "aligned_bits": 24, "operands": "fp16"}


def calls_with_counts(counts: Any, words: str = "") -> list[tuple[Any, str]]:
    """Calls of both functions that count."""
    return [
        (partial(function, B, "e5m2", counts=counts), f"{function.__name__}: counts {words}")
        for function in (lp.quantize, lp.count)
    ]


def calls_with_range(fmt: str, ends: Any, word: str = "range") -> list[tuple[Any, str]]:
    """Calls of both functions that take a range."""
    return [
        (partial(function, ones(4, 3), fmt, range=ends), f"{function.__name__}: .*{word}")
        for function in (lp.quantize, lp.count)
    ]


test_wrong_values_are_refused = refused(
    [
        (lambda: conv(IMAGE, KERNEL, BIAS, stride=0), "stride=0"),
        (lambda: up(IMAGE, TRANSPOSED, BIAS, stride=0), "stride=0"),
        (lambda: F.conv1d(X, KERNEL, recipe=RECIPE), r"\(N, C_in, L\)"),
        (lambda: conv(IMAGE, KERNEL, BIAS, groups=1), "groups=1"),
        (lambda: conv(IMAGE, KERNEL, BIAS, groups=4), "groups=4"),
        (lambda: conv(IMAGE, KERNEL, BIAS, padding="full"), "padding='full'"),
        (lambda: conv(IMAGE, KERNEL, BIAS, padding="same", stride=2), "stride 1"),
        (lambda: conv(IMAGE, KERNEL, BIAS, dilation=3), r"kernel .* \(7, 7\)"),
        (lambda: up(IMAGE, TRANSPOSED, BIAS, output_padding=1), "output_padding="),
        (lambda: up(IMAGE, TRANSPOSED, BIAS, padding=9), r"padding|\(-11, -11\)"),
        (lambda: matmul(A, A), "K=4"),
        (lambda: matmul(A.expand(2, 3, 4), ones(3, 4, 2)), r"leading .* \(2,\)"),
        (lambda: matmul(A, torch.tensor(1.0)), "dimension"),
        (lambda: matmul(A, meta(C)), "b on meta"),
        (lambda: matmul(A, C, backend="gpu"), "backend 'gpu'"),
        (lambda: matmul(A, C, acc=None, backend="gpu"), "backend 'gpu'"),
        (lambda: F.linear(X, W, recipe="bf16_mixed", backend="CPU"), "linear.* 'CPU'"),
        (lambda: matmul(A, C, acc="e6m9:nearest"), "nearest_even"),
        (lambda: matmul(grad(A), C, out=ones(3, 5)), "gradients, but a requires"),
        (lambda: matmul(A, C, out=A), "out has shape"),
        (lambda: matmul(A, C, initial=VECTOR), r"initial.*\(4,\)"),
        (lambda: matmul(A, C, initial=ones(1, 3, 5)), "initial.* broadcast"),
        (lambda: matmul(A, C, initial=ones(5), acc=None), "initial|torch.addmm"),
        (lambda: matmul(A, C, initial=ones(5), acc="native_chunk4"), "order 'native'"),
        (lambda: matmul(A, C, initial=ones(5), acc="fp16:order=pairwise"), "a tree without"),
        (lambda: matmul(A, C, initial=ones(5), acc=None, recipe="fp32"), "initial"),
        (lambda: F.matmul(LEFT, RIGHT, "bf16", recipe=RECIPE), "acc"),
        (lambda: einsum("ij->ji", A), "operands, got 1"),
        (lambda: einsum("ij->ik", A, C), "two operands"),
        (lambda: einsum("i1,1k->ik", A, C), "letters"),
        (lambda: einsum("i,jk->ik", A, C), "'i' .* 1 dimensions"),
        (lambda: einsum("ij,jk->ii", A, C), "once"),
        (lambda: einsum("ij,ik->jk", A, C), "label 'i'"),
        (lambda: einsum("ii,ij->j", A, C), "label 'i' .* sizes"),
        (lambda: layer_norm(BATCH, (6,)), "layer_norm: input has shape"),
        (lambda: group_norm(BATCH, 4), "num_groups=4"),
        (lambda: batch_norm(BATCH[:1, :, :1], None, None, training=True), "more than 1 value"),
        (lambda: batch_norm(BATCH, None, None), "running_var"),
        (lambda: attention(Q, K, V, is_causal=True, attn_mask=E), "is_causal|mask"),
        (lambda: attention(Q[:, :2], K, V), "broadcast"),
        (lambda: attention(Q, K, V, E), "attn_mask has shape"),
        (lambda: attention(Q, K, V, meta(ones(4, 5))), "attn_mask on meta"),
        (lambda: multi_head(E, E, E, attn_mask=ones(4)), "attn_mask has shape"),
        (lambda: multi_head(E, E, E, attn_mask=meta(ones(4, 4))), "attn_mask on meta"),
        (lambda: attention(Q, K, V[:, :1], enable_gqa=True), "heads"),
        (lambda: multi_head(E, E[:, :1], E), "query has shape"),
        (lambda: multi_head(E, E, E, num_heads=3), "3 heads"),
        (lambda: multi_head(E, E, E, is_causal=True), "attn_mask"),
        (lambda: multi_head(E, E, E, in_proj_weight=None), "in_proj_weight is None"),
        (lambda: multi_head(E, E, E, out_proj_weight=None), "out_proj_weight is None"),
        (lambda: multi_head(E, E, E, **SEPARATE), "k_proj_weight is None"),
        (lambda: multi_head(E, E, E, **SEPARATE, k_proj_weight=ones(8, 7), v_proj_weight=ones(8)),
         r"k_proj_weight has shape \(8, 7\); expected \(8, 8\)"),
        (lambda: multi_head(E, E[..., :7], E), r"key has shape \(4, 2, 7\).*separate"),
        (lambda: multi_head(E, E, E, bias_k=ones(1, 1, 8)), "bias_k and bias_v together"),
        (lambda: multi_head(E, E, E, bias_k=ones(8), bias_v=ones(7)), r"bias_v .*\(7,\).*\(8,\)"),
        (lambda: multi_head(E, E, E, out_proj_bias=ones(7)), r"out_proj_bias .*\(8,\)"),
        (lambda: multi_head(E, E, E, key_padding_mask=E), "key_padding_mask has shape"),
        (lambda: gru(SEQUENCE[0], STATE, GATES), "gru: input has shape"),
        (lambda: gru(SEQUENCE[0], STATE, GATES, batch_sizes=LENGTHS), "sum"),
        (lambda: gru(SEQUENCE, STATE, GATES[:3]), "gru: got 3 weights"),
        (lambda: gru(SEQUENCE[0], STATE, GATES, batch_sizes=RISING), "do not rise"),
        (lambda: gru(SEQUENCE, STATE, []), "gru: got 0 weights"),
        (lambda: gru(SEQUENCE, STATE[:, :2], GATES), "states"),
        (lambda: gru(SEQUENCE[..., :4], STATE, GATES), r"w_ih.* expected \(18, 4\)"),
        (lambda: gru(SEQUENCE, STATE, [*GATES[:1], ones(17, 6), *GATES[2:]]), r"\(3 \* H, H\)"),
        (lambda: gru(SEQUENCE, STATE.expand(2, 3, 6), GATES + GATES, num_layers=2),
         r"weights\[4\] \(w_ih\) has shape \(18, 5\); expected \(18, 6\)"),
        (lambda: gru(SEQUENCE, STATE.expand(2, 3, 6), [*GATES, *SECOND[:3], B], num_layers=2),
         r"weights\[7\] \(b_hh\) has shape \(3,\); expected \(18,\)"),
        (lambda: lstm(SEQUENCE, STATE, [], has_biases=False), "lstm: got 0 weights"),
        (lambda: lstm(SEQUENCE, STATE, PROJECTED, has_biases=False), "states"),
        (lambda: lstm(SEQUENCE, PAIR_OF_STATES, PROJECTED[:2], has_biases=False), "H_out"),
        (lambda: lstm(SEQUENCE, PAIR_OF_STATES, [*PROJECTED[:2], ones(3, 2)], has_biases=False),
         r"w_hr.* expected \(2, 3\)"),
        (lambda: gru_cell(ones(3, 5), SEQUENCE, *GATES[:2]), "gru_cell: the states"),
        (lambda: gru_cell(ones(3, 5), STATE[0], GATES[0], torch.tensor(1.0)), r"w_hh has .*\(\)"),
        (lambda: gru_cell(ones(3, 5), STATE[0], *GATES[:2], None, B), "b_hh"),
        (lambda: quantize(VECTOR, "e5m2", "nearest"), "nearest_even.*nearest_away"),
        (lambda: quantize(VECTOR, "e5m2:stochastic", random_bits=33), "random_bits"),
        (lambda: quantize(VECTOR, "e5m2", "stochastic", random_bits=33), "random_bits.*33"),
        (lambda: quantize(VECTOR, "e5m2:stochastic", "to_odd"), "rounding"),
        (lambda: quantize(VECTOR, "affine4_axis2"), "axis 2"),
        (lambda: quantize(VECTOR, "block4_axis1_e2m1"), "axis 1"),
        (lambda: quantize(VECTOR, "e5m2", backend="gpu"), "backend 'gpu'"),
        (lambda: quantize(VECTOR, "e5m2", generator=torch.tensor([1])), "0-d"),
        (lambda: quantize(VECTOR, "e5m2", out=VECTOR[:3]), "out has shape"),
        (lambda: quantize(VECTOR, "e5m2", out=EXPANDED), "expanded view"),
        (lambda: quantize(VECTOR, "e5m2", out=meta(VECTOR)), "out on meta"),
        (lambda: quantize(VECTOR, "e5m2", out=grad(VECTOR)), "gradients, but out requires"),
        (lambda: quantize(grad(VECTOR), "e5m2", out=ones(4)), "gradients, but x requires"),
        (lambda: quantize(VECTOR, "e4m3", amax=1.0), "e4m3 has no scale"),
        (lambda: quantize(VECTOR, "affine8", amax=1.0, range=(0, 1)), "amax="),
        *(
            (partial(function, *call, **options), word)
            for function in (lp.scaled, lp.quantize)
            for call, options, word in (
                ((MATRIX, BY_SUM), {}, "along 'k'"),
                ((MATRIX, "block4_axis2_e4m3"), {}, "axis 2"),
                ((MATRIX[0], "nvfp4_2d"), {}, "tiles"),
                ((MATRIX, "mxfp8"), {"amax": 1.0}, "block32_e4m3 has no scale"),
                ((MATRIX, "nvfp4"), {"amax": MATRIX}, "amax"),
                ((MATRIX, "nvfp4_te", "to_odd"), {}, "nearest_even or stochastic"),
                ((MATRIX, "nvfp4_te:toward_zero"), {}, "'toward_zero'"),
            )
        ),
        (lambda: lp.scaled(MATRIX, "e4m3"), "got e4m3"),
        (lambda: lp.scaled(MATRIX[:, :5], "nvfp4").tensors(), "even"),
        (lambda: lp.Scaled(MATRIX, MATRIX, None, "mxfp8"), "scale has shape"),
        (lambda: lp.Scaled(MATRIX, MATRIX[:, :1], MATRIX, "mxfp8"), "tensor_scale has shape"),
        (lambda: lp.Scaled(MATRIX, MATRIX[:, :1], None, "nvfp4"), "tensor scale"),
        (lambda: lp.Scaled(MATRIX, -MATRIX[:, :1], None, "mxfp8").tensors(), "sign"),
        (lambda: lp.pack(VECTOR.double() + 2**-40, "e5m2"), r"1\.00000000000090"),
        (lambda: lp.pack(VECTOR, "affine4"), "pack: affine4"),
        (lambda: lp.pack(VECTOR, "block4_axis1_e2m1"), "axis 1"),
        (lambda: lp.pack(MATRIX, BY_SUM), "pack: .*along 'k'"),
        (lambda: lp.pack(MATRIX, "mxfp8_up"), r"lp\.pack\(lp\.scaled\("),
        (lambda: lp.pack(lp.Scaled(PAIR, PAIR_SCALE, None, "block2_e2m1"), "mxfp8"), "fmt=mxfp8"),
        (lambda: lp.pack(lp.Scaled(PAIR, PAIR_SCALE * 3, None, "block2_e2m1")), "scale 3.0"),
        (lambda: lp.pack(lp.Scaled(PAIR, -PAIR_SCALE, None, "block2_e2m1")), "sign"),
        (lambda: lp.unpack(CODES, "e5m2", (4,)), "codes has 3"),
        (lambda: lp.unpack(CODES, "affine4", (4,)), "unpack: affine4"),
        (lambda: lp.unpack(CODES, "e5m2", (-1,)), r"\(-1,\)"),
        (lambda: lp.unpack(CODES, BY_SUM, (4,)), "unpack: .*along 'k'"),
        (lambda: lp.unpack(CODES, "fp8_tensor", (4,)), "codes has 3"),
        (lambda: lp.matmul(ROW, COLUMN, SCALE), "lp.scaled"),
        (lambda: lp.matmul(MX, codes_of(COLUMN, "mxfp8"), SCALE), "axis=-2"),
        (lambda: lp.matmul(codes_of(ROW, "fp8_1x128"), COLUMN, "fp32"), "chunk='scale'"),
        (lambda: lp.matmul(MX, grad(COLUMN), SCALE), "b requires a gradient"),
        (lambda: lp.matmul(codes_of(ROW, "nvfp4"), COLUMN, SCALE, initial=B[:1]), "initial="),
        (
            lambda: lp.matmul(
                codes_of(ROW, WIDE), codes_of(COLUMN, WIDE.replace("_", "_axis-2_", 1)), SCALE
            ),
            "46 bits",
        ),
        (lambda: lp.matmul(MX, COLUMN, recipe="bf16_mixed"), "recipe"),
        (lambda: lp.Accumulator("fp32", scale_order="left"), "chunk='scale'"),
        (lambda: lp.Accumulator(**STEPS, chunk="scale", interleaved=2), "chunk"),
        (lambda: F.conv2d(IMAGES, KERNELS, recipe=MXFP8), "conv2d: input="),
        (lambda: lp.nn.Conv2d(4, 4, 3, recipe=MXFP8), "exclude=.*input="),
        (lambda: F.conv2d(IMAGES, KERNELS, recipe=IN_IMAGE), "input=block16_axis1_e4m3_up"),
        (lambda: F.linear(ones(2, 3, 16), grad(ones(8, 16)), recipe=lp.Recipe(**TRANSFORMED)),
         "hadamard=16 .* wgrad sums 6"),
        (lambda: lp.matmul(ones(2, 6, 16), grad(ones(2, 16, 8)), recipe=lp.Recipe(**TRANSFORMED)),
         "hadamard=16 .* wgrad sums 6"),
        (lambda: F.layer_norm(IMAGES, (4,), recipe=MXFP8), "layer_norm: input="),
        (lambda: F.softmax(IMAGES, -1, recipe=BY_SCALE), "softmax: fprop="),
        (lambda: F.softmax(IMAGES, -1, recipe=lp.Recipe(input="e4m3", **TRANSFORMED)),
         "wgrad_input="),
        *calls_with_counts(torch.zeros(5, dtype=torch.int64)),
        *calls_with_counts(torch.zeros(4, dtype=torch.int64, device="meta")),
        *calls_with_range("e5m2", (0.0, 1.0)),
        *calls_with_range("affine4", (1.0, 0.0), r"range=\(1.0, 0.0\)"),
        *calls_with_range("affine4", (-1.5e308, 1.5e308)),
        *calls_with_range("affine4", torch.zeros(3), "range has shape"),
        *calls_with_range("affine4", (0.0, torch.zeros(2)), "range's hi has shape"),
        *calls_with_range("affine4", torch.zeros(2).to("meta"), "range is on meta"),
        *calls_with_range("affine4_axis0", torch.zeros(2, 3), "range has shape .* axis 0"),
        *calls_with_range("affine4_axis1", (torch.zeros(4), 1.0), "range's lo has shape .* axis 1"),
        (lambda: lp.seed_from(torch.tensor([3])).__enter__(), "seed must be 0-d"),
    ],
    ValueError,
)  # fmt: skip
test_wrong_types_are_refused = refused(
    [
        (lambda: F.linear(X, W, B, recipe=8), "Recipe"),
        (lambda: up(IMAGE, TRANSPOSED, BIAS, padding="same"), "padding='same'"),
        (lambda: matmul(A.double(), C.double()), r"a is float64.*lp.quantize\(a"),
        (lambda: matmul(A.double(), C.double(), acc=None, output="e5m2"), "a is float64"),
        (lambda: matmul(A, [1.0]), "b must"),
        (lambda: matmul(None, C), "a must"),
        (lambda: matmul(A, C, generator=3), "generator|int"),
        (lambda: matmul(A, C, out=ones(3, 5).half()), "out|torch.float32"),
        (lambda: matmul(A, C, initial=ones(5).int()), "initial"),
        (lambda: einsum(3, A, C), "equation"),
        (lambda: attention(Q, K, V, ones(5).int()), "int32"),
        (lambda: multi_head(E, E, E, bias_k=ones(8).int(), bias_v=ones(8)), "bias_k .*int32"),
        (lambda: gru(SEQUENCE, None, GATES), "hx must be"),
        (lambda: gru(SEQUENCE[0], STATE, GATES, batch_sizes=[3]), "batch_sizes must be"),
        (lambda: gru(SEQUENCE[0], STATE, GATES, batch_sizes=ones(1)), "batch_sizes is .*float32"),
        (lambda: gru(SEQUENCE[0], STATE, GATES, batch_sizes=meta(RISING)), "batch_sizes .*on meta"),
        (lambda: gru(SEQUENCE, STATE, [*GATES[:3], None]), r"weights\[3\] must be"),
        (lambda: gru_cell(ones(3, 5), None, *GATES), "hx must be"),
        (lambda: quantize(VECTOR.int(), "e5m2"), "int32.*x.float"),
        (lambda: quantize(VECTOR + 0j, "e5m2"), "x.real"),
        (lambda: quantize(VECTOR.to(torch.float8_e5m2), "e5m2"), "float8_e5m2.*x.float"),
        (lambda: quantize(VECTOR.to_sparse(), "e5m2"), "to_dense"),
        (lambda: quantize(torch.nested.nested_tensor([VECTOR], layout=torch.jagged), "e5m2"),
         "nested"),
        (lambda: quantize(VECTOR, "e5m2", rounding=3), "rounding"),
        (lambda: quantize(VECTOR, torch.complex64), "complex64"),
        (lambda: quantize(VECTOR, 8), "format"),
        (lambda: quantize(VECTOR, "e5m2", generator=3), "Generator"),
        (lambda: quantize(VECTOR, "e5m2", out=VECTOR.double()), "out"),
        *((partial(f, MATRIX, "nvfp4", amax=torch.tensor(1)), "amax")
          for f in (lp.scaled, lp.quantize)),
        *((partial(f, codes_of(MATRIX, "mxfp8"), "nvfp4"), "Scaled; .dequantize")
          for f in (lp.scaled, lp.quantize)),
        (lambda: lp.Scaled(MATRIX.half(), MATRIX[:, :1], None, "mxfp8"), "values"),
        (lambda: lp.Scaled.from_tensors(MATRIX, MATRIX, None, "mxfp8"), "float8_e4m3fn"),
        (lambda: lp.pack(VECTOR, lp.Quantizer("e5m2")), "fmt"),
        (lambda: lp.pack([1.0], "e5m2"), "x must"),
        (lambda: lp.unpack(VECTOR, "e5m2", (4,)), "uint8"),
        *calls_with_counts([0, 0, 0, 0], "must be an int64 tensor of 4 or 260"),
        *calls_with_counts(torch.zeros(4)),
        *calls_with_range("affine4", (0.0,)),
        *calls_with_range("affine4", ("0", 1.0), "range's lo"),
        *calls_with_range("affine4", (0.0, True), "range's hi"),
        *calls_with_range("affine4", torch.zeros(2, 1).int()),
        (lambda: lp.seed_from(3).__enter__(), "seed_from"),
        (lambda: lp.seed_from(torch.tensor(3.0)).__enter__(), "int64"),
    ],
    TypeError,
)  # fmt: skip


def test_a_dimension_beyond_those_of_the_tensor_is_an_index_error() -> None:
    with pytest.raises(IndexError, match="softmax: dim=3"):
        softmax(BATCH, 3)


def test_sparse_gradients_are_not_rounded() -> None:
    with pytest.raises(NotImplementedError, match="sparse=True"):
        F.embedding(torch.tensor([0]), A, sparse=True, recipe=lp.Recipe(grad_weight="e4m3"))


def test_keys_that_are_split_into_heads_already_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="static_k and static_v are not emulated"):
        multi_head(E, E, E, static_k=ones(4, 3, 4))
