"""recalibrate: statistics of norms and ranges anew, all else as it was."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lpkernels.techniques.cpt import PrecisionScheduler, recalibrate
from lpkernels.techniques.cpt.recalibration import recalibrated
from tests.loops import each
from tests.techniques.cpt.fakes import Quantized, small_model
from tests.techniques.loss_scaling.optimizers import assert_same


class Ranged(Quantized):
    """A layer that keeps the largest input of training since it was reset."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("largest", torch.full((), 99.0))

    def reset_range(self) -> None:
        self.largest.zero_()

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.largest.copy_(torch.maximum(self.largest, x.abs().max()))
        return super().forward(x)


def batches(count: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(16, 6, generator=generator) * (i + 1) for i in range(count)]


def statistics(norm: nn.Module) -> list[Tensor]:
    return [buffer.clone() for buffer in norm.buffers()]


def test_batch_norm_gets_the_mean_over_the_batches_at_the_bits() -> None:
    model = small_model()
    recalibrate(model, batches(), 4)
    first, norm = model[0], model[1]
    with torch.no_grad():
        outputs = [first(x) for x in batches()]
    assert first.seen == [4] * 8
    means = torch.stack([y.mean(0) for y in outputs]).mean(0)
    variances = torch.stack([y.var(0) for y in outputs]).mean(0)
    torch.testing.assert_close(norm.running_mean, means)
    torch.testing.assert_close(norm.running_var, variances)
    assert norm.num_batches_tracked == 4


@each("training", [True, False])
def test_all_else_is_as_it_was(training: bool) -> None:
    model = small_model(Ranged).train(training)
    model[3].training = not training
    model(torch.randn(8, 6)).sum().backward()

    def everything() -> list[Any]:
        found = [(m.training, getattr(m, "momentum", None)) for m in model.modules()]
        tensors = [(p.detach().clone(), p.grad.clone()) for p in model.parameters()]
        return [found, tensors, torch.get_rng_state()]

    before = everything()
    recalibrate(model, batches(), 8)
    assert_same(everything(), before)
    assert model[1].momentum == 0.1


def test_ranges_start_anew_in_training_and_dropout_drops_nothing() -> None:
    model = small_model(Ranged)
    recalibrate(model, batches())
    assert model[0].largest == max(x.abs().max() for x in batches())
    assert 0 < model[4].largest < 99
    seen = model[4].largest.clone()
    torch.manual_seed(7)
    recalibrate(model, batches())
    assert torch.equal(model[4].largest, seen)


def test_bits_may_be_a_scheduler_and_batches_pairs_and_a_function_may_call_the_model() -> None:
    model, other = small_model(), small_model()
    scheduler = PrecisionScheduler(model, 8, bits=(3, 6), cycles=1)
    recalibrate(model, [(x, None) for x in batches()], scheduler)
    assert set(model[0].seen) == {6} and model[0].bits == (3, 8)
    recalibrate(other, [{"x": x} for x in batches()], 6, forward=lambda m, batch: m(batch["x"]))
    assert_same(statistics(model[1]), statistics(other[1]))


def test_a_block_gives_the_statistics_back() -> None:
    model = small_model()
    before = statistics(model[1])
    with recalibrated(model, batches()):
        assert not torch.equal(model[1].running_mean, before[0])
    assert_same(statistics(model[1]), before)


def failing() -> Any:
    yield batches()[0]
    raise OSError("disk")


ERRORS = [([], ValueError, "at least one batch, got an empty loader"), (failing(), OSError, "disk")]


@each("loader, error, match", ERRORS)
def test_after_an_error_all_is_as_before(loader, error, match):
    model = small_model(Ranged)
    before = statistics(model)
    with pytest.raises(error, match=match):
        recalibrate(model, loader)
    assert_same(statistics(model), before)
    assert model.training and model[1].momentum == 0.1


def test_a_model_without_statistics_is_refused() -> None:
    with pytest.raises(ValueError, match="Linear has no running statistics to redo"):
        recalibrate(nn.Linear(2, 2), batches())
    with pytest.raises(ValueError, match="no module of BatchNorm1d has a precision to set"):
        recalibrate(nn.BatchNorm1d(6), batches(), 8)
