"""The private operators: torch.library.opcheck, shapes, and what they promise torch."""

import math

import pytest
import torch

from lpkernels import ops
from lpkernels.arithmetic import Accumulator, Quantizer, accumulator
from lpkernels.backends import native
from lpkernels.formats import parse_format
from lpkernels.reference import twin
from tests.cases import CONV_CASES
from tests.compare import assert_bit_equal
from tests.support.updates import FORMATS, STEPS, rounding_of, tensors_of

SEED = torch.tensor(77)
STOCHASTIC = Quantizer("e5m2", "stochastic").to_ints()
ACCUMULATORS = {
    "sequential": Accumulator("e6m9", "stochastic", chunk=4),
    "native": Accumulator("fp32", "stochastic", chunk=4, outer="e6m9", order="native"),
}
OP = torch.ops.lpkernels
FUSED = {
    "as they are": ops.NOT_FUSED,
    "rounded": ops.Fused(
        Quantizer("e5m2").to_ints(),
        Quantizer("fixed6_f2", "toward_zero").to_ints(),
        Quantizer("e4m3", "to_odd").to_ints(),
    ),
}


FUSED_RESULT = Quantizer("e4m3", "to_odd").to_ints()


def check(op, *args) -> None:
    torch.library.opcheck(op.default, args)


