"""Quantizers that products apply themselves, against the same quantizers as separate passes."""

import itertools

import torch

import lpkernels as lp
from lpkernels import ops
from lpkernels.arithmetic import Quantizer, accumulator, as_quantizer
from lpkernels.ops import matmul_of
from lpkernels.rng import Role
from tests.backends.cpu_products import drawn
from tests.cases import CONV_CASES, DETERMINISTIC, EVERY_FORMAT
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.operands import KINDS

SEED = torch.tensor(-987654321)
#: Sums of different tiers, one with draws at the places of products and biases.
SUMS = [accumulator(name) for name in ("e6m9", "e5m10_chunk3:toward_zero", "e5m6:stochastic")]
QUANTIZERS = (
    "e5m2", "e4m3fn:to_odd", "bf16:toward_negative", "e3m4_b-60:nearest_away",
    "fixed8_f4:toward_positive", "fixed8_f4_wrap",
)  # fmt: skip


def triples() -> list[ops.Fused]:
    """Every quantizer in every place once, and some of the places empty."""
    ints = [as_quantizer(text).to_ints() for text in QUANTIZERS]
    turned = [ints[i:] + ints[:i] for i in (0, 1, 2)]
    return [
        *itertools.starmap(ops.Fused, zip(*turned, strict=True)),
        ops.Fused(left=ints[0]),
        ops.Fused(right=ints[1]),
        ops.Fused(result=ints[2]),
    ]


def check(ways, product, acc, fused, backend="cpu"):
    """product with its quantizers gives the result of product between passes of quantize."""
    how = ops.How(acc.to_ints(), SEED, Role.FPROP)
    for way in ways:
        got = ops.multiply(product, how._replace(fused=fused), backend)
        left, right = (
            ops.quantize(x, ints, None, 0) if ints else x
            for x, ints in zip(product[1:3], fused[:2], strict=True)
        )
        want = ops.multiply(product._replace(left=left, right=right), how, backend)
        if fused.result:
            want = ops.quantize(want, fused.result, None, 0)
        assert_bit_equal(got, want, f"{way} {acc} {fused}")


@each("acc, kind", SUMS, [*KINDS, "rare"])
def test_matmul_rounds_its_operands_and_its_result(kind, acc, isas):
    for m, k, n in ((9, 33, 20), (40, 5, 3), (2, 0, 3)):
        a, b, bias = drawn(kind, (m, k), (k, n), (n,))
        for fused in triples():
            check(isas, matmul_of(a, b, bias), acc, fused)
            check(isas, matmul_of(a.mT.contiguous().mT, b[None]), acc, fused)


@each("mode, fmt", DETERMINISTIC, EVERY_FORMAT)
def test_matmul_rounds_to_every_format(fmt, mode, isas):
    ints = Quantizer(fmt, mode).to_ints()
    for kind in ("wide", "rare"):
        operands = drawn(kind, (3, 20), (20, 17))
        check(isas, matmul_of(*operands), SUMS[0], ops.Fused(ints, ints, ints))


@each("name", ["conv1d_stride", "conv2d_groups", "conv2d_depthwise", "conv3d"])
def test_convolutions_round_their_operands_and_their_result(name, isas):
    case = CONV_CASES[name]
    shapes = (case.input_shape, case.weight_shape, case.output_shape, case.weight_shape[:1])
    x, w, g, bias = drawn("rare", *shapes)
    conv = ops.Convolution(*case.geometry)
    for acc, fused in zip(SUMS * 3, triples(), strict=True):
        check(isas, ops.fprop_of(x, w, bias, conv), acc, fused)
        check(isas, ops.Product("conv_dgrad", g, w, x.shape, conv), acc, fused)
        check(isas, ops.Product("conv_wgrad", x, g, w.shape, conv), acc, fused)


def test_backends_that_do_not_fuse_get_rounded_operands():
    a, b = torch.randn(5, 7), torch.randn(7, 3)
    for fused in triples():
        check(["reference"], matmul_of(a, b), SUMS[2], fused, "reference")
        chunks = accumulator("native_chunk4:stochastic:outer=e6m9")
        check(["native"], matmul_of(a, b), chunks, fused)


def test_what_fuses():
    for text in ("e5m2", "e5m2:to_odd", "fixed8_f4"):
        assert as_quantizer(text).fuses is True, text
    for text in ("e5m2:stochastic", "fixed8_f4:stochastic", "affine4", "block4_e2m1"):
        assert as_quantizer(text).fuses is False, text


def test_layers_keep_rounded_copies_where_a_native_product_reads_them():
    x, w = torch.randn(4, 6, requires_grad=True), torch.randn(3, 6, requires_grad=True)
    for native in (False, True):
        wgrad = {} if native else {"wgrad": "e6m9"}
        recipe = lp.Recipe(input="e4m3", weight="e5m2", fprop="e6m9", dgrad="e6m9", **wgrad)
        with lp.functional.packed_activations(False):
            saved = lp.functional.linear(x, w, recipe=recipe).grad_fn.saved_tensors
        if native:
            assert_bit_equal(saved[0], lp.quantize(x, "e4m3"))
            assert_bit_equal(saved[1], w)
        else:
            assert [t.data_ptr() for t in saved[:2]] == [x.data_ptr(), w.data_ptr()]
