"""`diagnose`: counts of underflow and overflow in a model, tensor by tensor, while a loop runs.

Source: Micikevicius et al. 2017, "Mixed precision training", arXiv 1710.03740, section 3.2.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.parallel import DistributedDataParallel
from torch.utils.weak import WeakTensorKeyDictionary

from lpkernels import schemas
from lpkernels._table import Tabular, TextTable
from lpkernels.arithmetic import TORCH, Quantizer, Recipe
from lpkernels.formats import FP32, FloatFormat, Format
from lpkernels.functional.unchecked import count_to_nearest
from lpkernels.nn.emulated import Emulated
from lpkernels.nn.layers import WITHOUT_PRODUCTS
from lpkernels.nn.observing import LAYERS, Call, Run, Visitor, observe
from lpkernels.nn.observing.operators import Operators
from lpkernels.nn.observing.visiting import all_tensors
from lpkernels.nn.scaling import is_leaf
from lpkernels.nn.selecting import check_model
from lpkernels.techniques import checks
from lpkernels.techniques.loss_scaling.rows import (
    COLUMNS,
    GRADIENTS,
    WIDTH,
    Histogram,
    ScaleAdvice,
    TensorRow,
    float_format,
    merged,
    scale_advice,
)
from lpkernels.techniques.loss_scaling.scaler import LossScaler, local_values, scale

# The kinds that a format can be asked for; biases are counted only where a recipe rounds them.
_ASKED = ("input", "weight", "output", "grad_output", "grad_input", "grad_weight")
_RECIPE = "recipe"
# The kind of a diagnosis among records.
_KIND = "diagnosis"
#: The layer, kind and tensor of a row, its format, and the format in which the layer rounds.
_Key = tuple[str, str, str, Format, Format | None]


def formats_by_kind(
    fmt: Format | Quantizer | str | Mapping[str, Any],
) -> dict[str, FloatFormat] | None:
    """The formats by kind that `diagnose` counts in; None: those of the layers' recipes.

    Raises: TypeError, ValueError: an unknown kind, or a format without exponents.
    """
    if not isinstance(fmt, Mapping):
        return None if fmt == _RECIPE else dict.fromkeys(_ASKED, float_format("diagnose: fmt", fmt))
    for kind in fmt:
        checks.choice("diagnose: fmt", kind, _ASKED, "help(diagnose) lists all")
    return {kind: float_format(f"diagnose: fmt: {kind}", value) for kind, value in fmt.items()}


def diagnose(
    model: Module,
    fmt: Format | Quantizer | str | Mapping[str, Any] = _RECIPE,
    *,
    scaler: LossScaler | torch.amp.GradScaler | float | None = None,
) -> Diagnosis:
    """Counts underflow and overflow in a model while your own loop trains or tests it.

    The loop runs inside ``with diagnose(model) as report:``. Inside the block the tensors of every
    layer that `convert` knows, and of every product that the model computes, are counted: their
    elements' exponents, and how many over- and underflow in the format, rounded to nearest even.
    Calls of a shared module are added up under its first name. The block may hold any number of
    steps and be entered again; it adds up. Overflow inside a sum is not seen.

    Results, gradients, buffers, random draws and hooks are those of a loop without the diagnosis,
    also after an error. Devices are read when the report is looked at, and not before.

    Args:
        model: any module, converted or not; under DDP or FSDP2 the one inside or the wrapper.
        fmt: "recipe": each tensor that a layer's recipe rounds, as its quantizer gets it, in its
            format, also inside attention and recurrent layers, whose products after the first are
            numbered; a float format, its name or a Quantizer: all inputs, weights and outputs and
            their gradients, in that one; or {kind: format}: only tensors of these kinds, which are
            input, weight, output, grad_output, grad_input and grad_weight.
        scaler: the scaler, or the number, that multiplies the loss: the rows then have the
            gradients with and without the scale, which is taken as it is when they come.

    Raises:
        TypeError, ValueError: model is no Module; no such format or kind; a format without
            exponents, as FixedFormat, AffineFormat and BlockFormat (in a recipe they are shown
            without shares); a scaler of another type.
        NotImplementedError: on entering: TorchScript or a compiled module.
    Reference: Micikevicius et al. 2017, section 3.2 and figure 3, histograms of gradients. The
        rows and rules are ours.

    >>> from lpkernels.techniques.loss_scaling import diagnose
    >>> model = torch.nn.Linear(4, 2)
    >>> with diagnose(model, "e4m3fn") as report:
    ...     model(torch.full((1, 4), 1e-4)).sum().backward()
    ...
    >>> [(row.kind, row.underflow) for row in report.rows]
    [('input', 4), ('weight', 0), ('output', 0), ('grad_output', 0), ('grad_weight', 8)]
    """
    check_model("diagnose", model)
    formats, scaled = formats_by_kind(fmt), _multiplication(scaler)
    visitor = _ByRecipe(scaled) if formats is None else _ByFormat(formats, scaled)
    return Diagnosis(model, visitor)


def _multiplication(scaler: Any) -> Callable[[Tensor], Tensor] | None:
    """Multiplies a tensor by the loss scale, of a number or a scaler; None: there is no scale."""
    if isinstance(scaler, torch.amp.GradScaler):
        return scaler.scale if scaler.is_enabled() else None
    if scaler is None:
        return None
    number = scale("diagnose: scaler", scaler)
    return lambda x: x * number


class Report(Tabular):
    """The counts, one row for every tensor of every layer; ``print`` shows a table.

    Args:
        rows: layers in the order of their first calls; input, weight, output, then the gradients.
        uncovered: a sentence that names the products of the first forward pass without a row; "" if
            there are none.
    """

    def __init__(self, rows: Iterable[TensorRow], uncovered: str = "") -> None:
        self._rows, self.uncovered = tuple(rows), uncovered

    @property
    def rows(self) -> tuple[TensorRow, ...]:
        """The rows, in their order."""
        return self._rows

    def recommend(self) -> ScaleAdvice:
        """A static scale of the loss, from the histograms alone; see `ScaleAdvice`."""
        return scale_advice(self.rows)

    def state_dict(self) -> dict[str, Any]:
        """The rows so far, as plain values; there may be none."""
        return {"rows": [row.to_dict() for row in self.rows]}

    def records(self) -> list[dict[str, Any]]:
        """The lines of `save` as plain values."""
        uncovered = {"uncovered": self.uncovered} if self.uncovered else {}
        rows = [{"type": "tensor", **row.to_dict()} for row in self.rows]
        return [{**schemas.header(_KIND), **uncovered}, *rows]

    def save(self, path: str | Path) -> Path:
        """Writes JSON lines: a header, then a line for every row."""
        lines = [json.dumps(record, allow_nan=False) for record in self.records()]
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    @staticmethod
    def load(path: str | Path) -> Report:
        """The report of a file that `save` wrote.

        Raises: ValueError: another file, or another schema.
        """
        records = map(json.loads, Path(path).read_text(encoding="utf-8").splitlines())
        lines = schemas.check_all(records, path)
        kind = lines[0].get("kind") if lines else None
        if kind != _KIND:
            raise ValueError(f"{path}: expected the records of a diagnosis, got {kind!r}")
        # Files of runs had lines of epochs too.
        rows = (TensorRow.from_dict(line) for line in lines[1:] if line["type"] == "tensor")
        return Report(rows, lines[0].get("uncovered", ""))

    def _table(self) -> TextTable:
        notes = [self.uncovered] if self.uncovered else []
        lines = [[cell(row) for cell in COLUMNS.values()] for row in self.rows]
        if not lines:
            hint = 'a model that rounds nothing needs a format, as diagnose(model, "fp16")'
            return TextTable([], notes=[f"nothing was counted yet; {hint}", *notes])
        # The first three columns are words.
        return TextTable([[*COLUMNS], *lines], range(3), notes, rule=True)


class Diagnosis(Report):
    """The report of `diagnose`, which grows while its block runs."""

    def __init__(self, model: Module, visitor: _Counting) -> None:
        super().__init__(())
        # Layers have the names that they have without the wrapper.
        inner: Any = model.module if isinstance(model, DistributedDataParallel) else model
        self._model: Module = inner
        self._visitor, self._operators = visitor, Operators()
        self._open: AbstractContextManager[Any] | None = None

    def __enter__(self) -> Diagnosis:
        if self._open is not None:
            raise RuntimeError("diagnose: this block is entered already; make another diagnosis")
        operators = None if self._operators.counts else self._operators
        block = observe(
            self._model, self._visitor, operations=LAYERS, around=False, operators=operators
        )
        block.__enter__()
        self._open = block
        return self

    def __exit__(self, *error: Any) -> None:
        assert self._open is not None
        block, self._open = self._open, None
        block.__exit__(*error)
        by_recipe = isinstance(self._visitor, _ByRecipe)
        self.uncovered = self._operators.uncovered(
            lambda x: x.emulated if by_recipe else x.reported
        )

    @property
    def rows(self) -> tuple[TensorRow, ...]:
        """The rows as counted so far; waits for the device."""
        return merged([*self._rows, *self._visitor.rows()])

    def reduce(self, group: dist.ProcessGroup | None = None) -> Report:
        """The report of all ranks together, on each of them; all ranks must make this call. Without
        torch.distributed it is the report of this process."""
        if not (dist.is_available() and dist.is_initialized()):
            return Report(self.rows, self.uncovered)
        rows: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(rows, list(self.rows), group=group)
        return Report(merged(row for part in rows for row in part), self.uncovered)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Adds the rows of a `state_dict` to those counted so far."""
        rows = state.get("rows") if isinstance(state, Mapping) else None
        if not isinstance(rows, list):
            raise ValueError(
                "load_state_dict: expected the state of a Diagnosis, with a list of rows, got "
                f"{state!r}"
            )
        self._rows += tuple(map(TensorRow.from_dict, rows))


