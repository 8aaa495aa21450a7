"""The private operators: torch.library.opcheck, shapes, and the promises to torch."""

import contextlib
import itertools
import math
from typing import Any

import pytest
import torch

from lpkernels import ops
from lpkernels.arithmetic import Accumulator, as_quantizer
from lpkernels.backends import How, matmul_of
from lpkernels.formats import parse_format
from lpkernels.ops._products import crossing
from tests.cases import CONV_CASES
from tests.compare import assert_bit_equal
from tests.ops.calls import calls
from tests.support.autograd import Operators
from tests.support.strategies import LAYOUTS

SEED = torch.tensor(77)
#: Of codes as their format has them.
ROOM = (0, 0, 0)
ACCUMULATORS = {
    "sequential": Accumulator("e6m9", "stochastic", chunk=4),
    "native": Accumulator("fp32", "stochastic", chunk=4, outer="e6m9", order="native"),
}
OP = torch.ops.lpkernels


def quantizer(text: str) -> tuple[int, ...]:
    return as_quantizer(text).to_ints()


FUSED_RESULT = quantizer("e4m3:to_odd")
FUSED = {
    "as they are": ops.NOT_FUSED,
    "rounded": ops.Fused(quantizer("e5m2"), quantizer("fixed6_f2:toward_zero"), FUSED_RESULT),
}
#: Of two backends one traces graphs, which takes ten times the rest: the name of a backend is a
#: constant of a graph, no more.
TRACED = "reference"
OPCHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")
GRAPHS = (*OPCHECKS, "test_aot_dispatch_dynamic")


def more_calls(backend: str) -> dict[str, tuple[Any, ...]]:
    """Calls of more formats, dtypes and shapes, empty ones among them."""
    rows, x = {}, torch.randn(4, 6)
    for text in ("e5m2:stochastic", "fixed8_f4", "affine4_axis0", "block4_e2m1"):
        for dtype in (torch.float16, torch.float32, torch.float64):
            call = (quantizer(text), None, SEED, 0, 4, backend)
            rows[f"_quantize {text} {dtype}"] = (x.to(dtype), *call)
    rows["_quantize of nothing"] = (x[:0], *call)
    rows["_count of nothing"] = (x[:, :0], *call, 260)
    rows["_quantize of a number"] = (x[0, 0], quantizer("e5m2"), None, SEED, 0, 4, backend)
    for (kind, acc), fused in itertools.product(ACCUMULATORS.items(), FUSED):
        how = How(acc.to_ints(), SEED, 4, FUSED[fused])
        products = [matmul_of(torch.randn(m, k), torch.randn(k, 2)) for m, k in ((3, 0), (0, 9))]
        for case in ("conv1d_stride", "conv3d", "conv2d_empty_batch"):
            products += passes(case)
        for number, product in enumerate(products):
            name = f"_multiply {kind} {fused} {product.kind} {number}"
            rows[name] = crossing(product, how, backend)
        rest = (how.acc, SEED, 4, backend, how.fused.result)
        rows[f"_add_bias {kind} {fused}"] = (torch.randn(2, 3, 4), torch.randn(1, 4), -1, *rest)
        rows[f"_add_bias to nothing {kind} {fused}"] = (torch.randn(0, 3), torch.ones(3), 1, *rest)
    for text in ("fp4_e2m1", "fixed5_f2", "block4_axis0_e2m1"):
        ints = parse_format(text).to_ints()
        for shape in ((5, 6), (3, 0)):
            rows[f"_pack {text} {shape}"] = (torch.ones(shape), None, None, ints, ROOM)
            codes = OP._pack(torch.ones(shape), None, None, ints, ROOM)
            rows[f"_unpack {text} {shape}"] = (codes, None, None, ints, list(shape), "auto")
    for text in ("fp8_tensor", "tile2x3_e4m3_up", "block4_axis0_int4_sfp32", "mxfp4_even"):
        ints = quantizer(text)
        amax = torch.ones(1, dtype=torch.float64) if text == "fp8_tensor" else None
        for shape in ((5, 33), (3, 0)):
            rows[f"_scaled {text} {shape}"] = (torch.randn(shape), ints, amax, SEED, 0, 4, "auto")
            parts = OP._scaled(torch.randn(shape), ints, amax, None, 0, 4, "auto")
            rows[f"_unpack {text} {shape}"] = (*parts, ints[:-4], list(shape), "auto")
            rows[f"_pack {text} {shape}"] = (*parts, ints[:-4], ROOM)
    for text in ("tensor_e4m3_te", "tensor_int8:stochastic"):
        rest = (quantizer(text), SEED, 1, 4, True, "auto")
        rows[f"_delayed {text}"] = (x, torch.tensor(2.0), *rest)
    return rows


def check(op, *args, graph: bool) -> None:
    """torch.library.opcheck of an operator, with a graph or without."""
    torch.library.opcheck(op.default, args, test_utils=GRAPHS if graph else OPCHECKS)


