"""A CUDA graph can capture a product: the host only starts kernels on the given stream and asks for
properties of the device. It waits for nothing and reads no value of a tensor.

All of this is shown without a device. In csrc/cuda the text tells which functions of the CUDA
runtime are called. The adapters run on tensors that have shapes and no values.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lpkernels import _build
from lpkernels.arithmetic import Accumulator, as_quantizer
from lpkernels.backends import Fused
from lpkernels.backends import cuda as cuda_backend
from tests.backends import by_hand
from tests.cases import ConvCase, accumulators_named
from tests.support.products import PASSES, convolve, in_sequence

CSRC = Path(__file__).resolve().parents[2] / "csrc"
#: The names of the CUDA runtime that csrc/cuda may use: types, a launch's error, device queries.
MAY_NAME = {
    "cudaStream_t",
    "cudaError_t", "cudaSuccess", "cudaGetLastError", "cudaGetErrorString",
    "cudaGetDevice", "cudaDeviceGetAttribute", "cudaDeviceAttr",
    "cudaDevAttrSingleToDoublePrecisionPerfRatio",
}  # fmt: skip
STREAMS = {"stream", "queue", "static_cast<cudaStream_t>(stream)"}


def test_the_host_starts_kernels_on_the_given_stream_and_asks_what_the_device_is() -> None:
    names, launches = set(), []
    for path in (*CSRC.glob("cuda/*/*"), *CSRC.glob("bindings_cuda*")):
        text = path.read_text(encoding="utf-8")
        text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
        names |= set(re.findall(r"\b(?:cuda[A-Z]\w*|cu[A-Z][a-z]\w*)", text))
        launches += re.findall(r"<<<(.*?)>>>", text, flags=re.S)
    assert names == MAY_NAME
    assert len(launches) >= 5
    # A launch on the default stream ends in its shared memory or its threads.
    assert {launch.rsplit(",", 1)[1].strip() for launch in launches} <= STREAMS


class Copies(TorchDispatchMode):
    """Refuses whatever brings values from the host to a device, or back: a capture refuses it too,
    or the graph keeps the values of the day."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        seen = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, Tensor)]
        if len({x.device.type for x in seen}) > 1:
            raise RuntimeError(f"{func} moves values between the host and a device")
        return out


class Lists(TorchFunctionMode):
    """Refuses tensors that are made of values in Python: making one copies them to its device."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.tensor, torch.as_tensor, torch.from_numpy):
            raise RuntimeError(f"{func} moves values between the host and a device")
        return func(*args, **(kwargs or {}))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """torch's device "meta", whose tensors have shapes and no values; kernels start on no stream.
    An adapter does the same on this device and on a GPU, except for streams."""
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=0))
    with Copies(), Lists():
        yield torch.device("meta")


def tensor(size: tuple[int, ...], device: torch.device, dtype: torch.dtype = torch.float32) -> Any:
    return torch.empty(size, dtype=dtype, device=device)


E5M2 = as_quantizer("e5m2").to_ints()
FUSED = (Fused(), Fused(E5M2, E5M2, E5M2))
#: Every order of sums, every way of rounding them; with draws and without.
ACCUMULATORS = accumulators_named("""
    e6m9 e6m9_chunk4:outer=fp32 fp32 e5m4:stochastic
    e6m9_chunk8:stochastic:outer_rounding=nearest_even e5m6:product=e4m3:product_rounding=stochastic
    fixed16_f8:toward_zero e5m4:order=pairwise e5m4_chunk9:order=compensated
    fp32:block=4:aligned_bits=24 e8m13:toward_zero:block=4:aligned_bits=13:operands=e4m3fn
    native_chunk8:outer=e6m9
""")
MATMULS = (((9, 40), (40, 20)), ((2, 3, 9, 40), (40, 20)), ((2, 1, 9, 40), (3, 40, 20)))
#: A dense, a strided, a grouped and a depthwise convolution, with padding.
CONVOLUTIONS = (
    ConvCase((2, 9, 7, 7), (20, 9, 3, 3), (1, 1), (1, 1), (1, 1)),
    ConvCase((2, 4, 9, 8), (6, 2, 3, 2), (2, 3), (1, 0), (1, 2), 2),
    ConvCase((2, 6, 7), (6, 1, 3), (2,), (1,), (1,), 6),
)


def run_products(backend: Any, acc: Accumulator, device: torch.device) -> None:
    """Every product that a backend makes, of tensors on the device; the seed is there too."""
    ints, role = acc.to_ints(), 4

    def there(size: tuple[int, ...]) -> Tensor:
        return tensor(size, device)

    seed = tensor((), device, torch.int64)
    for fused in FUSED:
        for left, right in MATMULS:
            a, b, bias = there(left), there(right), there(right[-1:])
            by_hand.matmul(backend, a, b, bias, ints, seed, role, fused)
            by_hand.matmul(backend, a.mT.contiguous().mT, b, None, ints, seed, role, fused)
        start = there((9, 20))
        by_hand.matmul(
            backend, there((9, 40)), there((40, 20)), None, ints, seed, role, fused, start
        )
        for case in CONVOLUTIONS:
            shapes = (case.input_shape, case.weight_shape, case.output_shape, case.weight_shape[:1])
            for name in PASSES:
                convolve(backend, name, case, tuple(map(there, shapes)), acc, fused, seed)
    if acc.order == "native":
        by_hand.accumulate(backend, there((9, 20)), there((20,)), (0, 0), ints, seed, role, 2, 0)


@pytest.mark.parametrize("acc", [*filter(in_sequence, ACCUMULATORS)], ids=str)
def test_the_cuda_adapter_reads_no_value(acc, device, monkeypatch):
    started: list[str] = []

    class Module:
        """lpkernels._C, whose kernels are counted and not started."""

        @staticmethod
        def cuda_scratch_bytes(**_: Any) -> int:
            return 512

        def __getattr__(self, name: str) -> Any:
            return lambda **_: started.append(name)

    monkeypatch.setattr(_build, "load_extension", Module)
    run_products(cuda_backend.BACKEND, acc, device)
    # dgrad of the strided convolutions is a product for each phase that a tap meets.
    assert started.count("cuda_multiply") >= len(FUSED) * (2 * len(MATMULS) + 1 + 9)
    assert set(started) >= {"cuda_pack_operand", "cuda_frame", "cuda_multiply"}


@pytest.mark.triton
@pytest.mark.parametrize("acc", ACCUMULATORS, ids=str)
def test_the_triton_adapter_reads_no_value(acc, device, monkeypatch):
    pytest.importorskip("triton")
    from lpkernels.backends import triton as triton_backend
    from lpkernels.backends.triton import _launch, _products
    from tests.backends.triton.launches import recorded

    if _launch.interpreting():
        pytest.skip("the interpreter's tensors are the host's")
    monkeypatch.setattr(_products, "processors", lambda _: 132)
    with recorded() as launches:
        run_products(triton_backend.BACKEND, acc, device)
    names = [launch.name for launch in launches]
    assert {"pack_operand_kernel", "frame_kernel"} <= set(names)
    assert len(names) >= 3 * len(FUSED) * (2 * len(MATMULS) + 1 + 9)
