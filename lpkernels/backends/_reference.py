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
from lpkernels.backends._conveniences import Conveniences
from lpkernels.backends._protocol import How, Product, Scales, UpdateTensors
from lpkernels.formats import AffineFormat, BlockFormat, Number, format_from_ints
from lpkernels.reference import counting, events, twin, updates
from lpkernels.reference.values import Float32, narrow, widen
from lpkernels.rng import derive_seed, draws

Ints = tuple[int, ...]


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


def _packable(fmt: Ints) -> Number | BlockFormat:
    parsed = format_from_ints(fmt)
    if isinstance(parsed, AffineFormat):
        raise ValueError(
            f"pack: expected a float, fixed, table or block format, got {parsed}, whose codes mean "
            "nothing without the tensor's range; use a FixedFormat or a BlockFormat"
        )
    return parsed


def _blocks(fmt: Ints) -> BlockFormat:
    parsed = format_from_ints(fmt)
    assert isinstance(parsed, BlockFormat)
    return parsed


class ReferenceBackend(Conveniences):
    """Adapter of ``lpkernels.reference.twin``; ``backends.Backend`` describes the methods."""

    name = "reference"
    fuses = fuses_tables = packs_rounding = False
    sums_native = False

    def available(self) -> bool:
        return True

    def why_not(self) -> str:
        return ""

    def unsupported(self, op: str, device: torch.device) -> str:
        return ""

    def quantize(
        self, x: Tensor, quantizer: Ints, seed: Tensor | None, role: int, site: int, out: Tensor
    ) -> None:
        parsed = quantizer_from_ints(quantizer)
        result = twin.quantize(_array(x), parsed, seed=_seed(seed, role), site=site)
        out.copy_(_typed(result, out.dtype))

    def quantize_counting(
        self,
        x: Tensor,
        quantizer: Ints,
        seed: Tensor | None,
        role: int,
        site: int,
        out: Tensor | None,
        counts: Tensor | None,
        limits: Tensor | None,
    ) -> None:
        ends = None if limits is None else _array(limits).astype(np.float64)
        result, found = counting.quantize_counting(
            _array(x), quantizer_from_ints(quantizer), seed=_seed(seed, role), site=site,
            limits=ends,
        )  # fmt: skip
        if out is not None:
            out.copy_(_typed(result, out.dtype))
        if counts is not None:
            counts.add_(torch.from_numpy(found[: counts.numel()]).to(counts.device))

    def scaled(
        self,
        x: Tensor,
        quantizer: Ints,
        seed: Tensor | None,
        role: int,
        site: int,
        amax: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        found = twin.scaled(
            _array(x), quantizer_from_ints(quantizer), seed=_seed(seed, role), site=site,
            amax=None if amax is None else float(amax),
        )  # fmt: skip
        values, scale, tensor_scale = (torch.from_numpy(np.asarray(y)).to(x.device) for y in found)
        return values, scale, tensor_scale

    def dequantize(self, values: Tensor, scale: Tensor, tensor_scale: Tensor, fmt: Ints) -> Tensor:
        q = twin.Scaled(_array(values), _array(scale), np.asarray(_array(tensor_scale)))
        return torch.from_numpy(twin.dequantize(q, _blocks(fmt))).to(values.device)

    def pack_scaled(self, values: Tensor, scale: Tensor, fmt: Ints) -> Tensor:
        q = twin.Scaled(_array(values), _array(scale), np.asarray(1, np.float32))
        return torch.from_numpy(twin.pack_scaled(q, _blocks(fmt))).to(values.device)

    def hadamard(self, x: Tensor, size: int, signs: Ints, axis: int) -> Tensor:
        return torch.from_numpy(twin.hadamard(_array(x), size, signs, axis)).to(x.device)

    def multiply(self, product: Product, how: How) -> Tensor:
        acc, seed = accumulator_from_ints(how.acc), _seed(how.seed, how.role)
        left, right = _array(product.left), _array(product.right)
        bias, initial = (None if x is None else _array(x) for x in (product.bias, product.initial))
        if product.conv is None:
            result = twin.matmul(left, right, bias, acc, seed=seed, initial=initial)
        elif product.kind == "conv_fprop":
            result = twin.conv_fprop(left, right, bias, *product.conv, acc, seed=seed)
        else:
            gradient = twin.conv_dgrad if product.kind == "conv_dgrad" else twin.conv_wgrad
            result = gradient(left, right, product.shape, *product.conv, acc, seed=seed)
        return torch.from_numpy(result).to(product.left.device)

    def multiply_scaled(self, product: Product, scales: Scales, how: How) -> Tensor:
        given = twin.Scales(_array(scales.left), _array(scales.right), *scales[2:])
        initial = None if product.initial is None else _array(product.initial)
        result = twin.matmul_scaled(
            _array(product.left), _array(product.right), given, accumulator_from_ints(how.acc),
            seed=_seed(how.seed, how.role), initial=initial,
        )  # fmt: skip
        return torch.from_numpy(result).to(product.left.device)

    def multiply_grouped(self, product: Product, scales: Scales, how: How) -> Tensor:
        given = twin.Scales(_array(scales.left), _array(scales.right), *scales[2:])
        initial = None if product.initial is None else _array(product.initial)
        call = (_array(product.left), _array(product.right), given, accumulator_from_ints(how.acc))
        result = twin.matmul_grouped(*call, initial=initial)
        return torch.from_numpy(result).to(product.left.device)

    def matmul_events(
        self,
        a: Tensor,
        b: Tensor,
        acc: Ints,
        seed: Tensor | None,
        role: int,
        row: Tensor,
    ) -> tuple[Tensor, tuple[int, ...]]:
        found = events.matmul_events(
            _array(a),
            _array(b),
            accumulator_from_ints(acc),
            seed=_seed(seed, role),
            row=row.numpy(),
        )
        return torch.from_numpy(found.sums).to(a.device), found.counts

    def accumulate(
        self,
        total: Tensor,
        addend: Tensor,
        rows_cols: tuple[int, int],
        acc: Ints,
        seed: Tensor | None,
        role: int,
        site: int,
        k: int,
    ) -> None:
        parsed = accumulator_from_ints(acc)
        bits = None
        if parsed.outermost_rounding == "stochastic":
            row = rows_cols[0] + np.arange(total.shape[0])[:, None]
            col = rows_cols[1] + np.arange(total.shape[1])
            start = _seed(seed, role)
            bits = draws(start, site, row, col, k, parsed.random_bits, parsed.rng)
        result = twin.add(
            widen(_array(total)),
            widen(_array(addend)),
            parsed.outermost,
            parsed.outermost_rounding,
            draws=bits,
            random_bits=parsed.random_bits,
        )
        total.copy_(torch.from_numpy(narrow(result)))

    def pack(self, x: Tensor, fmt: Ints) -> Tensor:
        return torch.from_numpy(twin.pack(_array(x).astype(np.float32), _packable(fmt))).to(
            x.device
        )

    def unpack(self, codes: Tensor, fmt: Ints, shape: Sequence[int]) -> Tensor:
        values = twin.unpack(codes.cpu().numpy(), _packable(fmt), tuple(shape))
        return torch.from_numpy(values).to(codes.device)

    def update(
        self,
        tensors: UpdateTensors,
        seed: Tensor | None,
        found: Tensor | None,
        scale: Tensor | None,
        positions: Sequence[int],
        origins: Sequence[int],
        rounding: Ints,
        numbers: tuple[float, ...],
        begins: bool,
    ) -> None:
        if found is not None and bool(found):
            return
        how, step = update_rounding_from_ints(rounding), step_from_numbers(numbers)
        factor = None if scale is None else float(scale)
        start = 0 if seed is None else int(seed)
        masters = tensors.masters or tensors.weights
        states = (
            list(zip(tensors.first, tensors.second, strict=True))
            if step.states > 1
            else [(x,) for x in tensors.first]
        )
        for i, weight in enumerate(tensors.weights):
            shape = tuple(weight.shape)
            kept = states[i] if states else ()
            made = int(tensors.steps[i]) if isinstance(step, Adam) else 0
            held = tuple(
                _values(x, keyed, shape) for x, keyed in zip(kept, how.states, strict=False)
            )
            result = updates.update(
                step,
                how,
                _array(tensors.gradients[i]).astype(np.float32),
                _values(masters[i], how.master, shape),
                None if begins else held,
                number=made + 1,
                scale=factor,
                seed=derive_seed(start, positions[i] + 1),
                origin=origins[i],
            )
            weight.detach().copy_(_typed(result.working, weight.dtype))
            if tensors.masters:
                _keep(masters[i], result.master, how.master)
            for x, values, keyed in zip(kept, result.states, how.states, strict=False):
                _keep(x, values, keyed)
            counted = [result.asked, result.unchanged]
            tensors.counts[i].add_(torch.tensor(counted, dtype=torch.int64, device=weight.device))
            if isinstance(step, Adam):
                tensors.steps[i].add_(1)


def _coded(keyed: Keyed) -> Number:
    assert keyed.quantizer is not None and isinstance(keyed.quantizer.fmt, Number)
    return keyed.quantizer.fmt


def _values(kept: Tensor, keyed: Keyed, shape: tuple[int, ...]) -> Float32:
    """The float32 values of a tensor that an update keeps, whether it has a dtype of values or
    holds codes."""
    if kept.dtype == torch.uint8:
        return twin.unpack(kept.cpu().numpy(), _coded(keyed), shape)
    return _array(kept).astype(np.float32)


def _keep(kept: Tensor, values: Float32, keyed: Keyed) -> None:
    if kept.dtype == torch.uint8:
        kept.copy_(torch.from_numpy(twin.pack(values, _coded(keyed))))
    else:
        kept.copy_(_typed(values, kept.dtype))


BACKEND = ReferenceBackend()
