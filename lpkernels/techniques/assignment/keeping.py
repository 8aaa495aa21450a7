"""What training under an assignment keeps for backward, predicted from a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lpkernels.techniques.assignment.assignment import Assignment
from lpkernels.techniques.assignment.grouping import group, key_of
from lpkernels.techniques.assignment.ops import Op, checked_ops
from lpkernels.techniques.assignment.running.keeping import Memory

_FLOAT, _INDEX = 4, 2

# Operations whose backward reads their result, their inputs, or neither.
_RESULT = frozenset(
    """
    relu sigmoid tanh softmax log_softmax softmin exp expm1 sqrt rsqrt reciprocal logsumexp norm
    vector_norm amax amin prod
    """.split()
)
_INPUTS = frozenset(
    """
    relu6 hardtanh leaky_relu prelu rrelu elu selu celu gelu silu mish softplus softsign hardswish
    hardsigmoid logsigmoid tanhshrink softshrink hardshrink threshold glu erf sin cos log log1p log2
    square abs pow clamp clamp_min clamp_max clip mul multiply div divide true_divide rdiv addcmul
    addcdiv lerp maximum minimum avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d
    adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d std var nll_loss mse_loss l1_loss
    smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div
    batch_norm layer_norm group_norm instance_norm rms_norm
    """.split()
)
_INDICES = frozenset(
    """
    max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
    """.split()
)
# A mean and a deviation for each channel, and the scale.
_CHANNEL_NORMS = frozenset("batch_norm instance_norm".split())


def kept_memory(ops: Sequence[Op], assignment: Assignment) -> Memory:
    """What is kept for backward at the moment when it is most, the end of the forward pass.

    Forward keeps what backward will read, each tensor of the assignment once, as codes of its
    format, however many operations read it; backward frees it in reverse and adds nothing. By
    operation: a matrix product or convolution keeps its inputs and its weight; a norm its input,
    its scale and float32 statistics; ReLU, sigmoid, tanh and softmax their result; other
    activations, products, average pooling and losses their inputs; max pooling its input and its
    indices, 2 bytes each; dropout a mask of bits; sums, concatenations, moves and means nothing. As
    torch's operations do on the CPU in training, the network's input without a gradient, and
    `assign` stores it.

    What a trace does not tell is left out: masks of attention, what is kept by operations that are
    not known and by layers of lpkernels in emulated arithmetic, statistics of norms without a
    scale. Indices count as if every plane that is pooled had less than 2^15 elements.

    Args:
        ops: of `trace`.
        assignment: of these.
    Raises: TypeError, ValueError: Ops that do not fit together, or of another assignment.
    """
    ops = checked_ops("kept_memory", ops)
    assignment.check(group(ops))
    # A result has a gradient if a parameter took part in it.
    learning: set[str] = set()
    for op in ops:
        if op.params or any(name in learning for name in op.inputs):
            learning.add(op.name)
    keys = {key for op in ops for key in _keys(op, learning)}
    packed = whole = 0
    for key in keys:
        tensor, fmt = assignment.tensors[key], assignment.format_of(key).fmt
        bits = int(fmt.bits) if isinstance(fmt.bits, int) else 8 * _FLOAT
        if bits < 8 * _FLOAT:
            packed += -(-tensor.numel * bits // 8)
        elif tensor.kind == "activation":
            whole += _FLOAT * tensor.numel
    return Memory(packed, whole + sum(_whole(op, learning) for op in ops))


def _keys(op: Op, learning: set[str]) -> Iterator[str]:
    """The tensors of the assignment that the operation keeps."""
    if op.name not in learning:
        return
    if op.is_gemm:
        yield from _of_product(op, learning)
    elif op.operation in _RESULT:
        yield key_of(op.name, "activation")
    elif op.operation in _INPUTS:
        yield from (key_of(name, "activation") for name in op.inputs)
        yield from _scale(op)


def _of_product(op: Op, learning: set[str]) -> Iterator[str]:
    yield from (key_of(name, "activation") for name in op.inputs)
    # The bias has a gradient that reads nothing. A linear layer on data needs no weight backward.
    weights = [
        name for name, numel in op.full_params.items() if not name.endswith("bias") and numel
    ]
    if op.operation.startswith("conv") or any(name in learning for name in op.inputs):
        yield from (key_of(name, "weight") for name in weights)


def _scale(op: Op) -> Iterator[str]:
    """The parameters of a norm that its backward reads; layer norm's keeps its bias too."""
    for name in op.full_params:
        if op.operation == "layer_norm" or not name.endswith("bias"):
            yield key_of(name, "weight")


def _whole(op: Op, learning: set[str]) -> int:
    """Bytes of what the operation keeps that is no tensor of the assignment."""
    if op.name not in learning:
        return 0
    if op.operation in _INDICES:
        return _INDEX * op.numel
    if op.operation in _CHANNEL_NORMS and op.params:
        return 2 * _FLOAT * max(op.params.values())
    if op.operation.endswith("dropout"):
        return -(-op.numel // 8)
    if op.operation == "nll_loss":
        return _FLOAT
    if op.operation == "layer_norm" and op.params:
        return 2 * _FLOAT * (op.numel // max(op.params.values()))
    return 0
