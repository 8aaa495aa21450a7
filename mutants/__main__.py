"""``python -m mutants``: how many wrong lines the tests notice.

A random sample of the single mutations of each package (`places`) is tested by the tests that
concern it (`packages`). Each mutant runs in a process of its own (`trial`) that ends at the first
failure; one that takes three times as long as the right sources, and 10 s, counts as killed. Tests
that start processes of their own see the right sources there. The record, mutants/results.jsonl,
keeps what first came of a mutant. For each survivor it has a judgement that is written into it by
hand: "equivalent: ", which means that it changes no behaviour, or "accepted: ".
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

# This comes before torch: one thread, and no time lost to threads that wait.
os.environ["OMP_NUM_THREADS"] = "1"

from mutants import trial
from mutants.packages import GROUPS, PACKAGES, ROOT, Group
from mutants.places import Mutant, sample
from mutants.score import KILLED, RESULTS, SURVIVED, Row, read, scores


def chosen(package: str, size: int, seed: int) -> tuple[list[tuple[Group, Mutant]], int]:
    """The sample of a package, each mutant with its tests, and the number of the places there."""
    groups = {file: g for g in GROUPS if g.package == package for file in g.files()}
    sources = {file: (ROOT / file).read_text(encoding="utf-8") for file in groups}
    mutants, places = sample(sources, size, seed)
    return [(groups[mutant.file], mutant) for mutant in mutants], places


def limit_of(group: Group) -> float:
    """The seconds of a processor after which the tests of a mutant are taken to hang."""
    outcome = trial.run([group.tests], 1800.0)
    if outcome.killed:
        raise SystemExit(f"{group.package}: without a mutation, {outcome.by} fails")
    return 3 * outcome.seconds + 10


def tested(group: Group, mutant: Mutant, limit: float, old: Row) -> Row:
    """The record of a mutant; `old` is its last one, or empty."""
    stages = group.stages(mutant.file)
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
    parser.add_argument("--size", type=int, default=40, help="mutants of a package")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument(
        "--survivors",
        action="store_true",
        help="test those again that survived and are not judged, keep the rest",
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    old = {row["key"]: row for row in read(options.out)}
    rows = [row for row in old.values() if row["package"] not in options.packages]
    limits: dict[Group, float] = {}
    for package in options.packages:
        mutants, places = chosen(package, options.size, options.seed)
        print(f"{package}: {len(mutants)} of {places} places", flush=True)
        for group, mutant in mutants:
            last = old.get(mutant.key, {})
            if options.survivors and (last.get("outcome") == KILLED or last.get("judgement")):
                rows.append({**last, "line": mutant.line})
                continue
            if group not in limits:
                limits[group] = limit_of(group)
            rows.append(tested(group, mutant, limits[group], last))
            print(f"  {mutant.file}:{mutant.line} {rows[-1]['by'] or SURVIVED}", flush=True)
    rows.sort(key=lambda row: (PACKAGES.index(row["package"]), row["file"], row["line"]))
    _write(options, rows)
    print(scores(rows))
    return 0


def _write(options: argparse.Namespace, rows: list[Row]) -> None:
    # This is not done earlier: mutants are tested in forks of this process, which must not have
    # lpkernels.
    from importlib.metadata import version

    from lpkernels import schemas
    from lpkernels.experiments.measuring.machine import environment
    from lpkernels.experiments.records import write_records

    of = {package: [row for row in rows if row["package"] == package] for package in PACKAGES}
    by_package = {package: scores(own) for package, own in of.items() if own}
    header = {
        **schemas.header("mutants"), "size": options.size,
        "seed": options.seed, "mutations": f"cosmic-ray {version('cosmic-ray')}",
        "scores": scores(rows), "packages": by_package, "environment": environment("cpu"),
        "when": datetime.now(timezone.utc).isoformat(),
    }  # fmt: skip
    write_records(options.out, [header, *rows])


if __name__ == "__main__":
    sys.exit(main())