@pytest.mark.parametrize("name", calls("cpu"))
def test_opcheck(name: str, backend: str) -> None:
    check(getattr(OP, name.split()[0]), *calls(backend)[name], graph=backend == TRACED)


def laid_out(value: Any, layout: str) -> Any:
    """An argument, where a tensor of values lies otherwise in memory; limits are dense."""
    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 1:
        return value if value.dtype == torch.float64 else LAYOUTS[layout](value)
    return value


OPERATORS = sorted({name.split()[0] for name in calls("cpu")})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_opcheck_of_other_shapes_and_layouts(operator: str, layout: str, backend: str) -> None:
    for name, arguments in (calls(backend) | more_calls(backend)).items():
        if name.split()[0] == operator:
            check(getattr(OP, operator), *(laid_out(x, layout) for x in arguments), graph=False)


@pytest.mark.parametrize("fmt", ["e5m2:stochastic", "affine4_axis1", "block4_e2m1"])
@pytest.mark.parametrize("length", [0, 4, 260])
def test_traced_calls_write_and_count_what_direct_ones_do(fmt, length, backend):
    x, call = 1e4 * torch.randn(4, 6).half(), (quantizer(fmt), SEED, 0, 4, backend, None)
    x[0, 0], results = 0, []
    for seen in (contextlib.nullcontext(), Operators()):
        counts = torch.full((length,), 3, dtype=torch.int64) if length else None
        out = torch.empty(6, 4).t()
        with seen:
            assert ops.quantize(x, *call, counts, out) is out
        results.append((out, *([] if counts is None else [counts])))
        assert length == 0 or counts.sum() > 3 * length
    for direct, traced in zip(*results, strict=True):
        assert_bit_equal(direct, traced)


def test_rows_of_a_table_hold_operands_and_exchange_them():
    acc = Accumulator("fp16", block=4, aligned_bits=2, operands=("e5m2", "e4m3fn"))
    wgrad = passes("conv2d_groups")[2]
    table = table_of(acc.to_ints())
    for product in (
        matmul_of(torch.randn(3, 9) * 2.0**-9, torch.randn(9, 2)),
        wgrad._replace(left=wgrad.left * 2.0**-9),
    ):

        def result(ints, *table, product=product):
            return OP._multiply(*crossing(product, How(ints, SEED, 4), "reference"), *table)

        got = [result([row], table) for row in (0, ~0)]
        want = [result(each.to_ints()) for each in (acc, acc.exchanged())]
        assert_bit_equal(got[0], want[0])
        assert_bit_equal(got[1], want[1])
        assert not torch.equal(*got)


@pytest.mark.parametrize("kind", ACCUMULATORS)
@pytest.mark.parametrize("result", [(), FUSED_RESULT], ids=["as it is", "rounded"])
def test_add_bias_is_the_bias_of_a_product(result, kind, backend):
    acc = ACCUMULATORS[kind]
    a, b, bias = torch.randn(2, 3, 9), torch.randn(9, 4), torch.randn(4)
    how = How(acc.to_ints(), SEED, 4)
    rounded = how._replace(fused=ops.Fused(result=result))
    want = ops.multiply(matmul_of(a, b, bias), rounded, backend)
    sums = ops.multiply(matmul_of(a, b), how, backend)
    got = ops.add_bias(sums, bias, -1, acc, SEED, 4, backend, result)
    assert_bit_equal(got, want)


def passes(case):
    """The three products of a convolution; fprop has a bias."""
    conv = CONV_CASES[case]
    # Small integers: sums of products are exact in float32, in any order.
    x = torch.randint(-3, 4, conv.input_shape).float()
    w = torch.randint(-3, 4, conv.weight_shape).float()
    bias = torch.randint(-3, 4, (w.shape[0],)).float()
    numbers = ops.Convolution(*conv.geometry)
    fprop = ops.fprop_of(x, w, bias, numbers)
    g = torch.randint(-3, 4, fprop.shape).float()
    dgrad = ops.Product("conv_dgrad", g, w, list(x.shape), numbers)
    return fprop, dgrad, ops.Product("conv_wgrad", x, g, list(w.shape), numbers)


def table_of(*descriptions):
    """Rows as compiled graphs hand them over: the length of a description, then its integers."""
    table = torch.zeros(len(descriptions), ops.ROW, dtype=torch.int64)
    for row, ints in zip(table, descriptions, strict=True):
        row[: len(ints) + 1] = torch.tensor([len(ints), *ints])
    return table


#: The places of the descriptions that a row of a table may stand for.
DESCRIBED = {"_multiply": (7, 11, 12, 13), "_add_bias": (3, 7), "_quantize": (1,), "_count": (1,)}


