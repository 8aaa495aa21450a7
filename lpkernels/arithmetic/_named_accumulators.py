"""Accumulators by name: the text form of every one, those of papers, and tensor cores.

Source of the tensor cores: the recordings of F. A. Khattak and M. Mikaitis, "Accurate Models of
NVIDIA Tensor Cores" (ACM TACO 23(3), 2026, doi:10.1145/3830409, arXiv 2512.07004; the repository
north-numerical-computing/MATLAB-tensor-core), 260,000 in all, which these parameters reproduce.
Beside them: mmaemu 0.1.0 (PyPI; recordings of its own on an H100 PCIe and an RTX 4060), MMA-Sim
(arXiv 2511.10909) and Hawkeye (arXiv 2603.20421; H100 and A100 probed). docs/tensor-cores.md says
what a recording can decide. The MODELS have no recording: they follow MMA-Sim alone. So do most of
AMD's matrix cores, whose units say which outputs they give; those of RDNA follow rocjitsu, AMD's
emulator (ROCm/rocm-systems), and outputs that it was checked with.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from lpkernels.arithmetic._accumulator import ACCUMULATOR_OPTIONS, Accumulator
from lpkernels.arithmetic.text import read_options
from lpkernels.formats import Format, FormatLike, as_format
from lpkernels.formats.elsewhere import KINDS, name_here, nearest, of_another_kind, unless_dtype

#: torch's own sums: fp32, in the hardware's own order.
NATIVE = Accumulator("fp32", order="native")


class Unit(NamedTuple):
    """One matrix unit, called <gpu>_<inputs>, with the results' format behind it if not float32.

    Attributes:
        name: the unit's, which `lpkernels.accumulator` and `lpkernels.recipe` know.
        text: the text form of its arithmetic.
        hardware, instruction: the GPUs and the instruction that were recorded.
        decided: the parameters that the recordings decide.
        unknown: the parameters that the recordings leave open, and where the values here come from.
        evidence: "recordings", "model only" where there is none, and of AMD's matrix cores
            "hardware" or "model of MMA-Sim" with the outputs that were compared.
    """

    name: str
    text: str
    hardware: str
    instruction: str
    decided: str
    unknown: str
    evidence: str = "recordings"

    @property
    def accumulator(self) -> Accumulator:
        """Its arithmetic."""
        return accumulator(self.name)

    @property
    def inputs(self) -> str:
        """The format it multiplies, from its name: fp32, fp16, bf16, tf32, xf32 (AMD's name of
        tf32), e4m3, e5m2, e4m3fnuz, e5m2fnuz, or either fp8."""
        return self.name.removeprefix("model_").split("_")[1]


#: Chains of 14 bits of an H100's fp8 unit, each added to a float32 sum.
_H100_CHAIN = (
    "e8m13_chunk{}:toward_zero:outer=fp32:outer_rounding=nearest_even:block=32:aligned_bits=13"
    ":operands=e4m3fn"
)
_COMMON = "operand alignment, the cut toward zero, the rounding, c in the alignment"
_BITS = f"aligned_bits, no shorter block, {_COMMON}"
_BLOCK = "block (one was recorded; MATLAB-tensor-core and MMA-Sim"
_BLOCK_TF32 = (
    "block (wmma has steps of 4, which were recorded: use block=4 for it; MATLAB-tensor-core and "
    "MMA-Sim say 8 for mma.sync m16n8k8 and wgmma)"
)
_LEAST = "least_exponent (MATLAB-tensor-core and Hawkeye; MMA-Sim has -126)"
_LEAST_HALF = "least_exponent (MATLAB-tensor-core since August 2026; the others have none)"
_REST = "special values, overflow, signs of zero, subnormal bounds (models only)"


def _full(operands: str, block: int, bits: int, least: int | None = None) -> str:
    """An fp32 result of a unit."""
    end = "" if least is None else f":least_exponent={least}"
    return f"fp32:toward_zero:block={block}:aligned_bits={bits}:operands={operands}{end}"


def _sixteen_bits(
    gpu: str, hardware: str, block: int, bits: int, least: int | None, half_bits: str, models: str
) -> Iterator[Unit]:
    """fp16, bf16 and tf32 (none on the V100) of one GPU, and its fp16 results.

    least: the least exponent of bf16 and tf32. half_bits: what recordings of fp16 results say about
    aligned_bits.
    """
    open_block = f"{_BLOCK}{models})"
    fp16, unknown = _full("fp16", block, bits), f"{open_block}; {_REST}"
    yield Unit(f"{gpu}_fp16", fp16, hardware, "wmma", _BITS, unknown)
    if least is not None:
        bf16, unknown = _full("bf16", block, bits, least), f"{open_block}; {_LEAST}; {_REST}"
        yield Unit(f"{gpu}_bf16", bf16, hardware, "wmma", _BITS, unknown)
        narrow = unknown if block == 8 else f"{_BLOCK_TF32}; {_LEAST}; {_REST}"
        steps = _BITS if block == 8 else f"aligned_bits, {_COMMON}"
        tf32 = _full("tf32", block // 2, bits, least)
        yield Unit(f"{gpu}_tf32", tf32, hardware, "wmma", steps, narrow)
    yield Unit(
        f"{gpu}_fp16_fp16",
        f"fp16:block={block}:aligned_bits={bits}:operands=fp16:least_exponent={4 - bits}",
        hardware,
        "wmma",
        f"no shorter block, the rounding, c in the alignment; aligned_bits: {half_bits}",
        f"operand alignment (that of {gpu}_fp16); {open_block}; {_LEAST_HALF}; {_REST}",
    )


def _tensor_cores() -> Iterator[Unit]:
    ada, h100, b200 = "Ada, L40S", "H100, H200", "B200"
    yield from _sixteen_bits("v100", "V100", 4, 23, None, "22 to 28 fit", "")
    yield from _sixteen_bits("a100", "A100, A2", 8, 24, -132, "24 or more fit", ", Hawkeye")
    yield from _sixteen_bits("ada", ada, 8, 24, -132, "22 to 29 fit", "")
    alone = "25 alone fits H100 and B200"
    yield from _sixteen_bits("h100", h100, 16, 25, -133, alone, ", Hawkeye")
    yield from _sixteen_bits("b200", b200, 16, 25, -133, alone, "")
    for name, operands in (("e4m3", "e4m3fn"), ("e5m2", "e5m2")):
        step = f"aligned_bits=13:operands={operands}"
        qmma = "mma.sync (QMMA)"
        yield Unit(
            f"ada_{name}", f"e8m13:toward_zero:block=16:{step}", ada, qmma,
            f"block, 13 places of a result, aligned_bits, {_COMMON}; mixed formats too (mmaemu, "
            "1.06e8 outputs)", _REST,
        )  # fmt: skip
        decided = f"block, aligned_bits, {_COMMON}"
        yield Unit(f"ada_{name}_fp16", f"fp16:block=16:{step}", ada, qmma, decided, _REST)
        yield Unit(
            f"h100_{name}", f"e8m13:toward_zero:block=32:{step}", h100, "wgmma",
            "13 places of a result, aligned_bits, no shorter block, operand alignment, the cut, "
            "the rounding; c was +0",
            f"c in the alignment (mmaemu's recordings, MMA-Sim, Hawkeye); {_BLOCK}); {_REST}",
        )  # fmt: skip
    # mma.sync with fp8 on sm_90 and sm_100: two fp16 steps and an addition.
    for gpu, hardware in (("h100", h100), ("b200", b200)):
        yield Unit(
            f"{gpu}_fp8_mma",
            "fp32_chunk32:toward_zero:outer_rounding=nearest_even:block=16:aligned_bits=25"
            ":operands=fp16:interleaved=2",
            hardware, "mma.sync (2 HMMA, FADD)",
            "that c is added last, to nearest even; the instructions (ptxas 13.0)",
            f"which positions the two steps have (decided by its fp16 results); {_REST}",
        )  # fmt: skip
        yield Unit(
            f"{gpu}_fp8_mma_fp16",
            "fp16_chunk32:block=16:aligned_bits=25:operands=fp16:least_exponent=-21:interleaved=2",
            hardware, "mma.sync (2 HMMA, HADD2)",
            "the positions of the two steps and their order; the instructions (ptxas 13.0)",
            f"{_LEAST_HALF}; {_REST}",
        )  # fmt: skip
    # The sums of cuBLAS on h100_e4m3 with use_fast_accum=False: chains of 128 products, added in
    # order to float32.
    yield Unit(
        "hopper_fp8", _H100_CHAIN.format(128), "H100 PCIe",
        "torch._scaled_mm, use_fast_accum=False",
        "374 live calls of cuBLASLt 12.8 without split-K (mmaemu); its step is h100_e4m3",
        f"split-K, a heuristic of shape, SMs and version; other H100 variants and versions; "
        f"{_REST}",
    )  # fmt: skip


_AMD_REST = "order of k and split-K of libraries; the code of NaN; signs of zero (+0 here)"
_CDNA = {"mi100": "MI100", "mi250": "MI210, MI250", "mi300": "MI300"}


def _core(operands: str, block: int, adder: str) -> str:
    return f"fp32:block={block}:aligned_bits=24:operands={operands}:adder={adder}"


def _matrix_cores() -> Iterator[Unit]:
    """AMD's: MFMA of CDNA1, CDNA2 and CDNA3, WMMA of RDNA3 and RDNA4."""
    for name, text, shape, count in (
        ("mi100_fp32", "fp32", "*f32", 600),
        ("mi100_fp16", "fp32:block=4:operands=fp16", "*f16", 1200),
        ("mi100_bf16", "fp32:block=2:operands=bf16", "*bf16", 1200),
        ("mi250_fp32", "fp32", "*f32", 0),
        ("mi250_fp16", "fp32:block=4:operands=fp16:adder=tree", "*f16", 1200),
        ("mi250_bf16", "fp32:block=2:operands=bf16:adder=tree", "*bf16", 1200),
        ("mi250_bf16_1k", "fp32:block=4:operands=bf16:adder=tree", "*bf16_1k", 1200),
        ("mi300_fp32", "fp32", "*_f32", 600),
        ("mi300_xf32", _core("tf32", 4, "floored"), "*_xf32", 1200),
        ("mi300_fp16", _core("fp16", 8, "floored"), "*_f16", 1800),
        ("mi300_bf16", _core("bf16", 8, "floored"), "*_bf16", 1200),
        ("mi300_e4m3fnuz", _core("e4m3fnuz", 16, "floored_halves"), "*_fp8_fp8", 2400),
        ("mi300_e5m2fnuz", _core("e5m2fnuz", 16, "floored_halves"), "*_bf8_bf8", 1200),
    ):
        equal = f"{count:,} of {count:,} outputs of MMA-Sim 2.1.1 are equal"
        evidence, decided = f"model of MMA-Sim: {count:,} outputs", f"nothing: {equal}"
        if count == 0:
            evidence, decided = "model of MMA-Sim: that of mi100_fp32", "nothing"
        if name == "mi300_e4m3fnuz":
            evidence = "hardware: 1,827 designed outputs"
            decided = f"all its parameters, of finite values with zeros among them; {equal}"
        gpu = _CDNA[name.partition("_")[0]]
        yield Unit(name, text, gpu, f"v_mfma_f32_{shape}", decided, _AMD_REST, evidence)
    for name, adder, block, outputs in (
        ("rdna3_fp16", "opposed", 2, 306),
        ("rdna3_bf16", "opposed", 2, 309),
        ("rdna4_fp16", "pairs_swapped", 4, 56),
        ("rdna4_bf16", "pairs_swapped", 4, 78),
        ("rdna4_fp16_wave64", "pairs", 4, 6),
        ("rdna4_bf16_wave64", "pairs", 4, 7),
    ):
        gpu, operands, *wave = name.split("_")
        emulated = f"{'600' if wave else '1,200'} outputs of rocjitsu are equal"
        yield Unit(
            name,
            _core(operands, block, adder),
            "Radeon Pro W7900" if gpu == "rdna3" else "Radeon AI Pro R9700",
            f"v_wmma_f32_16x16x16_{operands.replace('fp16', 'f16')}{'; a wave of 64' * bool(wave)}",
            f"the steps and their order; {emulated}",
            f"fp16 and bf16 results, fp8; {_AMD_REST}",
            f"hardware: {outputs} recorded outputs",
        )


