"""``python -m bench.fp8_units``: how the matrix units of this GPU add, and the named accumulators.

The records have two things of every unit that torch or this package can reach. The first is its
parameters, found by the designed inputs of `bench.unit_probes`; an Accumulator follows from them.
The second is how many results of random products differ in a bit from that Accumulator, and from
the one with a name (`lpkernels units`) that is said to be this GPU's. Where no Accumulator sums as
a unit does, its record says so (`fits`). Records go to fp8-units.jsonl below --out.

The units are torch._scaled_mm (cuBLAS, fp8), with and without fast accumulation; torch.mm with
float32 results (cuBLAS, fp16, bf16, tf32), which may split K; and mma.sync, by this package's own
kernels for chunks of order "native", fp16 and bf16.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.unit_findings import Inputs
from bench.unit_probes import Unit, probe
from lpkernels import Accumulator, matmul, quantize, schemas
from lpkernels.arithmetic import UNITS
from lpkernels.backends import status
from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.records import append_record

SHAPES = ((128, 512, 128), (64, 2048, 96), (256, 4096, 64))
FP8_PAIRS = (("e4m3fn", "e4m3fn"), ("e5m2", "e4m3fn"), ("e4m3fn", "e5m2"))
# GPUs whose tensor cores have names, by compute capability. An A2 has 8.6 and equals an A100.
GPUS = {(7, 0): "v100", (8, 0): "a100", (8, 6): "a100", (8, 9): "ada", (9, 0): "h100"}
GPUS[10, 0] = "b200"


@dataclass(frozen=True)
class Candidate:
    """A unit at hand, for one pair of input formats, and the accumulator that it should be.

    named: the name of that accumulator; None where this GPU has no recorded unit of the kind.
    """

    name: str
    unit: Unit
    inputs: Inputs
    named: str | None


def disagreement(
    unit: Unit, acc: Accumulator, shape: Sequence[int], inputs: Inputs, *, seed: int
) -> tuple[int, int]:
    """How many results of random products, and of products spread over many binades, differ in a
    bit, and how many results there are.
    """
    generator = torch.Generator().manual_seed(seed)
    m, k, n = shape
    differ = 0
    for spread in (0, 6):
        left, right = (
            quantize(_random(size, spread, generator), fmt, "toward_zero").float()
            for size, fmt in zip(((m, k), (k, n)), (inputs.left, inputs.right), strict=True)
        )
        got, want = unit(left, right), matmul(left, right, acc)
        differ += int((got.view(torch.int32) != want.view(torch.int32)).sum())
    return differ, 2 * m * n


def _random(shape: tuple[int, int], spread: int, generator: torch.Generator) -> Tensor:
    binades = torch.randint(-spread, spread + 1, shape, generator=generator)
    return torch.ldexp(torch.randn(shape, generator=generator), binades)


def named(name: str, inputs: Inputs) -> Accumulator:
    """The accumulator of a named unit, with the formats at hand if the unit is one for fp8."""
    acc = UNITS[name].accumulator
    if acc.operands is None or inputs.left.bits > 8 or acc.interleaved > 1:
        return acc
    return Accumulator(
        acc.fmt, acc.rounding, chunk=acc.chunk, outer=acc.outer, outer_rounding=acc.outer_rounding,
        block=acc.block, aligned_bits=acc.aligned_bits, operands=(inputs.left, inputs.right),
    )  # fmt: skip


def report(candidate: Candidate) -> Iterator[dict[str, Any]]:
    """The records of a unit: what was found, and how well the found and the named accumulator
    hold."""
    inputs = candidate.inputs
    about = {"name": candidate.name, "operands": [str(inputs.left), str(inputs.right)]}
    found = probe(candidate.unit, inputs)
    yield {"type": "unit", **about, **asdict(found), "fits": found.fits}
    models: dict[str, Accumulator] = {}
    if found.fits:
        models["found"] = found.accumulator(inputs)
    if candidate.named is not None:
        models[candidate.named] = named(candidate.named, inputs)
    for model, acc in models.items():
        for shape in SHAPES:
            differ, results = disagreement(candidate.unit, acc, shape, inputs, seed=0)
            yield {
                "type": "agreement", **about, "model": model, "accumulator": str(acc),
                "shape": list(shape), "differ": differ, "results": results,
            }  # fmt: skip


_DTYPES = {
    "e4m3fn": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "tf32": torch.float32,
}


def scaled_mm(left: str, right: str, fast: bool, a: Tensor, b: Tensor) -> Tensor:
    """torch._scaled_mm without scales."""
    one = torch.ones((), dtype=torch.float32, device="cuda")
    columns = b.t().contiguous().cuda().to(_DTYPES[right]).t()
    y = torch._scaled_mm(
        a.cuda().to(_DTYPES[left]), columns,
        scale_a=one, scale_b=one, out_dtype=torch.float32, use_fast_accum=fast,
    )  # fmt: skip
    return y.cpu()


def mm(fmt: str, a: Tensor, b: Tensor) -> Tensor:
    """torch.mm with float32 results."""
    left, right = (x.cuda().to(_DTYPES[fmt]) for x in (a, b))
    if fmt != "tf32":
        return torch.mm(left, right, out_dtype=torch.float32).cpu()
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return torch.mm(left, right).cpu()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def native_chunk(backend: str, a: Tensor, b: Tensor) -> Tensor:
    """All of K as one chunk of this package's kernels for order "native"."""
    acc = Accumulator("fp32", order="native", chunk=max(1, a.shape[1]))
    return matmul(a.cuda(), b.cuda(), acc, backend=backend).cpu()


def candidates(capability: tuple[int, int]) -> Iterator[Candidate]:
    """The units of a GPU of this compute capability."""
    gpu = GPUS.get(capability)

    def of_gpu(kind: str) -> str | None:
        return f"{gpu}_{kind}" if f"{gpu}_{kind}" in UNITS else None

    if capability >= (8, 9):
        for left, right in FP8_PAIRS:
            for fast in (True, False):
                name = f"torch._scaled_mm, use_fast_accum={fast}"
                promoted = "hopper_fp8" if gpu == "h100" else None
                expected = of_gpu("e4m3") if fast else promoted
                unit = partial(scaled_mm, left, right, fast)
                yield Candidate(name, unit, Inputs.of(left, right), expected)
    kinds = ["fp16"] + ["bf16", "tf32"] * (capability >= (8, 0))
    for fmt in kinds:
        yield Candidate("torch.mm", partial(mm, fmt), Inputs.of(fmt), of_gpu(fmt))
    for backend in ("cuda", "triton"):
        if status()[backend] != "available":
            continue
        for fmt in kinds[:2]:
            unit = partial(native_chunk, backend)
            yield Candidate(f"mma.sync, {backend}", unit, Inputs.of(fmt), of_gpu(fmt))


def _tried(candidate: Candidate) -> Iterator[dict[str, Any]]:
    """The records of `report`; where this torch or GPU cannot run a unit, one that says why."""
    try:
        yield from report(candidate)
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        yield {"type": "failure", "name": candidate.name, "error": f"{error}".splitlines()[0]}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (7, 0):
        print("fp8_units: no GPU with matrix units here (compute capability 7.0 and up)")
        return 0
    path = options.out / "fp8-units.jsonl"
    options.out.mkdir(parents=True, exist_ok=True)
    append_record(path, {**schemas.header("fp8 units"), "environment": environment("cuda")})
    for candidate in candidates(torch.cuda.get_device_capability()):
        for record in _tried(candidate):
            append_record(path, record)
            print(record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
