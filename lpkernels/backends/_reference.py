"""The reference backend: the vectorised twin of the exact reference, in NumPy on the host.

Always available. Tensors of a CUDA device are copied to the host, and the result is copied back: on
every device it has the reference's bits. float16 and bfloat16 are taken apart as bits: no
conversion here depends on whether the process flushes denormals.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lpkernels.arithmetic import (
    Adam,
    Keyed,
    accumulator_from_ints,
    quantizer_from_ints,
    step_from_numbers,
    update_rounding_from_ints,
)
from lpkernels.backends import DrawKey, How, Parts, Product, Rounding, Scales, Update
from lpkernels.formats import AffineFormat, BlockFormat, Number, format_from_ints
from lpkernels.formats.integers import Ints
from lpkernels.reference import counting, events, twin, updates
from lpkernels.reference.values import Float32, narrow, widen
from lpkernels.rng import derive_seed, draws


def _array(x: Tensor) -> NDArray[np.floating]:
    """The values of x on the host: as they are, or bfloat16 as the float32 with the same bits."""
    host = x.detach().cpu().resolve_neg()
    if host.dtype != torch.bfloat16:
        return host.numpy()
    high = host.view(torch.int16).numpy().view(np.uint16).astype(np.uint32)
    return (high << np.uint32(16)).view(np.float32)


def _typed(values: Float32, dtype: torch.dtype) -> Tensor:
    """values, which dtype holds, as a host tensor of that dtype."""
    if dtype == torch.bfloat16:
        high = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return torch.from_numpy(high.view(np.int16)).view(torch.bfloat16)
    if dtype == torch.float16:
        return torch.from_numpy(widen(values).astype(np.float16))
    if dtype == torch.float64:
        return torch.from_numpy(widen(values))
    return torch.from_numpy(values)


def _seed(seed: Tensor | None, role: int) -> int:
    return 0 if seed is None else derive_seed(int(seed), role)


def _with_codes(fmt: Ints) -> Number | BlockFormat:
    parsed = format_from_ints(fmt)
    assert not isinstance(parsed, AffineFormat)
    return parsed


def _blocks(fmt: Ints) -> BlockFormat:
    parsed = format_from_ints(fmt)
    assert isinstance(parsed, BlockFormat)
    return parsed


class ReferenceBackend:
    """Adapter of ``lpkernels.reference.twin``; ``backends.Backend`` describes the methods."""

    name = "reference"
    fuses = fuses_tables = joins_passes = False
    sums_native = False

    def available(self) -> bool:
        return True

    def why_not(self) -> str:
        return ""

    def unsupported(self, op: str, device: torch.device) -> str:
        return ""

    def quantize(self, rounding: Rounding) -> None:
        out, counts, site = rounding.out, rounding.counts, rounding.site
        x, quantizer = _array(rounding.x), quantizer_from_ints(rounding.quantizer)
        seed = _seed(rounding.seed, rounding.role)
        limits = None if rounding.limits is None else _array(rounding.limits).astype(np.float64)
        if rounding.parts is not None:
            parts = twin.scaled(x, quantizer, seed=seed, site=site, amax=limits)
            for target, part in zip(rounding.parts, parts, strict=True):
                target.copy_(torch.from_numpy(np.asarray(part)))
            return
        if counts is None:
            result = twin.quantize(x, quantizer, seed=seed, site=site, limits=limits)
        else:
            result, total = counting.quantize_counting(
                x, quantizer, seed=seed, site=site, limits=limits
            )
            counts.add_(torch.from_numpy(total[: counts.numel()]).to(counts.device))
        if out is not None:
            out.copy_(_typed(result, out.dtype))

    def hadamard(self, x: Tensor, size: int, signs: Ints, axis: int) -> Tensor:
        return torch.from_numpy(twin.hadamard(_array(x), size, signs, axis)).to(x.device)

    def multiply(self, product: Product, how: How, scales: Scales | None = None) -> Tensor:
        acc, seed = accumulator_from_ints(how.acc), _seed(how.seed, how.role)
        left, right = _array(product.left), _array(product.right)
        bias, initial = (None if x is None else _array(x) for x in (product.bias, product.initial))
        if scales is not None:
            result = self._multiply_scaled(product, how, scales)
        elif product.conv is None:
            result = twin.matmul(left, right, bias, acc, seed=seed, initial=initial)
        elif product.kind == "conv_fprop":
            result = twin.conv_fprop(left, right, bias, product.conv, acc, seed=seed)
        else:
            gradient = twin.conv_dgrad if product.kind == "conv_dgrad" else twin.conv_wgrad
            result = gradient(left, right, product.shape, product.conv, acc, seed=seed)
        return torch.from_numpy(result).to(product.left.device)

    def _multiply_scaled(self, product: Product, how: How, scales: Scales) -> Float32:
        acc, a, b = accumulator_from_ints(how.acc), _array(product.left), _array(product.right)
        factors = twin.Scales(_array(scales.left), _array(scales.right), *scales[2:])
        start = None if product.initial is None else _array(product.initial)
        if acc.group is not None:
            return twin.matmul_grouped(a, b, factors, acc, initial=start)
        seed = _seed(how.seed, how.role)
        return twin.matmul_scaled(a, b, factors, acc, seed=seed, initial=start)

    def matmul_events(
        self, product: Product, how: How, rows: Tensor
    ) -> tuple[Tensor, tuple[int, ...]]:
        counted = events.matmul_events(
            _array(product.left),
            _array(product.right),
            accumulator_from_ints(how.acc),
            seed=_seed(how.seed, how.role),
            row=rows.numpy(),
        )
        return torch.from_numpy(counted.sums).to(product.left.device), counted.counts

    def accumulate(self, total: Tensor, addend: Tensor, how: How, key: DrawKey) -> None:
        acc = accumulator_from_ints(how.acc)
        rounding, bits = acc.outermost_rounding, None
        if rounding == "stochastic":
            row = key.row + np.arange(total.shape[0])[:, None]
            col = key.col + np.arange(total.shape[1])
            seed = _seed(how.seed, how.role)
            bits = draws(seed, key.site, row, col, key.k, acc.random_bits, acc.rng)
        result = twin.add(
            widen(_array(total)),
            widen(_array(addend)),
            acc.outermost,
            rounding,
            draws=bits,
            random_bits=acc.random_bits,
        )
        total.copy_(torch.from_numpy(narrow(result)))

    def pack(
        self, x: Tensor, fmt: Ints, quantizer: Ints = (), scale: Tensor | None = None
    ) -> Tensor:
        values = _array(x).astype(np.float32)
        if scale is None:
            codes = twin.pack(values, _with_codes(fmt))
        else:
            one = np.asarray(1, np.float32)
            codes = twin.pack_scaled(twin.Scaled(values, _array(scale), one), _blocks(fmt))
        return torch.from_numpy(codes).to(x.device)

    def unpack(self, codes: Tensor | Parts, fmt: Ints, shape: Sequence[int]) -> Tensor:
        if isinstance(codes, Tensor):
            values = twin.unpack(codes.cpu().numpy(), _with_codes(fmt), tuple(shape))
            return torch.from_numpy(values).to(codes.device)
        scaled = twin.Scaled(*(np.asarray(_array(part)) for part in codes))
        return torch.from_numpy(twin.dequantize(scaled, _blocks(fmt))).to(codes[0].device)

    def update(self, update: Update) -> None:
        if update.skips is not None and bool(update.skips):
            return
        tensors, step = update.tensors, step_from_numbers(update.numbers)
        rounding = update_rounding_from_ints(update.rounding)
        scale = None if update.scale is None else float(update.scale)
        seed = 0 if update.seed is None else int(update.seed)
        masters = tensors.masters or tensors.weights
        for i, weight in enumerate(tensors.weights):
            shape = tuple(weight.shape)
            states = [kind[i] for kind in (tensors.first, tensors.second)[: step.states]]
            stored = list(zip(states, rounding.states, strict=False))
            steps = int(tensors.steps[i]) if isinstance(step, Adam) else 0
            result = updates.update(
                step,
                rounding,
                _array(tensors.gradients[i]).astype(np.float32),
                _values(masters[i], rounding.master, shape),
                None if update.begins else tuple(_values(x, keyed, shape) for x, keyed in stored),
                number=steps + 1,
                scale=scale,
                seed=derive_seed(seed, update.positions[i] + 1),
                origin=update.origins[i],
            )
            weight.detach().copy_(_typed(result.working, weight.dtype))
            if tensors.masters:
                _store(masters[i], result.master, rounding.master)
            for (x, keyed), values in zip(stored, result.states, strict=True):
                _store(x, values, keyed)
            counts = [result.asked, result.unchanged]
            tensors.counts[i].add_(torch.tensor(counts, dtype=torch.int64, device=weight.device))
            if isinstance(step, Adam):
                tensors.steps[i].add_(1)


def _coded(keyed: Keyed) -> Number:
    assert keyed.quantizer is not None and isinstance(keyed.quantizer.fmt, Number)
    return keyed.quantizer.fmt


def _values(stored: Tensor, keyed: Keyed, shape: tuple[int, ...]) -> Float32:
    """The float32 values of a tensor that an update keeps, whether it has a dtype of values or
    holds codes."""
    if stored.dtype == torch.uint8:
        return twin.unpack(stored.cpu().numpy(), _coded(keyed), shape)
    return _array(stored).astype(np.float32)


def _store(tensor: Tensor, values: Float32, keyed: Keyed) -> None:
    if tensor.dtype == torch.uint8:
        tensor.copy_(torch.from_numpy(twin.pack(values, _coded(keyed))))
    else:
        tensor.copy_(_typed(values, tensor.dtype))


BACKEND = ReferenceBackend()
