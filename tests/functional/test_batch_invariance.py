"""A result does not depend on the rest of the batch, nor on the number of threads."""

import pytest
import torch
from torch import Tensor

import lpkernels as lp


def attention(x: Tensor, recipe: str) -> Tensor:
    return lp.functional.scaled_dot_product_attention(x, x * 0.7, -x, is_causal=True, recipe=recipe)


CALLS = {
    "linear": lambda x, recipe: lp.functional.linear(x, weight(48, 64), recipe=recipe),
    "conv2d": lambda x, recipe: lp.functional.conv2d(
        x.unflatten(2, (8, 8)), weight(7, 5, 3, 3), recipe=recipe
    ),
    "attention": attention,
    "layer_norm": lambda x, recipe: lp.functional.layer_norm(x, (64,), recipe=recipe),
}


def weight(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


# The scales of deepseek_v3 belong to the operands of linear layers.
CASES = [(name, recipe) for name in CALLS for recipe in ("fp8_wang2018", "lba_m7e4")]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name, recipe", [*CASES, ("linear", "deepseek_v3")])
def test_a_sample_has_its_bits_in_every_batch(name: str, recipe: str, threads: int) -> None:
    x = torch.randn(33, 5, 64, generator=torch.Generator().manual_seed(0))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = CALLS[name](x, recipe)
        for samples in (slice(0, 1), slice(7, 8), slice(30, 33), slice(2, 29)):
            assert torch.equal(CALLS[name](x[samples], recipe), whole[samples])
    finally:
        torch.set_num_threads(before)
