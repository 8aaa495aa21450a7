"""The registry: status, choice, the environment variable, the self-test and every message."""

import sys
from types import ModuleType

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import lpkernels as lp
from lpkernels import backends, ops
from lpkernels.backends import _selftest, cuda
from lpkernels.backends._reference import ReferenceBackend
from tests.backends import by_hand

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


class Fake(ReferenceBackend):
    """An adapter whose answers a test chooses; it rounds as the reference does."""

    def __init__(self, why: str = "", lacks: str = "", wrong: bool = False) -> None:
        self.why, self.lacks, self.wrong, self.calls = why, lacks, wrong, 0

    def available(self) -> bool:
        return not self.why

    def why_not(self) -> str:
        return self.why

    def unsupported(self, op: str, device: torch.device) -> str:
        return f"no kernel for {op}" if op == self.lacks else ""

    def quantize(self, rounding) -> None:
        self.calls += 1
        super().quantize(rounding)
        if self.wrong:
            # Contraction turns the fast primitives into the identity.
            rounding.out.copy_(rounding.x)


@pytest.fixture
def registry(monkeypatch):
    """Replaces some adapters: registry(cpu=Fake(), triton=ImportError("..."))."""
    monkeypatch.delenv("LPKERNELS_BACKEND", raising=False)
    monkeypatch.setattr(backends, "_loaded", dict(backends._loaded))
    monkeypatch.setattr(backends, "_checked", dict(backends._checked))
    monkeypatch.setattr(backends, "choices", {})

    def replace(**adapters):
        backends.choices.clear()
        for name, adapter in adapters.items():
            backends._loaded.pop(name, None)
            backends._checked.pop(name, None)
            module = ModuleType(f"adapter_{name}")
            module.BACKEND = adapter
            monkeypatch.setitem(backends._MODULES, name, module.__name__)
            monkeypatch.setitem(sys.modules, module.__name__, module)

    return replace


def test_status_names_every_backend_and_says_why(registry, monkeypatch):
    status = backends.status()
    assert list(status) == ["reference", "cpu", "cuda", "triton"] == list(backends.names())
    assert status["reference"] == "available"
    registry(cpu=Fake(why="the sun was in its eyes"), cuda=Fake(), triton=None)
    monkeypatch.setitem(backends._MODULES, "triton", "lpkernels.backends.not_there")
    status = backends.status()
    assert (status["cpu"], status["cuda"]) == ("the sun was in its eyes", "available")
    assert status["triton"].startswith("not built yet")


def test_status_survives_adapters_that_cannot_be_imported(monkeypatch, registry, tmp_path):
    lines = {
        "cpu": "raise ImportError('undefined symbol: xyz')",
        "cuda": "import a_module_that_is_nowhere",
        "triton": "raise OSError('libcuda.so.1: cannot open shared object file')",
    }
    monkeypatch.syspath_prepend(tmp_path)
    for name, line in lines.items():
        (tmp_path / f"broken_{name}.py").write_text(line)
        registry(**{name: None})
        monkeypatch.setitem(backends._MODULES, name, f"broken_{name}")
    status = backends.status()
    assert status["cpu"] == "its adapter cannot be imported: undefined symbol: xyz"
    assert "needs the module 'a_module_that_is_nowhere', which is not installed" in status["cuda"]
    assert "libcuda.so.1" in status["triton"]
    with pytest.raises(RuntimeError, match="backend 'cpu' cannot be used: its adapter cannot be"):
        backends.get("cpu")


def test_get_returns_the_adapter_or_says_which_exist():
    assert backends.get("reference").name == "reference"
    with pytest.raises(ValueError, match=r"unknown name 'tpu'; expected one of \('auto', 'referen"):
        backends.get("tpu")


def test_auto_prefers_cpu_then_reference(registry):
    cpu = Fake()
    registry(cpu=cpu)
    assert backends.select("auto", "matmul", CPU) is cpu
    for other in (Fake(lacks="matmul"), Fake(why="absent")):
        registry(cpu=other)
        assert backends.select("auto", "matmul", CPU).name == "reference"


