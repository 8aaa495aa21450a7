"""Layers trained on the triton backend: the bits of the reference, step by step."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.support.autograd import same

STOCHASTIC = lp.Recipe(
    input="e4m3:stochastic", weight="e4m3", output="e5m2:stochastic", grad_output="e5m2:stochastic",
    fprop="e6m5:stochastic", dgrad="e5m7_chunk4:stochastic:outer=e6m9", wgrad="e6m9_chunk64",
)  # fmt: skip
RECIPES = {"fp8_wang2018": "fp8_wang2018", "lba_m7e4": "lba_m7e4", "stochastic": STOCHASTIC}


class Small(nn.Module):
    """A strided and a grouped convolution and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, stride=2, padding=1)
        self.group = nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.group(F.relu(self.conv(x))))
        return self.head(x.sum((2, 3)))


def model_of(recipe: lp.Recipe | str, device: str) -> nn.Module:
    torch.manual_seed(1)
    return lp.convert(Small(), recipe).to(device)


def gradients(model: nn.Module, inputs: list[Tensor], backend: str, monkeypatch) -> list[Tensor]:
    """The result y, and gradients of inputs and parameters for the gradient y of y itself."""
    monkeypatch.setenv("LPKERNELS_BACKEND", backend)
    leaves = [x.detach().requires_grad_() for x in inputs]
    model.zero_grad()
    torch.manual_seed(5)
    y = model(*leaves)
    y = y[0] if isinstance(y, tuple) else y
    y.backward(y.detach())
    return [y, *(t.grad for t in (*leaves, *model.parameters()))]


MODELS = {
    **{name: (Small, recipe, [(1, 2, 5, 4)]) for name, recipe in RECIPES.items()},
    "attention": (
        lambda: nn.MultiheadAttention(4, 2, batch_first=True), "lba_m7e4", [(1, 3, 4)] * 3,
    ),
    "lstm": (lambda: nn.LSTM(3, 2), "lba_m7e4", [(2, 1, 3)]),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models_have_the_bits_of_the_reference(name: str, device: str, monkeypatch) -> None:
    if device != "cpu":
        pytest.skip("sums of torch's own operations between the layers differ between devices")
    make, recipe, shapes = MODELS[name]
    model, inputs = lp.convert(make(), recipe), [torch.randn(shape) for shape in shapes]
    same(*(gradients(model, inputs, by, monkeypatch) for by in ("triton", "reference")), name)


def test_a_penalty_has_the_bits_of_the_reference(device: str, monkeypatch) -> None:
    model, x = model_of(STOCHASTIC, device), torch.randn(1, 2, 5, 4, device=device)

    def of_gradients(backend: str) -> list[Tensor | None]:
        monkeypatch.setenv("LPKERNELS_BACKEND", backend)
        leaf = x.clone().requires_grad_()
        model.zero_grad()
        torch.manual_seed(5)
        (dx,) = torch.autograd.grad(model(leaf).square().sum(), leaf, create_graph=True)
        dx.square().sum().backward()
        return [leaf.grad, *(p.grad for p in model.parameters())]

    same(of_gradients("triton"), of_gradients("reference"))


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_captured_step_draws_from_its_seed(device: str, recipe, monkeypatch) -> None:
    """A CUDA graph of a step, whose seed is on the device, replays with new draws."""
    if device != "cuda":
        pytest.skip("no CUDA device")
    monkeypatch.setenv("LPKERNELS_BACKEND", "triton")
    model, x = model_of(recipe, device), torch.randn(4, 2, 9, 9, device=device)
    seed = torch.tensor(1, device=device)

    def step() -> list[Tensor]:
        for p in model.parameters():
            p.grad = None
        with lp.seed_from(seed):
            loss = model(x).square().mean()
            loss.backward()
        return [loss.detach(), *(p.grad for p in model.parameters())]

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for value in (1, 2):
        seed.fill_(value)
        graph.replay()
        same([t.clone() for t in captured], step())


def test_a_compiled_step_has_no_breaks(device: str, monkeypatch) -> None:
    """Forward and backward compile whole, by torch's own compiler where there is a GPU."""
    monkeypatch.setenv("LPKERNELS_BACKEND", "triton")
    model, x = model_of("lba_m7e4", device), torch.randn(1, 2, 3, 3, device=device)
    by = "inductor" if device == "cuda" else "aot_eager"
    results = []
    for call in (model, torch.compile(model, fullgraph=True, backend=by)):
        model.zero_grad()
        loss = call(x).square().mean()
        loss.backward()
        results.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.gpu
def test_work_goes_to_the_current_stream_and_the_tensors_device(device: str) -> None:
    if device != "cuda":
        pytest.skip("no CUDA device")
    last = f"cuda:{torch.cuda.device_count() - 1}"
    a, b = torch.randn(70, 90), torch.randn(90, 50)
    want = lp.matmul(a, b, "e6m9", backend="reference")
    stream = torch.cuda.Stream(last)
    with torch.cuda.stream(stream):
        got = lp.matmul(a.to(last), b.to(last), "e6m9", backend="triton")
    stream.synchronize()
    assert str(got.device) == last
    assert_bit_equal(got, want)
