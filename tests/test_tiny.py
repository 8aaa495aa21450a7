"""Whether the house stands, in ten seconds: one path through each layer, from formats to commands.

Run it alone while you work: ``pytest tests/test_tiny.py``.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

import lpkernels as lp
from lpkernels.backends import cpu
from lpkernels.reference import exact, twin
from tests.cases import EVERY_ACCUMULATOR, FLOAT_FORMATS, hard_values
from tests.compare import assert_bit_equal
from tests.support.commands import call

NEEDS_MODULE = pytest.mark.skipif(not cpu.BACKEND.available(), reason=cpu.BACKEND.why_not())
BACKENDS = ("cpu", "reference")
SEED = torch.tensor(20)


@pytest.mark.parametrize("fmt", FLOAT_FORMATS)
def test_values_of_a_format_stay_when_they_are_rounded(fmt: lp.FloatFormat) -> None:
    own = torch.from_numpy(hard_values(fmt, 20)).float()
    once = lp.quantize(own, fmt)
    assert_bit_equal(lp.quantize(once, fmt), once, str(fmt))


@pytest.mark.parametrize("acc", EVERY_ACCUMULATOR)
def test_sums_of_the_fast_reference_are_the_exact_ones(acc: lp.Accumulator) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape, np.float32) for shape in ((2, 9), (9, 2)))
    got = twin.matmul(a, b, None, acc, seed=20)
    assert_bit_equal(got, exact.matmul(a, b, None, acc, seed=20), str(acc))


@NEEDS_MODULE
@pytest.mark.parametrize("acc", EVERY_ACCUMULATOR)
def test_kernels_have_the_bits_of_the_reference(acc: lp.Accumulator) -> None:
    a, b = torch.randn(5, 33), torch.randn(33, 7)
    got, want = (lp.matmul(a, b, acc=acc, generator=SEED, backend=name) for name in BACKENDS)
    assert_bit_equal(got, want, str(acc))


def trained() -> list[torch.Tensor]:
    """The parameters of a small network after two steps in 8-bit formats, draws and all."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(64, 3),
    )  # fmt: skip
    lp.convert(model, "fp8_wang2018")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        x = torch.randn(4, 1, 4, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return list(model.parameters())


@NEEDS_MODULE
def test_a_network_trains_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []
    for name in BACKENDS:
        monkeypatch.setenv("LPKERNELS_BACKEND", name)
        ends.append(trained())
    for got, want in zip(*ends, strict=True):
        assert_bit_equal(got, want)


def test_each_technique_answers() -> None:
    techniques = lp.techniques
    # Sums of 4,096 products with 5 mantissa bits: Sakr's theory.
    assert techniques.accumulation.min_mantissa_bits(4096, 5) == 9
    bits = [techniques.cpt.bits_at(step, 8, bits=(3, 8), cycles=2) for step in range(8)]
    assert bits[0] == bits[4] == 3 and max(bits) == bits[3]
    assert techniques.pareto.pareto_front([1, 2, 3], [0.3, 0.4, 0.1]).tolist() == [0, 2]
    model = torch.nn.Linear(2, 2)
    optimizer = techniques.loss_scaling.MasterWeights(
        torch.optim.SGD(model.parameters(), lr=0.1), weight="bf16"
    )
    scaler = techniques.loss_scaling.LossScaler(init_scale=8.0)
    before = model.weight.detach().clone()
    scaler.scale(model(torch.tensor([[float("inf"), 1.0]])).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 4.0
    assert_bit_equal(model.weight, before, "a skipped update")


def test_a_command_trains_and_leaves_a_record(tmp_path: Path) -> None:
    ran = call("train", "--model", "cnn1", "--width", 1, "--epochs", 1, "--batch", 500,
               "--threads", 1, "--out", tmp_path)  # fmt: skip
    assert ran.exit_code == 0, ran.output
    assert list(tmp_path.rglob("records.jsonl"))
