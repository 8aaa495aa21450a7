"""Converted layers in a loop of one's own, under DDP and FSDP2."""

from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.compare import assert_bit_equal
from tests.distributed.runs import WAYS
from tests.distributed.test_runs import seen
from tests.distributed.worker import ranged_batch, ranged_model, users_batch, users_model

ways = pytest.mark.parametrize("way", WAYS)


@ways
def test_gradients_are_the_float32_mean_of_the_processes_gradients(
    made: tuple[Path, Path], way: str
) -> None:
    alone = []
    for rank in (0, 1):
        model, (x, labels) = users_model(), users_batch(rank)
        loss = cross_entropy(model(x), labels)
        loss.backward()
        alone.append([p.grad for p in model.parameters()])
        assert_bit_equal(seen(made[0], rank)[f"{way}-True"]["loss"], loss.detach())
    for rank in (0, 1):
        found = seen(made[0], rank)[f"{way}-True"]["gradients"]
        for got, *parts in zip(found, *alone, strict=True):
            assert_bit_equal(got, parts[0] / 2 + parts[1] / 2)


@ways
def test_activations_are_kept_packed_and_give_the_same_bits(
    made: tuple[Path, Path], way: str
) -> None:
    for rank in (0, 1):
        packed, plain = (seen(made[0], rank)[f"{way}-{packs}"] for packs in (True, False))
        assert (packed["packed"], plain["packed"]) == (2, 0)
        for one, two in zip(packed["gradients"], plain["gradients"], strict=True):
            assert_bit_equal(one, two)
        assert torch.equal(packed["loss"], plain["loss"])


def test_running_ranges_are_those_of_all_processes_batches(made: tuple[Path, Path]) -> None:
    alone = ranged_model()
    wanted = [alone(torch.cat([ranged_batch(rank, step) for rank in (0, 1)])) for step in (0, 1)]
    for rank in (0, 1):
        found = seen(made[0], rank)["ranges"]
        for name, buffer in alone.named_buffers():
            assert_bit_equal(found[name], buffer)
        for got, want in zip(found["outputs"], wanted, strict=True):
            assert_bit_equal(got, want.detach().chunk(2)[rank])
