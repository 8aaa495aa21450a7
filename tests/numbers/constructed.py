"""Whatever the constructors of formats, quantizers, accumulators and recipes take, for hypothesis
to draw: any arguments. What a constructor refuses with a ValueError is left out."""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
from hypothesis import reject
from hypothesis import strategies as st

import lpkernels as lp
from lpkernels.arithmetic import (
    NAMED_ACCUMULATORS,
    NATIVE,
    ORDERS,
    PRODUCTS,
    QUANTIZERS,
    Accumulator,
    Quantizer,
    Recipe,
    accumulator,
)
from lpkernels.arithmetic.integers import ADDERS
from lpkernels.formats import (
    ALIASES,
    NAMED,
    BlockFormat,
    FloatFormat,
    TableFormat,
    _table,
    parse_format,
)
from lpkernels.formats.integers import RULES, STEPS
from lpkernels.formats.named_tables import linear4
from lpkernels.rng import RNGS
from lpkernels.rounding import ROUNDINGS
from tests.support import strategies

#: Names of tables that read like parts of other texts.
_NAMES = """
    x_up x_t x_te x_exact x_torchao x_to7 x_to x_k x_axis0 x_se4m3 x_se8m0 x_sfp32 x_sp3109 x_nosub
    x_chunk4 x_chunkscale x_native x_ _x __ 0 1e5 t k up to7 axis1 te sat left philox stochastic
    none to_odd block block4 tile2x2 row tensor row_x int8 int4f2 posit log log8s8x nf4 linear4
    e8m0 fp32x lba_m7e4 mx_fp32 h100_e4m3 nvfp4 nvfp4_x
""".split()

Strategy: TypeAlias = st.SearchStrategy[Any]


@pytest.fixture(scope="module", autouse=True)
def tables_of_this_module_alone() -> Iterator[None]:
    """Names of tables stand in the errors about unknown names."""
    before = dict(_table._BY_NAME)
    yield
    for name in set(_table._BY_NAME) - set(before):
        del _table._BY_NAME[name]


def _accepted(make: Callable[..., Any], *given: Strategy, **options: Strategy) -> Strategy:
    """What a constructor makes of these arguments, with a few of the options."""

    @st.composite
    def accepted(draw: st.DrawFn) -> Any:
        arguments = [draw(argument) for argument in given]
        few = draw(st.sets(st.sampled_from(sorted(options)), max_size=4)) if options else ()
        try:
            return make(*arguments, **{name: draw(options[name]) for name in sorted(few)})
        except ValueError:
            reject()

    return accepted()


def _in_blocks(fmt: Any, block: int, aligned_bits: int | None, **options: Any) -> Accumulator:
    return Accumulator(fmt, block=block, aligned_bits=aligned_bits, **options)


def _count(largest: int) -> st.SearchStrategy[int]:
    return st.integers(1, 16) | st.integers(1, largest)


