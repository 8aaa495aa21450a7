"""The products of a model, layer by layer, and the share of them that is emulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Module, RNNBase
from torch.utils import _pytree

from lpkernels._table import Tabular, TextTable
from lpkernels.nn.emulated import Emulated, recipe_name
from lpkernels.nn.selecting import check_model
from lpkernels.recipes import recipes

if TYPE_CHECKING:
    from lpkernels.nn.observing.operators import Operators

# An error names this many rows.
_NAMED_ROWS = 10


@dataclass(frozen=True)
class Row:
    """The products of one kind and size that one module computes.

    Attributes:
        name: the module's name in the model, "" for the model itself.
        module: the name of its class.
        product: "matmul", "conv", "conv_transpose", "bilinear", "attention", "recurrent",
            "distances" or "bag" (of embeddings); the operator's name where `macs` is None.
        recipe: the name or text of the module's recipe, "" if it has none; the recipe of a product
            that is emulated all the same is that of the call, or of a module around.
        lengths: terms in a sum of fprop, dgrad and wgrad, the longest ones; None of a backward
            pass, and where torch fuses several products. The wgrad of a recurrent layer is one sum
            over all its steps.
        calls: how often it is computed.
        macs: multiply-adds of all these calls; a tap on padding counts. None: nobody knows them.
        emulated: whether the product differs from torch's own: a recipe rounds its sum or one of
            its tensors.
        gemm: "fprop"; of the backward pass "dgrad", "wgrad", or "backward" where torch's own
            operator, or the backward of a user's Function, does not say which.
    """

    name: str
    module: str
    product: str
    recipe: str
    lengths: tuple[int, int, int] | None
    calls: int
    macs: int | None
    emulated: bool
    gemm: str = "fprop"


@dataclass(frozen=True)
class Summary(Tabular):
    """The `rows` of `summary`, in the order of the first call; ``str`` of it is a table."""

    rows: tuple[Row, ...]

    @property
    def macs(self) -> int:
        """Multiply-adds of all products, as far as they are known."""
        return sum(row.macs or 0 for row in self.rows)

    @property
    def emulated_macs(self) -> int:
        """The multiply-adds of the rows that are emulated."""
        return sum(row.macs or 0 for row in self.rows if row.emulated)

    @property
    def share(self) -> float:
        """The part of the multiply-adds that is emulated; 0 for a model without products."""
        return self.emulated_macs / self.macs if self.macs else 0.0

    @property
    def not_counted(self) -> tuple[Row, ...]:
        """The rows of operators whose number of multiply-adds is unknown."""
        return tuple(row for row in self.rows if row.macs is None)

    def require(self, share: float) -> Summary:
        """The summary itself, if at least this share of the multiply-adds is emulated and every
        product is counted.

        Args:
            share: 0 to 1.

        Raises:
            TypeError: share is no number.
            ValueError: a share outside of 0 to 1; less is emulated, or a product is not counted:
                the error lists what stays torch's own, the largest first.
        """
        if isinstance(share, bool) or not isinstance(share, int | float):
            raise TypeError(f"require: share must be a number from 0 to 1, got {share!r}")
        if not 0 <= share <= 1:
            raise ValueError(f"require: share must be a number from 0 to 1, got {share}")
        left = sorted((row for row in self.rows if not row.emulated), key=_size, reverse=True)
        if self.share >= share and not self.not_counted:
            return self
        texts = "; ".join(
            f"{row.name or '(model)'} ({row.module}) {row.product} {row.gemm}: {_count(row)}"
            for row in left[:_NAMED_ROWS]
        )
        more = f"; and {len(left) - _NAMED_ROWS} more" if len(left) > _NAMED_ROWS else ""
        raise ValueError(
            f"summary: {self._share_text()} is emulated, and {share:.1%} is required with every "
            f"product counted; torch's own are {texts or 'no products'}{more}. lp.convert says "
            "which layers and functions it emulates"
        )

    def _share_text(self) -> str:
        # 100.0% is said of everything alone.
        return f"{min(self.share, 1.0 if self.share == 1 else 0.999):.1%}"

    def _table(self) -> TextTable:
        forward = all(row.gemm == "fprop" for row in self.rows)
        texts = {row.recipe for row in self.rows if row.emulated}
        # A recipe without a name is too long for a column.
        long = {text: f"recipe {i}" for i, text in enumerate(sorted(texts - {"", *recipes()}), 1)}
        head = ("layer", "module", "product", "pass", "fprop", "dgrad", "wgrad", "MACs", "recipe")
        lines = [head, *(_cells(row, long.get(row.recipe, row.recipe)) for row in self.rows)]
        if forward:
            lines = [line[:3] + line[4:] for line in lines]
        legend = [f"{short}: {text}" for text, short in long.items()]
        unknown = ", ".join(f"{row.product} x{row.calls}" for row in self.not_counted)
        if unknown:
            legend.append(f"not counted, since nobody knows the multiply-adds: {unknown}")
        legend.append(
            f"{self.emulated_macs:,} of {self.macs:,} multiply-adds of the "
            f"{'forward' if forward else 'forward and the backward'} pass are emulated: "
            f"{self._share_text()}"
        )
        left = (0, 1, 2, 7) if forward else (0, 1, 2, 3, 8)
        return TextTable(lines, left, legend, rule=True)


def _size(row: Row) -> float:
    return float("inf") if row.macs is None else row.macs


def _count(row: Row) -> str:
    return "not counted" if row.macs is None else f"{row.macs:,}"


def _cells(row: Row, recipe: str) -> tuple[str, ...]:
    lengths = ("-",) * 3 if row.lengths is None else tuple(f"{n:,}" for n in row.lengths)
    product = row.product + (f" x{row.calls}" if row.calls > 1 else "")
    recipe = recipe or "of the call" if row.emulated else "torch's own"
    return (row.name or "(model)", row.module, product, row.gemm, *lengths, _count(row), recipe)


def summary(model: Module, *inputs: Any, backward: bool = False) -> Summary:
    """Run the model once and list its products: sizes, multiply-adds, and the recipe of each.

    Every product is counted where it reaches torch, below autograd and inside fused functions, by
    whatever it is called; docs/layers.md says what is no product, and what is named as not counted.
    A product belongs to the innermost module that runs, in the backward pass to the module whose
    forward pass made that part of the graph.

    Without `backward` the pass runs without gradients. Parameters, their gradients, buffers and the
    states of torch's random generators are put back. Lazy layers get their sizes. A model on the
    meta device computes nothing; a compiled one runs uncompiled.

    Args:
        model: any module, converted or not.
        inputs: the arguments of the model; or one tuple of arguments, or one dict of arguments by
            name. A model whose only argument is itself a tuple, list or dict takes it in a tuple of
            one.
        backward: whether the backward pass counts too: the gradients of the sum of all outputs, for
            all parameters and inputs that require one. A forward pass that activation checkpointing
            computes again counts again.

    Returns:
        A `Summary`; ``print`` shows it as a table that ends with the share of the multiply-adds
        that is emulated.

    Raises:
        TypeError: model is no Module; the shape of a batch in its place.
        ValueError: backward, and no output has a gradient.

    >>> model = lp.convert(torch.nn.Linear(4, 8), "fp16_mixed")
    >>> print(lp.nn.summary(model, torch.ones(2, 4)))
    layer    module  product  fprop  dgrad  wgrad  MACs  recipe
    -------  ------  -------  -----  -----  -----  ----  ----------
    (model)  Linear  matmul       4      8      2    64  fp16_mixed
    64 of 64 multiply-adds of the forward pass are emulated: 100.0%
    """
    check_model("summary", model)
    # Imported late: few programs ask for a summary.
    from lpkernels.nn.observing.observer import arguments, left_as_found
    from lpkernels.nn.observing.operators import Operators
    from lpkernels.nn.scaling import uncompiled

    _check_no_shape(inputs)
    positional, named = arguments(inputs[0] if len(inputs) == 1 else inputs)
    operators = Operators()
    with (
        uncompiled(),
        left_as_found(model, [*positional, *named.values()]),
        torch.set_grad_enabled(backward),
        operators.runs.watched(model.named_modules()),
        operators,
    ):
        output = model(*positional, **named)
        if backward:
            _go_back(output, [*_tensors([positional, named]), *model.parameters()])
    return Summary(tuple(_rows(model, operators)))


def _check_no_shape(inputs: Sequence[Any]) -> None:
    """Raises TypeError where the shape of a batch stands in place of the batch."""
    shape = inputs[0] if len(inputs) == 1 else inputs
    sizes = [type(size) is int for size in shape] if isinstance(shape, Sequence) else []
    if sizes and all(sizes):
        raise TypeError(
            f"summary: {tuple(shape)} is a shape; pass a batch: summary(model, "
            f"torch.randn{tuple(shape)})"
        )


def _tensors(values: Any) -> list[Tensor]:
    return [x for x in _pytree.tree_leaves(values) if isinstance(x, Tensor)]


def _go_back(output: Any, leaves: list[Tensor]) -> None:
    """The backward pass of the sum of all outputs."""
    results = [x for x in _tensors(output) if x.requires_grad]
    leaves = [x for x in leaves if x.requires_grad]
    if not results or not leaves:
        raise ValueError(
            "summary: backward=True, and no output has a gradient; give the model parameters that "
            "require one, run it without torch.no_grad, and let it return tensors in tuples, lists "
            "or dicts"
        )
    torch.autograd.grad(results, leaves, [torch.ones_like(x) for x in results], allow_unused=True)


def _rows(model: Module, operators: Operators) -> Iterator[Row]:
    calls, macs_of_calls = Counter[Row](), Counter[Row]()
    # For recurrent layers all their steps, which are the rows of their largest product.
    steps: dict[str, int] = {}
    for operation in operators.counts:
        if isinstance(operation.layer, RNNBase) and operation.sizes.lengths is not None:
            rows = operation.sizes.lengths[2]
            steps[operation.module] = max(rows, steps.get(operation.module, 0))
    for operation, count in operators.counts.items():
        layer = operation.layer or model
        product, macs, lengths = operation.sizes
        lengths = lengths if operation.gemm == "fprop" else None
        if lengths is not None and operation.module in steps:
            lengths = (*lengths[:2], steps[operation.module])
        recipe = recipe_name(layer.recipe) if isinstance(layer, Emulated) else ""
        # The calls of equal rows are added up; the row itself has none yet.
        row = Row(
            operation.module, type(layer).__name__, product, recipe, lengths, 0,
            None if macs is None else 0, operation.emulated, operation.gemm,
        )  # fmt: skip
        calls[row] += count
        macs_of_calls[row] += count * (macs or 0)
    for row, count in calls.items():
        yield replace(row, calls=count, macs=None if row.macs is None else macs_of_calls[row])
