"""``python -m bench.general_path``: every kind of accumulator against three scalar -O3 loops.

All loops run on one thread. "naive" and "exact" are loops of csrc/bench: "naive" rounds each step
twice and does less, "exact" does what the kernels do. "scalar" are lpkernels' own kernels without
vector instructions, which pack and block as the others do. Products are 256 x 256 x 256; each loop
is timed in turns with lp.matmul on one and two threads. bench/results/general-path.jsonl has one
JSON record a line. Where the naive loop leaves out the rounding, its row and its record say so:
only the exact loop is a measure of such a case.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime, timezone

import torch

import lpkernels as lp
from bench import naive
from bench.run import RESULTS
from bench.timing import interleave
from lpkernels import schemas
from lpkernels.arithmetic import as_accumulator
from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.records import append_record
from tests.compare import assert_bit_equal

_SIZE = 256
_SEED = torch.tensor(7)
#: (operands, accumulator); "" leaves the operands float32.
CASES = (
    ("e5m2", "e6m9"), ("", "e6m9"), ("bf16", "bf16"), ("e4m3fn", "e5m10:product=e4m3"),
    ("", "e5m10:product=e4m3"), ("e5m2", "e6m9:toward_zero"), ("", "e6m9:toward_zero"),
    ("e5m2", "e6m9:stochastic"), ("", "e6m9:stochastic"), ("", "e6m9:nearest_away"),
    ("", "e6m9:to_odd"), ("", "e6m9:toward_negative"), ("", "e6m9_nosub"), ("", "fixed16_f8"),
    ("", "fixed16_f8_wrap"), ("", "fixed24_f12"), ("", "fixed16_f8:stochastic"), ("", "e6m0"),
    ("", "e8m22"), ("bf16", "e8m22"), ("", "e8m22:toward_zero"), ("", "e8m23:stochastic"),
    ("", "fixed24_f12_wrap"), ("", "fixed24_f12:stochastic"), ("", "e6m0:to_odd"),
    ("", "e6m0:product=e4m3"),
)  # fmt: skip


def main() -> int:
    if naive.why_not():
        print(naive.why_not(), file=sys.stderr)
        return 1
    generator = torch.Generator().manual_seed(1)
    pair = [torch.randn(_SIZE, _SIZE, generator=generator) for _ in range(2)]
    where, path = environment("cpu"), RESULTS / "general-path.jsonl"
    loops = ("naive", "exact", "scalar")
    print(f"{'operands':9}{'accumulator':24}{'GMAC/s: 1':>10}{'2':>8}"
          + "".join(f"{name:>8}" for name in loops)
          + "".join(f"{f'{n}/{name}':>9}" for name in loops for n in (1, 2)))  # fmt: skip
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    for operands, text in (case for case in CASES if part in case[1]):
        a, b = (lp.quantize(x, operands).float() if operands else x for x in pair)
        rates = measure(a, b, text)
        record = {
            **schemas.line("general path"),
            "time": datetime.now(timezone.utc).isoformat("T", "seconds"),
            "operands": operands, "accumulator": text, "size": _SIZE, "gmacs": rates,
            "load": os.getloadavg()[0], "environment": where,
        }  # fmt: skip
        if remark := naive_remark(text):
            record["naive"] = remark
        append_record(path, record)
        slow = [rates.get(name, float("nan")) for name in loops]
        ratios = [rates[n] / rate for rate in slow for n in ("one thread", "two threads")]
        print(
            f"{operands or 'fp32':9}{text:24}{rates['one thread']:10.2f}{rates['two threads']:8.2f}"
            + "".join(f"{rate:8.3f}" for rate in slow)
            + "".join(f"{ratio:9.0f}" for ratio in ratios)
            + (f"  naive {remark}" if remark else ""),
            flush=True,
        )
    return 0


def naive_remark(text: str) -> str:
    """What the naive loop leaves out of an accumulator's work; "" if nothing."""
    acc = as_accumulator(text)
    # It adds in float32, and draws for those bits of the sum that the format drops.
    if acc.rounding == "stochastic" and getattr(acc.fmt, "man_bits", 0) == 23:
        return "draws nothing and rounds nothing: float32 has no bits below the format's"
    return ""


def measure(a: torch.Tensor, b: torch.Tensor, text: str) -> dict[str, float]:
    """1e9 multiply-adds a second of each loop: the best of several calls, in turns."""
    acc = as_accumulator(text)

    def ours(threads: int) -> torch.Tensor:
        torch.set_num_threads(threads)
        return lp.matmul(a, b, acc, generator=_SEED)

    def scalar() -> None:
        os.environ["LPKERNELS_ISA"] = "scalar"
        ours(1)
        del os.environ["LPKERNELS_ISA"]

    def naive_loop() -> None:
        torch.set_num_threads(1)
        naive.matmul(a, b, acc)

    assert_bit_equal(naive.exact(a, b, acc, int(_SEED)), ours(1), text)
    runs = {
        "one thread": lambda: ours(1),
        "two threads": lambda: ours(2),
        "exact": lambda: naive.exact(a, b, acc, int(_SEED)),
        "scalar": scalar,
    }
    # The naive loop knows formats of the IEEE kind with subnormals, and three modes.
    fmt, known = acc.fmt, ("nearest_even", "toward_zero", "stochastic")
    if isinstance(fmt, lp.FloatFormat) and fmt.subnormals and fmt.man_bits > 0:
        if acc.rounding in known:
            runs["naive"] = naive_loop
    before = torch.get_num_threads()
    # A round of all loops takes half a second; loops that take milliseconds run more often.
    quick = {name: run for name, run in runs.items() if name not in ("exact", "scalar")}
    times = [interleave(runs, 3.0), interleave(quick, 2.0)]
    torch.set_num_threads(before)
    best = {name: min(t[name].best for t in times if name in t) for name in runs}
    return {name: _SIZE**3 / seconds / 1e9 for name, seconds in best.items()}


if __name__ == "__main__":
    sys.exit(main())
