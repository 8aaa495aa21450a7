"""The predicted times of GPU_CASES (docs/predictions.md has the model); `bench.run` writes them
beside measured times. ``python -m bench.predict.cases`` prints them for an H100; nothing runs.
"""

from __future__ import annotations

from typing import Any

from bench.gpu_cases import GPU_CASES
from bench.predict.costs import costs
from bench.predict.devices import DEVICES, device_of
from bench.predict.shapes import Call
from bench.registry import Case
from lpkernels.arithmetic import as_accumulator, as_quantizer

_BACKENDS = ("cuda", "triton")


def call_of(case: Case) -> Call | None:
    """The call of a case that sums products, by sizes; None for any other."""
    gemm = case.op.removeprefix("conv_")
    if case.op != "matmul" and gemm not in ("fprop", "dgrad", "wgrad"):
        return None
    acc = as_accumulator(case.spec).to_ints()
    # Operands are rounded before the call, but their format is known.
    quantizer = as_quantizer(case.operands).to_ints() if case.operands else ()
    rounded = (quantizer, quantizer)
    if case.op == "matmul":
        m, k, n = case.shape
        return Call("matmul", (m, k), (k, n), (m, n), acc, rounded)
    batch, c_in, c_out, image, kernel, stride, groups = case.shape
    padding = kernel // 2
    out = (image + 2 * padding - kernel) // stride + 1
    x, w = (batch, c_in, image, image), (c_out, c_in // groups, kernel, kernel)
    y = (batch, c_out, out, out)
    shapes = {"fprop": (x, w, y), "dgrad": (y, w, x), "wgrad": (x, y, w)}[gemm]
    geometry = ((stride, stride), (padding, padding), (1, 1))
    return Call(case.op, *shapes, acc, rounded, geometry=geometry, groups=groups)


def prediction(case: Case, backend: str, gpu: str) -> dict[str, Any] | None:
    """The prediction for a case on a backend of the GPU that calls itself `gpu`: seconds of the
    products alone, of launches and of packing; None where nothing is predicted."""
    name, call = device_of(gpu), call_of(case)
    if not name or call is None or backend not in _BACKENDS:
        return None
    device = DEVICES[name]
    try:
        found = costs(call, backend, device)
    except NotImplementedError:
        return None
    launches = sum(one.plan.launches for one in found.products) + found.packing_launches
    return {
        "device": name,
        "kernels": sorted({one.plan.kernel for one in found.products}),
        "seconds": 1e-6 * sum(one.microseconds for one in found.products),
        "launches_seconds": 1e-6 * launches * device.launch,
        "packing_seconds": 1e-6 * found.packing,
    }


def total(found: dict[str, Any]) -> float:
    """Seconds of a call: products, launches and packing."""
    return sum(found[part] for part in ("seconds", "launches_seconds", "packing_seconds"))


def main() -> None:
    for case in GPU_CASES:
        for backend in _BACKENDS:
            found = prediction(case, backend, "H100")
            if found is not None:
                print(
                    f"{backend + ': ' + case.name:<72} {1e6 * found['seconds']:>12,.1f} us, with "
                    f"launches and packing {1e6 * total(found):,.1f} us"
                )


if __name__ == "__main__":
    main()
