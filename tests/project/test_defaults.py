"""Results do not depend on torch's default dtype and device.

Kernels write through pointers: memory of another dtype or device would be written past its end.
"""

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import lpkernels as lp
from lpkernels.techniques.accumulation import measure, plan
from tests.compare import assert_bit_equal

_NAMES = "arange empty eye full linspace ones rand randint randn randperm tensor zeros"
FACTORIES = {f"torch.{name}" for name in _NAMES.split()}
RECIPE = lp.recipe("fp8_wang2018")
CPU: Any = {"dtype": torch.float32, "device": "cpu"}


def values(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator, **CPU).requires_grad_()


def trained(result: torch.Tensor, *leaves: torch.Tensor) -> list[torch.Tensor]:
    result.sum().backward()
    grads = [leaf.grad for leaf in leaves if leaf.grad is not None]
    return [result.detach(), *grads]


def convolution() -> list[torch.Tensor]:
    x, w = values(2, 4, 6, 6), values(6, 2, 3, 3)
    y = lp.functional.conv2d(x, w, stride=2, padding=1, groups=2, recipe=RECIPE)
    return trained(y, x, w)


def codes() -> list[torch.Tensor]:
    x = values(4, 8).detach()
    rounded = [lp.quantize(x, fmt) for fmt in ("e5m2", "fixed8_f4", "affine8", "block4_e2m1")]
    return [*rounded, lp.unpack(lp.pack(rounded[3], "block4_e2m1"), "block4_e2m1", x.shape)]


def measured() -> list[torch.Tensor]:
    a, b = values(6, 40).detach(), values(40, 5).detach()
    found = [measure(a, b, "e6m3:stochastic", counted=c, generator=SEED) for c in (None, 400)]
    return [torch.tensor([m.vrr, m.nmse, m.swamped, m.overflowed], **CPU) for m in found]


def planned() -> list[torch.Tensor]:
    layers = torch.nn.Conv2d(2, 3, 3, stride=2, padding=1, **CPU), torch.nn.Linear(9, 4, **CPU)
    for parameter in [*layers[0].parameters(), *layers[1].parameters()]:
        parameter.data = values(*parameter.shape).detach()
    model = torch.nn.Sequential(layers[0], torch.nn.Flatten(2), layers[1])
    made = plan(model, values(2, 2, 5, 5).detach(), loss=torch.sum, operand="e5m2")
    return [torch.tensor([(r.length, r.product_bits, r.nzr) for r in made.rows], **CPU)]


SEED = torch.tensor(3)
CALLS: dict[str, Callable[[], list[torch.Tensor]]] = {
    f.__name__: f for f in (convolution, codes, measured, planned)
}


@contextmanager
def defaults(dtype: torch.dtype, device: str | None) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


@pytest.mark.parametrize(
    "dtype, device", [(torch.float64, None), (torch.float16, None), (torch.float32, "meta")]
)
@pytest.mark.parametrize("name", CALLS)
def test_results_do_not_depend_on_defaults(name: str, dtype: Any, device: Any, monkeypatch: Any):
    want = CALLS[name]()
    # The first use, with its self-test, under these defaults.
    monkeypatch.setattr(lp.backends, "_checked", {})
    monkeypatch.setattr(lp.backends, "choices", {})
    with defaults(dtype, device):
        got = CALLS[name]()
    for one, other in zip(got, want, strict=True):
        assert_bit_equal(one, other)


def test_every_new_tensor_has_a_dtype_and_a_device():
    """Experiments are left out: they are processes of their own, whose defaults nobody changes."""
    package = Path(lp.__file__).parent
    lacking = []
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if place.startswith("experiments/") or not isinstance(node, ast.Call):
                continue
            named = {keyword.arg for keyword in node.keywords}
            # None stands for **options.
            if ast.unparse(node.func) in FACTORIES and not named & {None}:
                lacking += [f"{place}:{node.lineno}"] * (not {"dtype", "device"} <= named)
    assert lacking == []
