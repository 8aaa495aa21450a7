"""Tensor cores by name: the arithmetic of one step, its source, and the parameters left unknown.

Source of all: the recordings of F. A. Khattak and M. Mikaitis, "Accurate Models of NVIDIA Tensor
Cores" (ACM TACO 23(3), 2026, doi:10.1145/3830409, arXiv 2512.07004; the repository
north-numerical-computing/MATLAB-tensor-core), 260,000 in all, which these parameters reproduce.
Beside them: mmaemu 0.1.0 (PyPI; recordings of its own on an H100 PCIe and an RTX 4060), MMA-Sim
(arXiv 2511.10909) and Hawkeye (arXiv 2603.20421; H100 and A100 probed). docs/tensor-cores.md says
what a recording can decide. The MODELS have no recording: they follow MMA-Sim alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lpkernels.arithmetic._accumulator import Accumulator


@dataclass(frozen=True)
class Unit:
    """One matrix unit, called <gpu>_<inputs>, with the results' format behind it if not float32.

    Args:
        name: the unit's, which `lpkernels.accumulator` and `lpkernels.recipe` know.
        accumulator: its arithmetic.
        hardware, instruction: the GPUs and the instruction that were recorded.
        decided: the parameters that the recordings decide.
        unknown: the parameters that the recordings leave open, and where the values here come from.
        evidence: "recordings", or "model only" where there is none.
    """

    name: str
    accumulator: Accumulator
    hardware: str
    instruction: str
    decided: str
    unknown: str
    evidence: str = "recordings"

    @property
    def inputs(self) -> str:
        """The format it multiplies, from its name: fp16, bf16, tf32, e4m3, e5m2, or either fp8."""
        return self.name.removeprefix("model_").split("_")[1]


_V100, _A100, _ADA = ("v100", "V100"), ("a100", "A100, A2"), ("ada", "Ada, L40S")
_H100, _B200 = ("h100", "H100, H200"), ("b200", "B200")

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


def _full(operands: str, block: int, bits: int, least: int | None = None) -> Accumulator:
    """An fp32 result of a 16-bit or tf32 unit."""
    return Accumulator(
        "fp32",
        "toward_zero",
        block=block,
        aligned_bits=bits,
        operands=operands,
        least_exponent=least,
    )


def _half(block: int, bits: int, least: int) -> Accumulator:
    """An fp16 result of an fp16 unit."""
    return Accumulator(
        "fp16", block=block, aligned_bits=bits, operands="fp16", least_exponent=least
    )


def _sixteen_bits(
    gpu: tuple[str, str], block: int, bits: int, least: int | None, half_bits: str, models: str
) -> Iterator[Unit]:
    """fp16, bf16 and tf32 (none on the V100) of one GPU, and its fp16 results.

    least: the least exponent of bf16 and tf32. half_bits: what recordings of fp16 results say about
    aligned_bits.
    """
    name, hardware = gpu
    recorded = (hardware, "wmma", _BITS)
    open_block = f"{_BLOCK}{models})"
    yield Unit(f"{name}_fp16", _full("fp16", block, bits), *recorded, f"{open_block}; {_REST}")
    if least is not None:
        wide = f"{open_block}; {_LEAST}; {_REST}"
        yield Unit(f"{name}_bf16", _full("bf16", block, bits, least), *recorded, wide)
        narrow = wide if block == 8 else f"{_BLOCK_TF32}; {_LEAST}; {_REST}"
        steps = _BITS if block == 8 else f"aligned_bits, {_COMMON}"
        tf32 = _full("tf32", block // 2, bits, least)
        yield Unit(f"{name}_tf32", tf32, hardware, "wmma", steps, narrow)
    yield Unit(
        f"{name}_fp16_fp16",
        _half(block, bits, 4 - bits),
        hardware,
        "wmma",
        f"no shorter block, the rounding, c in the alignment; aligned_bits: {half_bits}",
        f"operand alignment (that of {name}_fp16); {open_block}; {_LEAST_HALF}; {_REST}",
    )


def _fp8(operands: str) -> Iterator[Unit]:
    """The units for fp8 of Ada and of Hopper, operands "e4m3" or "e5m2"."""
    both = "e4m3fn" if operands == "e4m3" else operands

    def e8m13(block: int) -> Accumulator:
        return Accumulator("e8m13", "toward_zero", block=block, aligned_bits=13, operands=both)

    yield Unit(
        f"ada_{operands}",
        e8m13(16),
        _ADA[1],
        "mma.sync (QMMA)",
        f"block, 13 places of a result, aligned_bits, {_COMMON}; mixed formats too (mmaemu, "
        "1.06e8 outputs)",
        _REST,
    )
    yield Unit(
        f"ada_{operands}_fp16",
        Accumulator("fp16", block=16, aligned_bits=13, operands=both),
        _ADA[1],
        "mma.sync (QMMA)",
        f"block, aligned_bits, {_COMMON}",
        _REST,
    )
    yield Unit(
        f"h100_{operands}",
        e8m13(32),
        _H100[1],
        "wgmma",
        "13 places of a result, aligned_bits, no shorter block, operand alignment, the cut, the "
        "rounding; c was +0",
        f"c in the alignment (mmaemu's recordings, MMA-Sim, Hawkeye); {_BLOCK}); {_REST}",
    )


def _fp8_as_half(gpu: tuple[str, str]) -> Iterator[Unit]:
    """mma.sync with fp8 on sm_90 and sm_100: two fp16 steps and an addition."""
    name, hardware = gpu
    yield Unit(
        f"{name}_fp8_mma",
        Accumulator(
            "fp32",
            "toward_zero",
            chunk=32,
            outer="fp32",
            outer_rounding="nearest_even",
            block=16,
            aligned_bits=25,
            operands="fp16",
            interleaved=2,
        ),
        hardware,
        "mma.sync (2 HMMA, FADD)",
        "that c is added last, to nearest even; the instructions (ptxas 13.0)",
        f"which positions the two steps have (decided by its fp16 results); {_REST}",
    )
    yield Unit(
        f"{name}_fp8_mma_fp16",
        Accumulator(
            "fp16",
            chunk=32,
            outer="fp16",
            block=16,
            aligned_bits=25,
            operands="fp16",
            least_exponent=-21,
            interleaved=2,
        ),
        hardware,
        "mma.sync (2 HMMA, HADD2)",
        "the positions of the two steps and their order; the instructions (ptxas 13.0)",
        f"{_LEAST_HALF}; {_REST}",
    )


#: The sums of cuBLAS on h100_e4m3 with use_fast_accum=False: chains of 128 products, added in order
#: to float32.
_PROMOTED = Unit(
    "hopper_fp8",
    Accumulator(
        "e8m13",
        "toward_zero",
        chunk=128,
        outer="fp32",
        outer_rounding="nearest_even",
        block=32,
        aligned_bits=13,
        operands="e4m3fn",
    ),
    "H100 PCIe",
    "torch._scaled_mm, use_fast_accum=False",
    "374 live calls of cuBLASLt 12.8 without split-K (mmaemu); its step is h100_e4m3",
    f"split-K, a heuristic of shape, SMs and version; other H100 variants and versions; {_REST}",
)


def _all() -> Iterator[Unit]:
    yield from _sixteen_bits(_V100, 4, 23, None, "22 to 28 fit", "")
    yield from _sixteen_bits(_A100, 8, 24, -132, "24 or more fit", ", Hawkeye")
    yield from _sixteen_bits(_ADA, 8, 24, -132, "22 to 29 fit", "")
    for gpu, models in ((_H100, ", Hawkeye"), (_B200, "")):
        yield from _sixteen_bits(gpu, 16, 25, -133, "25 alone fits H100 and B200", models)
    for operands in ("e4m3", "e5m2"):
        yield from _fp8(operands)
    for gpu in (_H100, _B200):
        yield from _fp8_as_half(gpu)
    yield _PROMOTED


_MODEL_OF_A_MODEL = (
    "all of it on hardware: this is a model of a model, MMA-Sim's, which knows neither sparse "
    "forms nor split-K nor the order of k in larger tiles"
)


def _model(name: str, kind: str, block: int, bits: int, operands: str, group: int) -> Unit:
    """A block-scaled step of Blackwell as MMA-Sim has it, which counts a zero c as 2^-126."""
    acc = replace(_full(operands, block, bits, -126), group=group)
    instruction = f"tcgen05.mma, mma.sync (kind::{kind})"
    decided = "nothing: there is none; 150 of 150 outputs of MMA-Sim are equal"
    return Unit(
        f"model_b200_{name}", acc, "none", instruction, decided, _MODEL_OF_A_MODEL, "model only"
    )


#: Units without a recording, which follow a model; their operands have scales.
MODELS: dict[str, Unit] = {
    unit.name: unit
    for unit in (
        _model("mxf8", "mxf8f6f4", 32, 25, "e4m3fn", 1),
        _model("mxf4", "mxf4, mxf4nvf4 with e8m0 scales", 64, 35, "fp4_e2m1", 16),
        _model("nvf4", "mxf4nvf4 with e4m3 scales", 64, 35, "fp4_e2m1", 16),
    )
}

#: By name, in the order of the page.
UNITS: dict[str, Unit] = {unit.name: unit for unit in _all()}
