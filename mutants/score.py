"""The record of mutants and its scores: shares with their intervals."""

from __future__ import annotations

import json
import math
import runpy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results.jsonl"
_SCHEMAS = RESULTS.parents[1] / "lpkernels" / "schemas.py"
KILLED, SURVIVED = "killed", "survived"
#: How the judgement of a survivor begins if no test of behaviour can kill it.
EQUIVALENT = "equivalent: "
#: How it begins if the survivor changes something that no test need hold, such as time.
ACCEPTED = "accepted: "

Row = dict[str, Any]


def read(path: Path = RESULTS) -> list[Row]:
    """The mutants of a record, without its header; none where there is no record."""
    if not path.is_file():
        return []
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    # This file is run alone, since the process that forks mutants must not have lpkernels.
    schemas = runpy.run_path(str(_SCHEMAS))
    rows = schemas["check_all"](lines, path)
    return [row for row in rows if row["type"] == "mutant"]


def interval(count: int, total: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share."""
    z = 1.959964
    share, room = count / total, z * z / total
    middle = (share + room / 2) / (1 + room)
    half = z * math.sqrt(share * (1 - share) / total + room / total / 4) / (1 + room)
    return middle - half, middle + half


def scores(rows: Iterable[Mapping[str, Any]]) -> Row:
    """How many mutants there are, how many of them change no behaviour, and how many tests killed,
    both when the mutants were first tested and now.

    share, interval: of the mutants that change behaviour, in percent.
    """
    rows = list(rows)
    equivalent = sum(row.get("judgement", "").startswith(EQUIVALENT) for row in rows)
    able = len(rows) - equivalent
    score: Row = {"mutants": len(rows), "equivalent": equivalent}
    for when, field in (("first", "first"), ("now", "outcome")):
        killed = sum(row[field] == KILLED for row in rows)
        low, high = interval(killed, able)
        score[when] = {
            "killed": killed,
            "share": round(100 * killed / able, 1),
            "interval": [round(100 * low, 1), round(100 * high, 1)],
        }
    return score
