"""An optimizer's step in one pass: the reference's bits."""

from itertools import product

import torch

from tests.loops import each
from tests.support.updates import FORMATS, STEPS, assert_same, run, tensors_of

SHAPES = ((7, 5), (1,), (0,), (1030,))
# Origins lie anywhere in a word of draws and in a block, and before a border of a row key.
ORIGINS = (6, 1023, 1, (1 << 34) - 7)


@each("name, kind", product(["momentum", "adamw"], FORMATS))
def test_bits_of_the_reference(name: str, kind: str, device: str) -> None:
    step, formats = STEPS[name], FORMATS[kind]
    tensors = tensors_of(step, formats, SHAPES, special=True)
    expected = run(tensors, step, formats, "reference", scale=3.0)
    assert_same(run(tensors, step, formats, "triton", scale=3.0), expected)


@each("kind", ["fp32", "drawn", "bytes", "beyond_lanes"])
def test_parts_of_a_tensor_draw_what_the_whole_does(kind: str, device: str) -> None:
    step, formats = STEPS["adamw"], FORMATS[kind]
    tensors = tensors_of(step, formats, SHAPES, special=True)
    expected = run(tensors, step, formats, "reference", origins=ORIGINS)
    assert_same(run(tensors, step, formats, "triton", origins=ORIGINS), expected)


@each("name, begins", product(STEPS, [False, True]))
def test_every_step(name: str, begins: bool, device: str) -> None:
    step, formats = STEPS[name], FORMATS["drawn"]
    tensors = tensors_of(step, formats, [(33,)])
    expected = run(tensors, step, formats, "reference", begins=begins)
    assert_same(run(tensors, step, formats, "triton", begins=begins), expected)


@each("name", ["sgd", "momentum", "adam"])
def test_the_flag_leaves_everything_as_it_is(name: str, device: str) -> None:
    step, formats = STEPS[name], FORMATS["bytes"]
    tensors = tensors_of(step, formats, [(33,), (5, 5)], special=True)
    assert_same(run(tensors, step, formats, "triton", found=True), tensors)
    plain = run(tensors, step, formats, "triton")
    assert_same(run(tensors, step, formats, "triton", found=False), plain)
    assert not torch.equal(plain.weights[0], tensors.weights[0])
