"""The paper's formats: how they round, and which tensor has which."""

import math

import torch

import lpkernels as lp
from lpkernels.techniques.assignment import PAPER, Formats
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.refusals import refuses

LOW, GRADIENT, HIGH = PAPER.activation.low, PAPER.grad_activation.low, PAPER.activation.high
VECTORS = {
    "FP(4,3,4)": (
        LOW,
        {
            1.0: 1.0, 1.0625: 1.125, 1.1875: 1.25, -1.0625: -1.125, 29.0: 30.0, 30.9: 30.0,
            31.0: 30.0, -100.0: -30.0, 2.0**-13: 2.0**-13, 2.0**-14: 2.0**-13,
            0.999 * 2.0**-14: 0.0, 0.00137: 0.0013427734375, 2.0**-10: 2.0**-10,
        },
    ),
    "FP(5,2,0)": (
        GRADIENT,
        {
            1.125: 1.25, 1.375: 1.5, 122879.0: 114688.0, 122880.0: math.inf, -1e9: -math.inf,
            2.0**-17: 2.0**-16, 3 * 2.0**-17: 2.0**-15,
        },
    ),
    "FP(6,9,0) forward": (
        HIGH,
        {1 + 2.0**-10: 1 + 2.0**-9, 1 + 2.0**-11: 1.0, 2.0**33: 8581545984.0,
         2.0**-40: 2.0**-39, 1 / 3: 0.33349609375},
    ),
    "FP(6,9,0) backward": (PAPER.grad_activation.high, {2.0**33: math.inf, 1 / 3: 0.33349609375}),
}  # fmt: skip


@each("quantizer, values", VECTORS.values())
def test_values_round_as_in_the_papers_code(
    quantizer: lp.Quantizer, values: dict[float, float]
) -> None:
    got = lp.quantize(torch.tensor(list(values), dtype=torch.float32), quantizer)
    assert_bit_equal(got, torch.tensor(list(values.values()), dtype=torch.float32))


def test_gradients_of_weights_stay_at_16_bits_and_only_forward_saturates():
    assert PAPER.grad_weight.low == PAPER.grad_weight.high == PAPER.grad_activation.high
    assert [x.low.fmt.bits for x in (PAPER.weight, PAPER.grad_activation)] == [8, 8]
    assert PAPER.weight.high.fmt.bits == PAPER.grad_weight.low.fmt.bits == 16
    for kinds, overflow in (
        ((PAPER.weight, PAPER.activation), "saturate"),
        ((PAPER.grad_weight, PAPER.grad_activation), "infinity"),
    ):
        assert {one.fmt.overflow for kind in kinds for one in kind} == {overflow}


def test_any_format_may_be_taken_for_a_kind():
    formats = Formats(weight=("fp16", "affine4"), activation=lp.FixedFormat(8, 4))
    assert str(formats.of("weight", True)) == "affine4"
    assert formats.activation.low == formats.activation.high
    assert formats.grad_weight == PAPER.grad_weight
    assert Formats.same("bf16", "fp8_e5m2:stochastic").grad_weight.low.is_stochastic


BLOCKS = lp.BlockFormat("fp4_e2m1", 32)
test_formats_that_cannot_be_are_refused = refuses(
    Formats,
    [
        ((), {"weight": ("fp16",)}, ValueError, r"weight must be \(high, low\), got 1 of them"),
        ((), {"weight": ("fp8_e5m2", "fp16")}, ValueError,
         "low precision e5m10 has 16 bits, more"),
        ((), {"activation": ("fp16", 8)}, TypeError, "Formats: activation: expected a Quantizer"),
        ((), {"weight": "float8"}, ValueError, "Formats: weight: "),
        ((), {"activation": ("fp16", BLOCKS)}, ValueError,
         "depend on the tensor's shape; take a format whose codes have one width"),
    ],
)  # fmt: skip
