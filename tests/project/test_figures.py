"""The figures that the pages state are those of the newest records."""

import json
import re
import shlex
from pathlib import Path

import pytest

from lpkernels.experiments.sweeps.reading import read_results
from lpkernels.experiments.sweeps.results import Result
from lpkernels.experiments.sweeps.statistics import summarise
from lpkernels.techniques.cpt import parse_schedule

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
    lines = (ROOT / "docs/backends.md").read_text().splitlines()
    (line,) = (line for line in lines if row in line)
    found = re.search(r"\| (\d+) to (\d+) \|", line)
    assert found is not None
    ratios = [gmacs["one thread"] / gmacs[beside] for gmacs in newest()]
    assert (int(found[1]), int(found[2])) == (round(min(ratios)), round(max(ratios)))


def test_the_number_of_pairs() -> None:
    assert (
        f"| {len(newest())} pairs of operands and accumulators" in (ROOT / "docs/backends.md").read_text()
    )


def never_rose(schedule: str, result: Result) -> bool:
    """Whether the schedule is a plateau and the run ended at the bits that it began with."""
    if not schedule.startswith("plateau:"):
        return False
    bits = parse_schedule(schedule).bits
    return bits is not None and result.values["bits"] == bits[0]


@pytest.mark.parametrize("sweep", ["mnist1d-schedules", "digits-schedules", "lstm-schedules"])
def test_plateaus_that_never_rose_are_left_out_of_the_tables(sweep: str) -> None:
    record = f"bench/results/sweep-{sweep}.jsonl"
    results = read_results(ROOT / record)
    arms = results.spec.arms
    flat = {r.arm for r in results.results if never_rose(arms[r.arm].get("schedule", ""), r)}
    page = (ROOT / "docs/cyclic-precision.md").read_text()
    command, _, after = page.partition(f"lpkernels sweep table {record}")[2].partition("\n")
    assert {word for word in shlex.split(command) if word in arms} == flat
    rows = re.findall(r"^\| ([^|]+?) \|", after.partition("\n#")[0], re.MULTILINE)
    assert rows[1:] == [arm for arm in arms if arm not in flat]


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
