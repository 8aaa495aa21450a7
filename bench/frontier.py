"""``python -m bench.frontier``: the numerics of a precision study (lpkernels.techniques.pareto).

Four things are timed: completing an error matrix of the paper's size, 87 tasks x 99 configurations
of which a fifth is observed; choosing 15 configurations by each D-optimal method; the whole way
from measurements to a frontier with its band; and completing 10,000 x 1,000. The matrices are the
product of two positive factors, with noise of the size of the paper's, clipped to 0..1. Results are
printed, and appended to bench/results/frontier.jsonl. Threads are those of NumPy's BLAS: set
OMP_NUM_THREADS, to 1 beside other work.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.recording import keep
from bench.timing import OtherWork, Summary, interleave
from lpkernels import schemas
from lpkernels.techniques import pareto
from lpkernels.techniques.pareto.completion import Completion

RESULTS = Path(__file__).resolve().parent / "results" / "frontier.jsonl"
SEED = 0
# The settings of the paper's code: rank, lam, share of the entries, measurements.
RANK, LAM, OBSERVED, MEASURED = 5, 0.1, 0.2, 15
# The noise is the part of the paper's matrix that five dimensions leave: 0.046 of its norm, 70,
# over 87 x 99 entries.
NOISE = 0.035


def matrix(tasks: int, configurations: int) -> tuple[np.ndarray, np.ndarray]:
    """Errors, and which of them are observed: at least one in each row and column."""
    rng = np.random.default_rng(SEED)
    x = rng.uniform(0.5, 1, (tasks, 2)) @ rng.uniform(0.2, 1, (2, configurations)) / 2
    x += NOISE * rng.standard_normal(x.shape)
    mask = rng.random(x.shape) < OBSERVED
    longest = np.arange(max(x.shape))
    mask[longest % tasks, longest % configurations] = True
    return np.clip(x, 0, 1), mask


def cases(
    small: tuple[int, int], large: tuple[int, int]
) -> Iterator[tuple[str, tuple[int, int], Callable[[], Any]]]:
    """(what, size of its matrix, the call)."""
    x, mask = matrix(*small)
    y = pareto.embed(x, RANK)
    cost = np.random.default_rng(SEED).uniform(1, 2, small[1])
    residuals = pareto.held_out_residuals(x, RANK)
    chosen = pareto.select(y, n=MEASURED)

    def chain() -> Any:
        embedded = pareto.embed(pareto.complete(x, mask, rank=RANK, lam=LAM).values, RANK)
        asked = pareto.select(embedded, n=MEASURED)
        return pareto.frontier_band(embedded, asked, x[0, asked], cost, residuals=residuals)

    yield "complete", small, lambda: pareto.complete(x, mask, rank=RANK, lam=LAM)
    yield (
        "complete, tolerance 1e-6",
        small,
        lambda: pareto.complete(x, mask, rank=RANK, lam=LAM, tolerance=1e-6),
    )
    yield "select greedy", small, lambda: pareto.select(y, n=MEASURED)
    yield "select greedy, budget", small, lambda: pareto.select(y, cost=cost, budget=MEASURED * 1.5)
    yield "predict", small, lambda: pareto.predict(y, chosen, x[0, chosen])
    yield "complete to band", small, chain
    wide, seen = matrix(*large)
    yield "complete", large, lambda: pareto.complete(wide, seen, rank=RANK, lam=LAM)


def measure(run: Callable[[], Any], budget: float) -> tuple[Summary, float, Any]:
    """The times of a call, the processor's seconds of the first call, and its result. A call that
    takes longer than the budget is made once.
    """
    start, spent = time.perf_counter(), time.process_time()
    result = run()
    seconds, spent = time.perf_counter() - start, time.process_time() - spent
    if seconds > budget:
        return Summary.of([seconds], 1), spent, result
    return interleave({"it": run}, budget)["it"], spent, result


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.frontier")
    parser.add_argument("--seconds", type=float, default=3, help="of each line")
    parser.add_argument("--small", type=int, nargs=2, default=(87, 99), metavar="N")
    parser.add_argument("--large", type=int, nargs=2, default=(10_000, 1_000), metavar="N")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    threads = os.environ.get("OMP_NUM_THREADS")
    for case, size, run in cases(tuple(options.small), tuple(options.large)):
        others = OtherWork()
        times, spent, result = measure(run, options.seconds)
        record = {
            **schemas.line("frontier numerics"), "case": case, "size": list(size), "seed": SEED,
            "threads": threads, "best_s": times.best, "p50_s": times.p50,
            "first_cpu_s": spent, "samples": times.samples, "others": others.processors(),
        }  # fmt: skip
        how = ""
        if isinstance(result, Completion):
            left = (result.values - matrix(*size)[0])[~result.observed]
            record |= {"steps": result.steps, "converged": result.converged}
            record |= {"rmse": float(np.sqrt((left**2).mean()))}
            how = f", {result.steps} steps,{' not' * (not result.converged)} converged, "
            how += f"rmse {record['rmse']:.4f}"
        keep(options.out, record)
        cost = f"median {times.p50:9.4g} s, {spent:.3g} cpu s"
        print(f"{case}, {size[0]} x {size[1]}: best {times.best:9.4g} s, {cost}{how}", flush=True)


if __name__ == "__main__":
    main()
