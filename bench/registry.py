"""What `make bench` measures, as data: operation, shape, arithmetic, operands, baselines."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Case:
    """One line of the report.

    Attributes:
        op: the name of a builder in bench/ops.py.
        shape: matmul, scaled_matmul (M, K, N); quantize, count (elements,); convolutions
            (batch, channels in, channels out, image, kernel, stride, groups), padded to keep the
            image at stride 1; train_step (batch, depth, width, image).
        spec: the text of an Accumulator, a Quantizer or a Recipe, or a name that bench/ops.py
            gives one.
        operands: the format that the operands are rounded to first, or of scaled_matmul those of
            the left and the right one; "" leaves them float32.
        baselines: names of what each run of the case is interleaved with.
        quick: whether ``--quick`` runs it.
        share: the share of a line's time that the case may take.
        spill: every so many rows of a matmul's left operand are so large that a tenth of their sums
            overflow; 0: none.
        exact: whether the gate compares bits; sums by the hardware's own rules can only be close.
        isa: the instruction set of the CPU kernels (LPKERNELS_ISA); "": the processor's best.
    """

    op: str
    shape: tuple[int, ...]
    spec: str
    operands: str = ""
    baselines: tuple[str, ...] = ("torch",)
    quick: bool = False
    share: float = 1.0
    spill: int = 0
    exact: bool = True
    isa: str = ""

    @property
    def name(self) -> str:
        size = "x".join(map(str, self.shape))
        if self.op.startswith("conv_"):
            batch, c_in, c_out, image, kernel, stride, groups = self.shape
            to = "depthwise" if groups == c_in == c_out else f"to {c_out}"
            size = f"{batch}x{c_in}x{image}x{image} {to}, {kernel}x{kernel} stride {stride},"
        operands = f" of {self.operands}" if self.operands else ""
        spill = f", 1 row in {self.spill} overflows" if self.spill else ""
        isa = f", {self.isa}" if self.isa else ""
        return f"{self.op} {size} {self.spec}{operands}{spill}{isa}"


# Accumulators and the operands that they are used with: (spec, operands).
ACCUMULATORS = (
    ("e6m9", "e5m2"),
    ("e6m9", ""),
    ("e6m9_chunk64", "e5m2"),
    ("e5m10", "e4m3fn"),
    ("e5m10_chunk64", "e4m3fn"),
    ("e5m10:product=e4m3", "e4m3fn"),
    ("e5m10:product=e6m5", "e4m3fn"),
    ("e6m9:product=e6m5", "e5m2"),  # changes no product: six bits
    ("e6m9:toward_zero", "e5m2"),
    ("e6m9:stochastic", "e5m2"),
    ("bf16", "bf16"),
    ("e8m14", "bf16"),
    ("e8m22", "bf16"),
    ("fp32", ""),
)

_MATMUL = [
    Case(
        "matmul",
        (size, size, size),
        spec,
        operands,
        quick=size == 256 and spec in ("e6m9", "e6m9:stochastic") and bool(operands),
    )
    for size in (960, 256, 64)
    for spec, operands in ACCUMULATORS
]

# Operands take the full range of the format: in some cases few rows have sums that overflow, in
# others all rows.
_SPILL = [
    Case("matmul", (960, 960, 960), spec, operands, spill=spill)
    for spec, operands in (
        ("e6m9", "e5m2"),
        ("e6m9_sat", "e5m2"),
        ("e5m10", "e4m3fn"),
        ("e5m10_sat", "e4m3fn"),
    )
    for spill in (64, 1)
]

# Wide, tall and skinny products, and matrices times vectors: (M, K, N).
_SHAPES = [
    Case("matmul", shape, spec, operands, share=0.5)
    for shape in (
        (4096, 4096, 256),
        (16384, 256, 16),
        (16, 16384, 64),
        (64, 64, 16384),
        (4096, 4096, 1),
        (1, 4096, 4096),
    )
    for spec, operands in (("e6m9", "e5m2"), ("e6m9_chunk64", "e5m2"), ("e5m10", "e4m3fn"))
]

# The same kernels run in narrower registers.
_ISA = [
    Case("matmul", (960, 960, 960), spec, operands, ("torch", *wider), share=0.5, isa="avx2")
    for spec, operands, wider in (
        ("e6m9", "e5m2", ("avx512",)),
        ("e6m9_chunk64", "e5m2", ("avx512",)),
        ("e5m10", "e4m3fn", ("avx512", "avx512fp16")),
    )
]

_CALL = [Case("matmul", (16, 16, 16), "e6m9", "e5m2", quick=True)]

_QUANTIZE = [
    case
    for elements in (100_000_000, 65_536)
    for case in (
        Case("quantize", (elements,), "e5m2:nearest_even"),
        Case("quantize_out", (elements,), "e5m2:nearest_even", quick=elements == 65_536),
        Case("quantize_out", (elements,), "e6m9:nearest_even"),
        Case("quantize_out", (elements,), "e6m9:stochastic", quick=elements == 65_536),
    )
]

# Scaled formats, as they are rounded, packed and unpacked.
_SCALED = [
    Case(op, (2048, 2048), spec, baselines=("torch", "torchao", "microxcaling"), share=0.5)
    for op, specs in (
        (
            "quantize_out",
            (
                "mxfp8:nearest_even",
                "mxfp4:nearest_even",
                "block32_axis0_e4m3:nearest_even",
                "mxfp8:stochastic",
                "nvfp4:nearest_even",
                "nvfp4:stochastic",
                "fp8_128x128:nearest_even",
                "fp8_tensor:nearest_even",
                "nvfp4_te:nearest_even",
                "nvfp4_46_te:nearest_even",
                "nvfp4_row_te:nearest_even",
            ),
        ),
        ("pack", ("mxfp8", "nvfp4", "e4m3fn")),
        ("unpack", ("mxfp8", "mxfp4", "nvfp4", "e4m3fn")),
    )
    for spec in specs
]

# Products of scaled operands: formats of the left and of the right operand.
_FP32_BY_SCALE = "fp32_chunkscale"
_DEEPSEEK = (
    "e8m13_chunkscale:toward_zero:outer=fp32:outer_rounding=nearest_even:block=32:aligned_bits=13"
    ":operands=e4m3fn"
)
_BY_SCALE = [
    Case("scaled_matmul", (512, 512, 512), spec, operands, baselines, share=0.5)
    for spec, operands, baselines in (
        (_FP32_BY_SCALE, "nvfp4_one,block16_axis-2_e2m1_se4m3fn", ("torch",)),
        (_FP32_BY_SCALE, "nvfp4,block16_axis-2_e2m1_se4m3fn_t", ("torch",)),
        (_FP32_BY_SCALE, "mxfp4_up,block32_axis-2_e2m1_up", ("torch",)),
        (_FP32_BY_SCALE, "mxfp8_up,block32_axis-2_e4m3_up", ("torch",)),
        (_FP32_BY_SCALE, "block128_int8_sfp32,block128_axis-2_int8_sfp32", ("torch",)),
        (_DEEPSEEK, "fp8_1x128,fp8_128x128", ("torch", "hopper_fp8")),
    )
] + [
    Case(
        "scaled_matmul",
        (512, 512, 512),
        _FP32_BY_SCALE,
        "mxfp4_up,block32_axis-2_e2m1_up",
        share=0.5,
        isa="avx2",
    )
]

_COUNTING = ("quantize_counting", "quantize_histogram", "count", "count_histogram")
_COUNT = [
    Case(op, (elements,), spec, baselines=("torch", "quantize"), quick=elements == 1000)
    for elements in (100_000_000, 65_536, 1000)
    for op in _COUNTING
    for spec in ("e5m2:nearest_even", "e6m9:stochastic")
] + [
    Case("quantize_counting", (100_000_000,), spec, baselines=("torch", "quantize"))
    for spec in ("e4m3fn:stochastic", "e4m3none_b11_sat:nearest_away")
]

# Layers of ResNet-18 for images of 224 (He et al. 2016, table 1): (channels in, channels out,
# image, kernel, stride).
_RESNET18 = (
    (3, 64, 224, 7, 2),
    (64, 64, 56, 3, 1),
    (64, 128, 56, 3, 2),
    (64, 128, 56, 1, 2),
    (128, 128, 28, 3, 1),
    (128, 256, 28, 3, 2),
    (128, 256, 28, 1, 2),
    (256, 256, 14, 3, 1),
    (256, 512, 14, 3, 2),
    (256, 512, 14, 1, 2),
    (512, 512, 7, 3, 1),
)
# Depthwise layers of MobileNetV2 for images of 224 (Sandler et al. 2018, table 2): (channels,
# image, stride), kernels of 3x3.
_MOBILENET = (
    (32, 112, 1),
    (96, 112, 2),
    (144, 56, 1),
    (144, 56, 2),
    (192, 28, 1),
    (192, 28, 2),
    (384, 14, 1),
    (576, 14, 1),
    (576, 14, 2),
    (960, 7, 1),
)
_CONV_SHAPES = [
    *((4, *layer, 1) for layer in _RESNET18),
    *((4, c, c, image, 3, stride, c) for c, image, stride in _MOBILENET),
]
_CONV = [
    Case(
        f"conv_{gemm}",
        shape,
        "e6m9_chunk64",
        "e5m2",
        ("torch", "gemm"),
        quick=shape[1:5] == (128, 128, 28, 3),
        share=0.4,
    )
    for shape in _CONV_SHAPES
    for gemm in ("fprop", "dgrad", "wgrad")
]

# ResNet-20 on images of 32x32 (He et al. 2016, section 4.2).
_TRAIN = [Case("train_step", (128, 20, 16, 32), "fp8_wang2018")]

CASES: tuple[Case, ...] = (
    *_MATMUL,
    *_SHAPES,
    *_SPILL,
    *_ISA,
    *_CALL,
    *_QUANTIZE,
    *_SCALED,
    *_BY_SCALE,
    *_COUNT,
    *_CONV,
    *_TRAIN,
)


def gate_case(case: Case) -> Case:
    """The same operation, small enough for the reference: odd sizes and several blocks of k."""
    shapes = {
        **dict.fromkeys(("matmul", "scaled_matmul"), (9, 300, 21)),
        "quantize": (1037,),
        "quantize_out": (1037,) if len(case.shape) == 1 else (37, 65),
        **dict.fromkeys(("pack", "unpack"), (37, 65)),
        **dict.fromkeys(_COUNTING, (1037,)),
        "train_step": (2, 8, 2, 8),
    }
    if case.op.startswith("conv_"):
        kernel, stride, groups = case.shape[4:]
        sizes = (
            (2, 9, 5, 7, kernel, stride, 1) if groups == 1 else (2, 18, 18, 7, kernel, stride, 18)
        )
        return replace(case, shape=sizes)
    return replace(case, shape=shapes[case.op])
