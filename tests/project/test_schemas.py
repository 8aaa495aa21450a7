"""Every committed record opens, and readers refuse records of another schema."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import optimizer_states
from bench.recording import held
from lpkernels import schemas
from lpkernels.experiments.records import read_records
from lpkernels.experiments.sweeps.results import read_results
from tests.support.refusals import rejects

ROOT = Path(__file__).parents[2]
PLACES = ("bench/results/*.json*", "proofs/results.jsonl")
COMMITTED = [path for place in PLACES for path in sorted(ROOT.glob(place))]

#: The readers of kinds that have one of their own.
READERS: dict[str, Callable[[Path], Any]] = {
    "sweep-results": read_results,
    "optimizer states": lambda path: held(path, *optimizer_states.KEYS),
}  # fmt: skip


@pytest.mark.parametrize("path", COMMITTED)
def test_published_records_open(path: Path) -> None:
    lines = path.read_text().splitlines()
    first = json.loads(lines[0])
    assert READERS.get(str(first.get("kind") or first.get("type")), read_records)(path)
    # A line with no header above it says its own schema.
    numbered = [record for record in map(json.loads, lines) if "schema" in record]
    assert numbered and (first.get("type") == "header" or len(numbered) == len(lines))


test_another_number_than_the_schema_is_refused = rejects(
    lambda number: schemas.check_all([{**schemas.header("run"), "schema": number}], "x.jsonl"),
    [
        (number, rf"x\.jsonl: expected schema {schemas.SCHEMA}, got {number!r}, which another")
        for number in (1, 3, 0, True, 2.0, "2", None)
    ],
)


def test_a_header_without_a_number_is_refused_and_other_lines_stay() -> None:
    with pytest.raises(ValueError, match=r"x: expected schema 2, got None"):
        schemas.check_all([{"type": "header", "kind": "run"}], "x")
    lines = [schemas.header("run"), {"type": "epoch"}, schemas.line("bench"), [1]]
    assert schemas.check_all(lines, "x") == lines
