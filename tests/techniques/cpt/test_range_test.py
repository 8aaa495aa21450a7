"""The precision range test: a synthetic one, and that nothing is changed by it."""

import copy
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lpkernels.techniques.cpt import NoPrecisionPassed, precision_range_test
from lpkernels.techniques.loss_scaling import MasterWeights
from tests.loops import each, rows
from tests.techniques.cpt.fakes import Quantized, small_model
from tests.techniques.loss_scaling.optimizers import assert_same

# The accuracies rise from 0.1 and end at these values.
ENDS = {2: 0.1, 3: 0.5, 4: 0.8, 5: 0.8, 6: 0.801, 7: 0.801, 8: 0.801}


class Synthetic:
    """Accuracies that rise from 0.1 to their end over 100 steps."""

    def __init__(self, ends: dict[int, float]) -> None:
        self.ends, self.bits, self.step = ends, 0, 0
        self.asked: list[int] = []

    def set_bits(self, bits: int) -> None:
        self.bits, self.step = bits, 0
        self.asked.append(bits)

    def __call__(self) -> float:
        self.step += 1
        return 0.1 + (self.ends[self.bits] - 0.1) * min(1.0, self.step / 100)


def test_the_bounds_of_a_synthetic_training() -> None:
    made = Synthetic(ENDS)
    result = precision_range_test(made, made.set_bits)
    assert result.bits == (3, 4)
    assert made.asked == [level.bits for level in result.trace] == list(range(2, 9))
    assert [level.passed for level in result.trace] == [False] + [True] * 6
    third = result.trace[1]
    assert len(third.accuracy) == 200
    assert third.last == pytest.approx(0.5) and third.first == pytest.approx(0.1 + 0.4 * 0.255)
    # A loss as a probability gives the same bounds.
    made = Synthetic(ENDS)
    found = precision_range_test(lambda: math.exp(-(1 - made())), made.set_bits)
    assert found.bits == (3, 4)


@rows(
    "ends, threshold, bits",
    ({2: 0.1, 3: 0.5, 4: 0.6, 5: 0.7}, 0.01, (3, 5)),
    ({2: 0.1, 3: 0.5}, 0.01, (3, 3)), ({2: 0.9, 3: 0.9, 4: 0.9}, 0.01, (2, 3)), (ENDS, 0.5, (4, 5)),
    # Equal accuracies are within a threshold of 0.
    ({2: 0.1, 3: 0.5, 4: 0.8, 5: 0.8, 6: 0.9}, 0.0, (3, 4)),
)  # fmt: skip
def test_other_bounds(ends: dict[int, float], threshold: float, bits: tuple[int, int]) -> None:
    made = Synthetic(ends)
    found = precision_range_test(made, made.set_bits, candidates=sorted(ends), threshold=threshold)
    assert found.bits == bits


def test_none_that_passes_is_an_error_with_the_trace() -> None:
    made = Synthetic(dict.fromkeys(range(2, 5), 0.1))
    with pytest.raises(NoPrecisionPassed, match=r"more than 0.01 \(2 bits: 0.1 to 0.1") as caught:
        precision_range_test(made, made.set_bits, candidates=range(2, 5))
    assert [level.bits for level in caught.value.trace] == [2, 3, 4]


class Counter:
    """Another object that has a state."""

    count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


class Noisy(Quantized):
    """A layer with a buffer that no state_dict holds and one that its first forward pass makes."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("hidden", torch.zeros(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
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
    """A user's loop that changes every kind of state."""

    def __init__(self, optimizer: str = "adam") -> None:
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        self.model = small_model(Noisy)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.counter, self.failing = Counter(), False

    def __call__(self) -> float:
        x = torch.randn(8, 6) + random.random() + np.random.rand()  # noqa: NPY002
        # Gradients are cleared in place or replaced by new tensors.
        self.optimizer.zero_grad(set_to_none=self.counter.count % 3 == 2)
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.counter.count += 1
        self.model.eval()
        self.optimizer.param_groups[0]["lr"] *= 0.9
        self.optimizer.param_groups[0]["seen"] = True
        if self.failing and self.counter.count % 7 == 0:
            raise OSError("disk")
        return min(1.0, self.counter.count / 20)

    def set_bits(self, bits: int) -> None:
        self.model.train()
        for layer in (self.model[0], self.model[4]):
            layer.set_precision(bits, 8)

    def everything(self) -> list[Any]:
        found: list[Any] = []
        for module in self.model.modules():
            found += [module.training, sorted(module._buffers), getattr(module, "bits", None)]
        tensors = [*self.model.parameters(), *self.model.buffers()]
        tensors += [p.grad for p in self.model.parameters() if p.grad is not None]
        found += [tensor.detach().clone() for tensor in tensors]
        numbers = np.random.get_state()[1].tolist()  # noqa: NPY002
        found += [torch.get_rng_state(), numbers, random.getstate()]
        return [*found, copy.deepcopy(self.optimizer.state_dict()), self.counter.count]


