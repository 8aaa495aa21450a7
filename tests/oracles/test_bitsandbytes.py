"""NF4 in blocks of 64 against bitsandbytes, whose wheel runs on a CPU: the first level of QLoRA."""

import pytest
import torch

import lpkernels as lp
from tests.compare import assert_bit_equal

functional = pytest.importorskip(
    "bitsandbytes.functional", reason="bitsandbytes is not installed: `make prove` installs it"
)
pytestmark = pytest.mark.slow


def test_nf4_in_blocks_of_64() -> None:
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(1 << 20, generator=draws)
    blocks = x.view(-1, 64)
    blocks[::2] *= 2.0 ** torch.randint(-60, 60, (len(blocks) // 2, 1), generator=draws)
    blocks[5], blocks[7, ::2], blocks[9, ::3] = 0.0, 0.0, -0.0
    codes, state = functional.quantize_4bit(x, blocksize=64, quant_type="nf4")
    ours = lp.scaled(x, "block64_nf4_sfp32")
    zeros = (blocks == 0).all(dim=1)
    # It keeps the largest magnitude, here a float32 scale, whose value is free in a block of zeros.
    assert_bit_equal(ours.scale.flatten()[~zeros], state.absmax[~zeros])
    theirs = functional.dequantize_4bit(codes, state).flatten()
    assert_bit_equal(lp.quantize(x, "block64_nf4_sfp32"), theirs)
