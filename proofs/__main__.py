"""``python -m proofs``: the rounding rule is IEEE 754's conversion, for every value.

`rule` has csrc/common/round.h's lines. For each format and each binade the solver z3 looks for a
value that these lines and IEEE 754's conversion to that format round differently, in any of five
modes and to odd. It does so for all float32, from the smallest subnormal on, and for all doubles of
the binades at the format's ends, where rules differ, and at 1. If there is no such value, the
binade is proved. Zeros, infinities and NaN are tested (tests/project/test_proofs.py). The proofs
are recorded in proofs/results.jsonl.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import joblib
import z3
from rich.progress import track

from lpkernels import schemas
from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.records import write_records
from lpkernels.formats import FloatFormat, parse_format
from proofs.rule import MODES
from proofs.solver import counterexample

RESULTS = Path(__file__).resolve().parent / "results.jsonl"
FORMATS = ("e5m2", "e4m3", "fp16", "e6m9", "bf16", "e8m10", "fp32")
# The binades of float32, the subnormal ones among them.
FLOAT32 = range(-149, 128)


def ends(f: FloatFormat) -> list[int]:
    """The binades of doubles around the smallest value, the smallest normal one, 1 and the
    largest."""
    smallest = f.emin - f.man_bits
    around = [smallest - 2, smallest - 1, smallest, f.emin - 1, f.emin, 0, f.emax, f.emax + 1]
    return sorted(set(around))


def of_ieee(name: str) -> bool:
    """Whether the solver has a conversion to this format by the format's own rule."""
    try:
        f = parse_format(name)
        return (
            isinstance(f, FloatFormat)
            and f == FloatFormat(f.exp_bits, f.man_bits)
            and f.man_bits > 0
        )
    except ValueError:
        return False


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m proofs", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--formats", nargs="+", default=FORMATS, help="of IEEE 754's kind")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    for name in options.formats:
        if not of_ieee(name):
            parser.error(
                f"--formats: expected formats as IEEE 754 has them, such as fp16, got {name}"
            )
    records: list[dict[str, object]] = []
    failed = False
    for name in options.formats:
        f = parse_format(name)
        assert isinstance(f, FloatFormat)
        start = time.monotonic()
        queries = [(e, 23) for e in FLOAT32] + [(e, 52) for e in ends(f)]
        found = joblib.Parallel(n_jobs=options.jobs, return_as="generator")(
            joblib.delayed(counterexample)(f, e, bits) for e, bits in queries
        )
        values = list(track(found, description=name, total=len(queries)))
        wrong = [value for value in values if value is not None]
        failed |= bool(wrong)
        seconds = round(time.monotonic() - start, 1)
        print(f"{name}: {f'NOT proved, see {wrong[0]!r}' if wrong else 'proved'}, {seconds} s")
        records.append({
            "type": "proof", "format": name, "modes": list(MODES), "proved": not wrong,
            "counterexamples": wrong, "float32_binades": [FLOAT32.start, FLOAT32.stop - 1],
            "double_binades": ends(f), "seconds": seconds,
        })  # fmt: skip
    header = {
        **schemas.header("proofs"), "solver": f"z3 {z3.get_version_string()}",
        "rule": "csrc/common/round.h: round_to_float", "environment": environment("cpu"),
        "when": datetime.now(timezone.utc).isoformat(),
    }  # fmt: skip
    write_records(options.out, [header, *records])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
