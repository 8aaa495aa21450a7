"""The precision range test: a synthetic one, and that nothing is changed by it."""

import copy
import math
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lpkernels.nn import Linear
from lpkernels.techniques.cpt import precision_range_test
from lpkernels.techniques.cpt.range_test import PrecisionRange
from lpkernels.techniques.loss_scaling import MasterWeights
from tests.techniques.cpt.fakes import bits_of, small_model
from tests.techniques.loss_scaling.optimizers import assert_same

# The accuracies rise from 0.1 and end at these values.
ENDS = {2: 0.1, 3: 0.5, 4: 0.8, 5: 0.8, 6: 0.801, 7: 0.801, 8: 0.801}


class Synthetic:
    """Accuracies that rise from 0.1 to their end over 100 steps; with noise, first the same at all
    candidates, then each candidate's own."""

    def __init__(self, ends: dict[int, float], noise: tuple[float, float] = (0.0, 0.0)) -> None:
        self.ends, self.noise, self.bits, self.step = ends, noise, 0, 0
        self.asked: list[int] = []

    def set_bits(self, bits: int) -> None:
        self.bits, self.step = bits, 0
        self.asked.append(bits)

    def __call__(self) -> float:
        self.step += 1
        accuracy = 0.1 + (self.ends[self.bits] - 0.1) * min(1.0, self.step / 100)
        for seed, scale in zip((self.step, [self.step // 10, self.bits]), self.noise, strict=True):
            accuracy += scale * np.random.default_rng(seed).standard_normal()
        return min(1.0, max(0.0, accuracy))


def of_synthetic(ends: dict[int, float], *noise: Any, **options: Any) -> PrecisionRange:
    training = Synthetic(ends, *noise)
    options = {"restore": [], "candidates": sorted(ends)} | options
    return precision_range_test(training, training.set_bits, **options)


def test_the_bounds_are_shares_of_the_highest_improvement() -> None:
    training = Synthetic(ENDS)
    result = precision_range_test(training, training.set_bits, restore=[])
    # 3 bits rise, by 0.57 of the improvement, and 4 bits by all but a little.
    assert result.bits == (4, 5) and result.reason == ""
    assert str(result).splitlines()[-1].startswith("from 4 to 5 bits, ")
    assert training.asked == [level.bits for level in result.trace] == list(range(2, 9))
    assert [level.share >= 0.9 for level in result.trace] == [False, False] + [True] * 5
    third, top = result.trace[1], result.trace[-1]
    assert len(third.accuracy) == 200
    assert third.last == pytest.approx(0.5) and third.first == pytest.approx(0.1 + 0.4 * 0.255)
    assert third.share == pytest.approx((third.last - top.first) / (top.last - top.first))
    assert (top.share, top.spread) == (1, 0)


@pytest.mark.parametrize("ends, options, bits", [
    # The share decides, and the threshold says whether more bits bring something.
    (ENDS, {"share": 0.4}, (3, 4)), ({2: 0.1, 3: 0.5, 4: 0.6, 5: 0.7}, {}, (5, 5)),
    ({2: 0.1, 3: 0.63, 4: 0.65, 5: 0.7, 6: 0.7}, {}, (5, 6)), ({3: 0.5}, {}, (3, 3)),
    ({2: 0.1, 3: 0.63, 4: 0.65, 5: 0.7, 6: 0.7}, {"share": 0.8}, (3, 5)),
    ({2: 0.1, 3: 0.63, 4: 0.65, 5: 0.7, 6: 0.7}, {"share": 0.8, "threshold": 0.2}, (3, 4)),
    # Two neighbours that agree by chance do not hide a wider candidate that is better.
    ({2: 0.63, 3: 0.65, 4: 0.65, 5: 0.7}, {"share": 0.8}, (2, 5)),
    # Accuracies that all rise are told apart by their shares, whatever their unit.
    ({2: 0.1001, 3: 0.1005, 4: 0.1008, 5: 0.1008}, {}, (4, 5)),
    # A narrower candidate that improves a little more makes no width below the last surely enough.
    ({2: 0.2, 3: 0.45, 4: 0.59, 5: 0.62, 6: 0.6, 7: 0.6}, {}, (4, 7)),
])  # fmt: skip
def test_the_bounds_follow_share_and_threshold(
    ends: dict[int, float], options: dict[str, Any], bits: tuple[int, int]
) -> None:
    assert of_synthetic(ends, **options).bits == bits


def flat(end: float, *bits: int) -> dict[int, float]:
    return dict.fromkeys(bits, end)


@pytest.mark.parametrize("ends, noise, reason", [
    (flat(0.1, 2, 3, 4), (0.05, 0.0), "at 4 bits the accuracy rises by .* its noise of"),
    # A network that gets worse at the highest bits improves at none.
    ({2: 0.5, 3: 0.05}, (0.0, 0.0), "at 3 bits the accuracy rises by -"),
    # Noise of each candidate's own hides which of them reach the share.
    (flat(0.5, 2, 3, 4, 5, 6), (0.0, 0.3), "the lowest bound may be any of 2 to 6 bits"),
    # Training that goes worse at more bits is as uncertain as that difference.
    ({2: 0.6, 3: 0.63, 4: 0.45, 5: 0.45, 6: 0.65, 7: 0.65}, (0.0, 0.0),
     "the lowest bound may be any of 2 to 7 bits"),
])  # fmt: skip
def test_no_bits_where_the_trace_cannot_tell(ends, noise, reason):
    result = of_synthetic(ends, noise)
    assert result.bits is None and re.search(reason, result.reason)
    assert [level.bits for level in result.trace] == list(ends)
    assert str(result).splitlines()[-1] == f"no bits: {result.reason}"


@pytest.mark.parametrize("noise", [(0.0, 0.0), (0.05, 0.0), (0.05, 0.01)])
def test_a_little_noise_leaves_the_lowest_bound(noise: tuple[float, float]) -> None:
    result = of_synthetic({2: 0.2, 3: 0.45, 4: 0.57, 5: 0.6, 6: 0.6}, noise)
    assert result.bits and result.bits[0] == 4


class Counter:
    """Another object that has a state."""

    count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


class Noisy(Linear):
    """A layer with a buffer that no state_dict holds, one that its first forward pass makes, and an
    extra state that changes in place."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes, recipe="cpt_fu2021")
        self.register_buffer("hidden", torch.zeros(3), persistent=False)
        self.calls = [0]

    def get_extra_state(self) -> list[int]:
        return self.calls

    def set_extra_state(self, state: list[int]) -> None:
        self.calls = state

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(1)
        self.hidden.add_(torch.rand(3))
        self.register_buffer("late", torch.ones(1))
        return super().forward(x)


def momentum(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": momentum,
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "masters": lambda parameters: MasterWeights(momentum(parameters), weight="bf16"),
}


class Training:
    """A user's loop that changes every kind of state, and notes the loss of each step."""

    def __init__(self, optimizer: str = "adam") -> None:
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        self.model = small_model(Noisy)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.counter, self.failing = Counter(), False
        self.losses: list[float] = []

    def __call__(self, batch: Tensor | float = 0.0) -> float:
        x = torch.randn(8, 6) + random.random() + np.random.rand() + batch  # noqa: NPY002
        # Gradients are cleared in place or replaced by new tensors.
        self.optimizer.zero_grad(set_to_none=self.counter.count % 3 == 2)
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        self.counter.count += 1
        self.model.eval()
        self.optimizer.param_groups[0]["lr"] *= 0.9
        if self.failing and self.counter.count % 4 == 0:
            raise OSError("disk")
        return min(1.0, self.counter.count / 20)

    def set_bits(self, bits: int) -> None:
        self.model.train()
        for layer in (self.model[0], self.model[4]):
            layer.set_precision(bits, 8)

    def everything(self) -> list[Any]:
        values: list[Any] = []
        for module in self.model.modules():
            values += [module.training, sorted(module._buffers)]
        tensors = [*self.model.parameters(), *self.model.buffers()]
        tensors += [p.grad for p in self.model.parameters() if p.grad is not None]
        values += [tensor.detach().clone() for tensor in tensors]
        numbers = np.random.get_state()[1].tolist()  # noqa: NPY002
        values += [torch.get_rng_state(), numbers, random.getstate(), list(self.model[0].calls)]
        values += [bits_of(self.model), copy.deepcopy(self.optimizer.state_dict())]
        return [*values, self.counter.count]


@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_all_is_as_before_to_the_bit(optimizer: str, steps: int, failing: bool) -> None:
    training = Training(optimizer)
    for _ in range(steps):
        training()
    training.failing = failing
    before, addresses = training.everything(), [p.data_ptr() for p in training.model.parameters()]
    options: dict[str, Any] = {"candidates": (3, 5), "window": 10, "steps_per_level": 10}
    options["restore"] = (training.model, training.optimizer, training.counter)
    if failing:
        with pytest.raises(OSError, match="disk"):
            precision_range_test(training, training.set_bits, **options)
    else:
        result = precision_range_test(training, training.set_bits, **options)
        # Both start from the same counter.
        assert result.trace[0].accuracy == result.trace[1].accuracy
    assert_same(training.everything(), before)
    assert [p.data_ptr() for p in training.model.parameters()] == addresses


@pytest.mark.parametrize("own_generator", [False, True])
def test_candidates_see_the_same_weights_states_draws_and_batches(own_generator: bool) -> None:
    training = Training()
    generator = torch.Generator() if own_generator else None
    loader = torch.utils.data.DataLoader(
        torch.arange(6.0), batch_size=1, shuffle=True, generator=generator
    )
    before = generator.get_state() if generator else None
    batches: list[float] = []

    def step(batch: Tensor) -> float:
        batches.append(batch.item())
        return training(batch)

    # Bits change nothing here. Twenty steps pass through the six batches more than three times, in
    # another order each time.
    precision_range_test(
        step,
        lambda bits: training.model.train(),
        restore=[training.model, training.optimizer, training.counter],
        batches=loader,
        candidates=(3, 5, 8),
        window=10,
        steps_per_level=20,
    )
    assert training.losses == training.losses[:20] * 3 and batches == batches[:20] * 3
    passes = [batches[i : i + 6] for i in (0, 6, 12)]
    assert passes[0] != passes[1] and all(sorted(numbers) == list(range(6)) for numbers in passes)
    if generator:
        assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("options, error, match", [
    ({"candidates": (4, 3)}, ValueError, r"candidates: expected ascending bits .* got \[4, 3"),
    ({"window": 300}, ValueError, "steps_per_level: expected at least 300, got 200"),
    ({"window": 9}, ValueError, "window: expected at least 10, got 9"),
    ({"share": 1.0}, ValueError, "share: expected a finite number above 0 and below 1, got 1.0"),
    ({"batches": iter([1])}, TypeError, "batches: expected data that can begin anew, .* list_iter"),
    ({"set_bits": 8}, TypeError, r"set_bits: expected a function set_bits\(bits\), got int 8"),
    ({"restore": Counter()}, TypeError, r"expected a list such as \[model, .* a single Counter"),
    ({"restore": [3]}, TypeError, "things with state_dict and load_state_dict, got int"),
    ({"step_fn": 0.5}, TypeError, r"step_fn: expected a function .*, got float 0.5"),
])  # fmt: skip
def test_wrong_input_runs_nothing(options, error, match):
    training = Synthetic(ENDS)
    with pytest.raises(error, match=match):
        precision_range_test(
            **{"step_fn": training, "set_bits": training.set_bits, "restore": [], **options}
        )
    assert training.asked == []


@pytest.mark.parametrize("value", [2.5, -0.25, math.nan])
def test_a_loss_is_refused_at_its_first_step_and_told_how_it_becomes_an_accuracy(value: float):
    calls: list[int] = []
    match = f"between 0 and 1, got {value} at 2 bits; .* return math.exp.-loss. for a loss"
    with pytest.raises(ValueError, match=match):
        precision_range_test(lambda: calls.append(1) or value, lambda bits: None, restore=[])
    assert len(calls) == 1