_MODEL = "nothing: there is none; 150 of 150 outputs of MMA-Sim are equal"
_MODEL_OF_A_MODEL = (
    "all of it on hardware: this is a model of a model, MMA-Sim's, which knows neither sparse "
    "forms nor split-K nor the order of k in larger tiles"
)
#: By name, in the order of the page.
UNITS: dict[str, Unit] = {unit.name: unit for unit in (*_tensor_cores(), *_matrix_cores())}
#: Units without a recording, which follow a model: block-scaled steps of Blackwell as MMA-Sim has
#: them, which counts a zero c as 2^-126. Their operands have scales.
MODELS: dict[str, Unit] = {
    f"model_b200_{name}": Unit(
        f"model_b200_{name}", f"{_full(operands, block, bits, -126)}:group={group}", "none",
        f"tcgen05.mma, mma.sync (kind::{kind})", _MODEL, _MODEL_OF_A_MODEL, "model only",
    )
    for name, kind, block, bits, operands, group in (
        ("mxf8", "mxf8f6f4", 32, 25, "e4m3fn", 1),
        ("mxf4", "mxf4, mxf4nvf4 with e8m0 scales", 64, 35, "fp4_e2m1", 16),
        ("nvf4", "mxf4nvf4 with e4m3 scales", 64, 35, "fp4_e2m1", 16),
    )
}  # fmt: skip