class _Sums:
    """The counts of a row on one device: (260,) int64, as seen and without the loss scale."""

    def __init__(self, key: _Key, device: torch.device, is_scaled: bool) -> None:
        self.key, self.calls, self.seen = key, 0, _zeros(device)
        self.unscaled = _zeros(device) if is_scaled else self.seen
        self.fmt = key[3] if isinstance(key[3], FloatFormat) else FP32

    def row(self) -> TensorRow:
        """The row of these counts on the host."""
        counts = torch.stack([self.seen, self.unscaled]).cpu().numpy()
        if not isinstance(self.key[3], FloatFormat):
            # A format without a range of its own is not asked what over- and underflows.
            counts[:, :2] = 0
        return TensorRow(*self.key, self.calls, *map(Histogram, counts))


@dataclass(eq=False)
class _Layer:
    """The layer of a call, and the row of each of the call's tensors whose gradient is counted."""

    name: str
    recipe: Recipe = TORCH
    gradients: dict[str, _Sums] = field(default_factory=dict)


class _Counting(Visitor):
    """Counts tensors by rows, without waiting for a device.

    scaled: multiplies a tensor by the loss scale as it is now; None: there is none.
    """

    def __init__(self, scaled: Callable[[Tensor], Tensor] | None) -> None:
        self._scaled = scaled
        self._sums: dict[tuple[_Key, torch.device], _Sums] = {}
        # The layers in the order of their first calls; backward meets them in another.
        self._order: dict[str, int] = {}
        self._products: WeakKeyDictionary[Run, Counter[str]] = WeakKeyDictionary()
        self._layers: WeakKeyDictionary[Call, _Layer] = WeakKeyDictionary()
        # By tensor: its version, and its counts by format, under None without the loss scale. A
        # tensor comes again as the input of several layers, or as the result of one layer and the
        # input of the next.
        self._counted = WeakTensorKeyDictionary()

    def rows(self) -> list[TensorRow]:
        """The rows so far, by layer; it waits for the devices."""
        rows = [sums.row() for sums in self._sums.values() if sums.calls]
        return sorted(rows, key=lambda row: self._order[row.layer])

    def _sums_of(self, key: _Key, x: Tensor) -> _Sums:
        """The sums of a row on the device of x."""
        if (key, x.device) not in self._sums:
            is_scaled = self._scaled is not None and key[1] in GRADIENTS
            self._sums[key, x.device] = _Sums(key, x.device, is_scaled)
        return self._sums[key, x.device]

    def _count(self, sums: _Sums, x: Tensor) -> None:
        """Adds the counts of x to a row."""
        local = local_values(x)
        if local.layout != torch.strided or local.is_meta:
            return
        sums.calls += 1
        by_format = self._counts_of(x)
        if sums.fmt not in by_format:
            by_format[sums.fmt] = _zeros(local.device)
            count_to_nearest(local, sums.fmt, by_format[sums.fmt])
        sums.seen.add_(by_format[sums.fmt])
        if sums.unscaled is sums.seen:
            return
        if None not in by_format:
            assert self._scaled is not None
            by_format[None] = _zeros(local.device)
            scale = self._scaled(torch.ones((), dtype=torch.float32, device=local.device))
            wide = local.to(torch.promote_types(local.dtype, torch.float32))
            count_to_nearest(wide / scale, FP32, by_format[None])
        sums.unscaled.add_(by_format[None])

    def _counts_of(self, x: Tensor) -> dict[FloatFormat | None, Tensor]:
        """The counts of x so far, by format. A weight has none: a write to its .data does not
        change its version."""
        if isinstance(x, Parameter):
            return {}
        version = 0 if x.is_inference() else x._version
        counted: tuple[int, dict[FloatFormat | None, Tensor]] | None = self._counted.get(x)
        if counted is None or counted[0] != version:
            counted = self._counted[x] = version, {}
        return counted[1]

    def _name(self, call: Call) -> str:
        """The name of the layer that computes, or of the product in a module's forward."""
        run = call.run
        name = run.name or ("" if run.module is None else type(run.module).__name__)
        products = self._products.setdefault(run, Counter())
        kind = call.operation
        if run.module is not None and not products and is_leaf(run.module):
            kind = ""
        products[kind] += 1
        count = f"_{products[kind]}" if products[kind] > 1 else ""
        layer = ".".join(filter(None, (name, kind + count)))
        self._order.setdefault(layer, len(self._order))
        return layer


