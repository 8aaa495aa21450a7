"""An optimizer's step in one pass: every instruction set gives the reference's bits."""

import pytest
import torch

from lpkernels.backends import cpu
from tests.loops import each
from tests.support.processor import Isas, Threads, flushed
from tests.support.updates import (
    FORMATS,
    LOOPS,
    STEPS,
    assert_same,
    copied,
    parts_of,
    run,
    tensors_of,
)

# A group of lanes and a little more, several spans and a little more, a few elements, none.
SHAPES = ((7, 5), (1100,), (1,), (0,), (3, 11, 16))
# Places where a tensor may begin in a larger one of which it is a part: anywhere in a word of
# draws, and before a border of a thread's share and of a row key.
ORIGINS = (6, 65_533, (1 << 34) - 1, 3, (1 << 32) - 500)
ALL_FORMATS = FORMATS | LOOPS


@each("name, formats", STEPS, ALL_FORMATS)
def test_bits_of_the_reference(formats: str, name: str, isas: Isas) -> None:
    step, how = STEPS[name], ALL_FORMATS[formats]
    # One that rounds the quotients, and one that does not.
    scale = 3.0 if name in ("adamw", "momentum") else 1024.0
    tensors = tensors_of(step, how, SHAPES, special=True)
    expected = run(tensors, step, how, "reference", scale=scale)
    for _ in isas:
        assert_same(run(tensors, step, how, "cpu", scale=scale), expected)


@each("formats", ALL_FORMATS)
def test_parts_of_a_tensor_draw_what_the_whole_does(formats: str, isas: Isas) -> None:
    step, how = STEPS["adamw"], ALL_FORMATS[formats]
    tensors = tensors_of(step, how, SHAPES, special=True)
    expected = run(tensors, step, how, "reference", origins=ORIGINS)
    for _ in isas:
        assert_same(run(tensors, step, how, "cpu", origins=ORIGINS), expected)


@each("cut", [1, 6, 64, 513])
def test_two_parts_are_the_whole(cut: int) -> None:
    step, formats = STEPS["adamw"], FORMATS["drawn"]
    whole = tensors_of(step, formats, [(600,)])
    want = run(whole, step, formats, "cpu")
    for part, origin in ((slice(cut), 0), (slice(cut, 600), cut)):
        own = parts_of(whole, part)
        got = run(own, step, formats, "cpu", origins=[origin])
        assert_same(got._replace(counts=()), parts_of(want, part)._replace(counts=()))


@each("name", STEPS)
def test_first_steps_do_not_read_states(name: str) -> None:
    step = STEPS[name]
    tensors = tensors_of(step, FORMATS["drawn"], SHAPES)
    for kind in (tensors.first, tensors.second):
        for state in kind:
            state.fill_(torch.nan)
    expected = run(tensors, step, FORMATS["drawn"], "reference", begins=True)
    assert_same(run(tensors, step, FORMATS["drawn"], "cpu", begins=True), expected)


@each("backend, name", ["reference", "cpu"], STEPS)
def test_the_flag_leaves_everything_as_it_is(name: str, backend: str) -> None:
    step = STEPS[name]
    tensors = tensors_of(step, FORMATS["bytes"], SHAPES, special=True)
    assert_same(run(tensors, step, FORMATS["bytes"], backend, found=True), tensors)
    plain = run(tensors, step, FORMATS["bytes"], backend)
    assert_same(run(tensors, step, FORMATS["bytes"], backend, found=False), plain)


@each("formats", ["fp32", "drawn", "bytes"])
def test_threads_do_not_show(formats: str, threads: Threads) -> None:
    step = STEPS["adamw"]
    tensors = tensors_of(step, FORMATS[formats], [(150_001,), (65_536,), (9,)], special=True)
    results = [run(tensors, step, FORMATS[formats], "cpu") for _ in threads]
    assert_same(results[1], results[0])
    assert_same(results[2], results[0])


def test_results_past_the_caches_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    step, formats = STEPS["adamw"], FORMATS["fp32_master"]
    tensors = tensors_of(step, formats, [(1100,), (513,)])
    expected = run(tensors, step, formats, "cpu")
    monkeypatch.setattr(cpu.BACKEND, "stream_bytes", 0)
    assert_same(run(tensors, step, formats, "cpu"), expected)


@each("scale", [0.0, 2.0**127, 2.0**-149, 2.0**-126, 3.0, torch.inf])
def test_any_scale(scale: float) -> None:
    step, formats = STEPS["sgd"], FORMATS["fp32"]
    tensors = tensors_of(step, formats, [(77,)], special=True)
    expected = run(tensors, step, formats, "reference", scale=scale)
    assert_same(run(tensors, step, formats, "cpu", scale=scale), expected)


def test_a_process_that_flushes_denormals_gets_the_same() -> None:
    step, formats = STEPS["adam"], FORMATS["fp32"]
    tensors = tensors_of(step, formats, [(77,)], special=True)
    tensors.gradients[0].mul_(2.0**-120)
    expected = copied(run(tensors, step, formats, "reference"))
    with flushed():
        results = [run(tensors, step, formats, backend) for backend in ("cpu", "reference")]
    for result in results:
        assert_same(result, expected)
