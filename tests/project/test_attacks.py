"""`python -m attacks`: what it writes and refuses, and the counts on the page of promises."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attacks.__main__ import RESULTS, main

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


def test_an_attack_that_does_not_hold_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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


@pytest.mark.parametrize(
    ("name", "figure"), [("kills", "kills"), ("damage", "files"), ("hostile", "calls")]
)
def test_the_page_has_the_counts_of_the_last_attack(name: str, figure: str) -> None:
    lines = map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines())
    count = [line["figures"][figure] for line in lines if line["name"] == name][-1]
    page = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    assert f"{count:,} {figure}" in page