@pytest.fixture
def lacking(monkeypatch) -> dict[str, str]:
    """Why backends are absent, by name; all others seem to be here, and are told by their names."""
    reasons: dict[str, str] = {}
    monkeypatch.setattr(backends, "_why_not", lambda name: reasons.get(name, ""))
    monkeypatch.setattr(backends, "choices", {})
    monkeypatch.setattr(backends, "_tested", lambda name: name)
    return reasons


@pytest.mark.parametrize("op", ["matmul", "conv_wgrad", "accumulate"])
def test_auto_asks_the_backends_of_a_gpu_in_their_order(op: str, monkeypatch, lacking):
    asked: list[str] = []
    monkeypatch.setattr(backends, "_why_not", lambda name: asked.append(name) or f"no {name} here")
    with pytest.raises(NotImplementedError, match="no cuda here"):
        backends.select("auto", op, CUDA)
    assert asked[:2] == (["triton", "cuda"] if op == "accumulate" else ["cuda", "triton"])


def test_auto_on_cuda_leaves_other_orders_and_blocks_to_triton_alone(lacking):
    pytest.importorskip("triton")
    for op in ("matmul_ordered", "matmul_operands", "conv_wgrad_operands", "matmul_ordered_table"):
        assert backends.select("auto", op, CUDA) == "triton"
    lacking["triton"] = "no triton here"
    backends.choices.clear()
    with pytest.raises(NotImplementedError, match=r"backend='triton' has these\n  triton: no tri"):
        backends.select("auto", "matmul_operands", CUDA)


def test_auto_lists_every_reason_when_nothing_fits(registry):
    registry(cpu=Fake(why="no compiler"), reference=Fake(lacks="matmul"))
    reasons = r"on cpu:\n  cpu: no compiler\n  reference: no kernel for"
    with pytest.raises(NotImplementedError, match=f"matmul: no backend for tensors {reasons}"):
        backends.select("auto", "matmul", CPU)
    with pytest.raises(
        NotImplementedError, match="none knows this device; move the tensors to cpu"
    ):
        backends.select("auto", "matmul", torch.device("meta"))


def test_an_explicit_backend_runs_or_raises(registry):
    registry(cpu=Fake(lacks="matmul"), triton=Fake(why="no driver"))
    assert backends.select("cpu", "quantize", CPU).name == "reference"
    with pytest.raises(NotImplementedError, match="backend='cpu' cannot do this on cpu: no kernel"):
        backends.select("cpu", "matmul", CPU)
    with pytest.raises(RuntimeError, match="matmul: backend='triton' cannot be used: no driver"):
        backends.select("triton", "matmul", CPU)
    with pytest.raises(ValueError, match="backend: unknown name 'tpu'"):
        backends.select("tpu", "matmul", CPU)


def test_the_environment_replaces_auto_at_each_call(registry, monkeypatch):
    cpu = Fake()
    registry(cpu=cpu)
    for name, chosen in (("reference", "reference"), ("cpu", cpu), ("", cpu)):
        monkeypatch.setenv("LPKERNELS_BACKEND", name)
        auto = backends.select("auto", "quantize", CPU)
        assert auto is chosen if chosen is cpu else auto.name == chosen
        assert backends.select("cpu", "quantize", CPU) is cpu
        before = cpu.calls
        lp.quantize(torch.ones(2), "e5m2")
        assert cpu.calls == before + (chosen is cpu)
    monkeypatch.setenv("LPKERNELS_BACKEND", "tpu")
    with pytest.raises(ValueError, match="LPKERNELS_BACKEND: unknown name 'tpu'"):
        backends.select("auto", "quantize", CPU)


def test_the_self_test_runs_once_at_first_use(registry):
    cpu = Fake()
    registry(cpu=cpu)
    backends.status()
    assert cpu.calls == 0
    backends.select("cpu", "quantize", CPU)
    assert (calls := cpu.calls) > 0
    backends.select("cpu", "quantize", CPU)
    assert cpu.calls == calls


