"""One test a capability, in two minutes at most, on an installed package: `pytest -m smoke
tests/smoke` needs nothing else of the checkout, and runs anywhere."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import lpkernels as lp
from lpkernels.cli import app
from lpkernels.techniques import accumulation, assignment, cpt, loss_scaling, pareto

pytestmark = pytest.mark.smoke
A = torch.randn(24, 96, generator=torch.Generator().manual_seed(0))
B = torch.randn(96, 16, generator=torch.Generator().manual_seed(1))


def command(*words: object) -> str:
    ran = CliRunner().invoke(app, [str(word) for word in words])
    assert ran.exit_code == 0, (ran.output, ran.exception)
    return ran.output


def network(*, convolution: bool = True) -> nn.Module:
    torch.manual_seed(0)
    if not convolution:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)]
    return nn.Sequential(*layers)


def step(model: nn.Module) -> float:
    images = torch.randn(12, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    loss = nn.functional.cross_entropy(model(images), torch.arange(12) % 3)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    return loss.item()


def test_the_module_that_was_built_is_there() -> None:
    status = lp.backends.status()
    assert status["cpu"] == "available", status


@pytest.mark.parametrize(
    "name", ["e4m3fn", "fp16", "fixed8_f4", "affine8", "posit8es1", "mxfp8", "nvfp4"]
)
def test_formats_round_on_both_backends_alike(name: str) -> None:
    rounded = lp.quantize(A, name, backend="cpu")
    assert torch.equal(rounded, lp.quantize(A, name, backend="reference"))
    assert torch.equal(lp.quantize(rounded, name), rounded) and not torch.equal(rounded, A)


@pytest.mark.parametrize(
    "name", ["e6m9", "e5m10_chunk64", "e6m9:stochastic", "fixed16_f8", "h100_e4m3"]
)
def test_sums_are_those_of_the_reference(name: str) -> None:
    a, b, acc = lp.quantize(A, "e4m3fn"), lp.quantize(B, "e4m3fn"), lp.accumulator(name)
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    fast = lp.matmul(a, b, acc, generator=generators[0], backend="cpu")
    assert torch.equal(fast, lp.matmul(a, b, acc, generator=generators[1], backend="reference"))


def test_codes_are_kept() -> None:
    rounded = lp.quantize(A, "e4m3fn")
    codes = lp.pack(rounded, "e4m3fn")
    assert codes.numel() == A.numel()
    assert torch.equal(lp.unpack(codes, "e4m3fn", A.shape), rounded)
    parts = lp.scaled(A, "nvfp4")
    assert torch.equal(parts.dequantize(), lp.quantize(A, "nvfp4"))


@pytest.mark.parametrize("name", ["fp8_wang2018", "mxfp8", "nvfp4", "fp16_mixed"])
def test_a_model_converts_and_trains(name: str) -> None:
    # Blocks along the sum of a product are for linear layers.
    convolution = name not in ("mxfp8", "nvfp4")
    plain = step(network(convolution=convolution))
    model = lp.convert(network(convolution=convolution), name)
    assert step(model) == pytest.approx(plain, rel=0.3)


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11),
    reason="torch before 2.11 does not take the layers into one graph",
)
def test_a_converted_model_is_one_graph() -> None:
    model = lp.convert(network(), "fp8_wang2018").eval()
    images = torch.randn(2, 1, 8, 8)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(images), model(images))


def test_the_five_techniques() -> None:
    images, labels = torch.randn(8, 1, 8, 8), torch.arange(8) % 3
    entropy = nn.functional.cross_entropy
    made = accumulation.plan(network(), images, loss=lambda y: entropy(y, labels), operand="e5m2")
    assert {row.gemm for row in made.rows} == {"fprop", "dgrad", "wgrad"}

    model = lp.convert(network(), "fp8_wang2018")
    masters = loss_scaling.MasterWeights(torch.optim.SGD(model.parameters(), lr=0.1), weight="fp16")
    scaler = loss_scaling.LossScaler()
    scaler.scale(entropy(model(images), labels)).backward()
    scaler.step(masters)
    scaler.update()

    cyclic = lp.convert(network(), "cpt_fu2021")
    scheduler = cpt.PrecisionScheduler(cyclic, 8, bits=(3, 8), cycles=2)
    scheduler.step()
    assert scheduler.expected_cost() < scheduler.static_cost()

    ops = assignment.trace(network(), entropy, (images, labels))
    low = assignment.demote(assignment.group(ops), 0.5)
    assert low.ratio >= 0.5
    assignment.assign(network(), entropy, low)(images, labels).backward()

    errors = torch.rand(6, 4, generator=torch.Generator().manual_seed(4)).double().numpy()
    assert len(pareto.select(pareto.embed(errors, 2), n=2)) == 2


def test_commands_train_sweep_and_report(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-m", "lpkernels", "doctor"], capture_output=True)
    assert ran.returncode == 0 and b"cpu" in ran.stdout
    assert "e4m3fn" in command("formats")
    run, sweep, spec = tmp_path / "run", tmp_path / "sweep", tmp_path / "sweep.toml"
    tiny = ["--data", "iris", "--width", 4, "--epochs", 1, "--operands", "e4m3fn"]
    command("train", *tiny, "--out", run)
    lines = (run / "records.jsonl").read_text().splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["header", "epoch"]
    base = 'seeds = 2\nbase = { data = "iris", width = 4, epochs = 1 }\n'
    spec.write_text(base + '[arms.fp32]\n[arms.fp8]\noperands = "e4m3fn"\n')
    command("sweep", "run", spec, "--out", sweep, "--jobs", 1)
    assert "fp8" in command("sweep", "table", sweep)
    command("report", run, "--plot", tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 1000
    command("report", sweep, "--html", tmp_path / "sweep.html")
    assert "fp8" in (tmp_path / "sweep.html").read_text()
