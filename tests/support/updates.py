"""Updates of parameters: options, formats and tensors, the same on every backend."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

import lpkernels as lp
from lpkernels.arithmetic import Adam, Keyed, Quantizer, Sgd, Step, UpdateRounding, as_quantizer
from lpkernels.formats import BF16, FP16, FP32, FloatFormat, TableFormat
from lpkernels.ops import UpdateTensors
from lpkernels.rounding import ROUNDINGS
from tests.compare import assert_bit_equal

STEPS: dict[str, Step] = {
    "sgd": Sgd(0.1),
    "decay": Sgd(0.1, weight_decay=0.01, maximize=True),
    "momentum": Sgd(0.1, weight_decay=0.01, momentum=0.9, dampening=0.1),
    "nesterov": Sgd(0.1, momentum=0.9, nesterov=True),
    "adam": Adam(1e-2, weight_decay=0.01),
    "adam_heavy": Adam(1e-2, beta1=0.3, beta2=0.9, eps=1e-6, maximize=True),
    "adamw": Adam(1e-2, weight_decay=0.1, decoupled=True),
}


class Formats(NamedTuple):
    """Texts of quantizers, "" for none, and the dtypes of gradients and weights."""

    grad: str = ""
    master: str = ""
    first: str = ""
    second: str = ""
    weight: str = ""
    gradients: torch.dtype = torch.float32
    weights: torch.dtype = torch.float32
    working_is_master: bool = False


def _of(text: str, *others: Any) -> Formats:
    """The five quantizers in one text, "-" for none, and the fields behind them."""
    return Formats(*("" if each == "-" else each for each in text.split()), *others)


_HALF, _BRAIN, _WIDE = torch.float16, torch.bfloat16, torch.float32
FORMATS: dict[str, Formats] = {
    "fp32": Formats(working_is_master=True),
    "fp32_master": _of("- - - - bf16", _BRAIN, _BRAIN),
    "half": _of("fp16 fp16 fp16 bf16 fp16", _HALF, _HALF),
    "drawn": _of("e5m2:stochastic:bits=3 e6m9:stochastic bf16:stochastic:bits=8 "
                 "bf16:stochastic:bits=16:philox e4m3fn:stochastic", _BRAIN, _BRAIN),
    "bytes": _of("- e4m3fn:stochastic fp8_e5m2:nearest_away fp8_e5m2:to_odd bf16", _HALF, _BRAIN),
    "words": _of("e8m23_sat e8m23_sat:toward_zero e8m23_nan e8m23_sat fp16"),
    "own_master": _of("- e6m9:stochastic bf16 fp16 -", _WIDE, _WIDE, True),
    "own_half": _of("- e4m3fn:toward_negative e5m10_nosub bf16 -", _HALF, _HALF, True),
    # States of one kind, to nearest: they are stepped where they lie.
    "near_brain": _of("- e6m9 bf16 bf16 bf16", _WIDE, _BRAIN),
    "near_half": _of("- fp16 fp16 fp16 bf16", _WIDE, _BRAIN),
    "near_words": _of("- e6m9:to_odd e6m9 e5m10_nosub_sat bf16"),
    "near_codes": _of("- e6m9_sat e6m9_sat e8m7_sat bf16"),
    "near_bytes": _of("- e4m3fn fp8_e5m2 fp8_e4m3 e5m2"),
    # These are not for lanes: values lie far above float32's own exponents.
    "beyond_lanes": _of("- e2m5_b-110 e2m5_b-110:stochastic e4m3fn bf16"),
    **{mode: _of(f"bf16:{mode} e4m3fn:{mode} bf16:{mode} e5m2:{mode} e6m9:{mode}")
       for mode in ROUNDINGS},
}  # fmt: skip
# Cases beside FORMATS: masters and states of every width that are drawn, and codes of e5m2, which
# the CPU decodes as the upper bytes of float16.
LOOPS: dict[str, Formats] = {
    "drawn_brain": _of("- bf16:stochastic bf16:stochastic bf16:stochastic:bits=8 bf16",
                       _BRAIN, _BRAIN, True),
    "drawn_half": _of("- fp16:stochastic fp16:stochastic fp16:stochastic:bits=16 -"),
    "drawn_half_bytes": _of("- fp8_e5m2:stochastic fp8_e5m2:stochastic "
                            "fp8_e5m2:stochastic:bits=3 bf16", _BRAIN, _BRAIN),
    "drawn_bytes": _of("- fp8_e4m3:stochastic:bits=8 e4m3fn:stochastic "
                       "e3m4:stochastic:philox e8m7_sat", _WIDE, _BRAIN),
    "drawn_words": _of("- e6m9:stochastic:bits=16 e6m9:stochastic e5m10_nosub:stochastic bf16",
                       _WIDE, _BRAIN),
    "half_bytes": _of("- fp8_e5m2 fp8_e5m2 e5m2_sat e8m3", _BRAIN, _BRAIN),
    "tables": _of("posit8es1 posit8es1:stochastic posit16es1 posit16es2:to_odd posit8es0"),
}  # fmt: skip
KEYS = (1, 2, (1 << 32) + 77, (1 << 32) + 78, 3)
_KEPT = {FP32: torch.float32, FP16: torch.float16, BF16: torch.bfloat16}


def quantizer(text: str) -> Quantizer | None:
    return as_quantizer(text) if text else None


def rounding_of(formats: Formats) -> UpdateRounding:
    grad, master, first, second, weight = (
        Keyed(quantizer(text), key) for text, key in zip(formats[:5], KEYS, strict=True)
    )
    return UpdateRounding(grad, master, (first, second), weight)


def kept(values: Tensor, text: str) -> Tensor:
    """Values of a format as an update keeps them."""
    how = quantizer(text)
    fmt = FP32 if how is None else how.fmt
    assert isinstance(fmt, FloatFormat | TableFormat)
    rounded = lp.quantize(values, fmt, backend="reference")
    return rounded.to(_KEPT[fmt]) if fmt in _KEPT else lp.pack(rounded, fmt)


def values_of(shape: Sequence[int], seed: int, *, special: bool = False) -> Tensor:
    """Normal values of many binades; with NaN, infinities, zeros and subnormals among them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator, dtype=torch.float32)
    x = x * 2.0 ** torch.randint(-12, 4, tuple(shape), generator=generator)
    if special and x.numel() > 16:
        rare = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, -1e-45, 3e38, 1e-38, 65519.0]
        x.view(-1)[3 : 3 + len(rare)] = torch.tensor(rare)
    return x


