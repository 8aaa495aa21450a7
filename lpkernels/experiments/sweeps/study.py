"""A study: a folder with the records of one question, which goes on where it was stopped."""

from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from lpkernels import schemas
from lpkernels.experiments import records
from lpkernels.experiments.measuring.machine import environment


class Question(Protocol):
    """What is asked, as plain values."""

    def to_dict(self) -> dict[str, Any]: ...


Q = TypeVar("Q", bound=Question)


class Study(Generic[Q]):
    """The records of one question; work that they hold already is not done again.

    Args:
        folder: holds them, in the file <kind>.jsonl; made if absent.
        question: what is asked; the header of the records says it.
        kind: what sort of study it is, as its header says too.
        resume: keep the records of this question; else they start again.
    Raises: ValueError: with resume, the folder holds the answer to another question, or no study of
        this kind.
    """

    def __init__(self, folder: str | Path, question: Q, *, kind: str, resume: bool) -> None:
        self.folder, self.path = Path(folder), Path(folder) / f"{kind}.jsonl"
        self.config, self.resume = question, resume
        self.records: list[records.Record] = []
        self.folder.mkdir(parents=True, exist_ok=True)
        if resume and self.path.is_file():
            self.records = read_study(self.path, kind)
            if self.records[0]["config"] != question.to_dict():
                raise ValueError(
                    f"{self.folder} holds the answer to another question; resume with the options "
                    "it was asked with, or without --resume"
                )
            return
        header = {
            **schemas.header(kind),
            "config": question.to_dict(),
            "environment": environment("cpu"),
        }
        records.write_records(self.path, [header])
        self.records.append(header)

    def add(self, record: records.Record) -> None:
        records.append_record(self.path, record)
        self.records.append(record)

    def of(self, kind: str) -> list[records.Record]:
        """The records of one type, in the order in which they came."""
        return [record for record in self.records if record["type"] == kind]


def read_study(path: str | Path, kind: str) -> list[records.Record]:
    """The records of a study of that kind.

    Raises: ValueError: they are others, or of a later schema.
    """
    found = records.read_records(Path(path))
    if not found or found[0].get("kind") != kind:
        raise ValueError(f"{path}: expected the records of `lpkernels {kind}`")
    return found
