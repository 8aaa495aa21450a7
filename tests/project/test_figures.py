"""The figures that README states are those of the newest records."""

import json
import re
from pathlib import Path

import pytest

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