def signed_zeros(shape: Sequence[int], seed: int) -> Tensor:
    """Zeros of both signs: in 16 elements those of gradients, masters and both states, which
    `tensors_of` asks for by seeds a hundred apart, meet in every way."""
    period = 1 << seed // 100
    negative = torch.arange(math.prod(shape)).view(*shape) // period % 2 == 1
    return torch.where(negative, -0.0, 0.0)


def steps_to_zeros() -> dict[str, Step]:
    """Every step, toward both ends and at a learning rate of 0."""
    return {
        f"{name}-{'up' if maximize else 'down'}-{lr}": step._replace(maximize=maximize, lr=lr)
        for name, step in STEPS.items()
        for maximize in (False, True)
        for lr in (0.0, step.lr)
    }


def tensors_of(
    step: Step,
    formats: Formats,
    shapes: Sequence[Sequence[int]],
    *,
    special: bool = False,
    values: Callable[[Sequence[int], int], Tensor] = values_of,
) -> UpdateTensors:
    """Parameters in the midst of training.

    special: NaN, infinities, zeros and subnormals are among the gradients of `values_of`.
    values: gives the numbers for a shape and a seed.
    """
    lists: list[list[Tensor]] = [[] for _ in UpdateTensors._fields]
    gradients, weights, masters, first, second, steps, counts = lists
    for number, shape in enumerate(shapes):
        gradient = values_of(shape, number, special=True) if special else values(shape, number)
        gradients.append(gradient.to(formats.gradients))
        master = kept(values(shape, 100 + number), formats.master)
        if formats.working_is_master:
            own = lp.quantize(values(shape, 100 + number), formats.master or "fp32")
            weights.append(own.to(formats.weights))
        else:
            weights.append(torch.full(tuple(shape), math.nan, dtype=formats.weights))
            masters.append(master)
        if step.states > 0:
            first.append(kept(values(shape, 200 + number), formats.first))
        if step.states > 1:
            second.append(kept(values(shape, 300 + number).abs(), formats.second))
        if isinstance(step, Adam):
            steps.append(torch.tensor(4.0 + number))
        counts.append(torch.tensor([3, 2]))
    return UpdateTensors(*lists)


def copied(tensors: UpdateTensors) -> UpdateTensors:
    return UpdateTensors(*([x.clone() for x in kind] for kind in tensors))


def parts_of(tensors: UpdateTensors, part: slice) -> UpdateTensors:
    """Some neighbours of 1-D parameters, with their codes."""
    sizes = [weight.numel() for weight in tensors.weights]
    kinds = tensors._asdict()
    for name in ("gradients", "weights", "masters", "first", "second"):
        kinds[name] = [
            x.view(size, -1)[part].reshape(-1) for x, size in zip(kinds[name], sizes, strict=False)
        ]
    return UpdateTensors(**kinds)


def call_of(
    step: Step,
    formats: Formats,
    count: int,
    *,
    begins: bool = False,
    found: bool | None = None,
    scale: float | None = None,
    origins: Sequence[int] | None = None,
    device: str = "cpu",
) -> tuple[Any, ...]:
    """The arguments of `Backend.update` behind the tensors."""
    return (
        torch.tensor(-77, device=device),
        None if found is None else torch.tensor(found, device=device),
        None if scale is None else torch.tensor(scale, dtype=torch.float32, device=device),
        [3 * i + 1 for i in range(count)],
        [0] * count if origins is None else list(origins),
        rounding_of(formats).to_ints(),
        step.to_numbers(),
        begins,
    )


def run(
    tensors: UpdateTensors, step: Step, formats: Formats, backend: str, **options: Any
) -> UpdateTensors:
    """Makes a step of copies; returns what they are afterwards."""
    own = copied(tensors)
    arguments = call_of(step, formats, len(own.weights), **options)
    torch.ops.lpkernels._update(*own, *arguments, backend)
    return own


def assert_same(got: UpdateTensors, expected: UpdateTensors) -> None:
    """Asserts that both are the same to the bit, NaN included."""
    for name, ours, theirs in zip(UpdateTensors._fields, got, expected, strict=True):
        for i, (x, y) in enumerate(zip(ours, theirs, strict=True)):
            assert_bit_equal(x, y, f"{name}[{i}]")
