"""quantize for float and fixed formats, element by element."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lpkernels.backends.triton._draws import (
    column_keys,
    derived_seed,
    draw_of,
    fast_words,
    philox_words,
    row_streams,
    site_base,
    words_log2,
)
from lpkernels.backends.triton._launch import EXACT, on_device, seed_on
from lpkernels.backends.triton._rules import (
    STOCHASTIC,
    Numbers,
    Rule,
    moderated,
    round_to,
    rule_of,
    stochastic_threshold,
    value_of,
    wide,
)

_BLOCK = 1024


@triton.jit
def elementwise_threshold(index, seed_ptr, role, site, R: tl.constexpr):
    """Thresholds of the draws of elements ``index`` in row-major order."""
    if R.mode == STOCHASTIC:
        seed = derived_seed(seed_ptr, role)
        word = index >> words_log2(R.random_bits)
        if R.philox:
            words = philox_words(seed, site, 0, 0, word)
        else:
            base = site_base(seed, site)
            zero = word * 0
            words = fast_words(column_keys(base, zero), row_streams(base, zero, word), word)
        return stochastic_threshold(draw_of(words, index, R.random_bits), R.random_bits)
    else:
        return wide(0.0)


@triton.jit
def quantize_kernel(
    x_ptr, out_ptr, count, N, seed_ptr, role, site, R: tl.constexpr, BLOCK: tl.constexpr
):
    """out[i] = round(x[i]) for dense tensors in the same order."""
    index = tl.cast(tl.program_id(0), tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    x = wide(tl.load(x_ptr + index, mask=inside, other=0.0))
    if x_ptr.dtype.element_ty == tl.float64:
        x = moderated(x)
    r = round_to(x, elementwise_threshold(index, seed_ptr, role, site, R), N, R)
    r = tl.where(r == r, r, value_of(tl.full([BLOCK], 0x7FF8000000000000, tl.int64)))
    tl.store(out_ptr + index, r.to(out_ptr.dtype.element_ty), mask=inside)


def quantize(
    x: Tensor, quantizer: tuple[int, ...], seed: Tensor | None, role: int, site: int, out: Tensor
) -> None:
    """Every value of x, rounded into out, for a float or fixed format."""
    rule, numbers = rule_of(quantizer[:-4], *quantizer[-4:-1])
    source, target = (
        x.contiguous(),
        out
        if out.is_contiguous()
        else torch.empty_like(out, memory_format=torch.contiguous_format),
    )
    launch(source, target, rule, numbers, seed, role, site)
    if target is not out:
        out.copy_(target)


def launch(
    x: Tensor, out: Tensor, rule: Rule, numbers: Numbers, seed: Tensor | None, role: int, site: int
) -> None:
    """x and out contiguous, of one shape."""
    if x.numel() == 0:
        return
    with on_device(x):
        quantize_kernel[(triton.cdiv(x.numel(), _BLOCK),)](
            x, out, x.numel(), numbers, seed_on(seed, x.device), role, site,
            R=rule, BLOCK=_BLOCK, **EXACT,
        )  # fmt: skip
