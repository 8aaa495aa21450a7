"""Which arms of a record the tables of the pages leave out."""

import re
import shlex
from pathlib import Path

import pytest

from lpkernels.experiments.sweeps.reading import read_results
from lpkernels.experiments.sweeps.results import Result
from lpkernels.techniques.cpt import parse_schedule

ROOT = Path(__file__).parents[2]


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