def test_a_failed_self_test_names_the_cause_and_shows_in_status(registry):
    registry(cpu=Fake(wrong=True))
    match = "backend 'cpu' cannot be used: its self-test failed: .*-ffp-contract=off"
    for name in ("cpu", "cpu", "auto"):
        with pytest.raises(RuntimeError, match=match):
            lp.quantize(torch.ones(2), "e5m2", backend=name)
    assert "its self-test failed" in backends.status()["cpu"]


def test_the_self_test_sees_each_way_of_going_wrong():
    class Flushing(Fake):
        def quantize(self, rounding):
            super().quantize(rounding)
            rounding.out[rounding.out.abs() < 2**-14] = 0.0

    class ByFloat32(Fake):
        def quantize(self, rounding):
            super().quantize(rounding._replace(x=rounding.x.float()))

    class UnroundedSums(Fake):
        def multiply(self, product, how, scales=None):
            return product.left @ product.right

    assert "3.0517578125e-05" in _selftest.run(Flushing(), CPU)
    assert f"float64 {1 + 2**-11 + 2**-40!r} to e5m10" in _selftest.run(ByFloat32(), CPU)
    assert "summed in" in _selftest.run(UnroundedSums(), CPU)
    assert _selftest.run(Fake(), CPU) == ""


def test_every_backend_here_passes_its_self_test(backend):
    assert _selftest.run(backends.get(backend), CPU) == ""


def test_a_first_use_while_torch_traces_leaves_no_fake_tensor_behind(monkeypatch):
    monkeypatch.delenv("LPKERNELS_BACKEND", raising=False)
    if backends.status()["cpu"] != "available":
        pytest.skip("the cpu backend is not built")
    for name in ("_loaded", "_checked", "choices"):
        monkeypatch.setattr(backends, name, {})
    for module in ("cpu", "_layout"):
        monkeypatch.setattr(backends, module, None)
        monkeypatch.delitem(sys.modules, f"lpkernels.backends.{module}")
    with FakeTensorMode():
        backend = backends.select("auto", "matmul", CPU)
    assert backend.name == "cpu"
    acc = lp.Accumulator("fp16").to_ints()
    out = by_hand.matmul(backend, torch.ones(2, 3), torch.ones(3, 2), None, acc, None, 0)
    assert out.tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_other_orders_ask_for_a_backend_that_has_them(monkeypatch):
    asked, inner = [], backends.select
    monkeypatch.setattr(
        backends, "select", lambda name, op, device: asked.append(op) or inner(name, op, device)
    )
    a = torch.ones(2, 2)
    for rest in (":order=pairwise", ":order=compensated", ":block=4:aligned_bits=24", ""):
        lp.matmul(a, a, f"e5m4{rest}", backend="reference")
    assert asked == [*["matmul_ordered"] * 3, "matmul"]


def test_status_says_what_a_gpu_lacks_without_triton(lacking) -> None:
    lacking["triton"] = "no triton here"
    status = backends.status()
    assert status["cuda"] == "available"
    assert status["triton"].startswith("no triton here; without it counts, codes, block and affine")
    lacking["cuda"] = "no device here"
    assert backends.status()["triton"] == "no triton here"


@pytest.mark.parametrize("op", cuda.TRITON_ALONE)
def test_what_only_triton_has_on_a_gpu(op: str, lacking) -> None:
    with pytest.raises(NotImplementedError, match=f"{op} is an operation of the triton backend"):
        backends.select("cuda", op, CUDA)
    lacking["triton"] = "no triton here"
    assert backends.select("auto", op, CUDA) == "reference"


def test_layers_keep_their_inputs_unpacked_where_the_backend_has_no_codes(monkeypatch):
    monkeypatch.setattr(backends, "_why_not", lambda name: "")
    monkeypatch.setenv("LPKERNELS_BACKEND", "cuda")
    assert not ops.packs_at_once("cuda")
