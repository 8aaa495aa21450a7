"""The counts of bench.certificates, on products written out by hand; its figures in the docs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.grad import conv2d_input, conv2d_weight

from bench.certificates import __main__ as study
from bench.certificates import facts as operand_facts
from bench.certificates.__main__ import gain, newest, rows, whole
from bench.certificates.choices import BY, SUMS, Looking, Tally, kernel_of, look
from bench.certificates.facts import facts_of, operands, range_of
from bench.predict.counts import cuda_count
from bench.predict.ranges import Range
from bench.predict.shapes import Call
from lpkernels import matmul
from lpkernels.arithmetic import Accumulator, as_accumulator
from lpkernels.backends._conv_phases import dgrad
from lpkernels.backends._conv_tables import fprop, tables, wgrad
from tests.loops import each
from tests.predict.calls import CASES, Case, call

ACC = Accumulator("e6m9", chunk=64)
NATIVE = as_accumulator("native_chunk64:outer=e6m9")
IMAGES = [n for n, case in CASES.items() if len(case.sizes[0]) == 4 and "conv" in case.op]


def made(a: Tensor, b: Tensor, acc: Accumulator = ACC) -> Tally:
    """The counts of one matmul."""
    call = Call("matmul", (*a.shape,), (*b.shape,), (*(a @ b).shape,), acc.to_ints())
    tally = Tally()
    for product in operands(call, a, b):
        look(tally, acc, *product)
    return tally


@each(
    "value, found, plain",
    [
        (0.0, Range(1, 0, 0), True),
        (1.0, Range(1, 0, 1), True),
        (-1.5, Range(2, -1, 1), True),
        (5.0, Range(3, 0, 3), True),
        (2.0**-126, Range(1, -126, -125), True),
        (1 + 2.0**-23, Range(24, -23, 1), True),
        (2.0**-127, Range(1, -127, -126), False),
        (float("inf"), Range(1, 105, 129), False),
    ],
)
def test_the_facts_of_a_value(value: float, found: Range, plain: bool) -> None:
    got, is_plain = range_of(tuple(facts_of(torch.tensor(value)).tolist()))
    assert is_plain == plain
    assert not plain or got == found


def test_tiles_are_counted_by_what_their_own_rows_hold() -> None:
    # The last 172 of 300 rows have values of 24 bits; the tiles have 128, 128 and 44 rows.
    a, b = torch.ones(300, 10), torch.full((10, 20), 2.0)
    a[128:] = 1 + 2.0**-23
    wide, narrow = "double, split", "two steps"
    b[0] = 3.0
    tally = made(a, b)
    outputs, k = 300 * 20, 10
    assert tally.products == 1
    assert tally.macs["tensor"] == tally.macs["scaled"] == {wide: outputs * k}
    assert tally.macs["block"] == {narrow: 128 * 20 * k, wide: 172 * 20 * k}
    assert tally.tiles == {narrow: 1, wide: 2} and tally.faster == 1
    # The one chunk of 10 products ends once.
    counts = {kernel: cuda_count(kernel, ACC, tables=False) for kernel in (wide, narrow)}
    cost = {kernel: count.product + count.closed / k for kernel, count in counts.items()}
    assert tally.instructions["tensor"] == pytest.approx(outputs * k * cost[wide])
    blocks = sum(macs * cost[kernel] for kernel, macs in tally.macs["block"].items())
    assert tally.instructions["block"] == pytest.approx(blocks)
    # Matrices of a batch have blocks of their own.
    a, b = torch.ones(3, 2, 5), torch.ones(3, 5, 4)
    b[1] += 2.0**-22
    assert made(a, b).tiles == {narrow: 2, wide: 1}


def test_scaled_operands_fit_tensor_cores_and_subnormals_have_no_certificate() -> None:
    a, b = torch.full((4, 64), 2.0**-30), torch.ones(64, 4)
    tally = made(a, b, NATIVE)
    assert tally.macs["tensor"] == tally.macs["block"] == {"tensor cores, bfloat16": 1024}
    a += 2.0**-39
    tally = made(a, b, NATIVE)
    assert tally.macs["tensor"] == tally.macs["block"] == {"float32": 1024}
    assert tally.macs["scaled"] == {"tensor cores, half": 1024}
    assert tally.faster == 0
    a, b = torch.full((1, 8), 2.0**-130), torch.ones(8, 1)
    (product,) = operands(Call("matmul", (1, 8), (8, 1), (1, 1), ACC.to_ints()), a, b)
    facts = tuple(torch.cat([product[1].whole, product[2].whole]).tolist())
    assert kernel_of(ACC, product[0], facts) == "exact"
    assert kernel_of(NATIVE, product[0], facts) == "float32"


def test_products_are_seen_as_they_are_made() -> None:
    a, b = torch.ones(2, 3, requires_grad=True), torch.ones(3, 5, requires_grad=True)
    with Looking() as looking:
        matmul(a, b, ACC).sum().backward()
    found = {gemm: tally for (gemm, sums), tally in looking.found.items() if sums == "e6m9_chunk64"}
    passes = {gemm: tally.products for gemm, tally in found.items()}
    assert passes == {"direct": 1, "dgrad": 1, "wgrad": 1}
    assert sum(tally.macs["block"].total() for tally in found.values()) == 3 * 2 * 3 * 5


def test_parts_are_added_up() -> None:
    tally = {"macs": {by: {"float32": 2} for by in BY}, "tiles": {"float32": 1}}
    part: dict[str, Any] = {
        "pass": "fprop", "sums": "s", "faster": 1,
        "instructions": {"tensor": 4, "scaled": 4, "block": 3}, **tally,
    }  # fmt: skip
    total = whole([part, part, part | {"sums": "others"}], "s")
    assert total["macs"]["block"] == {"float32": 4} and total["tiles"] == {"float32": 2}
    assert total["faster"] == 2 and gain(total, "block") == 0.25


def reached(case: Case, at: Tensor) -> Tensor:
    """Which outputs, laid out as the result, read a value that `at` marks in the gathered image."""
    x, w, stride, padding, dilation, groups = case.sizes
    if case.op == "conv_fprop":
        return torch.conv2d(at, torch.ones(w), None, stride, padding, dilation, groups)
    if case.op == "conv_dgrad":
        return conv2d_input(x, torch.ones(w), at, stride, padding, dilation, groups)
    y = torch.ones(call(case).right)
    return conv2d_weight(at, w, y, stride, padding, dilation, groups)


def lanes_of(case: Case, product: Any, of_outputs: Tensor) -> Tensor:
    """The lanes (G, L) of a product's gathered operand, from a tensor laid out as the result."""
    w, groups = case.sizes[1], case.sizes[-1]
    if case.op == "conv_wgrad":
        return of_outputs.reshape(groups, w[0] // groups, -1)[:, 0, product.cols]
    by_group = of_outputs.flatten(2).movedim(1, 0)[:: of_outputs.shape[1] // groups]
    return by_group.flatten(1)[:, product.col_keys]


@pytest.mark.parametrize("name", IMAGES)
def test_a_block_holds_what_its_outputs_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operand_facts, "BLOCK", 8)
    case = CASES[name]
    asked = call(case)._replace(quantizers=((), ()))
    draws = torch.Generator().manual_seed(3)
    # The values are powers of two: 2^2, 2^1 and 1 in few places, 2^-1 in all others.
    levels = torch.randint(0, 40, asked.left, generator=draws).clamp(max=3)
    first = torch.exp2(2.0 - levels)
    second = torch.ones(asked.right)
    g = operand_facts._geometry(asked, *geometry_shapes(case))
    build = {"conv_fprop": fprop, "conv_dgrad": dgrad, "conv_wgrad": wgrad}[case.op]
    expected = torch.full(asked.result, -1000.0)
    for exponent in (-1, 0, 1, 2):
        marked = (first == 2.0**exponent).float()
        expected[reached(case, marked) > 0] = exponent + 1
    products = tables(build, g, torch.device("cpu"))
    found = list(operands(asked, first, second))
    assert len(found) == len(products)
    for (shape, left, right), product in zip(found, products, strict=True):
        image, other = (right, left) if case.op == "conv_wgrad" else (left, right)
        lanes = lanes_of(case, product, expected)
        wanted = [part.amax(1) for part in lanes.split(8, dim=1)]
        assert torch.equal(image.blocks[..., 2].float(), torch.stack(wanted, dim=1))
        assert image.sizes.sum() * shape.matrices == lanes.numel()
        assert {int(left.sizes.sum()), int(right.sizes.sum())} == {shape.m, shape.n}
        assert (other.blocks[..., 2] == 1).all()


def geometry_shapes(case: Case) -> tuple[tuple[int, ...], ...]:
    """The shapes of x, w and y."""
    asked = call(case)
    return {
        "conv_fprop": (asked.left, asked.right, asked.result),
        "conv_dgrad": (asked.result, asked.right, asked.left),
        "conv_wgrad": (asked.left, asked.result, asked.right),
    }[case.op]


PAGE = (Path(__file__).parents[2] / "docs" / "predictions.md").read_text()
RECORDS = newest(study.RESULTS)


def test_the_table_of_the_docs_is_the_records_and_some_hold_or_fail_everywhere() -> None:
    assert len(RECORDS) == len(study.NETWORKS) * len(study.OPERANDS)
    assert "\n".join(row for record in RECORDS for row in rows(record)) in PAGE
    for record, part in [(one, part) for one in RECORDS for part in one["parts"]]:
        if record["operands"] == "fp8_wang2018":
            (kernel,) = part["macs"]["tensor"]
            assert kernel in ("two steps", "tensor cores, half") and part["faster"] == 0
        if record["network"] == "resnet18":
            assert gain(part, "block") < 0.01


def gains(sums: str, by: str, operands: str = "") -> dict[tuple[str, str], float]:
    """The gain of all passes together, by network and operands."""
    return {
        (record["network"], record["operands"]): gain(whole(record["parts"], sums), by)
        for record in RECORDS
        if operands in ("", record["operands"])
    }


def test_the_figures_of_the_decision_are_the_records() -> None:
    by_block = {(sums, *key): g for sums in SUMS for key, g in gains(sums, "block").items()}
    assert f"one case of {len(by_block)}" in PAGE
    assert [key for key, g in by_block.items() if g > 0.1] == [(SUMS[1], "gpt2", "e6m9 operands")]
    assert "save 1% of a network's" in PAGE
    assert round(100 * max(gains(SUMS[0], "block").values())) == 1
    own = {network: g for (network, _), g in gains(SUMS[1], "block", "e6m9 operands").items()}
    gpt, lstm, resnet = (round(100 * own[name]) for name in ("gpt2", "lstm1", "resnet18"))
    stated = f"{gpt}% of the GPT's instructions, {lstm}% of the LSTM's, {resnet}% of ResNet-18's"
    assert stated in PAGE
    scaled = [round(100 * g) for g in gains(SUMS[1], "scaled", "e6m9 operands").values()]
    assert f"would save {min(scaled)}% to {max(scaled)}%" in PAGE
