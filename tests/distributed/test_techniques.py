"""Converted layers, scaled losses and masters on several processes, under DDP and FSDP2."""

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import lpkernels as lp
from lpkernels.experiments.records import read_run
from lpkernels.techniques.loss_scaling import Report, diagnose
from lpkernels.techniques.loss_scaling.rows import TensorRow
from tests.compare import assert_bit_equal
from tests.distributed import delayed
from tests.distributed.masters import RUNS
from tests.distributed.runs import WAYS, Made
from tests.distributed.scaling import batch, network
from tests.distributed.worker import (
    ranged_batch,
    ranged_model,
    users_batch,
    users_model,
)
from tests.support.trainings import assert_same_end, figures
from tests.techniques.loss_scaling.optimizers import assert_same


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_the_float32_mean_of_the_processes_gradients(made: Made, way: str) -> None:
    alone = []
    for rank, seen in enumerate(made.ranks):
        model, (x, labels) = users_model(), users_batch(rank)
        loss = cross_entropy(model(x), labels)
        loss.backward()
        alone.append([p.grad for p in model.parameters()])
        assert_bit_equal(seen[way]["packed"]["loss"], loss.detach())
    for seen in made.ranks:
        for got, *parts in zip(seen[way]["packed"]["gradients"], *alone, strict=True):
            assert_bit_equal(got, parts[0] / 2 + parts[1] / 2)


@pytest.mark.parametrize("way", WAYS)
def test_activations_are_kept_packed_and_give_the_same_bits(made: Made, way: str) -> None:
    for rank in made.ranks:
        packed, kept = dict(rank[way]["packed"]), dict(rank[way]["kept"])
        assert (packed.pop("packed"), kept.pop("packed")) == (2, 0)
        assert_same(packed, kept)


def test_running_ranges_are_those_of_all_processes_batches(made: Made) -> None:
    alone = ranged_model()
    wanted = [alone(torch.cat([ranged_batch(rank, step) for rank in (0, 1)])) for step in (0, 1)]
    for rank, seen in enumerate(made.ranks):
        found = dict(seen["ranges"])
        outputs = [want.detach().chunk(2)[rank] for want in wanted]
        assert_same(list(found.pop("outputs")), outputs)
        assert_same(found, dict(alone.named_buffers()))


@pytest.mark.parametrize("way", WAYS)
def test_delayed_scales_are_those_of_all_processes_batches(made: Made, way: str) -> None:
    model = delayed.network()
    lp.nn.calibrate(model, [torch.cat([delayed.batch(rank, 9) for rank in (0, 1)])])
    wanted = []
    for i in range(delayed.STEPS):
        y = model(torch.cat([delayed.batch(rank, i) for rank in (0, 1)]))
        y.sum().backward()
        lp.nn.update_scales(model)
        wanted.append(y.detach())
    for rank, seen in enumerate(made.ranks):
        assert_same(seen["delayed"][way]["outputs"], [y.chunk(2)[rank] for y in wanted])
        assert_same(seen["delayed"][way]["scales"], dict(model.named_buffers()))


def test_delayed_scales_may_be_each_process_own(made: Made) -> None:
    for rank, seen in enumerate(made.ranks):
        assert seen["unshared"] == 448 / delayed.batch(rank, 0).abs().max()


Seen = list[dict[str, Any]]


@pytest.fixture
def seen(made: Made) -> Seen:
    return [rank["scaling"] for rank in made.ranks]


def ran(steps: Any) -> list[bool]:
    return [step["ran"] for step in steps]


def test_one_bad_rank_makes_all_of_its_group_skip(seen: Seen) -> None:
    first, second = (rank["alone"] for rank in seen)
    assert ran(first) == ran(second) == [True, False, True]
    assert [step["scale"] for step in first] == [step["scale"] for step in second] == [8, 4, 4]
    assert (first[1]["parameter"], second[1]["parameter"]) == (None, "2.weight")
    assert_same(first[2]["weights"], second[2]["weights"])
    first, second = (rank["unshared"] for rank in seen)
    assert ran(first) == [True] * 3 and ran(second) == [True, False, True]
    assert (first[2]["scale"], second[2]["scale"]) == (8, 4)


def test_all_count_one_hysteresis_and_warn_together_at_the_floor(seen: Seen) -> None:
    (*first, other), (*second, named) = (rank["floor"] for rank in seen)
    assert first == second == [(2, 1), *[(1, 1)] * 10]
    assert "gradient elsewhere" in other and "of parameter '2.weight'" in named