#: The text forms of accumulators whose text would hide where they come from; every text form is a
#: name too.
NAMED_ACCUMULATORS: dict[str, str] = {
    # Wang et al. 2018 (arXiv 1812.08011): sums of 64 in a 16-bit float with 6 exponent bits.
    "ibm_e6m9_chunk64": "e6m9_chunk64",
    # Blumenfeld et al. 2024 (arXiv 2401.14110): product and sum keep 7 mantissa and 4 exponent
    # bits, truncate, saturate and flush below min_normal. The biases and the chunk length are
    # parameters of the method: 12 (product max 15.9), 10 (sum max 63.75), 16 are this package's.
    "lba_m7e4": "e4m7none_b10_nosub_sat_chunk16:toward_zero:product=e4m7none_b12_nosub_sat"
    ":product_rounding=toward_zero",
    # DeepSeek-V3 (arXiv 2412.19437, section 3.3): chains of 14 bits of an H100's fp8 unit over 128
    # codes, each added to a float32 sum times both scales; their product is rounded, as in
    # DeepGEMM.
    "deepseek_v3": _H100_CHAIN.format("scale"),
    # OCP MX v1.0, section 6: the sum of each block's codes times both scales, with float32 sums.
    "mx_fp32": "fp32_chunkscale",
    # Tensor cores as they are: `lpkernels units` says where each is known from.
    **{name: unit.text for name, unit in (UNITS | MODELS).items()},
}

