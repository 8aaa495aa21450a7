"""Counting the elements of tensors where they are, and the scale that gradients have meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from lpkernels.formats import FP32, FloatFormat
from lpkernels.functional.count import counting_to_nearest
from lpkernels.techniques.loss_scaling.diagnosis.histograms import BINS, Counts
from lpkernels.techniques.loss_scaling.scaler import LossScaler, scale

#: Overflow, underflow, zeros, nonfinite; then a bin for each exponent.
EVENTS = 4
WIDTH = EVENTS + BINS

# Together these vectors take 32 kB.
_MANY = 16


def counting(fmt: FloatFormat | None) -> Callable[[Tensor, Tensor], None]:
    """A function that adds the counts of a tensor's elements to a vector on its device, without
    waiting.

    The tensor: floating point, dense, any shape and strides. The vector: (260,) int64: overflow,
    underflow, zeros, nonfinite, and a `histograms.Histogram`.

    fmt: the format in which elements over- or underflow, rounded to nearest even; None: a format
        without a range of its own, in which no element does.
    """
    return counting_to_nearest(FP32 if fmt is None else fmt)


class Vectors:
    """New vectors of counts, all zero. Many are made at a time, which takes as long as one."""

    def __init__(self) -> None:
        self._waiting: dict[torch.device, list[Tensor]] = {}

    def take(self, device: torch.device) -> Tensor:
        waiting = self._waiting.get(device)
        if not waiting:
            # Counting goes on in inference mode and outside of it.
            with torch.inference_mode(False):
                made = torch.zeros((_MANY, WIDTH), dtype=torch.int64, device=device)
                waiting = self._waiting[device] = list(made.unbind())
        return waiting.pop()


K = TypeVar("K", bound=Hashable)

# So many rows are made at a time, in one block, and a row never moves.
_ROWS = 64


class Counters(Generic[K]):
    """Rows of 260 int64 counts by key, each on the device of the tensors that it counts."""

    def __init__(self) -> None:
        self._blocks: dict[torch.device, list[Tensor]] = {}
        self._keys: dict[torch.device, list[K]] = {}
        self._rows: dict[tuple[K, torch.device], Tensor] = {}

    def row(self, key: K, device: torch.device) -> Tensor:
        """The row of a key on a device; it has one memory from now on."""
        found = self._rows.get((key, device))
        if found is None:
            keys = self._keys.setdefault(device, [])
            block, row = divmod(len(keys), _ROWS)
            # Counting goes on in inference mode and outside of it.
            with torch.inference_mode(False):
                found = self._rows[key, device] = self._grown(device, block + 1)[block][row]
            keys.append(key)
        return found

    def _grown(self, device: torch.device, count: int) -> list[Tensor]:
        """The blocks of a device, grown to at least `count`."""
        blocks = self._blocks.setdefault(device, [])
        while len(blocks) < count:
            blocks.append(torch.zeros((_ROWS, WIDTH), dtype=torch.int64, device=device))
        return blocks

    def move(
        self, to: Counters[K], exponents: Mapping[torch.device, Tensor], unmoved: Counters[K]
    ) -> None:
        """Adds every row to the row of its key in `unmoved` and, with every number multiplied by 2
        ** exponent (0-d, by device), in `to`; then empties it here. Nothing waits. `unmoved` and
        `to` get their rows from here alone.
        """
        for device, blocks in self._blocks.items():
            at = _moved(exponents[device])
            for each in (to, unmoved):
                each._grown(device, len(blocks))
                each._keys[device] = self._keys[device]
            for block, scaled, same in zip(
                blocks, to._blocks[device], unmoved._blocks[device], strict=True
            ):
                scaled.index_add_(1, at, block)
                same += block
                block.zero_()

    def take(self) -> dict[K, Counts]:
        """The counts by key, which start again from zero; waits for every device once."""
        found: dict[K, Counts] = {}
        for device, blocks in self._blocks.items():
            counts: Counts = torch.cat(blocks).cpu().numpy()
            for block in blocks:
                block.zero_()
            # The last block has rows that no key has yet.
            for key, row in zip(self._keys[device], counts, strict=False):
                found[key] = found.get(key, np.zeros(WIDTH, dtype=np.int64)) + row
        return found


def _moved(exponent: Tensor) -> Tensor:
    """Where each of the 260 counts goes when the numbers are multiplied by 2 ** exponent."""
    at = torch.arange(WIDTH, dtype=torch.int64, device=exponent.device)
    bins = at - EVENTS
    moved = (bins + exponent.long()).clamp(1, BINS - 2) + EVENTS
    return torch.where((bins < 1) | (bins == BINS - 1), at, moved)


class SeenScale:
    """The scale of a number, a LossScaler or a torch.amp.GradScaler; None is 1.

    Raises: TypeError, ValueError: something else, or a number that is no scale.
    """

    def __init__(self, given: Any) -> None:
        #: The exponent of a scale that does not change.
        self.constant: int | None = None
        self._scaler = given
        if not isinstance(given, torch.amp.GradScaler):
            self.constant = _exponent(scale("diagnose: scaler", 1.0 if given is None else given))
        elif not given.is_enabled() or (isinstance(given, LossScaler) and given._static):
            self.constant = _exponent(given.get_scale())

    def exponent(self, device: torch.device) -> Tensor:
        """floor(log2(scale)) as it is now: 0-d int32 on `device`."""
        one = torch.ones((), dtype=torch.float32, device=device)
        exponent: Tensor = torch.frexp(self._scaler.scale(one)).exponent - 1
        return exponent


def _exponent(scale: float) -> int:
    return math.frexp(scale)[1] - 1
