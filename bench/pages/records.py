"""The records behind the tables of the pages, and the methods that a cell can call."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

from lpkernels.experiments.sweeps.results import Result
from lpkernels.experiments.sweeps.statistics import ArmSummary, summarise

T = TypeVar("T")


class Fields(dict[str, Any]):
    """A record, or an object in one; its values are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(f"no field {name!r}; there are {', '.join(self)}") from error


class EmptyCell(Exception):
    """The records have no figure for a cell."""


@cache
def read(path: Path) -> list[Fields]:
    """The records of a file without headers; the results of a sweep's cell are among its fields."""
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [json.loads(line, object_hook=Fields) for line in lines]
    records = [record for record in found if record.get("type") != "header"]
    return [Fields(record.get("values", {}) | record) for record in records]


def evaluated(expression: str, names: Mapping[str, Any] | Row) -> Any:
    """The value of an expression. Raises ValueError: it has none, and not for want of a figure."""
    try:
        return eval(expression, {}, names)  # type: ignore[arg-type]
    except EmptyCell:
        raise
    except Exception as error:
        raise ValueError(f"{expression}: {error!r}") from error


def matches(record: Fields, wanted: Mapping[str, Any]) -> bool:
    """Whether the record has these values, as they are or as they are written; of lists, one."""
    return all(
        name in record and any(each in (record[name], str(record[name])) for each in several(value))
        for name, value in wanted.items()
    )


def several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def present(value: T | None) -> T:
    if value is None:
        raise EmptyCell
    return value


def signed(value: float, places: int) -> str:
    """With a plus where it is positive as written; never with the minus of -0.0."""
    text = f"{round(value, places) + 0.0:.{places}f}"
    return f"+{text}" if float(text) > 0.0 else text


@dataclass
class Source:
    """The records that a table reads, and the summaries of their arms."""

    path: Path
    records: list[Fields]
    rows: list[str]
    reference: str | None
    summaries: dict[str, dict[str, ArmSummary]] = field(default_factory=dict)

    @classmethod
    def of(cls, root: Path, said: dict[str, Any]) -> Source:
        """The source in a comment: `record`, `where`, `let`, `rows` and `reference`."""
        if "record" not in said:
            raise ValueError("expected a comment that names a record, got none")
        path, where = root / said["record"], said.get("where", "True")
        if not path.is_file():
            raise ValueError(f"record: there is no file {said['record']}")
        records = []
        for record in read(path):
            names = {**record, "record": record}
            if evaluated(where, names):
                more = {k: evaluated(v, names) for k, v in said.get("let", {}).items()}
                records.append(Fields(record | more))
        if not records:
            raise ValueError(f"where: {where} is true of no record of {said['record']}")
        return cls(path, records, said.get("rows", []), said.get("reference"))

    @cached_property
    def fields(self) -> set[str]:
        return {name for record in self.records for name in record}

    def arm(self, record: Fields) -> str:
        return str(record[self.rows[0]])

    def summary(self, figure: str) -> dict[str, ArmSummary]:
        """The summaries of the arms, by name."""
        if figure not in self.summaries:
            results = [
                Result(self.arm(r), (), r["seed"], r.get("status", "finished"), r)
                for r in self.records
            ]
            # No cell shows anything of the bootstrap.
            found = summarise(results, figure, reference=self.reference, resamples=1)
            self.summaries[figure] = {each.arm: each for each in found}
        return self.summaries[figure]


class Row:
    """The names that a cell's text can use: fields of the row's newest record, and these methods.

    figure: the name of a field. Figures of an arm are means over its seeds.
    """

    def __init__(self, source: Source, wanted: dict[str, Any]) -> None:
        self._source, self._wanted = source, wanted
        self._records = [r for r in source.records if matches(r, wanted)]

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, name: str) -> Any:
        if hasattr(type(self), name):
            return getattr(self, name)
        newest = self._records[-1] if self._records else {}
        if newest.get(name) is not None:
            return newest[name]
        if name in self._source.fields:
            raise EmptyCell
        raise KeyError(name)

    def _summary(self, figure: str) -> ArmSummary:
        if not self._records:
            raise EmptyCell
        return self._source.summary(figure)[self._source.arm(self._records[-1])]

    def mean(self, figure: str) -> float:
        return present(self._summary(figure).mean)

    def deviation(self, figure: str) -> float:
        """The standard deviation over the seeds."""
        found = self._summary(figure)
        return present(found.error) * math.sqrt(found.figures)

    def of_reference(self, figure: str) -> float:
        """The mean, in units of the reference's."""
        reference = self._source.summary(figure)[str(self._source.reference)].mean
        return self.mean(figure) / present(reference)

    def figure(self, figure: str, places: int, scale: float = 1.0) -> str:
        """The mean and its standard error."""
        error = present(self._summary(figure).error)
        return f"{scale * self.mean(figure):.{places}f} ± {scale * error:.{places}f}"

    def difference(self, figure: str, places: int, scale: float = 1.0, bold: float = 0.0) -> str:
        """The mean difference to the reference, paired by seed, and its 95% t interval; in bold
        letters where p is below `bold`."""
        found = present(self._summary(figure).difference)
        text = signed(scale * present(found.mean), places)
        if found.interval is not None:
            low, high = (signed(scale * end, places).lstrip("+") for end in found.interval)
            text += f" [{low}, {high}]"
        return f"**{text}**" if self.p_value(figure) < bold else text

    def p_value(self, figure: str) -> float:
        """Of the paired t-test, corrected by Holm over the arms."""
        return present(present(self._summary(figure).difference).p_holm)

    def p(self, figure: str) -> str:
        value = self.p_value(figure)
        return "< 0.001" if value < 0.001 else f"{value:.2g}"

    def at(self, **fields: Any) -> Fields:
        """The newest record of the row that has these values, too."""
        found = [r for r in self._records if matches(r, fields)]
        if not found:
            raise ValueError(f"no record of {self._source.path.name} has {self._wanted | fields}")
        return found[-1]

    def each(self, *names: str) -> list[Fields]:
        """The newest record of the row for each combination of these fields' values."""
        return list({tuple(str(r.get(name)) for name in names): r for r in self._records}.values())

    def listed(self, text: str, between: str = "; ", **fields: Any) -> str:
        """A text (of `str.format`) of the newest record for each value that the row's first cell
        stands for, in the order of the list; a single text if all are alike."""
        name = self._source.rows[0]
        values = several(self._wanted[name])
        texts = [text.format(**self.at(**{name: value}, **fields)) for value in values]
        return between.join(texts if len(set(texts)) > 1 else texts[:1])
