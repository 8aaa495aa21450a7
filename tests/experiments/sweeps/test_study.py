"""Studies: the records of one question."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from lpkernels import schemas
from lpkernels.experiments.sweeps.study import Study, read_study


@dataclass(frozen=True)
class Question:
    number: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "KINDS", {*schemas.KINDS, "guess"})


def test_a_study_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    study = Study(tmp_path, Question(), kind="guess", resume=False)
    study.add({"type": "answer", "value": 1})
    study.add({"type": "other"})
    again = Study(tmp_path, Question(), kind="guess", resume=True)
    assert again.of("answer") == [{"type": "answer", "value": 1}]
    assert again.records == study.records == read_study(tmp_path / "guess.jsonl", "guess")
    header = again.records[0]
    assert (header["kind"], header["config"]) == ("guess", {"number": 0})
    assert Study(tmp_path, Question(), kind="guess", resume=False).of("answer") == []


def test_another_question_or_another_kind_is_refused(tmp_path: Path) -> None:
    Study(tmp_path, Question(), kind="guess", resume=False)
    with pytest.raises(ValueError, match="the answer to another question; resume with the options"):
        Study(tmp_path, Question(1), kind="guess", resume=True)
    with pytest.raises(ValueError, match="expected the records of `lpkernels proof`"):
        read_study(tmp_path / "guess.jsonl", "proof")