@pytest.mark.parametrize("name", [name for name in calls("cpu") if name.split()[0] in DESCRIBED])
def test_a_call_reads_its_descriptions_from_a_table(name: str, backend: str) -> None:
    operator, arguments = getattr(OP, name.split()[0]), list(calls(backend)[name])
    want = operator(*arguments)
    places = [i for i in DESCRIBED[name.split()[0]] if arguments[i]]
    table = table_of(*(arguments[i] for i in places))
    for row, i in enumerate(places):
        arguments[i] = [row]
    assert_bit_equal(operator(*arguments, table), want)
    check(operator, *arguments, table, graph=backend == TRACED)


@pytest.mark.parametrize("fmt, bits", [("e5m2", 8), ("e4m1", 8), ("e2m1", 4), ("e8m7", 16)])
def test_opcheck_codes_of_a_table_have_a_fixed_size(fmt, bits):
    table = table_of(quantizer(fmt))
    for x in (torch.ones(5, 7), torch.ones(7, 5).t(), torch.ones(3, 0)):
        packing = (x, None, None, [0], (bits, 0, 0), table)
        codes = OP._pack(*packing)
        assert codes.numel() == (x.numel() * bits + 7) // 8
        unpacking = (codes, None, None, [0], list(x.shape), "auto", table)
        assert_bit_equal(OP._unpack(*unpacking), x.contiguous())
        check(OP._pack, *packing, graph=fmt == "e5m2")
        check(OP._unpack, *unpacking, graph=fmt == "e5m2")


def test_opcheck_blocks_of_a_table_have_room_for_their_scales(backend):
    ints = quantizer("block4_axis1_e2m1")
    x = ops.quantize(torch.randn(3, 10), ints, None, 0, 4, backend)
    # The codes have room for elements of 6 bits in blocks of 2.
    codes = OP._pack(*(packing := (x, None, None, [0], (6, 2, 1), table_of(ints))))
    assert codes.numel() == (30 * 6 + 3 * 5 * 8 + 7) // 8
    assert_bit_equal(OP._unpack(codes, None, None, [0], [3, 10], "auto", table_of(ints)), x)
    check(OP._pack, *packing, graph=backend == TRACED)


def test_every_operator_is_checked() -> None:
    names = (name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names())
    found = {name.removeprefix("lpkernels::") for name in names if name.startswith("lpkernels::")}
    assert found == {*OPERATORS, "_seed"}


def test_operators_alone_have_no_gradient():
    x = torch.randn(3, 3, requires_grad=True)
    how = How(ACCUMULATORS["sequential"].to_ints(), SEED, 4)
    y = OP._multiply(*crossing(matmul_of(x, x), how, "auto"))
    with pytest.raises(NotImplementedError, match="an operator alone has no gradient"):
        y.sum().backward()


def test_opcheck_seed():
    # Two runs of one test differ by design, so only the tests of the schema and of fakes apply.
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(OP._seed.default, (0,), {"device": "cpu"}, test_utils=tests)
    assert torch.Tag.nondeterministic_seeded in OP._seed.default.tags


INF, NAN = math.inf, math.nan
ENDS = [
    ([3.0, -1.5, 2.0], (-1.5, 3.0)), ([[NAN, 2.0], [INF, -INF]], (2.0, 2.0)),
    ([NAN, INF, -INF], (INF, -INF)), ([], (INF, -INF)), (-4.0, (-4.0, -4.0)),
    ([2.0**-20, -(2.0**-20)], (-(2.0**-20), 2.0**-20)),
]  # fmt: skip


@pytest.mark.parametrize("values, ends", ENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_ends_are_those_of_finite_values(values, ends, dtype) -> None:
    x = torch.tensor(values, dtype=dtype)
    ends = torch.tensor(ends).to(dtype).float()
    assert_bit_equal(ops.finite_range(x), ends)


def test_ends_of_tensors_that_require_a_gradient_record_none() -> None:
    x = torch.randn(3, 4, requires_grad=True).t()
    assert not ops.finite_range(x).requires_grad
    assert_bit_equal(ops.finite_range(x), torch.stack([x.min(), x.max()]).detach())


def test_average_takes_the_range_with_what_the_past_leaves() -> None:
    average, weight = torch.tensor([1.0, 5.0]), torch.tensor(0.5)
    got = ops.update_range(torch.tensor([-1.0, 3.0]), average, weight, 0.75)
    assert got.tolist() == [-1.0, 3.0]
    assert average.tolist() == [0.5, 4.5] and weight.item() == 0.625
    ops.update_range(torch.tensor([NAN, INF]), average, weight, 0.75)
    assert average.tolist() == [0.5, 4.5] and weight.item() == 0.625


def test_a_hadamard_transform_is_new_and_takes_empty_tensors() -> None:
    x = torch.randn(3, 0, 2)
    assert ops.hadamard(x, 64, 7, 1).shape == (3, 0, 2)
    x = torch.randn(32, 4, dtype=torch.float16)
    y = ops.hadamard(x, 32, 7, 0)
    assert y.dtype == torch.float32 and y.is_contiguous()
    assert_bit_equal(ops.hadamard(x, 32, 7, -2), y)
