"""`python -m attacks`: its records and refusals, its counts on the page of promises, the soak."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attacks.__main__ import RESULTS, main
from attacks.soak import MOST_BYTES_PER_ROUND, Sample, flat
from tests.loops import each

ROOT = Path(__file__).resolve().parents[2]


def attack(monkeypatch: pytest.MonkeyPatch, name: str, holds: bool) -> None:
    """Replaces an attack by one that takes no time."""

    def run() -> dict[str, Any]:
        assert holds, "7 of 9 were lost"
        return {"kills": 9}

    monkeypatch.setitem(sys.modules, f"attacks.{name}", SimpleNamespace(run=run))


def test_an_attack_that_holds_adds_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attack(monkeypatch, "kills", True)
    out = tmp_path / "results.jsonl"
    for _ in range(2):
        assert main(["kills", "--out", str(out)]) == 0
    first, second = (json.loads(line) for line in out.read_text().splitlines())
    assert first.keys() == second.keys() >= {"seconds", "when"}
    assert (first["name"], first["figures"]) == ("kills", {"kills": 9})
    assert "torch" in first["environment"]["versions"]


def test_an_attack_that_does_not_hold_stops_no_other(tmp_path, monkeypatch, capsys):
    attack(monkeypatch, "damage", False)
    attack(monkeypatch, "kills", True)
    out = tmp_path / "results.jsonl"
    assert main(["damage", "kills", "--out", str(out)]) == 1
    assert [json.loads(line)["name"] for line in out.read_text().splitlines()] == ["kills"]
    printed = capsys.readouterr()
    assert "damage: NOT held" in printed.out and "7 of 9 were lost" in printed.err


def test_an_unknown_attack_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["fire"])
    assert "expected names of kills, damage, hostile" in capsys.readouterr().err


@each("name, figure", [("kills", "kills"), ("damage", "files"), ("hostile", "calls")])
def test_the_page_has_the_counts_of_the_last_attack(name: str, figure: str) -> None:
    lines = map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines())
    count = [line["figures"][figure] for line in lines if line["name"] == name][-1]
    page = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    assert f"{count:,} {figure}" in page


def samples(*, grown: float = 0.0, handles: int = 7, threads: int = 5) -> list[Sample]:
    """A sample in each of 100 rounds. `grown` bytes are added in each, and in the last there are so
    many handles and threads."""
    seen = [Sample(float(i), (400 << 20) + round(grown * i), 7, 5, 0, i) for i in range(100)]
    return [*seen[:-1], seen[-1]._replace(handles=handles, threads=threads)]


def test_the_soak_lets_flat_figures_pass_and_notices_growth() -> None:
    figures = flat(samples(grown=MOST_BYTES_PER_ROUND / 2))
    assert figures["rounds"] == 99 and figures["bytes_per_round"] == MOST_BYTES_PER_ROUND / 2
    for grown, message in (
        ({"grown": 2 * MOST_BYTES_PER_ROUND}, "memory grows"),
        ({"handles": 8}, r"handles: between rounds there were \[7, 8\]"),
        ({"threads": 6}, r"threads: between rounds there were \[5, 6\]"),
    ):
        with pytest.raises(AssertionError, match=message):
            flat(samples(**grown))  # type: ignore[arg-type]
