"""What `make bench` measures, as data: operation, shape, arithmetic, operands, baselines."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Case:
    """One line of the report.

    Attributes:
        op: the name of a builder in bench/ops.py.
        shape: matmul (M, K, N); quantize (elements,); convolutions (batch, channels in, channels
            out, image, kernel, stride), padded to keep the image at stride 1; train_step
            (batch, width, image).
        spec: the text of an Accumulator, a Quantizer or a Recipe.
        operands: the format that the operands are rounded to first; "" leaves them float32.
        baselines: names of what each run of the case is interleaved with.
        quick: whether ``--quick`` runs it.
    """

    op: str
    shape: tuple[int, ...]
    spec: str
    operands: str = ""
    baselines: tuple[str, ...] = ("torch",)
    quick: bool = False

    @property
    def name(self) -> str:
        size = "x".join(map(str, self.shape))
        if self.op.startswith("conv_"):
            batch, c_in, c_out, image, kernel, stride = self.shape
            size = f"{batch}x{c_in}x{image}x{image} to {c_out}, {kernel}x{kernel} stride {stride},"
        operands = f" of {self.operands}" if self.operands else ""
        return f"{self.op} {size} {self.spec}{operands}"


# Accumulators with the operands they are used with: (spec, operands).
ACCUMULATORS = (
    ("e6m9", "e5m2"),
    ("e6m9", ""),
    ("e6m9_chunk64", "e5m2"),
    ("e5m10", "e4m3fn"),
    ("e5m10:product=e4m3", "e4m3fn"),
    ("e6m9:toward_zero", "e5m2"),
    ("e6m9:stochastic", "e5m2"),
    ("bf16", "bf16"),
    ("fp32", ""),
)

# One multiply-add after the other costs 5 s at 960^3, too long for the runs of one sitting.
_NAIVE_LIMIT = 256

_MATMUL = [
    Case(
        "matmul",
        (size, size, size),
        spec,
        operands,
        ("torch", "naive") if size <= _NAIVE_LIMIT else ("torch",),
        quick=size == 256 and spec in ("e6m9", "e6m9:stochastic") and bool(operands),
    )
    for size in (960, 256, 64)
    for spec, operands in ACCUMULATORS
]

_CALL = [Case("matmul", (16, 16, 16), "e6m9", "e5m2", ("torch", "naive"), quick=True)]

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

# Layers of ResNet-18 for images of 224: (channels in, channels out, image, kernel, stride).
_LAYERS = ((64, 64, 56, 3, 1), (128, 128, 28, 3, 1), (64, 128, 56, 3, 2), (64, 128, 56, 1, 2))
_CONV = [
    Case(f"conv_{gemm}", (4, *layer), "e6m9_chunk64", "e5m2", quick=layer == _LAYERS[1])
    for layer in _LAYERS
    for gemm in ("fprop", "dgrad", "wgrad")
]

_TRAIN = [Case("train_step", (32, 16, 32), "fp8_wang2018")]

CASES: tuple[Case, ...] = (*_MATMUL, *_CALL, *_QUANTIZE, *_CONV, *_TRAIN)


def gate_case(case: Case) -> Case:
    """The same operation small enough for the reference: odd sizes, several blocks of k."""
    shapes = {
        "matmul": (9, 300, 21),
        "quantize": (1037,),
        "quantize_out": (1037,),
        "train_step": (2, 2, 8),
    }
    if case.op.startswith("conv_"):
        kernel, stride = case.shape[4:]
        return replace(case, shape=(2, 9, 5, 7, kernel, stride))
    return replace(case, shape=shapes[case.op])