@each("optimizer, steps, failing", OPTIMIZERS, [0, 3], [False, True])
def test_all_is_as_before_to_the_bit(optimizer: str, steps: int, failing: bool) -> None:
    training = Training(optimizer)
    for _ in range(steps):
        training()
    training.failing = failing
    before, addresses = training.everything(), [p.data_ptr() for p in training.model.parameters()]
    options: dict[str, Any] = {"candidates": (3, 5), "window": 2, "steps_per_level": 5}
    options["restore"] = (training.model, training.optimizer, training.counter)
    if failing:
        with pytest.raises(OSError, match="disk"):
            precision_range_test(training, training.set_bits, mode="continue", **options)
    else:
        result = precision_range_test(training, training.set_bits, **options)
        # Both start from the same counter.
        assert result.trace[0].accuracy == result.trace[1].accuracy
    assert_same(training.everything(), before)
    assert [p.data_ptr() for p in training.model.parameters()] == addresses


def test_continue_goes_on_from_level_to_level() -> None:
    training = Training()
    options: dict[str, Any] = {"window": 1, "steps_per_level": 4, "restore": (training.counter,)}
    options |= {"candidates": (3, 5), "mode": "continue"}
    result = precision_range_test(training, training.set_bits, **options)
    assert result.trace[1].accuracy == (0.25, 0.3, 0.35, 0.4)
    assert training.counter.count == 0


@rows(
    "options, error, match",
    ({"candidates": ()}, ValueError, r"candidates: expected ascending bits .* got \[\]"),
    ({"candidates": (4, 3)}, ValueError, r"candidates: expected ascending bits .* got \[4, 3"),
    ({"candidates": (3, 40)}, ValueError, "candidates: expected 1 to 32 bits, got 40"),
    ({"window": 0}, ValueError, "window: expected at least 1, got 0"),
    ({"window": 300}, ValueError, "steps_per_level: expected at least window=300, got 200"),
    ({"threshold": -0.1}, ValueError, "threshold: expected a finite number of at least 0"),
    ({"mode": "once"}, ValueError, "mode: expected one of within, continue"),
    ({"set_bits": 8}, TypeError, r"set_bits: expected a function set_bits\(bits\), got int 8"),
    ({"restore": [3]}, TypeError, "things with state_dict and load_state_dict, got int"),
    ({"step_fn": 0.5}, TypeError, r"step_fn: expected a function .*, got float 0.5"),
)
def test_wrong_input_runs_nothing(options, error, match):
    made = Synthetic(ENDS)
    with pytest.raises(error, match=match):
        precision_range_test(**{"step_fn": made, "set_bits": made.set_bits, **options})
    assert made.asked == []


@each("value", [2.5, -0.25, math.nan])
def test_a_loss_is_refused_at_its_first_step_and_told_how_it_becomes_an_accuracy(value: float):
    calls: list[int] = []
    match = f"between 0 and 1, got {value} at 2 bits; .* return math.exp.-loss. for a loss"
    with pytest.raises(ValueError, match=match):
        precision_range_test(lambda: calls.append(1) or value, lambda bits: None)
    assert len(calls) == 1


def test_the_result_prints_as_a_table() -> None:
    made = Synthetic(ENDS)
    found = precision_range_test(made, made.set_bits, candidates=(2, 3, 4, 5, 6))
    assert str(found).splitlines() == [
        "bits  first window  last window    rise",
        "   2        0.1000       0.1000  0.0000  does not rise",
        "   3        0.2020       0.5000  0.2980  lowest",
        "   4        0.2785       0.8000  0.5215  highest",
        "   5        0.2785       0.8000  0.5215",
        "   6        0.2788       0.8010  0.5222",
        "from 3 to 4 bits, by windows of 50 steps and a threshold of 0.01",
    ]
    # One candidate may be both bounds.
    found = precision_range_test(made, made.set_bits, candidates=(3,))
    assert "lowest, highest" in str(found)


def test_a_module_with_extra_state_gets_it_back() -> None:
    class Extra(nn.Linear):
        count: list[int]

        def get_extra_state(self) -> list[int]:
            return self.count

        def set_extra_state(self, state: list[int]) -> None:
            self.count = state

    model = Extra(2, 2)
    model.count = [1]
    options = {"candidates": (2,), "window": 1, "steps_per_level": 2, "restore": [model]}
    precision_range_test(
        lambda: model.count.append(2) or len(model.count) / 10, lambda bits: None, **options
    )
    assert model.count == [1]
