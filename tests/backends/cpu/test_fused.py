"""Quantizers that products apply themselves, against the same quantizers as separate passes."""

import itertools

import pytest
import torch

import lpkernels as lp
from lpkernels import ops
from lpkernels.arithmetic import Quantizer, accumulator, as_quantizer
from lpkernels.backends import Fused, cpu
from lpkernels.ops import matmul_of
from lpkernels.rng import Role
from tests.backends.cpu_products import drawn
from tests.cases import DETERMINISTIC, EVERY_FORMAT
from tests.compare import assert_bit_equal

SEED = torch.tensor(-987654321)
#: Sums of different tiers, one with draws at the places of products and biases.
SUMS = [accumulator(name) for name in ("e6m9", "e5m10_chunk3:toward_zero", "e5m6:stochastic")]
_INTS = [
    as_quantizer(text).to_ints()
    for text in ("e5m2", "e4m3fn:to_odd", "bf16:toward_negative", "e3m4_b-60:nearest_away",
                 "fixed8_f4:toward_positive", "fixed8_f4_wrap")
]  # fmt: skip
#: Every quantizer in every place once, and some of the places empty.
TRIPLES = [
    *itertools.starmap(Fused, zip(*(_INTS[i:] + _INTS[:i] for i in (0, 1, 2)), strict=True)),
    Fused(left=_INTS[0]), Fused(right=_INTS[1]), Fused(result=_INTS[2]),
]  # fmt: skip


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


@pytest.mark.parametrize("fmt", EVERY_FORMAT, ids=str)
def test_products_round_to_every_format(fmt, isas):
    for mode in DETERMINISTIC:
        ints = Quantizer(fmt, mode).to_ints()
        for kind in ("wide", "rare"):
            a, b = drawn(kind, (3, 20), (20, 17))
            check(isas, matmul_of(a.mT.contiguous().mT, b[None]), SUMS[0], Fused(ints, ints, ints))


@pytest.mark.parametrize("fused", TRIPLES)
def test_backends_that_do_not_fuse_get_rounded_operands(fused):
    product = matmul_of(torch.randn(5, 7), torch.randn(7, 3))
    check(["reference"], product, SUMS[2], fused, "reference")
    check(["native"], product, accumulator("native_chunk4:stochastic:outer=e6m9"), fused)


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


def test_a_table_of_operands_alone_takes_the_usual_tiers(isas) -> None:
    product = matmul_of(torch.randn(16, 16), torch.randn(16, 16))
    fused = Fused(*[as_quantizer("posit8es1").to_ints()] * 2)
    check(isas, product, SUMS[0], fused)
    for isa in isas:
        cpu.BACKEND.take_tiers()
        ops.multiply(product, ops.How(SUMS[0].to_ints(), fused=fused), "cpu")
        assert isa == "scalar" or cpu.BACKEND.take_tiers()["double"] == 0, isa
