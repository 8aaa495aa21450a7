"""Masters on two and four processes, whole and sharded, have the bits of one process."""

from typing import Any

import pytest
import torch

from lpkernels.experiments.records import read_run
from tests.distributed.made import Made
from tests.distributed.masters import RUNS
from tests.distributed.runs import WAYS
from tests.loops import each
from tests.support.trainings import assert_same_end, figures
from tests.techniques.loss_scaling.optimizers import assert_same


@pytest.fixture
def seen(masters: Made) -> list[dict[str, Any]]:
    """What every process saw of the steps."""
    return [rank["masters"] for rank in masters.ranks]


@pytest.mark.parametrize("way", WAYS)
@each("after", ["", "-resumed"])
@each("name", RUNS)
def test_several_processes_have_the_bits_of_one_from_the_start_and_where_it_stopped(
    masters: Made, seen: list[dict[str, Any]], way: str, name: str, after: str
) -> None:
    want = torch.load(masters.folder / "masters" / "alone.pt", weights_only=True)[name]
    for got in seen:
        for what in ("half", "end", "masters"):
            assert_same(got[f"{way}-{name}{after}"][what], want[what], what)


def test_sharded_processes_keep_a_part_each(seen: list[dict[str, Any]]) -> None:
    parts = [got["fsdp-narrow"]["held"] for got in seen]
    assert [sum(sizes) for sizes in zip(*parts, strict=True)] == [42, 7, 14, 2, 2, 1]
    assert parts[0][0] < 42 and parts[-1][-1] == 0


@each("name", RUNS)
@each("way", WAYS)
def test_a_part_begins_where_the_processes_before_end(
    seen: list[dict[str, Any]], way: str, name: str
) -> None:
    for got in seen:
        run = got[f"{way}-{name}"]
        for origin, places in zip(run["origins"], run["places"], strict=True):
            want = torch.arange(origin, origin + places.numel())
            assert torch.equal(places.view(-1), want)


def test_columns_take_the_general_path(seen: list[dict[str, Any]]) -> None:
    for got in seen:
        message, weights = got["columns"]
        assert (
            "it steps rows of a sharded parameter, and this one lies as (Shard(dim=1),)" in message
        )
        assert torch.equal(weights, 1 - torch.arange(32.0).view(4, 8) / 2)


def test_blocks_in_two_shards_are_refused_by_name(seen: list[dict[str, Any]]) -> None:
    for got in seen:
        assert got["refused"].startswith(
            "MasterWeights: parameter '0.bias' of shape (7,) is sharded in pieces of "
        )
        assert "which cut the blocks of state=block8_e4m3;" in got["refused"]


# The gradients of four processes are not those of one: two processes train.
@pytest.mark.parametrize("run", ["ddp", "fsdp", "ddp-resumed", "fsdp-resumed"])
def test_the_trainer_has_the_bits_of_one_process(made: Made, run: str) -> None:
    one, several = (made.folder / "masters" / name for name in ("alone", run))
    got, want = (
        torch.load(folder / "checkpoint.pt", weights_only=True) for folder in (several, one)
    )
    assert_same(got["model"], want["model"], "model")
    assert_same(got["optimizer"], want["optimizer"], "optimizer")
    shares = [[e["stagnation"] for e in read_run(folder).epochs] for folder in (several, one)]
    assert shares[0] == shares[1] and all(0 < share < 1 for share in shares[0])


@pytest.mark.parametrize("way", WAYS)
def test_a_run_with_a_killed_rank_goes_on_to_the_bits_of_one_that_was_left_alone(
    made: Made, way: str
) -> None:
    alone, killed = (made.folder / "masters" / name for name in ("killed-alone", f"{way}-killed"))
    assert_same_end(killed, alone)
    first = figures(alone)[0]
    assert 0 < first["skipped_steps"] < first["updates"]
