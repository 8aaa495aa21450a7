"""recalibrate: statistics of norms and ranges anew, all else as it was."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lpkernels.techniques.cpt import PrecisionScheduler, recalibrate
from lpkernels.techniques.cpt.scheduler import recalibrated
from tests.techniques.cpt.fakes import bits_of, small_model
from tests.techniques.loss_scaling.optimizers import assert_same


def batches(count: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(16, 6, generator=generator) * (i + 1) for i in range(count)]


def statistics(model: nn.Module) -> list[Tensor]:
    return [buffer.clone() for buffer in model.buffers()]


def test_batch_norm_gets_the_mean_over_the_batches_at_the_bits() -> None:
    model, fresh = small_model(), small_model()
    recalibrate(model, batches(), 4)
    assert bits_of(model) == [(4, 4)] * 2
    fresh[0].set_precision(4, 4)
    with torch.no_grad():
        outputs = [fresh[0](x) for x in batches()]
    norm = model[1]
    torch.testing.assert_close(norm.running_mean, torch.stack([y.mean(0) for y in outputs]).mean(0))
    torch.testing.assert_close(norm.running_var, torch.stack([y.var(0) for y in outputs]).mean(0))
    assert norm.num_batches_tracked == 4
    # Ranges start anew, and grow in training.
    assert torch.equal(model[0].input_range, fresh[0].input_range)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluating"])
def test_recalibration_leaves_modes_parameters_and_random_state(training: bool) -> None:
    model = small_model().train(training)
    model[3].training = not training
    model(torch.randn(8, 6)).sum().backward()

    def everything() -> list[Any]:
        modes = [(m.training, getattr(m, "momentum", None)) for m in model.modules()]
        tensors = [(p.detach().clone(), p.grad.clone()) for p in model.parameters()]
        return [modes, tensors, torch.get_rng_state()]

    before = everything()
    recalibrate(model, batches(), 8)
    assert_same(everything(), before)


def test_dropout_drops_nothing() -> None:
    model = small_model()
    recalibrate(model, batches())
    before = statistics(model)
    torch.manual_seed(7)
    recalibrate(model, batches())
    assert_same(statistics(model), before)


def test_bits_may_be_a_scheduler_and_batches_pairs_and_a_function_may_call_the_model() -> None:
    model, other = small_model(), small_model()
    scheduler = PrecisionScheduler(model, 8, bits=(3, 6), cycles=1, grad_bits=6)
    recalibrate(model, [(x, None) for x in batches()], scheduler)
    assert bits_of(model) == [(3, 6)] * 2
    recalibrate(other, [{"x": x} for x in batches()], 6, forward=lambda m, batch: m(batch["x"]))
    assert_same(statistics(model), statistics(other))


def test_a_block_gives_the_statistics_back() -> None:
    model = small_model()
    before = statistics(model)
    with recalibrated(model, batches()):
        assert not torch.equal(model[1].running_mean, before[2])
    assert_same(statistics(model), before)


def failing() -> Any:
    yield batches()[0]
    raise OSError("disk")


@pytest.mark.parametrize(
    "loader, error, match",
    [([], ValueError, "at least one batch, got an empty loader"), (failing(), OSError, "disk")],
    ids=["empty", "failing"],
)
def test_after_an_error_all_is_as_before(loader, error, match):
    model = small_model()
    model(batches()[0])
    before = statistics(model)
    with pytest.raises(error, match=match):
        recalibrate(model, loader)
    assert_same(statistics(model), before)
    assert model.training and model[1].momentum == 0.1
