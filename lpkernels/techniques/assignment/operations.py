"""A network and its loss as data: operations, the tensors of training, and groups of these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lpkernels.techniques import checks

Kind = Literal["weight", "activation", "grad_activation", "grad_weight"]
#: The kinds of tensors of training, and the ends of their keys: the paper's P, Y, GY and GP.
SUFFIXES: dict[Kind, str] = {
    "weight": "P",
    "activation": "Y",
    "grad_activation": "GY",
    "grad_weight": "GP",
}


@dataclass(frozen=True)
class Op:
    """One operation, whose result is one tensor.

    name: its own among all Ops.
    is_gemm: a linear layer, a convolution or a product of two activations.
    inputs: the Ops whose results it reads, in the order of its arguments. A view of a result is
        that result: views are no Ops. The network's input is an Op without inputs.
    params: elements of the parameters it reads, by name. A name with a dot is the parameter's full
        name (".scale" for the parameter "scale"): Ops with the same full name share the parameter.
        A name without a dot is the Op's own: "weight" of the Op "conv1" is "conv1.weight".
    numel: elements of its result, the batch counted; 1 of a scalar loss.
    operation: what it computes, as `trace` names it ("conv2d", "relu"); `amp_like` reads it.
    known: False: nobody knows what it computes, so its tensors stay in high precision.

    Raises: TypeError, ValueError: a field of another type, or a size below zero.
    """

    name: str
    is_gemm: bool
    inputs: tuple[str, ...]
    params: Mapping[str, int] = field(default_factory=dict)
    numel: int = 0
    operation: str = ""
    known: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"Op: name must be text that is not empty, got {self.name!r}")
        if isinstance(self.inputs, str) or not all(isinstance(x, str) for x in self.inputs):
            raise TypeError(
                f"Op {self.name!r}: inputs must be names of Ops, as a tuple, got {self.inputs!r}"
            )
        for what, numel in {"the result": self.numel, **self.params}.items():
            checks.whole(f"Op {self.name!r}: elements of {what}", numel, 0)
        object.__setattr__(self, "inputs", tuple(self.inputs))
        object.__setattr__(self, "params", dict(self.params))

    @property
    def full_params(self) -> dict[str, int]:
        """Elements of the parameters by their full names."""
        return {
            name.removeprefix(".") if "." in name else f"{self.name}.{name}": numel
            for name, numel in self.params.items()
        }


def checked_ops(function: str, ops: Sequence[Op]) -> list[Op]:
    """The Ops as a list.

    Raises: TypeError: something else than Ops. ValueError: none at all, two of one name, an input
        that no earlier Op makes, or a shared parameter of two sizes.
    """
    ops = list(ops)
    if not ops:
        raise ValueError(f"{function}: expected at least one Op, got none")
    seen: set[str] = set()
    sizes: dict[str, int] = {}
    for op in ops:
        if not isinstance(op, Op):
            raise TypeError(f"{function}: expected Ops, got {type(op).__name__}: {op!r}")
        if op.name in seen:
            raise ValueError(f"{function}: two Ops are called {op.name!r}; a name is for one")
        for name in op.inputs:
            if name not in seen:
                raise ValueError(
                    f"{function}: {op.name!r} reads {name!r}, which is no earlier Op; give the Ops "
                    "in the order they run"
                )
        for name, numel in op.full_params.items():
            if sizes.setdefault(name, numel) != numel:
                raise ValueError(
                    f"{function}: parameter {name!r} has {sizes[name]} elements before and "
                    f"{numel} in {op.name!r}"
                )
        seen.add(op.name)
    return ops


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of training.

    key: "<Op>.Y" and "<Op>.GY" of an Op's result and its gradient, "<parameter>.P" and
        "<parameter>.GP" of a parameter and its gradient.
    kind: "weight", "activation", "grad_activation" or "grad_weight".
    numel: its elements.
    group: the index of its group.
    known: whether the operation that makes it, or reads it first, is known.
    """

    key: str
    kind: Kind
    numel: int
    group: int
    known: bool = True


@dataclass(frozen=True)
class Group:
    """Tensors that are demoted together.

    index: the group's number.
    tensors: a TensorSpec for each, in the order of the operations.
    """

    index: int
    tensors: tuple[TensorSpec, ...]

    @property
    def numel(self) -> int:
        """Elements of all its tensors."""
        return sum(tensor.numel for tensor in self.tensors)


def key_of(name: str, kind: Kind) -> str:
    """The key of a tensor of the Op or the parameter called `name`."""
    return f"{name}.{SUFFIXES[kind]}"


def group(ops: Sequence[Op]) -> tuple[Group, ...]:
    """The groups, from index 0 on, each with at least one tensor.

    The operations are taken in their order. An input of the network and a GEMM open a group. Every
    result and its gradient go into the group opened last; a parameter and its gradient go into the
    group of the Op's first input, because it is read with that input. So the weight of a
    convolution is with its input, the scale of a norm with the norm's input, and after a join (Add,
    concatenation) the results belong to the GEMM that ran last. A parameter that several Ops share
    goes where the first puts it. An Op that reads parameters alone (an embedding) opens no group,
    unless it is the first.

    Args:
        ops: of `trace`.

    Source: Lee, Sharma, Aiken 2023 (arXiv 2301.13464), Algorithm 1, first part; branches as in
        their released code, which takes the order of execution.
    Raises: TypeError, ValueError: Ops that do not fit together.

    >>> from lpkernels.techniques.assignment import group, trace
    >>> model, loss = torch.nn.Linear(4, 2), torch.nn.functional.cross_entropy
    >>> batch = torch.randn(8, 4), torch.arange(8) % 2
    >>> [len(each.tensors) for each in group(trace(model, loss, batch))]
    [6, 6]
    """
    tensors: dict[str, TensorSpec] = {}
    home: dict[str, int] = {}
    index = -1
    ops = checked_ops("group", ops)
    for op in ops:
        if op.is_gemm or not (op.inputs or op.params) or index < 0:
            index += 1
        home[op.name] = index
        _add(tensors, op.name, ("activation", "grad_activation"), op.numel, index, op.known)
        reads = home[op.inputs[0]] if op.inputs else index
        for name, numel in op.full_params.items():
            _add(tensors, name, ("weight", "grad_weight"), numel, reads, op.known)
    return regroup(tensors.values())


def regroup(tensors: Iterable[TensorSpec]) -> tuple[Group, ...]:
    """Groups by the index that each tensor says."""
    found: dict[int, list[TensorSpec]] = {}
    for tensor in tensors:
        found.setdefault(tensor.group, []).append(tensor)
    return tuple(Group(index, tuple(found[index])) for index in sorted(found))


def _add(
    tensors: dict[str, TensorSpec],
    name: str,
    kinds: tuple[Kind, Kind],
    numel: int,
    index: int,
    known: bool,
) -> None:
    for kind in kinds:
        key = key_of(name, kind)
        # A parameter is where the first Op that reads it puts it.
        tensors.setdefault(key, TensorSpec(key, kind, numel, index, known))


# What torch's functions do, by the names that an observer tells, without the underscore of the
# versions that work in place. Matrix products stand apart.
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
"""Operations whose gradient is a function of their result. (That of a maximum compares the result
with what it is the maximum of, and one rounded to another format would be equal to nothing.)"""


def by_their_result(operation: str) -> bool:
    """Whether an operation's gradient is a function of its result as it is stored."""
    return canonical(operation) in BY_THEIR_RESULT


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
