"""``python -m mutants``: how many wrong lines the tests notice.

A random sample of the single mutations of each package (`places`) is tested by the tests that
concern it (`packages`), after the one that noticed it last. Each mutant runs in a process of its
own (`trial`) that ends at the first failure; one that takes three times as long as the right
sources, and 10 s, counts as killed. Mutants of the kernels (`cpp`) are switches of one build, which
the C++ tests try first. The record, mutants/results.jsonl, is written after each mutant, and keeps
the first outcome too. For each survivor it has a judgement that is written into it by hand:
"equivalent: ", which means that it changes no behaviour, or "accepted: ".
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

# This comes before torch: one thread, and no time lost to threads that wait.
os.environ["OMP_NUM_THREADS"] = "1"

from mutants import cpp, trial
from mutants.packages import GROUPS, KERNELS, PACKAGES, ROOT, Group, known
from mutants.places import Mutant, sample
from mutants.score import KILLED, RESULTS, SURVIVED, Row, read, scores


def chosen(
    package: str, size: int, seed: int
) -> tuple[list[tuple[Group, Mutant | cpp.Mutant]], int]:
    """The sample of a package, each mutant with its tests, and the number of the places there."""
    groups = {file: g for g in GROUPS if g.package == package for file in g.files()}
    sources = {file: (ROOT / file).read_text(encoding="utf-8") for file in groups}
    mutants: Sequence[Mutant | cpp.Mutant]
    mutants, places = (cpp.sample if package == KERNELS else sample)(sources, size, seed)
    return [(groups[mutant.file], mutant) for mutant in mutants], places


def limit_of(group: Group) -> float:
    """The seconds of a processor after which the tests of a mutant are taken to hang."""
    outcome = trial.run([[*group.tests, *group.last]], 1800.0)
    if outcome.killed:
        raise SystemExit(f"{group.package}: without a mutation, {outcome.by} fails")
    return 3 * outcome.seconds + 10


def tested(group: Group, mutant: Mutant | cpp.Mutant, limit: float, old: Row) -> Row:
    """The record of a mutant; `old` is its last one, or empty."""
    stages = [*known(old.get("by", "")), *group.stages(mutant.file)]
    if isinstance(mutant, cpp.Mutant):
        outcome = cpp.run(mutant, stages, limit)
    else:
        outcome = trial.run(stages, limit, Path(mutant.file), mutant.source)
    word = KILLED if outcome.killed else SURVIVED
    row: Row = {
        "type": "mutant", "key": mutant.key, "package": group.package, "file": mutant.file,
        "line": mutant.line, "operator": mutant.operator, "before": mutant.before,
        "after": mutant.after, "first": old.get("first", word), "outcome": word,
        "by": outcome.by,
    }  # fmt: skip
    if not outcome.killed:
        row["judgement"] = old.get("judgement", "")
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m mutants", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--packages", nargs="+", choices=PACKAGES, default=PACKAGES)
    parser.add_argument("--size", type=int, default=40, help="mutants of a package, at most")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    again = parser.add_mutually_exclusive_group()
    again.add_argument(
        "--survivors",
        action="store_true",
        help="test those again that survived and are not judged, keep the rest",
    )
    again.add_argument(
        "--killed", action="store_true", help="test those again that were killed, keep the rest"
    )
    parser.add_argument(
        "--limit",
        type=float,
        help="seconds of a processor for the tests of a mutant; three times those of the right\n"
        "sources, and 10, if they are to be measured",
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    rows = {row["key"]: row for row in read(options.out)}
    limits: dict[Group, float] = {}
    for package in options.packages:
        mutants, places = chosen(package, options.size, options.seed)
        print(f"{package}: {len(mutants)} of {places} places", flush=True)
        keys = {mutant.key for _, mutant in mutants}
        rows = {k: row for k, row in rows.items() if row["package"] != package or k in keys}
        for group, mutant in mutants:
            last = rows.get(mutant.key, {})
            if _kept(last, options):
                last["line"] = mutant.line
                continue
            if group not in limits:
                limits[group] = options.limit or limit_of(group)
            row = rows[mutant.key] = tested(group, mutant, limits[group], last)
            print(f"  {mutant.file}:{mutant.line} {row['by'] or SURVIVED}", flush=True)
            trial.apart(partial(_write, options, [*rows.values()]))
    _write(options, [*rows.values()])
    print(scores(rows.values()))
    return 0


def _kept(last: Row, options: argparse.Namespace) -> bool:
    """Whether a mutant keeps its last record, which may be empty, without another test."""
    if options.killed:
        return last.get("outcome") == SURVIVED
    return options.survivors and (last.get("outcome") == KILLED or bool(last.get("judgement")))


def _write(options: argparse.Namespace, rows: list[Row]) -> None:
    # These are imported here: mutants are tested in forks of a process that must not have them.
    from importlib.metadata import version

    from lpkernels import schemas
    from lpkernels.experiments.measuring.machine import environment
    from lpkernels.experiments.records import write_records

    rows.sort(key=lambda row: (PACKAGES.index(row["package"]), row["file"], row["line"]))
    of = {package: [row for row in rows if row["package"] == package] for package in PACKAGES}
    by_package = {package: scores(own) for package, own in of.items() if own}
    header = {
        **schemas.header("mutants"), "size": max(map(len, of.values())),
        "seed": options.seed, "mutations": f"cosmic-ray {version('cosmic-ray')}",
        "scores": scores(rows), "packages": by_package, "environment": environment("cpu"),
        "when": datetime.now(timezone.utc).isoformat(),
    }  # fmt: skip
    write_records(options.out, [header, *rows])


if __name__ == "__main__":
    sys.exit(main())
