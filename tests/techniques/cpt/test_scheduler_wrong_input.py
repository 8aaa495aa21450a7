"""PrecisionScheduler: what targets or arguments refuse changes nothing."""

import threading
from typing import Any

import pytest
import torch
from torch import nn

from lpkernels.techniques.cpt import PrecisionScheduler
from tests.loops import each
from tests.techniques.cpt.fakes import Named, Quantized, Summing, bits_of, small_model

FLOATS = {3: "e2m0_sat", 4: "fp4_e2m1", 5: "e2m2_sat"}


class Refusing(Quantized):
    """A layer that takes up to 6 bits, and keeps what it was told in a tensor and a list."""

    MOST = 6

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("width", torch.tensor(16))
        self.told: list[int] = []

    def set_precision(self, forward_bits: int, backward_bits: int, **options: Any) -> None:
        self.told.append(forward_bits)
        self.width.fill_(forward_bits)
        super().set_precision(forward_bits, backward_bits, **options)


def test_a_width_that_a_target_refuses_changes_nothing() -> None:
    model = nn.Sequential(Quantized(6, 6), Refusing(6, 6))
    with pytest.raises(
        ValueError, match=r"target '1' \(Refusing\) does not take .*'forward': 7.*at most 6 bits"
    ):
        PrecisionScheduler(model, 8, bits=(3, 8), cycles=1)
    assert bits_of(model) == [(16, 16)] * 2
    assert model[1].told == [] and model[1].width == 16
    PrecisionScheduler(model, 8, bits=(3, 6), cycles=1)
    assert model[1].told == [3] and model[1].width == 3


class Awkward(Quantized):
    """A layer that is made in its own way, and holds what cannot be copied."""

    def __new__(cls, *sizes: int) -> "Awkward":
        if not sizes:
            raise TypeError("sizes are missing")
        return super().__new__(cls)

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.lock = threading.Lock()


def test_targets_that_cannot_be_copied_as_a_whole_are_asked_too() -> None:
    model = nn.Sequential(Awkward(3, 3))
    PrecisionScheduler(model, 8, bits=(3, 8), cycles=1)
    assert bits_of(model) == [(3, 8)]
    with pytest.raises(ValueError, match="at most 16 bits, got 17"):
        PrecisionScheduler(model, 8, bits=(3, 17), cycles=1)
    assert bits_of(model) == [(3, 8)]


PLAIN = nn.Sequential(nn.Linear(2, 2))
LAYER, SUMS = Quantized(2, 2), Summing(2, 2)
TARGETS = [
    (PLAIN, {}, ValueError, "no module of Sequential has a precision to set; convert"),
    ([], {}, ValueError, "expected at least one target, got none"),
    (3, {}, TypeError, "expected a model, an object with set_precision.* got int"),
    (print, {"accumulator_bits": 4}, ValueError, "and no accumulator; give objects"),
]
OPTIONS = [
    ({"bits": (8, 3)}, ValueError, r"bits: expected \(lowest, highest\), got \(8, 3"),
    ({"bits": (3, 25)}, ValueError, "bits: expected 1 to 24 bits, got 25"),
    ({"bits": None}, ValueError, "expected bits, accumulator_bits or both"),
    ({"cycles": 0}, ValueError, "cycles: expected at least 1, got 0"),
    ({"cycles": 9}, ValueError, "got 8 steps and cycles=9"),
    ({"total_steps": 0}, ValueError, "total_steps: expected at least 1, got 0"),
    ({"grad_bits": 0}, ValueError, "grad_bits: expected at least 1, got 0"),
    ({"eval_bits": 99}, ValueError, "eval_bits: expected 1 to 24 bits, got 99"),
    ({"formats": "float"}, ValueError, "target Named takes no formats="),
    ({"accumulator_bits": 4}, ValueError, "target Named has no set_accumulator"),
]
FORMATS = [
    ({"eval_bits": 20}, ValueError, "does not take {'forward': 20"),
    ({"formats": FLOATS}, ValueError, "the table lacks 6, 7, 8 of the sch"),
    ({"formats": "float", "eval_bits": 9}, ValueError, "the table lacks 9 of the scheduled"),
    ({"formats": "e4m3"}, ValueError, "text with {bits} in it once"),
    ({"formats": 3}, TypeError, "formats: expected a mapping"),
]
ACCUMULATORS = [
    ({"accumulators": {5: "e5m5"}}, ValueError, "accumulators: the table lacks 4"),
    ({"accumulators": 3}, TypeError, "accumulators: expected a text"),
]
WRONG = [
    *TARGETS,
    *((Named(), *row) for row in OPTIONS),
    *((LAYER, *row) for row in FORMATS),
    *((SUMS, {"accumulator_bits": 4} | options, *row) for options, *row in ACCUMULATORS),
]


@each("targets, options, error, match", WRONG)
def test_wrong_input(targets, options, error, match):
    settings = {"total_steps": 8, "bits": (3, 8), "cycles": 1, **options}
    with pytest.raises(error, match=match):
        PrecisionScheduler(targets, **settings)
    if isinstance(targets, Named):
        assert targets.calls == []
    if isinstance(targets, Quantized):
        assert targets.bits == (16, 16)


def test_at_refuses_bits_that_a_table_lacks() -> None:
    model = small_model()
    scheduler = PrecisionScheduler(model, 8, bits=(3, 8), cycles=1, formats="float")
    with pytest.raises(ValueError, match="that the table of formats has, got 9"), scheduler.at(9):
        pass
    assert bits_of(model) == [(3, 8)] * 2
