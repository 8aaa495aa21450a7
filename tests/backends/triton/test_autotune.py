"""Tiles chosen by a clock: never by default, once for a kind of product, and the same bits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from lpkernels import backends
from lpkernels.arithmetic import Accumulator
from lpkernels.backends.triton import _autotune, _stages, _wide, autotune
from lpkernels.backends.triton._config import SMALLER, Tile, smaller
from lpkernels.backends.triton._matmul import matmul
from tests.backends.triton.test_fast import floats
from tests.compare import assert_bit_equal

pytestmark = [pytest.mark.triton, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

ACC = Accumulator("e6m9", "toward_zero")


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """In place of the clock: what it says of each choice, the last one first; empty: not asked."""
    left: list[float] = []

    def seconds(run: Callable[[], None], device: torch.device) -> float:
        run()
        return left.pop()

    monkeypatch.setattr(_autotune, "_seconds", seconds)
    yield left
    autotune(None)


def product(device: str, rows: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = floats((rows, 5), 1), floats((5, 40), 2)
    want = backends.get("cpu").matmul(a, b, None, ACC.to_ints(), None, 4)
    return matmul(a.to(device), b.to(device), None, ACC.to_ints(), None, 4), want


def test_off_by_default(device: str, timed: list[float]) -> None:
    assert_bit_equal(*product(device))


@pytest.mark.parametrize("best", range(len(SMALLER)))
def test_the_fastest_is_kept_and_has_the_same_bits(
    best: int, device: str, timed: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[tuple[Tile, ...]] = []
    stages, wide = _stages.launch, _wide.launch
    monkeypatch.setattr(_stages, "launch", lambda *a: used.append(a[9]) or stages(*a))
    monkeypatch.setattr(_wide, "launch", lambda *a: used.append((a[8],)) or wide(*a))
    path = tmp_path / "tiles.json"
    autotune(path)
    timed[:] = [2.0] * len(SMALLER)
    timed[-1 - best] = 1.0
    assert_bit_equal(*product(device))
    assert timed == []
    last = used[-2:]
    assert len(set(used[::2])) > 1
    assert list(json.loads(path.read_text()).values()) == [best]
    # Known now, in this process and, from the file, in the next one.
    for _ in range(2):
        assert_bit_equal(*product(device, rows=5))
        assert used[-2:] == last
        autotune(path)


def test_other_choices_in_the_file_stay(device: str, timed: list[float], tmp_path: Path) -> None:
    path = tmp_path / "tiles.json"
    autotune(path)
    path.write_text('{"another": 3}')
    timed[:] = [1.0] * len(SMALLER)
    product(device)
    assert json.loads(path.read_text())["another"] == 3
    assert [p.name for p in tmp_path.iterdir()] == ["tiles.json"]


@pytest.mark.parametrize("text", ["tiles", "[1]", '{"a": 99}'])
def test_another_file_is_refused(text: str, timed: list[float], tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"autotune: .*notes.txt holds no tiles; expected"):
        autotune(path)


def test_smaller_tiles_are_legal() -> None:
    for tile in (Tile(16, 512, 4), Tile(4, 256, 8), Tile(1, 32, 1), Tile(32, 16, 4)):
        for choice in range(len(SMALLER)):
            bm, bn, warps = smaller(tile, choice)
            assert 1 <= bm <= tile.bm and 1 <= bn <= tile.bn
            assert all(x & (x - 1) == 0 for x in (bm, bn, warps))
            assert bm * bn >= 32 * warps or (bm, bn) == (tile.bm, tile.bn)


def test_the_clock_takes_the_shortest_run() -> None:
    runs: list[int] = []
    assert 0.0 <= _autotune._seconds(lambda: runs.append(1), torch.device("cpu")) < 1.0
    assert len(runs) == 4
