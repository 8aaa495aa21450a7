"""The products of a model, layer by layer, and the share of them that is emulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.nn import Module

from lpkernels._table import Tabular, TextTable
from lpkernels.nn.selecting import check_model
from lpkernels.recipes import recipes


@dataclass(frozen=True)
class Row:
    """The products of one kind and size that one module computes in a forward pass.

    Attributes:
        name: the module's name in the model, "" for the model itself.
        module: the name of its class.
        product: "matmul", "conv", "conv_transpose", "bilinear", "attention" or "recurrent".
        recipe: the name or text of the module's recipe, "" if it has none.
        lengths: terms in a sum of fprop, dgrad and wgrad, the longest ones; None where torch fuses
            several products. The wgrad of a recurrent layer is one sum over all its steps.
        calls: how often it is computed.
        macs: multiply-adds of all these calls, forward only; a tap on padding counts.
        emulated: whether they follow a recipe that is not torch's own arithmetic.
    """

    name: str
    module: str
    product: str
    recipe: str
    lengths: tuple[int, int, int] | None
    calls: int
    macs: int
    emulated: bool


@dataclass(frozen=True)
class Summary(Tabular):
    """The `rows` of `summary`, in the order of the first call; ``str`` of it is a table."""

    rows: tuple[Row, ...]

    @property
    def macs(self) -> int:
        """Multiply-adds of the forward pass in all products."""
        return sum(row.macs for row in self.rows)

    @property
    def emulated_macs(self) -> int:
        """The multiply-adds of the rows that are emulated."""
        return sum(row.macs for row in self.rows if row.emulated)

    @property
    def share(self) -> float:
        """The part of the multiply-adds that is emulated; 0 for a model without products."""
        return self.emulated_macs / self.macs if self.macs else 0.0

    def _table(self) -> TextTable:
        head = ("layer", "module", "product", "fprop", "dgrad", "wgrad", "MACs", "recipe")
        texts = {row.recipe for row in self.rows if row.emulated}
        # A recipe without a name is too long for a column.
        long = {text: f"recipe {i}" for i, text in enumerate(sorted(texts - {*recipes()}), 1)}
        lines = [head, *(_cells(row, long.get(row.recipe, row.recipe)) for row in self.rows)]
        total = (
            f"{self.emulated_macs:,} of {self.macs:,} multiply-adds of the forward pass are "
            f"emulated: {self.share:.1%}"
        )
        legend = [f"{short}: {text}" for text, short in long.items()]
        return TextTable(lines, (0, 1, 2, 7), [*legend, total], rule=True)


def _cells(row: Row, recipe: str) -> tuple[str, ...]:
    lengths = ("-",) * 3 if row.lengths is None else tuple(f"{n:,}" for n in row.lengths)
    recipe = recipe if row.emulated else "torch's own"
    times = f" x{row.calls}" if row.calls > 1 else ""
    name = row.name or "(model)"
    return (name, row.module, row.product + times, *lengths, f"{row.macs:,}", recipe)


def summary(model: Module, *inputs: Any, kwargs: Mapping[str, Any] | None = None) -> Summary:
    """Run the model once and list its products: sizes, multiply-adds, and the recipe of each.

    It counts matrix products, convolutions, transposed ones and bilinear forms, attention and
    recurrent layers, by whatever they are called; a product called as a function belongs to the
    innermost module that runs. The sums of norms and softmax are no products. The forward pass runs
    without gradients; buffers and the states of torch's random generators are put back. Lazy layers
    get their sizes. A model on the meta device computes nothing.

    Args:
        model: any module, converted or not.
        inputs, kwargs: the arguments of the model. One input alone may also be a tuple of arguments
            or a dict of keyword arguments; a model whose only argument is itself a tuple, list or
            dict takes it in a tuple of one.

    Returns:
        A `Summary`; ``print`` shows it as a table that ends with the share of the multiply-adds
        that is emulated.

    Raises:
        TypeError: model is no Module.

    >>> model = lp.convert(torch.nn.Linear(4, 8), "fp16_mixed")
    >>> print(lp.nn.summary(model, torch.ones(2, 4)))
    layer    module  product  fprop  dgrad  wgrad  MACs  recipe
    -------  ------  -------  -----  -----  -----  ----  ----------
    (model)  Linear  matmul       4      8      2    64  fp16_mixed
    64 of 64 multiply-adds of the forward pass are emulated: 100.0%
    """
    check_model("summary", model)
    # Imported late: few programs ask for a summary.
    from lpkernels.nn._products_seen import ProductsSeen
    from lpkernels.nn.observing import trace
    from lpkernels.nn.observing.tracing import arguments

    given: Sequence[Any] = inputs
    if len(inputs) == 1 and kwargs is None:
        given, kwargs = arguments(inputs[0])
    found = ProductsSeen(model)
    trace(model, found, *given, kwargs=kwargs, depth="operators")
    return Summary(tuple(found.rows()))
