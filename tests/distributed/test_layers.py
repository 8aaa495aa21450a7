"""Converted layers and scaled losses in a loop of one's own, under DDP and FSDP2."""

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from lpkernels.techniques.loss_scaling import Report, diagnose
from lpkernels.techniques.loss_scaling.diagnosis import TensorRow
from tests.compare import assert_bit_equal
from tests.distributed.made import Made
from tests.distributed.runs import WAYS
from tests.distributed.scaling import batch, network, plain
from tests.distributed.worker import ranged_batch, ranged_model, users_batch, users_model
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
    for seen in made.ranks:
        packed, kept = dict(seen[way]["packed"]), dict(seen[way]["kept"])
        assert (packed.pop("packed"), kept.pop("packed")) == (2, 0)
        assert_same(packed, kept)


def test_running_ranges_are_those_of_all_processes_batches(made: Made) -> None:
    alone = ranged_model()
    wanted = [alone(torch.cat([ranged_batch(rank, step) for rank in (0, 1)])) for step in (0, 1)]
    for rank, seen in enumerate(made.ranks):
        found = seen["ranges"]
        for name, buffer in alone.named_buffers():
            assert_bit_equal(found[name], buffer)
        for got, want in zip(found["outputs"], wanted, strict=True):
            assert_bit_equal(got, want.detach().chunk(2)[rank])


Seen = list[dict[str, Any]]


@pytest.fixture
def seen(made: Made) -> Seen:
    return [rank["scaling"] for rank in made.ranks]


def ran(steps: Any) -> list[bool]:
    return [step["ran"] for step in steps]


def test_one_bad_rank_makes_all_skip(seen: Seen) -> None:
    first, second = (rank["alone"] for rank in seen)
    assert ran(first) == ran(second) == [True, False, True]
    assert [step["scale"] for step in first] == [step["scale"] for step in second] == [8, 4, 4]
    assert (first[1]["parameter"], second[1]["parameter"]) == (None, "2.weight")
    assert_same(first[2]["weights"], second[2]["weights"])


def test_flags_stay_where_they_are_unless_reduced(seen: Seen) -> None:
    first, second = (rank["unshared"] for rank in seen)
    assert ran(first) == [True] * 3 and ran(second) == [True, False, True]
    assert (first[2]["scale"], second[2]["scale"]) == (8, 4)


@pytest.mark.parametrize("way", ["fsdp", "fsdp-fused"])
def test_one_bad_shard_makes_all_skip(seen: Seen, way: str) -> None:
    first, second = (rank[way] for rank in seen)
    assert ran(first) == ran(second) == [True, False, True]
    assert (first[1]["parameter"], second[1]["parameter"]) == (None, "2.weight")
    assert_same(first[0]["weights"], first[1]["weights"])
    assert_same(first[2]["weights"], second[2]["weights"])


@pytest.mark.parametrize("way", ["fsdp", "fsdp-fused"])
def test_sharded_gradients_are_unscaled_once(seen: Seen, way: str) -> None:
    """One process makes the same first step from the mean gradient, with no scale anywhere."""
    model = network()
    (sum(model(batch(rank)).square().sum() for rank in (0, 1)) / 2).backward()
    torch.optim.Adam(model.parameters(), lr=0.1, eps=10.0).step()
    for got, want in zip(seen[0][way][0]["weights"], model.parameters(), strict=True):
        torch.testing.assert_close(got, want.detach())


def test_two_losses_add_up_in_the_buckets_of_ddp(seen: Seen) -> None:
    gradients = []
    for rank in (0, 1):
        model = network()
        (model(batch(rank)).sum() * 4.0).backward()
        gradients.append([p.grad for p in model.parameters()])
    for got, one, two in zip(seen[1]["buckets"], *gradients, strict=True):
        torch.testing.assert_close(got, (one + two) / 2)


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
        for row in plain(report):
            if row["kind"] != "grad_weight":
                assert named[row["layer"], row["kind"]]["exponents"] == row["exponents"]
    assert seen[0][way][1] == seen[1][way][1]
    for row, one, two in zip(seen[0][way][1], *(r[way][0] for r in seen), strict=True):
        assert row["calls"] == 2
        assert row["elements"] == one["elements"] + two["elements"]
        parts = Report(map(TensorRow.from_dict, (one, two))).rows
        whole = TensorRow.from_dict(row).histogram.counts
        assert (whole == sum(part.histogram.counts for part in parts)).all()
