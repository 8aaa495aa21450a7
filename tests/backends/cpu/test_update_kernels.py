"""An optimizer's step in one pass: every instruction set gives the reference's bits."""

from typing import Any

import pytest
import torch

from lpkernels.arithmetic import Step
from lpkernels.backends import cpu
from tests.support.processor import Isas, Threads, flushed
from tests.support.updates import (
    FORMATS,
    LOOPS,
    STEPS,
    assert_same,
    parts_of,
    run,
    signed_zeros,
    steps_to_zeros,
    tensors_of,
)

# A group of lanes and a little more, several spans and a little more, a few elements, none.
SHAPES = ((7, 5), (1100,), (1,), (0,), (3, 11, 16))
# Places where a tensor may begin in a larger one of which it is a part: anywhere in a word of
# draws, and before a border of a thread's share and of a row key.
ORIGINS = (6, 65_533, (1 << 34) - 1, 3, (1 << 32) - 500)
ALL_FORMATS = FORMATS | LOOPS
EVERY_STEP = pytest.mark.parametrize("name", STEPS)


def check(ways: Any, name: str, formats: str, shapes: Any = SHAPES, **options: Any) -> None:
    step, how = STEPS[name], ALL_FORMATS[formats]
    tensors = tensors_of(step, how, shapes, special=True)
    want = run(tensors, step, how, "reference", **options)
    for _ in ways:
        assert_same(run(tensors, step, how, "cpu", **options), want)


@EVERY_STEP
@pytest.mark.parametrize("formats", ALL_FORMATS)
def test_bits_of_the_reference(formats: str, name: str, isas: Isas) -> None:
    # One scale that rounds the quotients, and one that does not.
    check(isas, name, formats, scale=3.0 if name in ("adamw", "momentum") else 1024.0)
    if name == "adamw":
        check(isas, name, formats, origins=ORIGINS)


@pytest.mark.parametrize("begins", [False, True], ids=["goes on", "begins"])
@pytest.mark.parametrize("step", steps_to_zeros().values(), ids=steps_to_zeros())
def test_zeros_have_the_signs_of_the_reference(step: Step, begins: bool, isas: Isas) -> None:
    tensors = tensors_of(step, FORMATS["fp32"], [(16,)], values=signed_zeros)
    want = run(tensors, step, FORMATS["fp32"], "reference", begins=begins)
    for _ in isas:
        assert_same(run(tensors, step, FORMATS["fp32"], "cpu", begins=begins), want)


@pytest.mark.parametrize("cut", [1, 6, 64, 513])
def test_two_parts_are_the_whole(cut: int) -> None:
    step, formats = STEPS["adamw"], FORMATS["drawn"]
    whole = tensors_of(step, formats, [(600,)])
    want = run(whole, step, formats, "cpu")
    for part, origin in ((slice(cut), 0), (slice(cut, 600), cut)):
        got = run(parts_of(whole, part), step, formats, "cpu", origins=[origin])
        assert_same(got._replace(counts=()), parts_of(want, part)._replace(counts=()))


@EVERY_STEP
def test_first_steps_do_not_read_states(name: str) -> None:
    step, formats = STEPS[name], FORMATS["drawn"]
    tensors = tensors_of(step, formats, SHAPES)
    for state in (*tensors.first, *tensors.second):
        state.fill_(torch.nan)
    want = run(tensors, step, formats, "reference", begins=True)
    assert_same(run(tensors, step, formats, "cpu", begins=True), want)


@EVERY_STEP
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_the_flag_leaves_everything_as_it_is(name: str, backend: str) -> None:
    step, formats = STEPS[name], FORMATS["bytes"]
    tensors = tensors_of(step, formats, SHAPES, special=True)
    assert_same(run(tensors, step, formats, backend, found=True), tensors)
    plain = run(tensors, step, formats, backend)
    assert_same(run(tensors, step, formats, backend, found=False), plain)


@pytest.mark.parametrize("formats", ["fp32", "drawn", "bytes"])
def test_threads_do_not_show(formats: str, threads: Threads) -> None:
    check(threads, "adamw", formats, [(150_001,), (65_536,), (9,)])


def test_results_past_the_caches_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu.BACKEND, "stream_bytes", 0)
    check([""], "adamw", "fp32_master", [(1100,), (513,)])


@pytest.mark.parametrize("scale", [0.0, 2.0**127, 2.0**-149, 2.0**-126, 3.0, torch.inf])
def test_any_scale(scale: float) -> None:
    check([""], "sgd", "fp32", [(77,)], scale=scale)


def test_a_process_that_flushes_denormals_gets_the_same() -> None:
    step, formats = STEPS["adam"], FORMATS["fp32"]
    tensors = tensors_of(step, formats, [(77,)], special=True)
    tensors.gradients[0].mul_(2.0**-120)
    want = run(tensors, step, formats, "reference")
    with flushed():
        results = [run(tensors, step, formats, backend) for backend in ("cpu", "reference")]
    for result in results:
        assert_same(result, want)
