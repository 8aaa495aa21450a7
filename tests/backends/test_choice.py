"""The table that orders cuda and triton: its counts are the recorded ones, and its order follows
from them."""

import json
from pathlib import Path

import pytest
import torch

from lpkernels import backends
from lpkernels.backends import _choice

RESULTS = Path(__file__).parents[2] / "bench" / "results"

#: Keys are an operation and a kernel. Values name the cuda record, by its kernel and by whether it
#: has tables and chunks, and the triton record, by its kernel.
RECORDS = {
    ("matmul", "half precision"): (("half precision", False, False), "half"),
    ("matmul", "bfloat16"): (("bfloat16", False, False), "brain"),
    ("matmul", "float32"): (("float32", False, False), "plain"),
    ("matmul", "splitting"): (("two steps, watched", False, False), "fused"),
    ("matmul", "splitting, chunks"): (("two steps, watched", False, True), "fused, chunks"),
    ("matmul", "subnormals"): (("floor, watched", False, False), "floor"),
    ("matmul", "saturating"): (("floor, clipped", False, False), "range"),
    ("matmul", "in double"): (("double, floor", False, False), "nearest64"),
    ("matmul", "toward zero"): (("toward zero", False, False), "toward_zero"),
    ("matmul", "stochastic"): (("stochastic", False, False), "stochastic"),
    ("conv", "half precision"): (("half precision", True, False), "half, image"),
    ("conv", "splitting"): (("two steps, watched", True, False), "fused, image"),
    ("conv", "subnormals"): (("floor, watched", True, False), "floor, image"),
}


def lines(name: str) -> list[dict]:
    return [json.loads(line) for line in (RESULTS / name).read_text().splitlines()]


def test_rows_are_the_recorded_counts():
    cuda = {
        (r["kernel"], r["tables"], r["chunks"]): r["instructions_per_product"]
        for r in lines("cuda-sm_90-counts.jsonl")
        # Records without a tile are those of the square tiles.
        if "tile" not in r
    }
    # Where a kernel has several counts, the last one is taken.
    triton = {r["kernel"]: r["instructions"] for r in lines("triton-sm_90.jsonl")}
    recorded = [
        _choice.Row(*key, cuda[of_cuda], triton[of_triton])
        for key, (of_cuda, of_triton) in RECORDS.items()
    ]
    assert list(backends.gpu_choices()) == recorded


def test_auto_follows_the_rows(monkeypatch: pytest.MonkeyPatch):
    orders = _choice.orders()
    assert set(orders) == {"matmul", "conv_fprop", "conv_dgrad", "conv_wgrad", "accumulate"}
    for op, order in orders.items():
        assert backends._candidates(op, "cuda") == (*order, "reference")
    slow = tuple(row._replace(cuda=2 * row.triton) for row in _choice.ROWS)
    monkeypatch.setattr(_choice, "ROWS", slow)
    assert _choice.orders()["matmul"] == _choice.orders()["conv_wgrad"] == ("triton", "cuda")


def test_the_first_backend_that_has_the_operation_is_chosen(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def why_not(name: str) -> str:
        asked.append(name)
        return f"no {name} here"

    monkeypatch.setattr(backends, "_why_not", why_not)
    monkeypatch.setattr(backends, "_chosen", {})
    with pytest.raises(NotImplementedError, match="no cuda here"):
        backends.select("auto", "conv_fprop", torch.device("cuda", 7))
    assert asked == [*_choice.orders()["conv_fprop"], "reference"]
