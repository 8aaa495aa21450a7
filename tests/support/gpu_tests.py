"""Tests that the adapters of GPUs share. A module in the folder of each imports them all, and takes
that folder's fixtures: adapter, the backend, and device, of its tensors."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lpkernels.arithmetic import Accumulator, Quantizer, Step
from lpkernels.backends import Fused
from lpkernels.ops import UpdateTensors
from tests.cases import CONV_CASES, ConvCase
from tests.loops import each
from tests.support import operand_cases as cases
from tests.support import updates
from tests.support.operand_cases import rows, short_rows, tensor
from tests.support.operand_draws import accumulators
from tests.support.products import PASSES, assert_pass, assert_product
from tests.support.products import tensors_of as tensors_of_pass

# Some operands hold values that no tensor core has.
pytestmark = pytest.mark.filterwarnings("ignore:.* operand holds")
#: Triton's interpreter is slow, and takes smaller products.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
#: Convolutions with absent taps, with groups, and with phases of dgrad that leave positions out.
FEW_CASES = (
    ConvCase((2, 4, 5), (2, 2, 3), (1,), (1,), (1,), 2),
    ConvCase((1, 2, 5), (3, 2, 4), (2,), (2,), (1,)),
)


# Blocks aligned by their operands, and sums that start elsewhere than at zero.


@each("acc", [*cases.UNIT_ACCUMULATORS.values(), *cases.MODES, *cases.SHORT_MODES])
def test_blocks_aligned_by_operands(acc: Accumulator, adapter: Any, device: str) -> None:
    """Long rows of every kind for the named units, short ones in every mode, and rows whose sums
    float32 holds."""
    unit = acc in cases.UNIT_ACCUMULATORS.values()
    k = 21 if not unit else 37 if INTERPRETED else 75
    if acc not in cases.SHORT_MODES:
        a, b = rows(2 if unit or INTERPRETED else 9, k, 3), rows(1, k, 4).T
        assert_product(adapter, a, b, acc, device)
    if acc in cases.SHORT_MODES or (unit and not INTERPRETED):
        m, n = (3, 2) if INTERPRETED else (9, 3)
        assert_product(adapter, short_rows(m, k, 3), short_rows(n, k, 4).T, acc, device)


@settings(
    max_examples=5 if INTERPRETED else 20,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(acc=accumulators(), length=st.integers(0, 19), seed=st.integers(0, 2**32))
def test_any_accumulator(
    adapter: Any, device: str, acc: Accumulator, length: int, seed: int
) -> None:
    initial = rows(1, 3, seed + 2) if seed % 2 else None
    a, b = rows(1, length, seed), rows(1, length, seed + 1)[1:].T
    assert_product(adapter, a, b, acc, device, initial=initial)


@each("acc, length", itertools.product(cases.STARTED, [0, 21]))
def test_sums_start_at_initial(acc: Accumulator, length: int, adapter: Any, device: str) -> None:
    initial = rows(1, 5, 7)
    initial[0] = torch.tensor([1e30, -1e30, 1e-30, 0.3, -0.0])
    a, b = rows(1, length, 5), tensor((length, 5), "short", torch.Generator().manual_seed(6))
    assert_product(adapter, a, b, acc, device, initial=initial)


def test_initial_of_batches_and_rounded_results(adapter: Any, device: str) -> None:
    # Rows across and along tiles, steps of any length.
    generator = torch.Generator().manual_seed(8)
    acc = cases.UNIT_ACCUMULATORS["ada_e4m3"]
    e4m3, e5m2 = (Quantizer(name).to_ints() for name in ("e4m3fn", "e5m2"))
    for (m, n), fused in itertools.product(
        ((2, 9), (9, 2)), (Fused(), Fused(e4m3, (), e5m2), Fused(e4m3, e5m2, e5m2))
    ):
        a, b = (tensor(s, "short", generator) for s in ((3, m, 9), (3, 9, n)))
        initial = tensor((3, n, m), "cancelling", generator).mT
        assert_product(adapter, a, b, acc, device, initial=initial, fused=fused)


@each("exponent", [0, 37, 38, 39, 40, 41, 60])
def test_larger_operands_are_summed_in_float64(exponent: int, adapter: Any, device: str) -> None:
    # 40 products of 2^exponent squared: where the certificate of float32 ends.
    x = tensor((3, 40), "short", torch.Generator().manual_seed(9)) * 2.0**exponent
    assert_product(adapter, x, x.T, cases.UNIT_ACCUMULATORS["h100_e4m3"], device)


@each("name, acc", itertools.product(PASSES, cases.CONVOLVED))
def test_passes_of_convolutions_with_operands(
    name: str, acc: Accumulator, adapter: Any, device: str
) -> None:
    for case in FEW_CASES if INTERPRETED else (*FEW_CASES, *CONV_CASES.values()):
        assert_pass(adapter, name, case, tensors_of_pass(case), acc, device)


# An optimizer's step in one pass.

SHAPES = ((7, 5), (1,), (0,), (1030,))
# Origins lie anywhere in a word of draws and in a block, and before a border of a row key.
ORIGINS = (6, 1023, 1, (1 << 34) - 7)


def updated(
    adapter: Any,
    device: str,
    tensors: UpdateTensors,
    step: Step,
    formats: updates.Formats,
    **options: Any,
) -> UpdateTensors:
    own = UpdateTensors(*([x.to(device) for x in kind] for kind in updates.copied(tensors)))
    adapter.update(own, *updates.call_of(step, formats, len(own.weights), device=device, **options))
    return UpdateTensors(*([x.cpu() for x in kind] for kind in own))


def check_update(adapter: Any, device: str, *case: Any, **options: Any) -> None:
    want = updates.run(*case, "reference", **options)
    updates.assert_same(updated(adapter, device, *case, **options), want)


@each("name, kind", itertools.product(["momentum", "adamw"], updates.FORMATS))
def test_updates_have_the_bits_of_the_reference(
    name: str, kind: str, adapter: Any, device: str
) -> None:
    step, formats = updates.STEPS[name], updates.FORMATS[kind]
    tensors = updates.tensors_of(step, formats, SHAPES, special=True)
    check_update(adapter, device, tensors, step, formats, scale=3.0)


@each("kind", ["fp32", "drawn", "bytes", "beyond_lanes"])
def test_updates_draw_for_parts_what_they_do_for_the_whole(
    kind: str, adapter: Any, device: str
) -> None:
    step, formats = updates.STEPS["adamw"], updates.FORMATS[kind]
    tensors = updates.tensors_of(step, formats, SHAPES, special=True)
    check_update(adapter, device, tensors, step, formats, origins=ORIGINS)


@each("name, begins", itertools.product(updates.STEPS, [False, True]))
def test_updates_make_every_step(name: str, begins: bool, adapter: Any, device: str) -> None:
    step, formats = updates.STEPS[name], updates.FORMATS["drawn"]
    tensors = updates.tensors_of(step, formats, [(33,)])
    check_update(adapter, device, tensors, step, formats, begins=begins)


@each("name", ["sgd", "momentum", "adam"])
def test_updates_leave_everything_as_it_is_by_their_flag(
    name: str, adapter: Any, device: str
) -> None:
    step, formats = updates.STEPS[name], updates.FORMATS["bytes"]
    tensors = updates.tensors_of(step, formats, [(33,), (5, 5)], special=True)
    updates.assert_same(updated(adapter, device, tensors, step, formats, found=True), tensors)
    plain = updates.run(tensors, step, formats, "reference")
    updates.assert_same(updated(adapter, device, tensors, step, formats, found=False), plain)
    assert not torch.equal(plain.weights[0], tensors.weights[0])
