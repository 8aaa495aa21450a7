"""An optimizer's step in one pass on the CPU: parts, threads, stores past the caches, scales.
test_shared.py has steps and formats."""

from typing import Any

import pytest
import torch

from lpkernels.backends import cpu
from tests.support.processor import Threads, flushed
from tests.support.updates import FORMATS, STEPS, assert_same, parts_of, run, tensors_of


def check(ways: Any, name: str, formats: str, shapes: Any, **options: Any) -> None:
    step, how = STEPS[name], FORMATS[formats]
    tensors = tensors_of(step, how, shapes, special=True)
    want = run(tensors, step, how, "reference", **options)
    for _ in ways:
        assert_same(run(tensors, step, how, "cpu", **options), want)


@pytest.mark.parametrize("cut", [1, 6, 64, 513])
def test_two_parts_are_the_whole(cut: int) -> None:
    step, formats = STEPS["adamw"], FORMATS["drawn"]
    whole = tensors_of(step, formats, [(600,)])
    want = run(whole, step, formats, "cpu")
    for part, origin in ((slice(cut), 0), (slice(cut, 600), cut)):
        got = run(parts_of(whole, part), step, formats, "cpu", origins=[origin])
        assert_same(got._replace(counts=()), parts_of(want, part)._replace(counts=()))


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