@pytest.mark.parametrize("way", ["fsdp", "fsdp-fused"])
def test_one_bad_shard_makes_all_skip_and_gradients_are_unscaled_once(seen: Seen, way: str) -> None:
    """One process makes the same first step from the mean gradient, with no scale anywhere."""
    first, second = (rank[way] for rank in seen)
    assert ran(first) == ran(second) == [True, False, True]
    assert (first[1]["parameter"], second[1]["parameter"]) == (None, "2.weight")
    assert_same(first[0]["weights"], first[1]["weights"])
    assert_same(first[2]["weights"], second[2]["weights"])
    model = network()
    (sum(model(batch(rank)).square().sum() for rank in (0, 1)) / 2).backward()
    torch.optim.Adam(model.parameters(), lr=0.1, eps=10.0).step()
    for got, want in zip(first[0]["weights"], model.parameters(), strict=True):
        torch.testing.assert_close(got, want.detach())


@pytest.mark.parametrize("way", ["diagnosed", "diagnosed-fsdp"])
def test_each_rank_counts_its_own_and_reduce_adds_them(seen: Seen, way: str) -> None:
    """A rank's own gradients are counted; DDP's buckets and FSDP2's shards give means or sums."""
    alone = []
    for rank in (0, 1):
        model = network()
        with diagnose(model, "e5m2") as report:
            model(batch(rank)).sum().backward()
        alone.append(report)
        own = seen[rank][way][0]
        named = {(row["layer"], row["kind"]): row for row in own}
        for row in report.state_dict()["rows"]:
            if row["kind"] != "grad_weight":
                assert named[row["layer"], row["kind"]]["exponents"] == row["exponents"]
    assert seen[0][way][1] == seen[1][way][1]
    for row, one, two in zip(seen[0][way][1], *(r[way][0] for r in seen), strict=True):
        assert row["calls"] == 2
        assert row["elements"] == one["elements"] + two["elements"]
        parts = Report(map(TensorRow.from_dict, (one, two))).rows
        whole = TensorRow.from_dict(row).histogram.bins
        assert (whole == sum(part.histogram.bins for part in parts)).all()


@pytest.fixture
def stepped(masters: Made) -> list[dict[str, Any]]:
    """The steps as every process saw them."""
    return [rank["masters"] for rank in masters.ranks]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("after", ["", "-resumed"])
@pytest.mark.parametrize("name", RUNS)
def test_several_processes_have_the_bits_of_one_from_the_start_and_where_it_stopped(
    masters: Made, stepped: list[dict[str, Any]], way: str, name: str, after: str
) -> None:
    want = torch.load(masters.folder / "masters" / "alone.pt", weights_only=True)[name]
    for got in stepped:
        for what in ("half", "end", "masters"):
            assert_same(got[f"{way}-{name}{after}"][what], want[what], what)


def test_sharded_processes_keep_a_part_each(stepped: list[dict[str, Any]]) -> None:
    parts = [got["fsdp-narrow"]["held"] for got in stepped]
    assert [sum(sizes) for sizes in zip(*parts, strict=True)] == [42, 14, 2, 7, 2, 1]
    assert parts[0][0] < 42 and parts[-1][-1] == 0


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("way", WAYS)
def test_a_part_begins_where_others_end(stepped: list[dict[str, Any]], way: str, name: str) -> None:
    for got in stepped:
        run = got[f"{way}-{name}"]
        for origin, places in zip(run["origins"], run["places"], strict=True):
            want = torch.arange(origin, origin + places.numel())
            assert torch.equal(places.view(-1), want)


def test_columns_take_the_general_path_and_cut_blocks_are_refused(stepped: list[dict[str, Any]]):
    for got in stepped:
        said, weights = got["columns"]
        rows = "it steps rows of a sharded parameter, and this one lies as (Shard(dim=1),)"
        assert rows in said and torch.equal(weights, 1 - torch.arange(32.0).view(4, 8) / 2)
        cut = "MasterWeights: parameter '1' has shape (7,), but state=block8_e4m3 has blocks that "
        assert got["refused"].startswith(f"{cut}are cut by shards of ")


@pytest.mark.parametrize("run", ["ddp", "fsdp", "ddp-resumed", "fsdp-resumed"])
def test_the_trainer_has_the_bits_of_one_process(made: Made, run: str) -> None:
    # Four processes have other gradients than one: two processes train.
    folders = [made.folder / "masters" / name for name in (run, "alone")]
    got, want = (torch.load(folder / "checkpoint.pt", weights_only=True) for folder in folders)
    for state in ("model", "optimizer"):
        assert_same(got[state], want[state], state)
    one, other = ([e["stagnation"] for e in read_run(folder).epochs] for folder in folders)
    assert one == other and all(0 < share < 1 for share in one)


@pytest.mark.parametrize("way", WAYS)
def test_a_run_with_a_killed_rank_goes_on_to_the_same_bits(made: Made, way: str) -> None:
    alone, killed = (made.folder / "masters" / name for name in ("killed-alone", f"{way}-killed"))
    assert_same_end(killed, alone)
    first = figures(alone)[0]
    assert 0 < first["skipped_steps"] < first["updates"]