class _ByRecipe(_Counting):
    """Counts the tensors that the quantizers of recipes round, each as its quantizer gets it."""

    def before(self, call: Call, arguments: Mapping[str, Any]) -> None:
        self._layers[call], module = _Layer(self._name(call)), call.run.module
        if isinstance(module, Emulated) and hasattr(module, "input_range"):
            # A layer with a running range rounds its input before it makes this call.
            assert module.recipe.input is not None
            self.rounding(call, 0, "input", module.recipe.input, arguments["input"])

    def rounding(
        self, call: Call, product: int, kind: str, quantizer: Quantizer, x: Tensor
    ) -> None:
        shown, fmt = str(product) if product > 1 else "", quantizer.fmt
        self._count(self._sums_of((self._layers[call].name, kind, shown, fmt, fmt), x), x)


class _ByFormat(_Counting):
    """Counts arguments, results and their gradients in formats of the caller's, by kind."""

    def __init__(
        self, formats: Mapping[str, Format], scaled: Callable[[Tensor], Tensor] | None
    ) -> None:
        super().__init__(scaled)
        self._formats = formats

    def before(self, call: Call, arguments: Mapping[str, Any]) -> None:
        classes = WITHOUT_PRODUCTS.get(call.operation)
        if classes is not None and not isinstance(call.run.module, classes):
            return
        layer = self._layers[call] = _Layer(self._name(call), _recipe_of(call.run))
        floating = {name: x for name, x in all_tensors(arguments).items() if x.is_floating_point()}
        dimensions = tuple([(name, x.dim()) for name, x in floating.items()])
        for name, kind, shown in _operands(call.operation, dimensions):
            self._enter(layer, name, kind, shown, floating[name])

    def after(self, call: Call, result: Any) -> None:
        # Other results, such as the last state of a recurrent layer, are parts of the first, or
        # weights.
        name, x = next(iter(all_tensors({"result": result}).items()), ("", None))
        if call in self._layers and x is not None and x.is_floating_point():
            self._enter(self._layers[call], name, "output", "", x)

    def wants_gradient(self, call: Call, of: str) -> bool:
        if call not in self._layers:
            return False
        # A result is entered after this.
        is_result = of.split(".")[0] == "result"
        return of in self._layers[call].gradients or (is_result and "grad_output" in self._formats)

    def gradient(self, call: Call, of: str, gradient: Tensor) -> None:
        layer = self._layers.get(call)
        if layer is not None and of in layer.gradients:
            self._count(layer.gradients[of], gradient)

    def _enter(self, layer: _Layer, name: str, kind: str, shown: str, x: Tensor) -> None:
        """Counts an argument or a result, and has its gradient counted."""
        for tensor in (kind, f"grad_{kind}"):
            if tensor not in self._formats or (tensor != kind and not x.requires_grad):
                continue
            quantizer = getattr(layer.recipe, tensor)
            rounded = None if quantizer is None else quantizer.fmt
            # Rows keep the order of the arguments; their gradients come in another order.
            sums = self._sums_of((layer.name, tensor, shown, self._formats[tensor], rounded), x)
            if tensor == kind:
                self._count(sums, x)
            else:
                layer.gradients[name] = sums


