"""Counts on the devices: a table of rows on each device, and all rows of a device read together."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from lpkernels.techniques.loss_scaling.diagnosis._counting import EVENTS, WIDTH
from lpkernels.techniques.loss_scaling.diagnosis.histograms import BINS, Counts

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
        """Adds all rows to those of `unmoved` and, with every number multiplied by 2 ** exponent
        (0-d, by device), to those of `to`; then empties them. Nothing waits. Both get their rows
        from here alone.
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