_MODES, _GENERATORS = st.sampled_from(ROUNDINGS), st.sampled_from(RNGS)
#: Formats whose names are also names of others.
_ALIKE = [FloatFormat(8, 0), *NAMED.values(), *(
    FloatFormat(e, m, **{"overflow": overflow, "subnormals": subnormals})
    for e, m in ((8, 0), (8, 23), (4, 3), (5, 2), (2, 1))
    for overflow in (None, "saturate", "nan")
    for subnormals in (True, False)
)]  # fmt: skip
floats = st.sampled_from(_ALIKE) | strategies.float_formats()
tables = st.sampled_from(
    [*map(parse_format, ("posit8es1", "supernormal_e4m3_1_1", "log5s2", "nf4")), linear4()]
) | _accepted(
    TableFormat,
    st.just([-1.0, 0.0, 1.0]),
    st.sampled_from(_NAMES) | st.from_regex("x_[a-z0-9_]{0,4}", fullmatch=True),
)
numbers = floats | strategies.fixed_formats() | tables
blocks = st.sampled_from(sorted(ALIASES)).map(parse_format) | _accepted(
    BlockFormat,
    st.sampled_from(["e4m3", "e2m1", "e4m3ieee", "int8", "int4f2", "int8f-3", "e8m0"]) | numbers,
    _count(2**62) | st.tuples(_count(2**31), _count(2**62)) | st.sampled_from(["row", "tensor"]),
    scale=st.sampled_from(["e8m0", "e8m0ieee", "fp32", "e4m3fn", "bf16"]) | floats,
    axis=st.integers(-64, 63) | st.just("k"),
    rule=st.sampled_from(RULES),
    tensor_scale=st.sampled_from([False, True, "row"]),
    scale_target=st.integers(1, 500) | st.floats(2.0**-126, 2.0**127),
    target=st.integers(1, 500)
    | st.floats(2.0**-126, 2.0**127)
    | st.sampled_from(["4or6mae", "4or6mse"]),
    steps=st.sampled_from(STEPS),
)
formats = numbers | strategies.affine_formats() | blocks
quantizers = _accepted(
    Quantizer,
    formats,
    rounding=_MODES,
    random_bits=st.integers(1, 32),
    rng=_GENERATORS,
    hadamard=st.sampled_from([16, 32, 64, 128]),
    signs=st.just("te") | st.integers(0, 2**32 - 1),
)
_sums = {
    "rounding": _MODES,
    "chunk": _count(2**62) | st.just("scale"),
    "outer": numbers,
    "outer_rounding": _MODES,
    "random_bits": st.integers(1, 24),
    "rng": _GENERATORS,
}
accumulators = _accepted(
    Accumulator,
    numbers,
    product=numbers,
    product_rounding=_MODES,
    scale_order=st.sampled_from(["product", "left", "right"]),
    order=st.sampled_from(ORDERS),
    **_sums,
) | _accepted(
    _in_blocks,
    numbers,
    st.sampled_from([8, 16, 64]) | _count(256),
    st.integers(1, 40) | st.none(),
    operands=floats | st.tuples(floats, floats) | st.sampled_from(["e2m1none", "e4m3fn,e5m2"]),
    least_exponent=st.integers(-300, 300),
    interleaved=st.integers(1, 3),
    group=st.sampled_from([1, 16, 32, 64]),
    **_sums,
) | _accepted(
    _in_blocks,
    st.just("fp32"),
    st.sampled_from([2, 4, 8, 16]),
    st.integers(1, 32) | st.none(),
    operands=st.sampled_from(["fp16", "bf16", "tf32", "e4m3fnuz,e5m2fnuz"]),
    adder=st.sampled_from(ADDERS),
    chunk=_count(2**62),
    outer=numbers,
    outer_rounding=_MODES,
) | st.sampled_from(sorted(NAMED_ACCUMULATORS)).map(accumulator)  # fmt: skip
ranges = st.builds(lp.RunningRange, st.floats(0, 1, exclude_max=True), st.booleans())
scalings = _accepted(
    lp.DelayedScaling,
    history=_count(2**20),
    algorithm=st.sampled_from(["max", "most_recent"]),
    margin=st.integers(0, 64),
    reduce=st.booleans(),
)
_of_tensors = st.sampled_from(["tensor_e4m3", "tensor_e5m2_to448", "tensor_e2m1_te"])
recipes = (
    _accepted(
        Recipe, **dict.fromkeys(QUANTIZERS, quantizers), **dict.fromkeys(PRODUCTS, accumulators),
        requantize=st.sampled_from(["source", "codes"]),
    )
    | _accepted(
        Recipe, input=_of_tensors, weight=_of_tensors, grad_output=_of_tensors, scaling=scalings
    )
    | _accepted(
        Recipe, input=st.just("affine8") | st.just("fp32"), input_range=ranges,
        fprop=st.just(NATIVE) | accumulators,
    )
    | st.sampled_from(lp.recipes()).map(lp.recipe)
)  # fmt: skip
