"""The figures that README and the pages state are those of the newest records."""

import json
import re
from pathlib import Path

import pytest

from lpkernels.experiments.sweeps.reading import read_results
from lpkernels.experiments.sweeps.statistics import summarise

ROOT = Path(__file__).parents[2]


def newest() -> list[dict[str, float]]:
    """Multiply-adds a second of each pair of operands and accumulator, in 10^9."""
    records: dict[tuple[str, str], dict[str, float]] = {}
    for line in (ROOT / "bench/results/general-path.jsonl").read_text().splitlines():
        record = json.loads(line)
        records[record["operands"], record["accumulator"]] = record["gmacs"]
    return list(records.values())


@pytest.mark.parametrize(
    ("row", "beside"),
    [("a scalar loop with the same results", "exact"), ("without vector instructions", "scalar")],
)
def test_the_ratios_of_the_general_path(row: str, beside: str) -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    (line,) = (line for line in lines if row in line)
    found = re.search(r"\| (\d+) to (\d+) \|", line)
    assert found is not None
    ratios = [gmacs["one thread"] / gmacs[beside] for gmacs in newest()]
    assert (int(found[1]), int(found[2])) == (round(min(ratios)), round(max(ratios)))


def test_the_number_of_pairs() -> None:
    assert (
        f"| {len(newest())} pairs of operands and accumulators" in (ROOT / "README.md").read_text()
    )


@pytest.mark.parametrize("data", ["digits", "mnist1d"])
@pytest.mark.parametrize("which", ["assignments", "assignments-low-loss"])
def test_the_tables_of_assignments(data: str, which: str) -> None:
    page = (ROOT / "docs/assignments.md").read_text()
    results = read_results(ROOT / f"bench/results/sweep-{data}-{which}.jsonl").results
    arms = summarise(results, "test_accuracy", reference="fp32", resamples=1)
    for each in arms:
        assert each.mean is not None
        assert each.error is not None
        row = f"| {100 * each.mean:.2f} ± {100 * each.error:.2f} |"
        if each.difference is not None:
            found, between = each.difference.mean, each.difference.interval
            assert found is not None
            assert between is not None
            row += f" {100 * found:+.2f} [{100 * between.low:.2f}, {100 * between.high:.2f}] |"
        assert row in page, f"{each.arm}: {row}"
