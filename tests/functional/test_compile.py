"""Functions of tensors as one graph of torch.compile: the bits of the eager call, and its draws."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import lpkernels as lp
from tests.functional.layer_recipes import DETERMINISTIC, STOCHASTIC
from tests.support.autograd import alike, compiled, gradients, leaves

F = lp.functional
SHAPES = tuple[tuple[int, ...], ...]
DRAWN = lp.Accumulator("e5m7", "stochastic", product="e5m5", product_rounding="stochastic")
CHUNKED = lp.Accumulator("e5m4", "toward_zero", chunk=3, outer="e6m6")
MASK = torch.tensor([[True, False, True, True, True]])


def quantized(fmt: Any) -> Callable[..., Any]:
    return lambda x: lp.quantize(x, fmt) * lp.quantize(x, fmt)


def multiplied(acc: Any, output: str | None = "e5m7") -> Callable[..., Any]:
    return lambda a, b: lp.matmul(a, b, acc, output=output)


def quantized_out(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    generator = torch.tensor(3)
    lp.quantize(x.detach(), "e5m2", "stochastic", random_bits=5, generator=generator, out=out)
    return out + x


def packed(x: torch.Tensor) -> torch.Tensor:
    return x + lp.unpack(lp.pack(lp.quantize(x.detach(), "e5m2"), "e5m2"), "e5m2", x.shape)


def counted(x: torch.Tensor) -> torch.Tensor:
    counts, out = torch.zeros(4, dtype=torch.int64), torch.zeros_like(x)
    y = lp.quantize(x, "e5m2:stochastic", generator=torch.tensor(3), counts=counts)
    lp.quantize(x.detach(), "fixed8_f4", out=out, counts=counts)
    lp.count(x, "e4m3", counts=counts)
    return torch.cat([y + out, counts, lp.count(x, "e4m3", histogram=True)])


def scaled(x: torch.Tensor, amax: torch.Tensor) -> torch.Tensor:
    q = lp.scaled(x.detach(), "nvfp4", amax=amax.detach())
    parts = (q.dequantize(), q.values, q.scale.sum(), q.tensor_scale, x * amax)
    return sum(parts) + lp.quantize(x, "nvfp4", amax=amax.detach())


def products(*given: torch.Tensor) -> torch.Tensor:
    addend, a, b, c, w = given
    y = F.baddbmm(addend, a, b, alpha=0.3, recipe=STOCHASTIC)
    y = F.bilinear(y, c, w, recipe=STOCHASTIC)
    z = F.einsum("bij,bik->bjk", y, F.bmm(a, b, recipe=STOCHASTIC), recipe=STOCHASTIC)
    return F.matmul(z, c.mT, recipe=STOCHASTIC)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, MASK, recipe=DETERMINISTIC)


#: Each function, and the shapes of the tensors that it takes.
CALLS: dict[str, tuple[Callable[..., Any], SHAPES]] = {
    "quantize": (quantized("e5m2"), ((31,),)),
    "quantize by text": (quantized("e5m2:stochastic"), ((31,),)),
    "quantize by format": (quantized(lp.FloatFormat(4, 3)), ((31,),)),
    "quantize by object": (quantized(lp.Quantizer("e4m3", "stochastic")), ((31,),)),
    "quantize by dtype": (quantized(torch.bfloat16), ((31,),)),
    "quantize to a named table": (quantized("posit8es1"), ((31,),)),
    "quantize to a table": (quantized(lp.TableFormat([-1, 0, 1], "tables_compiled")), ((31,),)),
    "quantize out": (quantized_out, ((9,),)),
    "pack": (packed, ((4, 6),)),
    "count": (counted, ((7,),)),
    "scaled": (scaled, ((4, 40), (1,))),
    "matmul": (multiplied(lp.Accumulator("e6m9")), ((3, 4, 5), (5, 6))),
    "matmul in chunks": (multiplied(CHUNKED), ((3, 4, 5), (5, 6))),
    "matmul with draws": (multiplied(DRAWN), ((3, 4, 5), (5, 6))),
    "matmul by name": (multiplied("e6m9_chunk4", None), ((9,), (2, 9, 3))),
    "matmul in tables": (multiplied(lp.Accumulator("posit11es2"), "nf4"), ((3, 4, 5), (5, 6))),
    "matmul from a start": (
        lambda a, b, c: lp.matmul(a, b, "e6m9", initial=c),
        ((5, 12), (12, 3), (3,)),
    ),
    "products": (products, ((2, 1, 4), (2, 3, 7), (2, 7, 4), (2, 3, 4), (5, 4, 4))),
    "attention": (attention, ((2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 6))),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_compiled_call_is_one_graph_with_the_same_bits(name: str) -> None:
    function, shapes = CALLS[name]
    tensors = leaves(*shapes)
    alike((function, compiled(function)), lambda run: gradients(run(*tensors), tensors))


def test_ranges_stay_arguments_of_a_graph() -> None:
    def function(x: torch.Tensor, lo: float) -> torch.Tensor:
        ends = torch.stack([x.amin(1), x.amax(1)]) / 2
        out = torch.zeros_like(x)
        lp.quantize(x, "affine4_axis0", range=ends, out=out)
        return out + lp.quantize(x, "affine4", range=(lo, 1.0)) + lp.count(x, "affine3").sum()

    run, x = compiled(function), torch.randn(4, 5) * 8
    for lo in (-1.0, -2.0, -2.5):
        alike((function, run), lambda call, lo=lo: call(x, lo))


def test_draws_differ_inside_one_graph() -> None:
    x = torch.rand(200)
    run = compiled(lambda x: (lp.quantize(x, "e5m2:stochastic"), lp.quantize(x, "e5m2:stochastic")))
    assert not torch.equal(*run(x))


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
def test_seed_from_gives_its_seeds_to_a_graph(inside: bool) -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        return lp.quantize(x, "e5m2:stochastic") + 100 * lp.quantize(x, "e5m2:stochastic")

    def block(x: torch.Tensor, seed: torch.Tensor, function: Any = twice) -> torch.Tensor:
        with lp.seed_from(seed):
            return function(x)

    x, run = torch.rand(50), compiled(block if inside else twice)
    for seed in (torch.tensor(3), torch.tensor(4)):
        got = run(x, seed) if inside else block(x, seed, run)
        alike((got, block(x, seed)), lambda y: y)
