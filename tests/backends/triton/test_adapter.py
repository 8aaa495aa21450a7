"""The backend in the registry: the calls that it says it takes, and its operations through the
operators."""

import pytest
import torch

import lpkernels as lp
from lpkernels.backends import _selftest
from lpkernels.backends.triton import BACKEND, _launch
from tests.backends import by_hand
from tests.support.autograd import same


def test_says_which_operations_it_has(device: str) -> None:
    operations = (
        "quantize quantize_affine quantize_block matmul matmul_ordered accumulate pack unpack"
    )
    for op in operations.split():
        assert BACKEND.unsupported(op, torch.device(device)) == ""
    other = torch.device("cpu" if device == "cuda" else "cuda:0")
    home = device.upper()
    match = f"it takes tensors on a {home} device here, these are on {other}"
    assert BACKEND.unsupported("quantize", other) == match
    reason = BACKEND.unsupported("matmul_events", torch.device(device))
    assert reason == "its kernels count no events; those of the cpu backend do"
    reason = BACKEND.unsupported("matmul_scaled_cores", torch.device(device))
    assert "the adders of AMD's matrix cores are the cpu and reference backends' alone" in reason


def test_says_what_is_missing(monkeypatch) -> None:
    monkeypatch.setattr(_launch, "interpreting", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not BACKEND.available()
    assert "finds no CUDA device" in BACKEND.why_not()
    assert "TRITON_INTERPRET=1 before the first import" in BACKEND.why_not()
    assert "on a CUDA device here" in BACKEND.unsupported("pack", torch.device("cpu"))
    monkeypatch.setattr(_launch, "interpreting", lambda: True)
    assert BACKEND.available() and BACKEND.why_not() == ""
    assert BACKEND.unsupported("pack", torch.device("cpu")) == ""


def test_refuses_a_triton_that_is_too_old() -> None:
    _launch.require_version("3.7.1")
    with pytest.raises(ImportError, match=r"needs Triton 3\.6 or newer, found 3\.2\.0"):
        _launch.require_version("3.2.0")


@pytest.mark.skipif(_launch.interpreting() or torch.cuda.is_available(), reason="triton runs here")
def test_without_a_device_it_raises_with_the_reason() -> None:
    with pytest.raises(RuntimeError, match=r"backend='triton' cannot be used: torch finds no CUDA"):
        lp.quantize(torch.ones(2), "e5m2", backend="triton")


def test_passes_the_self_test(device: str) -> None:
    assert _selftest.run(BACKEND, torch.device(device)) == ""
    assert lp.backends.select("triton", "quantize", torch.device(device)) is BACKEND
    assert lp.backends.status()["triton"] == "available"


def test_a_captured_graph_draws_from_its_seed(device: str) -> None:
    """The seed is on the device, and a replay after it has changed draws anew."""
    if device != "cuda":
        pytest.skip("no CUDA device")
    x, seed = torch.randn(64, 64, device=device), torch.tensor(1, device=device)
    acc = lp.accumulator("native_chunk8:stochastic:outer=e6m3")

    def run() -> tuple[torch.Tensor, ...]:
        formats = ("e4m3:stochastic", "affine5:stochastic", "block32_e2m1:stochastic")
        rounded = [lp.quantize(x, fmt, generator=seed, backend="triton") for fmt in formats]
        total = torch.zeros_like(x)
        by_hand.accumulate(BACKEND, total, x, (0, 0), acc.to_ints(), seed, 0, 2, 0)
        return (*rounded, total)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    for value in (1, 2):
        seed.fill_(value)
        graph.replay()
        same(captured, run())
