"""What masters keep between steps: as a state_dict of whole tensors, and counted in bytes and in
the bits of their formats."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lpkernels._table import Tabular, TextTable
from lpkernels.formats import Format
from lpkernels.techniques.loss_scaling.masters.formats import KEYS, Rule, WeightFormats
from lpkernels.techniques.loss_scaling.masters.stored import (
    COMPENSATION,
    COUNTS,
    MASTER,
    Layout,
    code_bits,
    decoded,
    encoded,
    here,
    is_codes,
    is_values,
    kept_format,
    whole,
)

if TYPE_CHECKING:
    from lpkernels.techniques.loss_scaling.masters.master_weights import MasterWeights

State = dict[str, Any]
# The key of a state_dict for all that an optimizer's own state_dict has no place for.
KEY = "master_weights"


def state_of(optimizer: MasterWeights, own: State) -> State:
    """`own`, an optimizer's state_dict, with whole tensors, seed and step; all processes must call
    this."""
    state = {
        rule.number: {
            name: _whole(name, value, parameter, rule)
            for name, value in optimizer.state[parameter].items()
        }
        for parameter, rule in optimizer.rules().items()
    }
    about = {"seed": int(optimizer._seed), "step": int(optimizer._step)}
    return {**own, "state": state, KEY: about}


def load(optimizer: MasterWeights, state: Mapping[str, Any]) -> None:
    """Takes over what `state_of` returned; all processes must call this.

    Raises: ValueError: it does not fit; nothing is changed then.
    """
    rules = optimizer.rules()
    _check_groups(optimizer, state)
    saved = {}
    for parameter, rule in rules.items():
        # some loaders place what has a parameter's shape as the parameter is placed
        saved[rule.number] = {
            name: whole(value) if isinstance(value, Tensor) else value
            for name, value in state["state"].get(rule.number, {}).items()
        }
        _check_tensors(parameter, rule, saved[rule.number])
    for group, from_group in zip(optimizer.param_groups, state["param_groups"], strict=True):
        group.update({k: copy.deepcopy(v) for k, v in from_group.items() if k != "params"})
        for parameter in group["params"]:
            rule = rules[parameter]
            optimizer.state[parameter] = {
                name: _placed(name, value, parameter, rule, group)
                for name, value in saved[rule.number].items()
            }
    device = optimizer._seed.device
    optimizer._seed = torch.tensor(state[KEY]["seed"], dtype=torch.int64, device=device)
    optimizer._step = torch.tensor(state[KEY]["step"], dtype=torch.int64, device=device)


def _check_groups(optimizer: MasterWeights, state: Mapping[str, Any]) -> None:
    if KEY not in state:
        raise ValueError(
            f"load_state_dict: expected that of a MasterWeights, got one without {KEY!r}; "
            "load that of a bare optimizer into the optimizer before it is wrapped"
        )
    own, other = optimizer.param_groups, state["param_groups"]
    sizes, saved_sizes = ([len(group["params"]) for group in groups] for groups in (own, other))
    if sizes != saved_sizes:
        raise ValueError(
            f"load_state_dict: this optimizer has groups of {sizes} parameters, the state_dict of "
            f"{saved_sizes}; wrap the parameters that it was made with"
        )
    for number, (group, saved) in enumerate(zip(own, other, strict=True)):
        if WeightFormats.of(group) != WeightFormats.of(saved):
            ours, theirs = ({key: each.get(key) for key in KEYS} for each in (group, saved))
            raise ValueError(
                f"load_state_dict: group {number} has the formats {ours}, in the state_dict "
                f"{theirs}; make the MasterWeights with the formats that were saved"
            )


def _check_tensors(parameter: Tensor, rule: Rule, values: Mapping[str, Any]) -> None:
    if COUNTS not in values:
        raise ValueError(f"load_state_dict: the state_dict lacks what it kept of {rule.name!r}")
    for name, value in values.items():
        fmt = kept_format(name, value, rule)
        if fmt is not None and is_codes(value, fmt):
            want = torch.Size([(code_bits(fmt, parameter.shape) + 7) // 8])
        elif name in (MASTER, COMPENSATION):
            want = parameter.shape
        else:
            continue
        if value.shape != want:
            raise ValueError(
                f"load_state_dict: {name} of parameter {rule.name!r} must have shape "
                f"{tuple(want)} in {fmt}, got {tuple(value.shape)}; load it into the model it was "
                "made with"
            )


def _whole(name: str, value: Any, parameter: Tensor, rule: Rule) -> Any:
    """A tensor of which a process keeps a part, whole; all processes must call this."""
    layout = Layout.of(parameter)
    if layout.mesh is None or not isinstance(value, Tensor):
        return value
    fmt = kept_format(name, value, rule)
    if fmt is not None and is_codes(value, fmt):
        return encoded(layout.whole(decoded(value, fmt, here(parameter).shape)), fmt)
    return layout.whole(value) if name in (MASTER, COMPENSATION) else whole(value)


def _placed(name: str, value: Any, parameter: Tensor, rule: Rule, group: Mapping[str, Any]) -> Any:
    """The part that this process keeps, on the device where it is kept."""
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    fmt = kept_format(name, value, rule)
    if fmt is None and name != COUNTS and not value.dim():
        # a count of steps, which torch keeps on the host unless asked otherwise
        on_device = group.get("capturable") or group.get("fused")
        return value.to(parameter.device, copy=True) if on_device else value.clone()
    layout, value = Layout.of(parameter), value.to(parameter.device, copy=True)
    if layout.mesh is None or fmt is None:
        return value
    if is_codes(value, fmt):
        return encoded(layout.part(decoded(value, fmt, layout.shape)), fmt)
    if name in (MASTER, COMPENSATION):
        return layout.part(value)
    lies_alike = is_values(name, value) and value.shape == layout.shape
    return layout.placed(layout.part(value)) if lies_alike else value


WORKING = "working copy"
_HEAD = ("tensors", "format", "values", "bytes", "as codes")


@dataclass(frozen=True)
class MemoryRow:
    """The memory that one kind of tensor takes in this process.

    what: "working copy", "master", "compensation", a state's name, or "counts".
    fmt: the format of the tensors, by the name that it was given first; "" for counts.
    values: how many elements they have.
    bytes: how many are allocated.
    bits: the bits of the formats' codes and scales, which hardware with these formats would keep.
    """

    what: str
    fmt: str
    values: int
    bytes: int
    bits: int


class Memory(tuple[MemoryRow, ...], Tabular):
    """The rows, MemoryRows of an iterable; ``str`` of it is a table with their total."""

    @property
    def kept(self) -> MemoryRow:
        """The total."""
        sums = (sum(getattr(row, name) for row in self) for name in ("values", "bytes", "bits"))
        return MemoryRow("kept", "", *sums)

    def _table(self) -> TextTable:
        rows = [
            (row.what, row.fmt, f"{row.values:,}", f"{row.bytes:,}", f"{row.bits / 8:,.0f}")
            for row in (*self, self.kept)
        ]
        return TextTable([_HEAD, *rows], (0, 1))


def memory(optimizer: MasterWeights) -> Memory:
    """The memory of masters, states and working copies: a row for each kind of tensor and format.

    Gradients are not counted. A format has the name that the user gave it. Reads one flag from the
    device, as the next step would.

    Args: optimizer: a MasterWeights.
    Returns: a Memory.

    >>> from lpkernels.techniques.loss_scaling import MasterWeights, memory
    >>> weights = [torch.nn.Parameter(torch.ones(100))]
    >>> optimizer = MasterWeights(torch.optim.SGD(weights, lr=0.1), weight="bf16")
    >>> print(memory(optimizer))
    tensors       format  values  bytes  as codes
    working copy  bf16       100    400       200
    master        fp32       100    400       400
    counts                     2     16        16
    kept                     202    816       616
    """
    optimizer._settle()
    rows: dict[tuple[str, str], MemoryRow] = {}
    for parameter, rule in optimizer.rules().items():
        mine = here(parameter)
        formats = rule.formats
        weight = formats.weight.fmt
        _add(rows, WORKING, weight, formats.name_of(weight), mine.numel(), mine, mine.shape)
        for name, value in optimizer.state[parameter].items():
            if not isinstance(value, Tensor):
                continue
            kept, fmt = here(value), kept_format(name, value, rule)
            coded = is_codes(kept, fmt)
            shape = mine.shape if coded else kept.shape
            called = "" if fmt is None else formats.name_of(fmt)
            _add(rows, name, fmt, called, shape.numel(), kept, shape)
    return Memory(rows.values())


def _add(
    rows: dict[tuple[str, str], MemoryRow],
    what: str,
    fmt: Format | None,
    called: str,
    values: int,
    kept: Tensor,
    shape: torch.Size,
) -> None:
    bytes_ = kept.numel() * kept.element_size()
    bits = 8 * bytes_ if fmt is None else code_bits(fmt, shape)
    old = rows.get((what, called), MemoryRow(what, called, 0, 0, 0))
    rows[what, called] = MemoryRow(
        what, called, old.values + values, old.bytes + bytes_, old.bits + bits
    )
