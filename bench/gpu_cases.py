"""What `make bench` measures on a GPU, as data; see registry.py.

The products are large enough to fill the device; their baselines are torch's float32 product
without TF32 (the multiply-adds of the CUDA cores), with TF32, and in bfloat16 (tensor cores).
"""

from __future__ import annotations

from bench.registry import Case

_PRODUCT = ("torch", "tf32", "bf16")
_SIDE = 4096
_SIDES = (512, 1024, 2048, 8192)

# (accumulator, operands), with one line for each tier of kernels.
_ACCUMULATORS = (
    ("e5m10", "e4m3fn"),
    ("bf16", "e4m3fn"),
    ("e6m9", "e5m2"),
    ("e5m9", "e5m2"),
    ("e4m7none_sat", "e5m2"),
    ("e6m9:stochastic", "e5m2"),
    ("e8m14", "bf16"),
    ("e6m9_chunk64", "e5m2"),
    # Chunks of these operands are exact in float32, in any order: the gate can compare bits. Chunks
    # of e4m3fn are multiples of 2^-18 below 2^6.
    ("native_chunk64:outer=e6m9", "fp6_e2m3"),
    ("native_chunk64:outer=e6m9", "e4m3fn"),
    ("e5m10:order=pairwise", "e4m3fn"),
    ("e5m10:order=compensated", "e4m3fn"),
    ("e8m13:toward_zero:block=16:aligned_bits=13", "e4m3fn"),
    ("e5m10:product=e4m3", "e4m3fn"),
    ("e6m9", ""),
)
# Layers of ResNet-18 for images of 224, and of ResNet-20 for images of 32: channels in, channels
# out, image, kernel, stride.
_LAYERS = (
    (64, 64, 56, 3, 1),
    (64, 128, 56, 3, 2),
    (64, 128, 56, 1, 2),
    (128, 128, 28, 3, 1),
    (256, 256, 14, 3, 1),
    (512, 512, 7, 3, 1),
)

_SMALL_LAYERS = ((16, 16, 32, 3, 1), (32, 32, 16, 3, 1), (64, 64, 8, 3, 1))

GPU_CASES: tuple[Case, ...] = (
    *(Case("matmul", (side,) * 3, "e6m9", "e5m2", _PRODUCT) for side in _SIDES),
    *(
        Case("matmul", (_SIDE,) * 3, spec, operands, _PRODUCT, quick=spec == "e6m9")
        for spec, operands in _ACCUMULATORS
    ),
    Case("quantize_out", (100_000_000,), "e5m2:nearest_even", quick=True),
    Case("quantize_out", (100_000_000,), "e6m9:nearest_even"),
    Case("quantize_out", (100_000_000,), "e6m9:stochastic", quick=True),
    Case("quantize_out", (100_000_000,), "e6m9:toward_zero"),
    *(
        Case(f"conv_{gemm}", (64, *layer, 1), "e6m9", "e5m2", ("torch", "gemm"), share=0.4)
        for layer in _LAYERS
        for gemm in ("fprop", "dgrad", "wgrad")
    ),
    *(
        Case(f"conv_{gemm}", (128, *layer, 1), "e6m9", "e5m2", ("torch", "gemm"), share=0.4)
        for layer in _SMALL_LAYERS
        for gemm in ("fprop", "dgrad", "wgrad")
    ),
    Case("quantize_out", (100_000_000,), "block32_e4m3:nearest_even"),
    Case("quantize_out", (100_000_000,), "affine8:nearest_even"),
    Case("train_step", (128, 20, 16, 32), "fp8_wang2018"),
    Case("train_step", (256, 18, 64, 32), "fp8_native64", exact=False),
    Case("train_step", (256, 18, 64, 32), "fp8_mac_e6m9"),
)