def _zeros(device: torch.device) -> Tensor:
    # Counting goes on outside of inference mode.
    with torch.inference_mode(False):
        return torch.zeros(WIDTH, dtype=torch.int64, device=device)


def _recipe_of(run: Run) -> Recipe:
    """The recipe of what `run` computes; torch's own outside of converted modules."""
    inner: Run | None = run
    while inner is not None and not isinstance(inner.module, Emulated):
        inner = inner.outer
    return TORCH if inner is None else cast(Emulated, inner.module).recipe


_LEFT = frozenset("input input1 input2 data mat mat1 batch1 query key value hx".split())
_RIGHT = frozenset(
    "weight other tensor mat2 batch2 vec w_ih w_hh in_proj_weight out_proj_weight q_proj_weight "
    "k_proj_weight v_proj_weight".split()
)
# In these functions "input" is the addend of their product.
_ADDING = ("addmm", "baddbmm", "addbmm", "addmv")
_NUMBER = re.compile(r"\.?\d+$")


@lru_cache(maxsize=4096)
def _operands(operation: str, arguments: Sequence[tuple[str, int]]) -> list[tuple[str, str, str]]:
    """(argument's name, "input" or "weight", the name as a row shows it) of each tensor that is
    multiplied; no biases and masks.

    arguments: names and numbers of dimensions of the floating-point arguments.
    """
    kinds: dict[str, list[str]] = {"input": [], "weight": []}
    for name, dimensions in arguments:
        bare = _NUMBER.sub("", name)
        # A recurrent layer has its biases among its weights.
        if bare in _RIGHT or (bare == "params" and dimensions > 1):
            kinds["weight"].append(name)
        # torch gives some arguments no name, but a number.
        elif (bare in _LEFT or not bare) and not (name == "input" and operation in _ADDING):
            kinds["input"].append(name)
    return [
        (name, kind, name if len(names) > 1 else "")
        for kind, names in kinds.items()
        for name in names
    ]
