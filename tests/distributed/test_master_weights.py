"""Masters on two and four processes, whole and sharded, have the bits of one process."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lpkernels.experiments.records import read_run
from tests.distributed.masters import RUNS
from tests.distributed.runs import WAYS
from tests.distributed.test_runs import figures
from tests.techniques.loss_scaling.optimizers import assert_same

ways = pytest.mark.parametrize("way", WAYS)
runs = pytest.mark.parametrize("name", RUNS)


def seen(folder: Path) -> list[dict[str, Any]]:
    """What every process saw."""
    return [torch.load(path, weights_only=True) for path in sorted(folder.glob("rank*.pt"))]


def alone(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "alone.pt", weights_only=True)


@ways
@runs
def test_several_processes_have_the_bits_of_one(masters: Path, way: str, name: str) -> None:
    want = alone(masters)[name]
    for got in seen(masters):
        for what in ("half", "end", "masters"):
            assert_same(got[f"{way}-{name}"][what], want[what], what)


@ways
@runs
def test_several_processes_go_on_where_one_stopped(masters: Path, way: str, name: str) -> None:
    want = alone(masters)[name]
    for got in seen(masters):
        for what in ("half", "end", "masters"):
            assert_same(got[f"{way}-{name}-resumed"][what], want[what], what)


def test_sharded_processes_keep_a_part_each(masters: Path) -> None:
    parts = [got["fsdp-narrow"]["held"] for got in seen(masters)]
    assert [sum(sizes) for sizes in zip(*parts, strict=True)] == [42, 7, 14, 2]
    assert parts[0][0] < 42


@runs
def test_a_part_begins_where_the_processes_before_end(masters: Path, name: str) -> None:
    for got in seen(masters):
        for way in WAYS:
            run = got[f"{way}-{name}"]
            for origin, places in zip(run["origins"], run["places"], strict=True):
                want = torch.arange(origin, origin + places.numel())
                assert torch.equal(places.view(-1), want)


def test_columns_take_the_general_path(masters: Path) -> None:
    for got in seen(masters):
        message, weights = got["columns"]
        assert (
            "it steps rows of a sharded parameter, and this one lies as (Shard(dim=1),)" in message
        )
        assert torch.equal(weights, 1 - torch.arange(32.0).view(4, 8) / 2)


def test_blocks_in_two_shards_are_refused_by_name(masters: Path) -> None:
    for got in seen(masters):
        assert got["refused"].startswith(
            "MasterWeights: parameter '0.bias' of shape (7,) is sharded in pieces of "
        )
        assert "which cut the blocks of state=block8_e4m3;" in got["refused"]


# The gradients of four processes are not those of one.
two = pytest.mark.parametrize("masters", [2], indirect=True, ids=["two"])


@two
@pytest.mark.parametrize("run", ["ddp", "fsdp", "ddp-resumed", "fsdp-resumed"])
def test_the_trainer_has_the_bits_of_one_process(masters: Path, run: str) -> None:
    got, want = (
        torch.load(masters / name / "checkpoint.pt", weights_only=True) for name in (run, "alone")
    )
    assert_same(got["model"], want["model"], "model")
    assert_same(got["optimizer"], want["optimizer"], "optimizer")
    shares = [
        [epoch["stagnation"] for epoch in read_run(masters / n).epochs] for n in (run, "alone")
    ]
    assert shares[0] == shares[1] and all(0 < share < 1 for share in shares[0])


@two
@ways
def test_a_run_with_a_killed_rank_goes_on_to_the_bits_of_one_that_was_left_alone(
    masters: Path, way: str
) -> None:
    got, want = (
        torch.load(masters / name / "checkpoint.pt", weights_only=True)
        for name in (f"{way}-killed", "killed-alone")
    )
    for what in ("model", "optimizer", "parts", "position", "rng"):
        assert_same(got[what], want[what], what)
    epochs = figures(masters / "killed-alone")
    assert figures(masters / f"{way}-killed") == epochs
    assert 0 < epochs[0]["skipped_steps"] < epochs[0]["updates"]
