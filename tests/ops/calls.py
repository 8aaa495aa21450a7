"""A right call of every operator, for torch.library.opcheck and for calls with wrong arguments."""

from typing import Any

import torch

from lpkernels.arithmetic import Accumulator, Quantizer, accumulator
from lpkernels.backends import Convolution, Fused, How, Product, Scales, fprop_of, matmul_of
from lpkernels.formats import parse_format
from lpkernels.ops._products import crossing
from tests.support.updates import FORMATS, STEPS, rounding_of, tensors_of


def calls(backend: str) -> dict[str, tuple[Any, ...]]:
    """Right calls of every operator that reads or writes tensors, by its name and a word."""
    acc = Accumulator("e6m9", chunk=4).to_ints()
    drawn = Accumulator("e6m9", "stochastic", product="e5m10").to_ints()
    native = Accumulator("fp32", "stochastic", chunk=4, outer="e6m9", order="native").to_ints()
    rounds, seed = Quantizer("e5m2").to_ints(), torch.tensor(7)
    image, kernel, bias = torch.randn(2, 4, 5, 5), torch.randn(6, 2, 3, 3), torch.randn(6)
    grad = torch.randn(2, 6, 5, 5)
    conv = Convolution((1, 1), (1, 1), (1, 1), 2)
    how = How(acc, fused=Fused(rounds, (), rounds))
    a, b = torch.randn(5, 7), torch.randn(7, 3)
    batches = torch.randn(2, 1, 5, 7), torch.randn(3, 7, 3)
    products = {
        "": (matmul_of(a, b, torch.randn(3)), how),
        " drawn": (matmul_of(a, b), How(drawn, seed)),
        " native": (matmul_of(a, b), How(native, seed)),
        " batches": (matmul_of(*batches), how),
        " initial": (matmul_of(a, b, initial=torch.randn(5, 3)), how),
        " fprop": (fprop_of(image, kernel, bias, conv), how),
        " dgrad": (Product("conv_dgrad", grad, kernel, [2, 4, 5, 5], conv), how),
        " wgrad": (Product("conv_wgrad", image, grad, [6, 2, 3, 3], conv), how),
    }
    limits = torch.zeros(2, 3, dtype=torch.float64)
    affine, mx = Quantizer("affine4_axis1").to_ints(), Quantizer("block4_e2m1").to_ints()
    fmt = parse_format("e4m2").to_ints()
    by_scale = Accumulator("e6m9", chunk="scale").to_ints()
    grouped = accumulator("model_b200_mxf4").to_ints()
    step, formats = STEPS["adam"], FORMATS["bytes"]
    kept = tensors_of(step, formats, [(3, 5), (7,)])
    keys, made = ([0, 1], [0, 6]), (rounding_of(formats).to_ints(), step.to_numbers(), False)
    x = torch.randn(4, 3)
    nvfp4, amax = Quantizer("block4_e2m1_se4m3fn_t").to_ints(), torch.ones(1, dtype=torch.float64)
    whole = Quantizer("tensor_e4m3").to_ints()
    parts = (torch.ones(4, 3), torch.ones(4, 1), torch.tensor(1.0))
    return {
        **{f"_multiply{name}": crossing(*each, backend) for name, each in products.items()},
        "_add_bias": (grad, bias, 1, acc, None, 0, backend, rounds),
        "_quantize": (x, rounds, None, seed, 0, 4, backend),
        "_quantize affine": (x, affine, limits, None, 0, 4, backend),
        "_quantize block": (x, mx, None, None, 0, 4, backend),
        "_count": (x, rounds, None, None, 0, 4, backend, 260),
        "_count affine": (x, affine, limits, None, 0, 4, backend, 4),
        "_hadamard": (torch.randn(3, 32), 16, 1, backend),
        "_hadamard seed": (torch.randn(32, 3), 32 + (8 << 8), 0, backend),
        "_scaled": (x, nvfp4, amax, seed, 0, 4, "auto"),
        "_delayed": (x, torch.tensor(2.0), whole, seed, 1, 4, True, backend),
        "_multiply scaled": crossing(
            matmul_of(torch.randn(4, 8), torch.randn(8, 3), initial=torch.randn(4, 3)),
            How(by_scale, seed), backend, Scales(torch.ones(4, 2), torch.ones(3, 1), 4, 0, True),
        ),
        "_multiply grouped": crossing(
            matmul_of(torch.ones(4, 32), torch.ones(32, 3), initial=torch.randn(4, 3)),
            How(grouped), backend, Scales(torch.ones(4, 2), torch.ones(3, 1), 16, 0, False, -6),
        ),
        "_pack": (x.half().float(), None, None, parse_format("fp16").to_ints(), (0, 0, 0)),
        "_pack in room": (x.half().float(), None, None, parse_format("fp16").to_ints(), (20, 2, 0)),
        "_pack scaled": (*parts, mx[:-4], (0, 0, 0)),
        "_pack apart": (*parts, nvfp4[:-4], (0, 0, 0)),
        "_unpack": (torch.zeros(11).byte(), None, None, fmt, [4, 3], "auto"),
        "_unpack apart": (torch.zeros(14).byte(), None, None, nvfp4[:-4], [4, 3], "auto"),
        "_unpack block": (torch.zeros(10).byte(), None, None, mx[:-4], [4, 3], "auto"),
        "_unpack parts": (*parts, nvfp4[:-4], [4, 3], "auto"),
        "_update_range": (x, torch.ones(2), torch.tensor(1.0), 0.5),
        "_update": (*map(list, kept), seed, torch.tensor(False), torch.tensor(2.0), *keys, *made,
                    backend),
    }  # fmt: skip
