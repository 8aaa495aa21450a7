"""Converted layers in a loop of one's own, under DDP and FSDP2."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.compare import assert_bit_equal
from tests.distributed.made import Made
from tests.distributed.runs import WAYS
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
