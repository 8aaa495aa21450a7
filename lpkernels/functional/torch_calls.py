"""Calls of torch's own products from inside the functions that emulate them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from lpkernels.ops import Convolution, Product
from lpkernels.rng import Role


class Watcher(Protocol):
    """A TorchFunctionMode that gets the calls of `own`, since it cannot take them."""

    def see(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        compute: Callable[..., Any],
    ) -> Any:
        """Returns compute(*args, **kwargs), possibly with other arguments."""
        ...


_watchers: list[Watcher] = []


def own(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """function(*args, **kwargs) by torch itself: no TorchFunctionMode takes the call.

    ``lpkernels.nn.convert`` enters a mode that emulates the products that a model calls as
    functions. An emulated function may ask torch to compute; this call is not the model's, and the
    mode must not emulate it. Modes that are `watching` are told of the call.
    """
    if torch._C._is_torch_function_mode_enabled():
        return _unseen(function, function, args, kwargs)
    return function(*args, **kwargs)


def own_instead(
    function: Callable[..., Any],
    emulated: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """As `own`, emulated(*args, **kwargs); the modes are told that it is a call of function."""
    if torch._C._is_torch_function_mode_enabled():
        return _unseen(function, emulated, args, kwargs)
    return emulated(*args, **kwargs)


def is_dense(x: Tensor) -> bool:
    """Whether a tensor is strided."""
    # torch.compile takes no other tensors, and refuses to ask for the layout where it traces the
    # backward pass of a user's Function.
    return torch.compiler.is_dynamo_compiling() or x.layout is torch.strided


def in_shape(result: Tensor, shape: Sequence[int], direct: bool) -> Tensor:
    """The result of a product, a new tensor, in another shape and no view: what follows may change
    it in place. direct: of plain tensors, where the change itself is half the time of an operator.
    """
    if direct and result.is_contiguous():
        return result.resize_(shape)
    return torch.ops.aten._unsafe_view.default(result, shape)


#: torch's convolutions by their dimensions.
CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class Mark(NamedTuple):
    """What this package makes of the operators that it calls: a product of this role, or, without a
    role, sums that are no product. emulated: whether the product differs from torch's own, because
    its sum or one of its tensors is rounded."""

    role: Role | None
    emulated: bool = True


class _Local(threading.local):
    mark: Mark | None = None


_local = _Local()


def current_mark() -> Mark | None:
    """The mark of the operators that run now in this thread; None where they are the model's."""
    return _local.mark


class _Marked(AbstractContextManager[None]):
    def __init__(self, mark: Mark, inner: AbstractContextManager[Any]) -> None:
        self._mark, self._inner = mark, inner

    def __enter__(self) -> None:
        self._before, _local.mark = _local.mark, self._mark
        self._inner.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)
        _local.mark = self._before


def native_sum(x: Tensor, role: Role, emulated: bool = True) -> AbstractContextManager[Any]:
    """A context in which torch's own functions take the float32 operands as they are, and their
    operators have a `Mark`."""
    kind = x.device.type
    inner: AbstractContextManager[Any] = nullcontext()
    # The meta device has no autocast, and torch refuses the question.
    if kind != "meta" and torch.is_autocast_enabled(kind):
        inner = torch.autocast(kind, enabled=False)
    return inner if torch.compiler.is_compiling() else _Marked(Mark(role, emulated), inner)


def no_product() -> AbstractContextManager[Any]:
    """A context of sums of terms, whose operators are no products of a layer."""
    nothing = nullcontext()
    return nothing if torch.compiler.is_compiling() else _Marked(Mark(None), nothing)


def torchs(product: Product) -> Tensor:
    """The product by torch itself, inside a `native_sum`; a matmul has no bias."""
    kind, left, right, shape, conv, bias, *_ = product
    if conv is None:
        return own(torch.matmul, left, right)
    if kind == "conv_fprop":
        return own(CONVOLUTIONS[len(conv.stride)], left, right, bias, *conv)
    if kind == "conv_dgrad":
        return gradient_of_convolution(0, left, _nothing(left, shape), right, conv)
    return gradient_of_convolution(1, right, left, _nothing(right, shape), conv)


def _nothing(like: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor of this shape that nobody reads."""
    return like.new_empty(1).expand(shape)


def gradient_of_convolution(
    which: int,
    gradient: Tensor,
    x: Tensor,
    w: Tensor,
    conv: Convolution,
    output_padding: Sequence[int] = (),
) -> Tensor:
    """The gradient of x (which is 0) or of w (1); the tensor itself is not read. output_padding:
    for a transposed convolution, a number for each dimension."""
    stride, padding, dilation, groups = conv
    backward, mask = torch.ops.aten.convolution_backward, [which == 0, which == 1, False]
    kind = (dilation, bool(output_padding), list(output_padding or [0] * len(stride)))
    return backward(gradient, x, w, None, stride, padding, *kind, groups, mask)[which]


def _unseen(
    function: Callable[..., Any],
    computing: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    with torch._C.DisableTorchFunction():
        if not _watchers:
            return computing(*args, **kwargs)
        count = torch._C._len_torch_function_stack()
        entered = [id(torch._C._get_function_stack_at(i)) for i in range(count)]
        compute: Callable[..., Any] = computing
        # The modes of this thread; the innermost comes last and gets a call first.
        for watcher in _watchers:
            if id(watcher) in entered:
                compute = partial(_told, watcher, function, compute)
        return compute(*args, **kwargs)


def _told(
    watcher: Watcher,
    function: Callable[..., Any],
    compute: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    return watcher.see(function, args, kwargs, compute)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """A context around the `with` that enters the mode."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)
