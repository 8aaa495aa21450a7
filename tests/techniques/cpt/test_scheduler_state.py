"""PrecisionScheduler: its state, and states of other plans."""

import copy
import pickle
from typing import Any

import pytest
import torch

from lpkernels.techniques.cpt import PrecisionScheduler
from tests.techniques.cpt.fakes import (
    Named,
    bits_of,
    small_model,
)


def test_state_goes_on_in_the_middle_of_a_cycle() -> None:
    first = PrecisionScheduler(small_model(), 16, bits=(3, 8), cycles=2)
    for _ in range(11):
        first.step()
    state = first.state_dict()
    assert pickle.loads(pickle.dumps(state)) == state == copy.deepcopy(state)
    assert torch.equal(torch.tensor(state["last_step"]), torch.tensor(11))
    model = small_model()
    second = PrecisionScheduler(model, 16, bits=(3, 8), cycles=2)
    second.load_state_dict(state)
    assert bits_of(model) == [(5, 8)] * 2
    assert second.cost() == first.cost()
    for _ in range(6):
        first.step()
        second.step()
        assert second.get_last_bits() == first.get_last_bits()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"total_steps": 32}, "expected the state of total_steps=32, got 16"),
        ({"cycles": 4}, "expected the state of schedules=.*'cycles': 4"),
        ({"bits": (4, 8)}, r"expected the state of schedules=.*\[4, 8\]"),
        ({"profile": lambda z: z}, "expected the state of schedules=.*function"),
    ],
    ids=["total", "cycles", "bits", "profile"],
)
def test_state_of_another_plan_is_refused(changes: dict[str, Any], match: str) -> None:
    settings: dict[str, Any] = {"total_steps": 16, "bits": (3, 8), "cycles": 2}
    state = PrecisionScheduler(small_model(), **settings).state_dict()
    model = small_model()
    other = PrecisionScheduler(model, **{**settings, **changes})
    before = other.state_dict(), bits_of(model)
    with pytest.raises(ValueError, match=match):
        other.load_state_dict({**state, "last_step": 9})
    assert (other.state_dict(), bits_of(model)) == before


def test_what_is_no_state_is_refused() -> None:
    scheduler = PrecisionScheduler(Named(), 8, bits=(3, 8), cycles=1)
    with pytest.raises(ValueError, match="got no total_steps; is this the state of a Precision"):
        scheduler.load_state_dict({"last_step": 3})
    with pytest.raises(TypeError, match="load_state_dict: expected a dict, got list"):
        scheduler.load_state_dict([1])  # type: ignore[arg-type]
