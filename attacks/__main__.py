"""``python -m attacks [NAME ...]``: the promises, attacked for minutes.

Every attack is a module of this folder with a function `run`, which returns counts and figures, or
raises AssertionError with what was lost or different. A line of attacks/results.jsonl is added for
each that holds: what was counted, how long it took, versions and machine. Short forms of the
attacks are tests; docs/promises.md has the figures.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path

from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.records import append_record
from lpkernels.schemas import line

ATTACKS = ("kills", "damage", "hostile", "ranks", "soak", "conditions")
RESULTS = Path(__file__).resolve().parent / "results.jsonl"


def attack(name: str, out: Path) -> None:
    """Runs an attack and adds its line to the file `out`."""
    begin = time.monotonic()
    figures = import_module(f"attacks.{name}").run()
    seconds = round(time.monotonic() - begin, 1)
    when = datetime.now(timezone.utc).isoformat(timespec="seconds")
    record = {**line("attack"), "name": name, "figures": figures, "seconds": seconds}
    append_record(out, {**record, "environment": environment("cpu"), "when": when})
    print(f"{name}: held, {figures}, {seconds} s", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m attacks", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ATTACKS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in ATTACKS:
            parser.error(f"expected names of {', '.join(ATTACKS)}, got {name}")
    failed = False
    for name in options.names or ATTACKS:
        try:
            attack(name, options.out)
        except AssertionError:
            failed = True
            traceback.print_exc()
            print(f"{name}: NOT held", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