@pytest.mark.parametrize("fmt", ["e5m2:stochastic", "fixed8_f4", "affine4_axis0", "block4_e2m1"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_opcheck_quantize(dtype, fmt, backend):
    ints = quantizer(fmt)
    dense = torch.randn(4, 6, dtype=dtype)
    for x in (dense, dense.t(), dense[:, ::2], dense[0, 0], dense[:0], dense[:1].expand(4, 6)):
        if x.dim() or "axis" not in fmt:
            check(OP._quantize, x, ints, SEED, 0, 4, backend)


def quantizer(text: str) -> tuple[int, ...]:
    fmt, _, mode = text.partition(":")
    return Quantizer(fmt, mode or "nearest_even").to_ints()


@pytest.mark.parametrize("fmt", ["e5m2:stochastic", "affine4", "block4_e2m1"])
def test_opcheck_quantize_out(fmt, backend):
    x = torch.randn(4, 6)
    for out in (torch.empty(4, 6), torch.empty(6, 4).t(), torch.empty(4, 12)[:, ::2]):
        check(OP._quantize_out, x, out, quantizer(fmt), SEED, 0, 4, backend)


@pytest.mark.parametrize("fmt", ["e5m2:stochastic", "affine4_axis0", "block4_e2m1"])
def test_opcheck_counting(fmt, backend):
    x, counts, call = torch.randn(4, 6), torch.zeros(4, dtype=torch.int64), (SEED, 0, 4, backend)
    limits = torch.tensor([[-1.0], [1.0]], dtype=torch.float64).expand(2, 4).contiguous()
    limits = limits if fmt == "affine4_axis0" else None
    for counted in (x, x.t()[:, :2] if limits is None else x[:, ::2], x[:, :0]):
        check(OP._quantize_counting, counted, quantizer(fmt), counts, limits, *call)
        check(OP._quantize_ranged, counted, quantizer(fmt), limits, *call)
        check(OP._count, counted, quantizer(fmt), counts, limits, *call)
    for out in (torch.empty(4, 6), torch.empty(6, 4).t()):
        check(OP._quantize_counting_out, x, out, quantizer(fmt), counts, limits, *call)
        check(OP._quantize_ranged_out, x, out, quantizer(fmt), limits, *call)


@pytest.mark.parametrize("fmt", ["e5m2", "fixed8_f4"])
def test_counting_reads_its_quantizer_from_a_table(fmt):
    ints = quantizer(fmt)
    table = torch.zeros(2, ops.ROW, dtype=torch.int64)
    table[1, : len(ints) + 1] = torch.tensor([len(ints), *ints])
    x, call = torch.randn(9) * 100, (None, None, 0, 4, "auto")
    counts, want = torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    OP._count(x, (1,), counts, *call, table=table)
    got = OP._quantize_counting(x, (1,), counts, *call, table=table)
    assert_bit_equal(got, ops.quantize_counting(x, ints, want, *call))
    assert_bit_equal(counts, 2 * want)


@pytest.mark.parametrize("fused", FUSED.values(), ids=FUSED)
@pytest.mark.parametrize("kind", ACCUMULATORS)
def test_opcheck_matmul(kind, fused, backend):
    bias = torch.randn(2)
    rest = (ACCUMULATORS[kind].to_ints(), SEED, 4, backend, *fused)
    check(OP._matmul, torch.randn(3, 9), torch.randn(9, 2), bias, *rest)
    check(OP._matmul, torch.randn(2, 1, 3, 9), torch.randn(4, 9, 2), None, *rest)
    check(OP._matmul, torch.randn(9, 3).t(), torch.randn(9, 4)[:, ::2], bias, *rest)
    check(OP._matmul, torch.randn(3, 0), torch.randn(0, 2), None, *rest)
    check(OP._matmul, torch.randn(0, 9), torch.randn(9, 2), None, *rest)


@pytest.mark.parametrize("fused", FUSED.values(), ids=FUSED)
@pytest.mark.parametrize("acc", ["e6m9", "h100_fp8_mma"])
def test_opcheck_matmul_initial(acc, fused):
    rest = (accumulator(acc).to_ints(), SEED, 4, "reference", *fused)
    for a, b in ((3, 9), (9, 2)), ((2, 1, 3, 9), (4, 9, 2)), ((3, 0), (0, 2)), ((0, 9), (9, 2)):
        a, b = torch.randn(a), torch.randn(b)
        check(OP._matmul_initial, a, b, torch.randn((a @ b).shape), *rest)


def test_rows_of_a_table_hold_operands_and_exchange_them():
    acc = Accumulator("fp16", block=4, aligned_bits=2, operands=("e5m2", "e4m3fn"))
    x, w, g, numbers = convolution("conv2d_groups")
    table, call = table_of(acc.to_ints()), (SEED, 4, "reference", [], [], [])
    for op, operands in (
        (OP._matmul, (torch.randn(3, 9) * 2.0**-9, torch.randn(9, 2), None)),
        (OP._conv_wgrad, (x * 2.0**-9, g, list(w.shape), *numbers)),
    ):
        got = [op(*operands, [row], *call, table) for row in (0, ~0)]
        want = [op(*operands, each.to_ints(), *call) for each in (acc, acc.exchanged())]
        assert_bit_equal(got[0], want[0])
        assert_bit_equal(got[1], want[1])
        assert not torch.equal(*got)


@pytest.mark.parametrize("fused", FUSED.values(), ids=FUSED)
@pytest.mark.parametrize("kind", ACCUMULATORS)
@pytest.mark.parametrize("case", ["conv1d_stride", "conv2d_groups", "conv3d", "conv2d_empty_batch"])
def test_opcheck_convolutions(case, kind, fused, backend):
    x, w, g, numbers = convolution(case)
    rest = (*numbers, ACCUMULATORS[kind].to_ints(), SEED, 4, backend, *fused)
    check(OP._conv_fprop, x, w, torch.randn(w.shape[0]), *rest)
    check(OP._conv_dgrad, g, w, list(x.shape), *rest)
    check(OP._conv_wgrad, x, g, list(w.shape), *rest)


@pytest.mark.parametrize("result", [(), FUSED_RESULT])
@pytest.mark.parametrize("kind", ACCUMULATORS)
def test_opcheck_add_bias(kind, result, backend):
    rest = (ACCUMULATORS[kind].to_ints(), SEED, 4, backend, result)
    dense = torch.randn(2, 3, 4)
    for total in (dense, dense.transpose(0, 1), dense[:0]):
        check(OP._add_bias, total, torch.randn(total.shape[1]), 1, *rest)
        check(OP._add_bias, total, torch.randn(1, 4), -1, *rest)


@pytest.mark.parametrize("kind", ACCUMULATORS)
def test_add_bias_is_the_bias_of_a_product(kind, backend):
    acc = ACCUMULATORS[kind]
    a, b, bias = torch.randn(2, 3, 9), torch.randn(9, 4), torch.randn(4)
    want = ops.matmul(a, b, bias, acc, SEED, 4, backend)
    got = ops.add_bias(
        ops.matmul(a, b, None, acc, SEED, 4, backend), bias, -1, acc, SEED, 4, backend
    )
    assert_bit_equal(got, want)


def convolution(case):
    conv = CONV_CASES[case]
    # Small integers: sums of products are exact in float32, in any order.
    x = torch.randint(-3, 4, conv.input_shape).float()
    w = torch.randint(-3, 4, conv.weight_shape).float()
    numbers = (list(conv.stride), list(conv.padding), list(conv.dilation), conv.groups)
    rest = ((0,), None, 0, "auto", *ops.NOT_FUSED)
    shape = OP._conv_fprop(x.to("meta"), w.to("meta"), None, *numbers, *rest).shape
    return x, w, torch.randint(-3, 4, shape).float(), numbers


@pytest.mark.parametrize(
    "fmt", ["e5m2", "fp4_e2m1", "fixed5_f2", "block4_e2m1", "block4_axis0_e2m1"]
)
def test_opcheck_pack(fmt):
    ints = parse_format(fmt).to_ints()
    for x in (torch.ones(5, 6), torch.ones(6, 5).t(), torch.ones(3, 0)):
        check(OP._pack, x, ints)
        check(OP._unpack, OP._pack(x, ints), ints, list(x.shape))


def table_of(*descriptions):
    """Rows as compiled graphs hand them over: the length of a description, then its integers."""
    table = torch.zeros(len(descriptions), ops.ROW, dtype=torch.int64)
    for row, ints in zip(table, descriptions, strict=True):
        row[: len(ints) + 1] = torch.tensor([len(ints), *ints])
    return table


@pytest.mark.parametrize("kind", ACCUMULATORS)
def test_opcheck_products_read_a_table(kind, backend):
    acc, left, right = ACCUMULATORS[kind].to_ints(), *FUSED["rounded"][:2]
    table = table_of(left, acc, right, FUSED_RESULT)
    x, w, g, numbers = convolution("conv2d_groups")
    a, b, total = torch.randn(3, 9), torch.randn(9, 2), torch.randn(2, 3)
    call = (SEED, 4, backend)
    for op, operands in (
        (OP._matmul, (a, b, None)),
        (OP._conv_fprop, (x, w, None, *numbers)),
        (OP._conv_dgrad, (g, w, list(x.shape), *numbers)),
        (OP._conv_wgrad, (x, g, list(w.shape), *numbers)),
    ):
        rows = (*operands, [1], *call, [0], [2], [3], table)
        check(op, *rows)
        assert_bit_equal(op(*rows), op(*operands, acc, *call, left, right, FUSED_RESULT))
    rows = (total, torch.randn(3), 1, [1], *call, [3], table)
    check(OP._add_bias, *rows)
    assert_bit_equal(OP._add_bias(*rows), OP._add_bias(*rows[:3], acc, *call, FUSED_RESULT))


def test_opcheck_rounding_reads_a_table(backend):
    x, ints = torch.randn(4, 6), quantizer("e5m2:stochastic")
    table, call = table_of(ints), (SEED, 0, 4, backend)
    check(OP._quantize, x, [0], *call, table)
    assert_bit_equal(OP._quantize(x, [0], *call, table), OP._quantize(x, ints, *call))
    check(OP._quantize_out, x, torch.empty(4, 6), [0], *call, table)


@pytest.mark.parametrize(("fmt", "bits"), [("e5m2", 8), ("e4m1", 8), ("e2m1", 4), ("e8m7", 16)])
def test_opcheck_codes_of_a_table_have_a_fixed_size(fmt, bits):
    table = table_of(quantizer(fmt))
    for x in (torch.ones(5, 7), torch.ones(7, 5).t(), torch.ones(3, 0)):
        codes = OP._pack_row(x, table, 0, bits, 0, 0)
        assert codes.numel() == (x.numel() * bits + 7) // 8
        assert_bit_equal(OP._unpack_row(codes, table, 0, list(x.shape)), x.contiguous())
        check(OP._pack_row, x, table, 0, bits, 0, 0)
        check(OP._unpack_row, codes, table, 0, list(x.shape))


def test_opcheck_blocks_of_a_table_have_room_for_their_scales(backend):
    ints = quantizer("block4_axis1_e2m1")
    x = ops.quantize(torch.randn(3, 10), ints, None, 0, 4, backend)
    # The codes have room for elements of 6 bits in blocks of 2.
    codes = OP._pack_row(x, table_of(ints), 0, 6, 2, 1)
    assert codes.numel() == (30 * 6 + 3 * 5 * 8 + 7) // 8
    assert_bit_equal(OP._unpack_row(codes, table_of(ints), 0, [3, 10]), x)
    check(OP._pack_row, x, table_of(ints), 0, 6, 2, 1)


@pytest.mark.parametrize("bits", [8, 16])
def test_opcheck_codes_with_a_flag(bits):
    table = table_of(quantizer("fp_4_3_4"))
    x, flag = torch.tensor([1.0, -30.0, 0.0]), torch.tensor(False)
    codes = OP._encode_row(x, flag, table, 0, bits)
    assert_bit_equal(codes, OP._pack_row(x, table, 0, bits, 0, 0))
    assert not flag
    check(OP._encode_row, x, flag, table, 0, bits)
    without = OP._encode_row(torch.tensor([1.0, math.nan, 2.0]), flag, table, 0, bits)
    assert flag
    assert without.shape == codes.shape


def test_opcheck_ranges():
    x = torch.randn(4, 6)
    for each in (x, x.t(), x[:, ::2], x[0, 0], x[:0]):
        check(OP._finite_range, each)
        check(OP._update_range, each, torch.zeros(2), torch.zeros(()), 0.9)


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_opcheck_update(name, backend):
    step, formats = STEPS[name], FORMATS["bytes"]
    tensors = tensors_of(step, formats, [(3, 5), (7,)])
    rest = ([0, 1], [0, 6], rounding_of(formats).to_ints(), step.to_numbers(), False, backend)
    check(OP._update, *tensors, SEED, torch.tensor(False), torch.tensor(2.0), *rest)


def test_every_operator_is_checked_here():
    names = (name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names())
    found = {name.removeprefix("lpkernels::") for name in names if name.startswith("lpkernels::")}
    products = {
        "_matmul",
        "_matmul_initial",
        "_conv_fprop",
        "_conv_dgrad",
        "_conv_wgrad",
        "_add_bias",
    }
    codes = {"_pack", "_unpack", "_pack_row", "_unpack_row", "_encode_row"}
    rounding = {"_quantize", "_quantize_ranged", "_quantize_counting", "_count"}
    rounding |= {f"{name}_out" for name in rounding - {"_count"}}
    ranges = {"_finite_range", "_update_range"}
    assert found == products | codes | rounding | ranges | {"_seed", "_update"}


def test_operators_alone_have_no_gradient():
    x = torch.randn(3, 3, requires_grad=True)
    y = OP._matmul(x, x, None, ACCUMULATORS["sequential"].to_ints(), SEED, 4, "auto", [], [], [])
    with pytest.raises(NotImplementedError, match="an operator alone has no gradient"):
        y.sum().backward()


def test_opcheck_seed():
    # Two runs of one test differ by design, so only the tests of the schema and of fakes apply.
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(OP._seed.default, (0,), {"device": "cpu"}, test_utils=tests)
    assert torch.Tag.nondeterministic_seeded in OP._seed.default.tags


@pytest.mark.parametrize("case", CONV_CASES)
def test_native_chunks_of_convolutions_equal_sequential_ones(case, backend):
    # With exact inner sums the order inside a chunk leaves no trace, so all else must agree.
    x, w, g, numbers = convolution(case)
    bias = torch.randint(-3, 4, (w.shape[0],)).float()
    options = {"rounding": "stochastic", "chunk": 5, "outer": "e6m3", "random_bits": 20}
    native_acc, plain = (
        Accumulator("fp32", order=order, **options) for order in ("native", "sequential")
    )
    for call in (
        lambda acc, name: ops.conv_fprop(x, w, bias, *numbers, acc, SEED, 4, name),
        lambda acc, name: ops.conv_dgrad(g, w, x.shape, *numbers, acc, SEED, 7, name),
        lambda acc, name: ops.conv_wgrad(x, g, w.shape, *numbers, acc, SEED, 9, name),
    ):
        assert_bit_equal(call(native_acc, backend), call(plain, "reference"))


def test_native_sums_ignore_autocast_and_record_nothing(backend):
    a = torch.full((2, 4), 1 + 2**-20, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = ops.matmul(a.detach(), torch.ones(4, 3), None, ACCUMULATORS["native"], SEED, 0, backend)
    assert (y.dtype, y.requires_grad) == (torch.float32, False)
    wide = Accumulator("fp32", chunk=4, order="native")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = ops.matmul(a.detach(), torch.ones(4, 3), None, wide, None, 0, backend)
    assert y[0, 0].item() == 4 + 2**-18


def test_native_without_chunks_has_no_operator():
    adder = native.Adder(None, Accumulator("fp32", order="native").to_ints(), None, 0)
    with pytest.raises(ValueError, match="native sums without chunks are torch's own function"):
        native.matmul(adder, torch.ones(2, 2), torch.ones(2, 2), None)


@pytest.mark.parametrize(
    ("fmt", "shape"),
    [
        ("e5m2", (3, 5)),
        ("fp4_e2m1", (3,)),
        ("fixed5_f2", (7,)),
        ("block4_e2m1", (3, 9)),
        ("block4_axis0_e4m3", (9, 2)),
        ("block4_e2m1", ()),
        ("block4_e2m1", (0, 4)),
    ],
)
def test_packed_bytes_is_the_length_of_the_reference(fmt, shape):
    parsed = parse_format(fmt)
    codes = twin.pack(torch.ones(shape).numpy(), parsed)
    assert ops.packed_bytes(parsed.to_ints(), shape) == codes.size


def test_sums_over_nothing_are_zero_plus_bias(backend):
    bias = torch.tensor([1.1, -0.0])
    acc = Accumulator("e5m2")
    got = ops.matmul(torch.ones(3, 0), torch.ones(0, 2), bias, acc, None, 0, backend)
    assert_bit_equal(got, torch.tensor([[1.0, 0.0]]).expand(3, 2))


def test_wrappers_take_objects_and_integers():
    x, quantizer_, acc = torch.rand(3, 3), Quantizer("e5m2"), Accumulator("e6m9")
    assert_bit_equal(
        ops.quantize(x, quantizer_, None, 0), ops.quantize(x, quantizer_.to_ints(), None, 0)
    )
    assert_bit_equal(
        ops.matmul(x, x, None, acc, None, 0), ops.matmul(x, x, None, acc.to_ints(), None, 0)
    )


def test_a_kernel_longer_than_the_image_is_refused():
    acc = Accumulator("e6m9").to_ints()
    numbers = ([1], [0], [1], 1)
    for length in (4, 5):
        with pytest.raises(ValueError, match="expected a kernel that fits into the padded image"):
            operands = (torch.ones(1, 1, 2), torch.ones(1, 1, length), None)
            OP._conv_fprop(*operands, *numbers, acc, None, 0, "cpu", [], [], [])
