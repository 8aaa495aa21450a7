"""What is kept costs what its formats say."""

import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import lpkernels as lp
from lpkernels.techniques.loss_scaling import MasterWeights, MemoryRow, memory
from tests.loops import each
from tests.techniques.loss_scaling.optimizers import parameters, set_gradients, train

pytestmark = pytest.mark.filterwarnings("ignore:MasterWeights:UserWarning")
N = 100 * 96
FP8_STATE = {"exp_avg": "e5m2", "exp_avg_sq": "e8m3"}
# With the bits of a value beside the working copy: master, compensation or remainder, and two
# states.
CASES: list[tuple[dict[str, Any], float]] = [
    ({"weight": "e4m3fn", "master": "e6m9", "state": FP8_STATE}, 16 + 8 + 12),
    ({"weight": "block32_e2m1", "state": "block32_e4m3"}, 32 + 2 * (8 + 8 / 32)),
    ({"weight": "bf16", "master": "bf16", "compensation": "bf16"}, 0 + 16 + 64),
    ({"weight": "e3m1", "master": "fixed13_f10", "state": "e5m5"}, 13 + 2 * 11),
    ({"weight": "bf16:nearest_away", "split": True}, 16 + 64),
]


def trained(formats: dict[str, Any], dtype: torch.dtype = torch.float32) -> MasterWeights:
    p = nn.Parameter(torch.randn(100, 96).to(dtype))
    optimizer = MasterWeights(torch.optim.Adam([p], lr=1e-3), **formats)
    train(optimizer, [p], [1])
    return optimizer


@each("formats, of_value", CASES)
def test_bytes_are_those_of_the_formats(formats: dict[str, Any], of_value: float) -> None:
    optimizer = trained(formats)
    rows = memory(optimizer)
    kept = [row for row in rows if row.what not in ("working copy", "counts", "step", "transient")]
    bits = sum(row.bits for row in kept)
    assert bits == of_value * N
    assert sum(row.bytes for row in kept) == pytest.approx(bits / 8, rel=0.02)
    # Everything that is kept is counted by a row.
    (state,) = optimizer.state.values()
    tensors = [value for value in state.values() if isinstance(value, torch.Tensor)]
    counted = sum(row.bytes for row in rows if row.what not in ("working copy", "transient"))
    assert sum(t.untyped_storage().nbytes() for t in tensors) == counted


@each("dtype, bytes_", [(torch.float32, 4 * N), (torch.bfloat16, 2 * N)])
def test_working_copies_take_what_their_dtype_takes(dtype: torch.dtype, bytes_: int) -> None:
    first, *_ = memory(trained({"weight": "e4m3fn", "state": "bf16"}, dtype))
    assert first == MemoryRow("working copy", "e4m3fn", N, bytes_, 8 * N)


def test_rows_are_by_kind_and_format_under_the_names_that_were_given() -> None:
    held = parameters(shapes=[(8,), (16,)])
    other = {"1": {"master": "e6m9"}}
    optimizer = MasterWeights(torch.optim.SGD(held, lr=0.1), weight="bf16", exceptions=other)
    rows = {(row.what, row.fmt): row for row in memory(optimizer)}
    assert rows["working copy", "bf16"].values == 24
    assert rows["master", "fp32"] == MemoryRow("master", "fp32", 8, 32, 256)
    assert rows["master", "e6m9"] == MemoryRow("master", "e6m9", 16, 32, 256)
    assert rows["counts", ""].bytes == 2 * 2 * 8
    held = parameters(shapes=[(8,), (16,)])
    optimizer = MasterWeights(
        torch.optim.Adam(held),
        weight="fp8_e4m3:stochastic",
        master=lp.FloatFormat(8, 7),
        state={"exp_avg": "fp8_e5m2"},
        exceptions={"1": {"weight": "dlfloat16", "state": {"exp_avg": "e5m2"}}},
    )
    train(optimizer, held, [1])
    copies = [row.fmt for row in memory(optimizer) if row.what == "working copy"]
    assert copies == ["fp8_e4m3", "dlfloat16"]
    names = {row.fmt for row in memory(optimizer)}
    # An object has its own name; a format that was named twice has its first name.
    assert names == {"fp8_e4m3", "dlfloat16", "e8m7", "fp8_e5m2", "fp32", ""}


def test_totals_are_of_what_is_kept_and_of_a_step() -> None:
    found = memory(trained({"weight": "bf16", "master": "e6m9"}))
    *kept, transient = found
    assert found.kept.bytes == sum(row.bytes for row in kept)
    assert found.in_step.bits == found.kept.bits + transient.bits
    lines = str(found).splitlines()
    assert lines[0].split() == ["tensors", "format", "values", "bytes", "as", "codes"]
    assert lines[1].split() == ["working", "copy", "bf16", "9,600", "38,400", "19,200"]
    assert lines[-2].split()[0] == "kept" and lines[-1].startswith("in a step")
    assert len(lines) == len(found) + 3


class Peak(TorchDispatchMode):
    """The most bytes of new tensors that were alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = 0
        self.seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {storage._cdata for storage in storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in storages(result):
            if (key := storage._cdata) not in self.seen | given:
                self.seen.add(key)
                self.alive += storage.nbytes()
                self.peak = max(self.peak, self.alive)
                weakref.finalize(storage, self._free, key, storage.nbytes())
        return result

    def _free(self, key: int, count: int) -> None:
        self.seen.discard(key)
        self.alive -= count


def storages(values: Any) -> list[torch.UntypedStorage]:
    return [t.untyped_storage() for t in tree_leaves(values) if isinstance(t, torch.Tensor)]


def second_step(**formats: Any) -> tuple[int, MemoryRow]:
    """The bytes that a step takes at its peak, and the last row of what is reported."""
    held = parameters(shapes=[(100, 96)] * 3)
    optimizer = MasterWeights(torch.optim.SGD(held, lr=0.1, momentum=0.9), **formats)
    for number in range(2):
        set_gradients(held, number)
        with Peak() as mode:
            optimizer.step()
    return mode.peak, memory(optimizer)[-1]


@each("formats", [formats for formats, _ in CASES])
def test_transient_memory_is_about_what_is_reported(formats: dict[str, Any]) -> None:
    """The largest parameter alone takes such memory; the optimizer needs none of its own."""
    state = "e5m2" if formats.get("state") == FP8_STATE else formats.get("state", "fp32")
    peak, reported = second_step(**{**formats, "state": state}, fused=False)
    assert (reported.what, reported.fmt) == ("transient", "fp32")
    assert 0.7 < peak / reported.bytes <= 1


def test_the_fused_pass_needs_no_transient_memory() -> None:
    peak, reported = second_step(weight="bf16", master="e6m9", state="fp8_e5m2", fused=True)
    assert reported.bytes == 0
    # Only the number and the seed of the step take memory.
    assert peak < 1000
