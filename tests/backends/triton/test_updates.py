"""An optimizer's step in one pass."""

from typing import Any

import pytest
import torch

from lpkernels.arithmetic import Step
from lpkernels.backends.triton import BACKEND
from lpkernels.ops import UpdateTensors
from tests.backends import by_hand
from tests.support import updates

SHAPES = ((7, 5), (1,), (0,), (1030,))
# Origins lie anywhere in a word of draws and in a block, and before a border of a row key.
ORIGINS = (6, 1023, 1, (1 << 34) - 7)


def updated(
    device: str, tensors: UpdateTensors, step: Step, formats: updates.Formats, **options: Any
) -> UpdateTensors:
    own = UpdateTensors(*([x.to(device) for x in kind] for kind in updates.copied(tensors)))
    call = updates.call_of(step, formats, len(own.weights), device=device, **options)
    by_hand.update(BACKEND, own, *call)
    return UpdateTensors(*([x.cpu() for x in kind] for kind in own))


def check_update(device: str, *case: Any, **options: Any) -> None:
    want = updates.run(*case, "reference", **options)
    updates.assert_same(updated(device, *case, **options), want)


@pytest.mark.parametrize("name", ["momentum", "adamw"], ids=str)
@pytest.mark.parametrize("kind", updates.FORMATS, ids=str)
def test_updates_have_the_bits_of_the_reference(name: str, kind: str, device: str) -> None:
    step, formats = updates.STEPS[name], updates.FORMATS[kind]
    tensors = updates.tensors_of(step, formats, SHAPES, special=True)
    check_update(device, tensors, step, formats, scale=3.0)


@pytest.mark.parametrize("kind", ["fp32", "drawn", "bytes", "beyond_lanes"], ids=str)
def test_updates_draw_for_parts_what_they_do_for_the_whole(kind: str, device: str) -> None:
    step, formats = updates.STEPS["adamw"], updates.FORMATS[kind]
    tensors = updates.tensors_of(step, formats, SHAPES, special=True)
    check_update(device, tensors, step, formats, origins=ORIGINS)


@pytest.mark.parametrize("name", updates.STEPS, ids=str)
@pytest.mark.parametrize("begins", [False, True], ids=str)
def test_updates_make_every_step(name: str, begins: bool, device: str) -> None:
    step, formats = updates.STEPS[name], updates.FORMATS["drawn"]
    tensors = updates.tensors_of(step, formats, [(33,)])
    check_update(device, tensors, step, formats, begins=begins)


@pytest.mark.parametrize("begins", [False, True], ids=["goes on", "begins"])
@pytest.mark.parametrize("step", updates.steps_to_zeros().values(), ids=updates.steps_to_zeros())
def test_updates_of_zeros_have_the_signs_of_the_reference(
    step: Step, begins: bool, device: str
) -> None:
    formats = updates.FORMATS["fp32"]
    tensors = updates.tensors_of(step, formats, [(16,)], values=updates.signed_zeros)
    check_update(device, tensors, step, formats, begins=begins)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"], ids=str)
def test_updates_leave_everything_as_it_is_by_their_flag(name: str, device: str) -> None:
    step, formats = updates.STEPS[name], updates.FORMATS["bytes"]
    tensors = updates.tensors_of(step, formats, [(33,), (5, 5)], special=True)
    updates.assert_same(updated(device, tensors, step, formats, found=True), tensors)
    plain = updates.run(tensors, step, formats, "reference")
    updates.assert_same(updated(device, tensors, step, formats, found=False), plain)
    assert not torch.equal(plain.weights[0], tensors.weights[0])