_HEAD = re.compile(r"(.+?)(?:_chunk(\d+|scale))?")


def accumulator(name: str) -> Accumulator:
    """The accumulator called `name`, or the one of a text form such as "e6m9_chunk64" or
    "e5m10:toward_zero".

    Names are the tensor cores of `lpkernels units` ("h100_fp16"), "lba_m7e4" and others, which
    docs/arithmetic.md lists; :class:`Accumulator` has the text form.

    Raises:  TypeError: not a str.  ValueError: no such name; the message lists near ones.

    >>> print(lp.accumulator("ibm_e6m9_chunk64"))
    e6m9_chunk64
    >>> lp.accumulator("e5m10_chunk64:toward_zero").chunk
    64
    """
    if not isinstance(name, str):
        raise TypeError(
            f"accumulator: the name must be a str, got {name!r} ({type(name).__name__}); use "
            "as_accumulator to take an Accumulator as well"
        )
    return _named_or_parsed(name)


@lru_cache(maxsize=1024)
def _named_or_parsed(name: str) -> Accumulator:
    text = NAMED_ACCUMULATORS.get(name, name)
    head, *parts = text.split(":")
    options = read_options(text, parts, ACCUMULATOR_OPTIONS)
    match = _HEAD.fullmatch(head)
    fmt, chunk = match.groups() if match else ("", None)
    native = fmt == "native"
    try:
        sum_format = as_format("fp32" if native else fmt)
    except ValueError as error:
        if other := of_another_kind(name, "accumulator"):
            raise ValueError(f"accumulator: unknown name {name!r}{other}") from error
        names = [*NAMED_ACCUMULATORS, "native", "fp32", "e6m9_chunk64"]
        near = nearest(name, names, "docs/arithmetic.md and `lpkernels units` list all")
        advice = name_here(fmt) or f"; expected one of {near},"
        raise ValueError(
            f"accumulator: unknown name {name!r}{advice} or <format>[_chunk<n>|_chunkscale]"
            "[:<rounding>], as e6m9_chunk64:toward_zero; help(lpkernels.Accumulator) has the other "
            f"options ({error})"
        ) from error
    if native:
        options["order"] = "native"
    length = int(chunk) if chunk and chunk.isdecimal() else chunk
    return Accumulator(sum_format, chunk=length, **options)


def as_accumulator(acc: Accumulator | FormatLike | None) -> Accumulator:
    """`acc` itself if it is an Accumulator, else the one of a format, torch.dtype or name; None is
    :data:`NATIVE`.

    Raises:  TypeError: something else, or a dtype whose values are no format's.
        ValueError: an unknown name, or an Affine or Block format.
    """
    acc = unless_dtype(acc)
    if acc is None:
        return NATIVE
    if isinstance(acc, Accumulator):
        return acc
    if isinstance(acc, Format):
        return Accumulator(acc)
    if isinstance(acc, str):
        return accumulator(acc)
    example = "; for example 'e6m9_chunk64' or Accumulator('e6m9', chunk=64)"
    other = of_another_kind(acc, "accumulator")
    raise TypeError(
        f"expected an Accumulator, a format or a name, got {acc!s} ({type(acc).__name__})"
        f"{other or example}"
    )


def _accumulator_kind(value: object) -> str:
    """What `KINDS` says of an Accumulator, of its name, and of texts that no format has."""
    if isinstance(value, str):
        match = _HEAD.fullmatch(value.partition(":")[0])
        sums = value in NAMED_ACCUMULATORS or (match and (match[2] or match[1] == "native"))
    else:
        sums = isinstance(value, Accumulator)
    where = "for fprop, dgrad and wgrad of a Recipe and for acc= of lp.matmul"
    return f"an accumulator, {where}" if sums else ""


KINDS["accumulator"] = _accumulator_kind
