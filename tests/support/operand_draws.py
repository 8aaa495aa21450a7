"""Accumulators with operands, for hypothesis to draw."""

from hypothesis import strategies as st

from lpkernels.arithmetic import Accumulator
from lpkernels.rounding import ROUNDINGS

_FORMATS = ["fp32", "bf16", "fp16", "e8m13", "e4m3fn", "e4m3none_sat", "e5m2_nosub", "e3m0"]
_OPERANDS = ["fp16", "bf16", "e4m3fn", "e5m2", "tf32", "e2m1_nosub"]


@st.composite
def accumulators(draws) -> Accumulator:
    block = draws(st.integers(1, 9))
    interleaved = draws(st.sampled_from([1, 2, 3])) if block % 2 == 0 else 1
    chunk = draws(st.sampled_from([None, 1, 2])) if interleaved == 1 else draws(st.integers(1, 2))
    chunk = chunk and chunk * interleaved * block
    return Accumulator(
        draws(st.sampled_from(_FORMATS)),
        draws(st.sampled_from(ROUNDINGS)),
        chunk=chunk,
        outer=chunk and draws(st.sampled_from([*_FORMATS, "fixed12_f3"])),
        block=block,
        aligned_bits=draws(st.integers(1, 40)),
        operands=draws(st.tuples(*[st.sampled_from(_OPERANDS)] * 2)),
        least_exponent=draws(st.sampled_from([None, -140, -21, -3, 4])),
        interleaved=interleaved,
        random_bits=draws(st.sampled_from([1, 8, 24])),
    )
