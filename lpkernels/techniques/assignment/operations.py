"""What torch's functions do to values and gradients, by their names in an observation.

A name stands for the function, its version in place and its Python operators, as `canonical` writes
them. Matrix products stand apart: `lpkernels.nn.observing.PRODUCTS`.
"""

from __future__ import annotations

_ACTIVATIONS = """
    relu relu6 hardtanh leaky_relu prelu rrelu elu selu celu gelu silu mish softplus softsign
    hardswish hardsigmoid logsigmoid tanhshrink softshrink hardshrink threshold sigmoid tanh glu
    erf sin cos exp expm1 log log1p log2 sqrt rsqrt reciprocal square abs neg sign pow clamp
    clamp_min clamp_max clip
""".split()
_ARITHMETIC = """
    add sub rsub mul multiply div divide true_divide rdiv lerp addcmul addcdiv maximum minimum
    where masked_fill
""".split()
_JOINS = "cat concat concatenate stack hstack vstack dstack setitem copy index_put".split()
_POOLS = """
    max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d
    adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
    adaptive_max_pool3d lp_pool1d lp_pool2d interpolate upsample pixel_shuffle pixel_unshuffle
    channel_shuffle
""".split()
_MOVES = """
    pad flip roll repeat tile repeat_interleave gather index_select take getitem index_copy
    unfold fold tril triu masked_select
""".split()
_DROPOUTS = """
    dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout feature_dropout
""".split()
_REDUCTIONS = "mean sum max min amax amin std var norm vector_norm logsumexp cumsum prod".split()
_NORMS = """
    batch_norm layer_norm group_norm instance_norm rms_norm local_response_norm normalize
""".split()
_SPLITS = "chunk split tensor_split".split()
_SOFTMAXES = "softmax log_softmax softmin".split()
_LOSSES = """
    nll_loss mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy
    binary_cross_entropy_with_logits kl_div poisson_nll_loss gaussian_nll_loss margin_ranking_loss
    hinge_embedding_loss soft_margin_loss cosine_similarity cosine_embedding_loss
    triplet_margin_loss multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss
""".split()

FOLLOWS_ITS_INPUTS = frozenset(_SPLITS) | {
    *_ACTIVATIONS,
    *_ARITHMETIC,
    *_JOINS,
    *_POOLS,
    *_MOVES,
    *_DROPOUTS,
}
"""Operations that compute in the type of their inputs, in the widest where these differ."""

KNOWN = FOLLOWS_ITS_INPUTS | {*_REDUCTIONS, *_NORMS, *_SOFTMAXES, *_LOSSES, "embedding"}
"""All operations but matrix products."""

SAME_VALUES = frozenset(
    """
    contiguous clone to type type_as float double half bfloat16 reshape flatten ravel cpu cuda
    expand expand_as broadcast_to positive requires_grad as_subclass identity
    """.split()
)
"""Operations whose result holds the values of their argument, and is no tensor of its own."""

PASSES_GRADIENTS = frozenset("add sub rsub neg sum mean".split())
"""Operations that give operands of one element the gradient of their result, as it is or with its
sign changed, unless a factor (`alpha`) is among their arguments."""

READS_NOTHING_BACK = PASSES_GRADIENTS | {*_JOINS, *_MOVES, *_DROPOUTS, *_SPLITS, "embedding"}
"""Operations whose gradients read neither their operands nor their result."""

BY_THEIR_RESULT = frozenset(
    """
    relu relu6 elu selu celu leaky_relu threshold sigmoid tanh exp expm1 sqrt rsqrt reciprocal
    softmax log_softmax softmin
    """.split()
)
"""Operations whose gradient is a function of their result. (The gradient of a maximum compares the
result with the operands, and a result rounded to another format would equal none of them.)"""


_PYTHONS = {
    "truediv": "div",
    "itruediv": "div",
    "idiv": "div",
    "rtruediv": "rdiv",
    "iadd": "add",
    "radd": "add",
    "isub": "sub",
    "imul": "mul",
    "rmul": "mul",
    "ipow": "pow",
    "rpow": "pow",
    "absolute": "abs",
    "negative": "neg",
}


def canonical(name: str) -> str:
    """One name for an operation, its version in place and its Python operators."""
    name = name.rstrip("_") or name
    return _PYTHONS.get(name, name)
