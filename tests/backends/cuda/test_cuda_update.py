"""Updates of the cuda adapter: on the host by its kernels' own code, on a device where one is."""

from itertools import product

from lpkernels.backends import UpdateTensors
from lpkernels.backends.cuda import BACKEND
from tests.loops import each
from tests.support.updates import FORMATS, STEPS, assert_same, copied, run, tensors_of
from tests.support.updates import call_of as call

SHAPES = ((7, 5), (1,), (0,), (300,))
# Origins lie anywhere in a word of draws, and before a border of a row key.
ORIGINS = (6, 3, 1, (1 << 34) - 7)


def updated(tensors: UpdateTensors, device: str, *arguments, **options) -> UpdateTensors:
    own = UpdateTensors(*([x.to(device) for x in kind] for kind in copied(tensors)))
    BACKEND.update(own, *call(*arguments, **options, device=device))
    return UpdateTensors(*([x.cpu() for x in kind] for kind in own))


@each("name, kind", product(["momentum", "adamw"], FORMATS))
def test_bits_of_the_reference(name: str, kind: str, device: str) -> None:
    step, formats = STEPS[name], FORMATS[kind]
    tensors = tensors_of(step, formats, SHAPES, special=True)
    expected = run(tensors, step, formats, "reference", scale=3.0)
    assert_same(updated(tensors, device, step, formats, len(SHAPES), scale=3.0), expected)


@each("kind", ["fp32", "drawn", "bytes", "beyond_lanes"])
def test_parts_of_a_tensor_draw_what_the_whole_does(kind: str, device: str) -> None:
    step, formats = STEPS["adamw"], FORMATS[kind]
    tensors = tensors_of(step, formats, SHAPES, special=True)
    expected = run(tensors, step, formats, "reference", origins=ORIGINS)
    assert_same(updated(tensors, device, step, formats, len(SHAPES), origins=ORIGINS), expected)


@each("name, begins", product(STEPS, [False, True]))
def test_every_step(name: str, begins: bool, device: str) -> None:
    step, formats = STEPS[name], FORMATS["drawn"]
    tensors = tensors_of(step, formats, [(33,)])
    expected = run(tensors, step, formats, "reference", begins=begins)
    assert_same(updated(tensors, device, step, formats, 1, begins=begins), expected)


@each("name", ["sgd", "momentum", "adam"])
def test_the_flag_leaves_everything_as_it_is(name: str, device: str) -> None:
    step, formats = STEPS[name], FORMATS["bytes"]
    tensors = tensors_of(step, formats, [(33,), (5, 5)], special=True)
    assert_same(updated(tensors, device, step, formats, 2, found=True), tensors)
    plain = run(tensors, step, formats, "reference")
    assert_same(updated(tensors, device, step, formats, 2, found=False), plain)
