"""Updates of the cuda adapter: on the host by its kernels' own code, on a device where one is."""

import contextlib

import pytest

from lpkernels.backends import UpdateTensors
from lpkernels.backends.cuda import BACKEND
from tests.support import cuda_host
from tests.support.updates import FORMATS, STEPS, Formats, assert_same, copied, run, tensors_of
from tests.support.updates import call_of as call

SHAPES = ((7, 5), (1,), (0,), (300,))
# Origins lie anywhere in a word of draws, and before a border of a row key.
ORIGINS = (6, 3, 1, (1 << 34) - 7)
PLACES = ["host", pytest.param("device", marks=pytest.mark.cuda)]


@pytest.fixture(params=PLACES)
def device(request: pytest.FixtureRequest):
    """The device of the adapter's tensors: the kernels run on the device, or the host runs them."""
    reason = cuda_host.reason() if request.param == "host" else BACKEND.why_not()
    if reason:
        pytest.skip(reason)
    with cuda_host.on_host() if request.param == "host" else contextlib.nullcontext():
        yield "cpu" if request.param == "host" else "cuda"


def updated(tensors: UpdateTensors, device: str, *arguments, **options) -> UpdateTensors:
    own = UpdateTensors(*([x.to(device) for x in kind] for kind in copied(tensors)))
    BACKEND.update(own, *call(*arguments, **options, device=device))
    return UpdateTensors(*([x.cpu() for x in kind] for kind in own))


@pytest.mark.parametrize("formats", FORMATS.values(), ids=list(FORMATS))
@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_bits_of_the_reference(name: str, formats: Formats, device: str) -> None:
    step = STEPS[name]
    tensors = tensors_of(step, formats, SHAPES, special=True)
    expected = run(tensors, step, formats, "reference", scale=3.0)
    assert_same(updated(tensors, device, step, formats, len(SHAPES), scale=3.0), expected)


@pytest.mark.parametrize("formats", ["fp32", "drawn", "bytes", "beyond_lanes"])
def test_parts_of_a_tensor_draw_what_the_whole_does(formats: str, device: str) -> None:
    step, formats = STEPS["adamw"], FORMATS[formats]
    tensors = tensors_of(step, formats, SHAPES, special=True)
    expected = run(tensors, step, formats, "reference", origins=ORIGINS)
    assert_same(updated(tensors, device, step, formats, len(SHAPES), origins=ORIGINS), expected)


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_every_step(name: str, begins: bool, device: str) -> None:
    step, formats = STEPS[name], FORMATS["drawn"]
    tensors = tensors_of(step, formats, [(33,)])
    expected = run(tensors, step, formats, "reference", begins=begins)
    assert_same(updated(tensors, device, step, formats, 1, begins=begins), expected)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_the_flag_leaves_everything_as_it_is(name: str, device: str) -> None:
    step, formats = STEPS[name], FORMATS["bytes"]
    tensors = tensors_of(step, formats, [(33,), (5, 5)], special=True)
    assert_same(updated(tensors, device, step, formats, 2, found=True), tensors)
    plain = run(tensors, step, formats, "reference")
    assert_same(updated(tensors, device, step, formats, 2, found=False), plain)
