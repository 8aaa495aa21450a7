"""Calls of an operator that may go past torch's dispatcher, and calls that torch has to see."""

from typing import ClassVar

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode

import lpkernels as lp
from lpkernels import ops
from lpkernels.ops import _operator
from tests.compare import assert_bit_equal
from tests.support.autograd import Operators

ACC = lp.Accumulator("e6m9")


class SeenFunctions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Wrapper(torch.Tensor):
    """A subclass that only watches functions."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(str(func))
        return super().__torch_function__(func, types, args, kwargs or {})


def plain(*tensors):
    return _operator.is_direct(*tensors)


def test_ordinary_tensors_go_past_the_dispatcher():
    x = torch.ones(2, 2)
    views = (x, None, x.t(), x[0], x.requires_grad_(), torch.nn.Parameter(torch.ones(2)))
    assert plain(*views)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert plain(x)
    with torch.inference_mode():
        assert plain(x, torch.ones(2))
    assert plain(torch.ones(2, dtype=torch.float16), torch.tensor(1))


def test_tensors_that_torch_must_see():
    x = torch.ones(2, 2)
    assert not plain(x, x.to("meta"))
    assert not plain(torch.complex(x, x).conj().imag)
    assert not plain(torch._efficientzerotensor(2))
    assert not plain(x.to_sparse())
    assert not plain(x.as_subclass(Wrapper))
    assert not plain(FakeTensorMode().from_tensor(x))


def test_tensors_of_a_dtype_go_past_the_dispatcher():
    x = torch.ones(2, 2)
    assert _operator.is_direct(x, x.t(), dtype=torch.float32)
    for other in (None, x.half(), x.to("meta"), [x], 1.0):
        assert not _operator.is_direct(x, other, dtype=torch.float32)


def test_seeds_are_the_same_past_the_dispatcher():
    torch.manual_seed(3)
    want = [torch.ops.lpkernels._seed(0, device="cpu") for _ in range(2)]
    torch.manual_seed(3)
    assert [ops.draw_seed() for _ in range(2)] == want
    torch.manual_seed(3)
    with Operators() as mode:
        assert ops.draw_seed() == want[0]
    assert any("lpkernels::_seed" in name for name in mode.names), mode.names


def test_modes_see_every_operator():
    x = torch.randn(4, 4)
    for mode, name in (
        (Operators(), "lpkernels::_multiply"),
        (SeenFunctions(), "lpkernels._multiply"),
    ):
        with mode:
            got = lp.matmul(x, x, ACC)
        assert any(name in seen for seen in mode.names), mode.names
        assert_bit_equal(got, lp.matmul(x, x, ACC))


def test_subclasses_see_every_operator():
    Wrapper.seen.clear()
    x = torch.randn(4, 4)
    assert_bit_equal(torch.Tensor(lp.matmul(x.as_subclass(Wrapper), x, ACC)), lp.matmul(x, x, ACC))
    assert any("lpkernels._multiply" in name for name in Wrapper.seen)
    # Here an argument before the subclass is None.
    Wrapper.seen.clear()
    drawn, seed = lp.Accumulator("e6m9", "stochastic"), torch.tensor(7)
    product, how = ops.matmul_of(x, x), ops.How(drawn.to_ints(), seed)
    got = ops.multiply(product, how._replace(seed=seed.as_subclass(Wrapper)))
    assert_bit_equal(torch.Tensor(got), ops.multiply(product, how))
    assert any("lpkernels._multiply" in name for name in Wrapper.seen)


def test_profiles_name_the_operator():
    x = torch.randn(4, 4)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        lp.matmul(x, x, ACC)
    assert "lpkernels::_multiply" in {event.name for event in profile.events()}


def test_fake_and_meta_tensors_get_shapes():
    for kind in (FakeTensorMode(), torch.device("meta")):
        with kind:
            x = torch.empty(3, 4)
            assert lp.matmul(x, x.t(), ACC).shape == (3, 3)
            assert lp.quantize(x, "e5m2").shape == (3, 4)
            assert lp.quantize(x.half(), "e6m9").dtype == torch.float32


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_maps_operators():
    x, w = torch.randn(3, 2, 4), torch.randn(4, 4)
    vmap = torch.func.vmap
    assert_bit_equal(vmap(lambda each: lp.matmul(each, w, ACC))(x), lp.matmul(x, w, ACC))
    assert_bit_equal(vmap(lambda each: lp.quantize(each, "e5m2"))(x), lp.quantize(x, "e5m2"))


def test_negative_views_are_resolved():
    z = torch.complex(torch.randn(4, 4), torch.randn(4, 4))
    assert_bit_equal(lp.quantize(z.conj().imag, "e5m2"), lp.quantize(-z.imag, "e5m2"))
    assert_bit_equal(lp.matmul(z.conj().imag, z.real, ACC), lp.matmul(-z.imag, z.real, ACC))
    out = torch.zeros_like(z).conj().imag
    lp.quantize(z.real, "e5m2", out=out)
    assert_bit_equal(out.resolve_neg(), lp.quantize(z.real, "e5m2"))
