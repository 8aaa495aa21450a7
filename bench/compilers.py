"""``python -m bench.compilers MODULE``: the kernels of two compilers in turns, on one thread.

MODULE is a second ``lpkernels._C``, which another compiler has built from the same sources:

    CXX=clang++-16 cmake -S . -B build/clang -Dpybind11_DIR=$(python -m pybind11 --cmakedir)
    cmake --build build/clang
    python -m bench.compilers build/clang/_C*.so

Each case first has to give the reference's bits with both modules. Times are the process's own
processor time: other work on the machine takes turns with it, but does not count. Results are
printed, and appended to bench/results/compilers.jsonl.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import process_time
from types import ModuleType
from typing import Any

import torch

from bench.gate import gate
from bench.ops import build
from bench.registry import CASES, Case
from bench.run import RESULTS, measure
from lpkernels import _build
from lpkernels.backends import cpu
from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.records import append_record

#: Twenty of the registry: every tier of sums, convolutions, roundings, codes and scaled products.
NAMES = (
    *(f"matmul 960x960x960 {sums}" for sums in (
        "e6m9 of e5m2", "e6m9", "e6m9_chunk64 of e5m2", "e5m10 of e4m3fn",
        "e5m10:product=e4m3 of e4m3fn", "e6m9:toward_zero of e5m2", "e6m9:stochastic of e5m2",
        "bf16 of bf16", "e8m22 of bf16", "fp32", "e6m9 of e5m2, avx2",
    )),
    "conv_fprop 4x64x56x56 to 64, 3x3 stride 1, e6m9_chunk64 of e5m2",
    "conv_wgrad 4x64x56x56 to 64, 3x3 stride 1, e6m9_chunk64 of e5m2",
    "quantize_out 65536 e5m2:nearest_even", "quantize_out 65536 e6m9:stochastic",
    "quantize_out 2048x2048 mxfp8:nearest_even", "pack 2048x2048 e4m3fn", "unpack 2048x2048 mxfp4",
    "count 65536 e5m2:nearest_even",
    "scaled_matmul 512x512x512 fp32_chunkscale of mxfp8_up,block32_axis-2_e4m3_up",
)  # fmt: skip
CHOSEN = [case for case in CASES if case.name in NAMES]


def load(path: Path) -> ModuleType:
    """The module in the file `path`, beside the one of the package."""
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}._C", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by(module: ModuleType, run: Callable[[], Any]) -> Callable[[], Any]:
    """The call `run`, made with the kernels of `module`."""

    def call() -> Any:
        cpu.BACKEND._module = module
        return run()

    return call


def compare(case: Case, modules: list[ModuleType], seconds: float) -> dict[str, Any]:
    """One record: the first module is lpkernels, the second a baseline with its compiler's name."""
    for module in modules:
        by(module, lambda: gate(case, "cpu", "cpu"))()
    job = build(case, "cpu", "cpu")
    one, other = (by(module, job.run) for module in modules)
    job = replace(job, run=one, baselines={modules[1].compiler: other}, other_work={})
    record = measure(case, "cpu", "cpu", 1, seconds, job=job, clock=process_time)
    return {**record, "clock": "processor", "compiler": modules[0].compiler}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.compilers", description=__doc__)
    parser.add_argument("module", type=Path, help="the second module")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each case")
    parser.add_argument("--out", type=Path, default=RESULTS / "compilers.jsonl")
    options = parser.parse_args()
    torch.set_num_threads(1)
    modules = [_build.load_extension(), load(options.module)]
    where = environment("cpu")
    for case in CHOSEN:
        record = {**compare(case, modules, options.seconds), "environment": where}
        append_record(options.out, record)
        (name, other), *_ = record["baselines"].items()
        print(f"{case.name:<76} {record['compiler']} at {other['ratio']:.2f} the speed of {name}")


if __name__ == "__main__":
    main()
