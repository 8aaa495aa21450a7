"""Pages of results follow from the records, and prose quotes the figures of their tables."""

import re
from pathlib import Path

import pytest

from bench import tables

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\((?:docs/)?results/([\w-]+)\.md#?([\w-]*)\)")
DECIMAL = re.compile(r"(?<![\w.:])\d+\.\d+")


def test_the_pages_of_results_are_those_of_the_records(tmp_path: Path, capsys) -> None:
    assert tables.main("--check") == 0
    page = tmp_path / "sweeps.md"
    assert tables.main("--write", tmp_path) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        p.name for p in (DOCS / "results").iterdir()
    )
    page.write_text(page.read_text().replace("85.97 ± 0.71", "85.87 ± 0.71"))
    capsys.readouterr()
    assert tables.main("--check", tmp_path) == 1
    assert re.fullmatch(r".*sweeps\.md: differs from the records; .*\n", capsys.readouterr().out)


def held(prose: str, links: list[tuple[str, str]]) -> list[str]:
    """The decimals of a text that no number of the tables rounds to. A sentence that names a commit
    quotes the records of the commit."""
    sections = [
        part
        for name, heading in links
        for part in re.split("^## ", (DOCS / "results" / f"{name}.md").read_text(), flags=re.M)
        if heading.replace("-", "") in ("", re.sub(r"\W", "", part.partition("\n")[0]).lower())
    ]
    assert len(sections) >= len(links)
    numbers = [float(x) for part in sections for x in re.findall(r"\d+\.?\d*", part)]
    text = re.sub(r"```.*?```|^(?:    |\|).*?$|`[^`]*`|\]\([^)]*\)", "", prose, flags=re.M | re.S)
    return [
        decimal
        for sentence in re.split(r"(?<=[.:;])\s+(?=[A-Z*-])", text)
        if not re.search(r"commit\s+[0-9a-f]{8}", sentence)
        for decimal in DECIMAL.findall(sentence)
        if all(
            abs(number - float(decimal)) > 0.500001 * 10.0 ** -len(decimal.partition(".")[2])
            for number in numbers
        )
    ]


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")))
def test_prose_after_a_link_to_a_table_quotes_its_numbers(page: Path) -> None:
    for section in re.split("^(?=#+ )", page.read_text(), flags=re.M):
        _, found, prose = re.split("^(Tables?: )", section + "\nTable: ", maxsplit=1, flags=re.M)
        if links := LINK.findall(section):
            assert found and held(prose, links) == [], section.partition("\n")[0]


def test_readme_quotes_the_tables_that_it_links_to() -> None:
    parts = re.split(r"\n\n|\n- ", (ROOT / "README.md").read_text())
    quoting = [part for part in parts if LINK.search(part)]
    assert len(quoting) == 3
    assert [x for part in quoting for x in held(part, LINK.findall(part))] == []


def test_an_unknown_field_is_an_error() -> None:
    table = tables.Table("x", "sweep-mnist1d-recipes", {"a": ("mean", "acuracy", 2)})
    with pytest.raises(ValueError, match="acuracy"):
        tables.written(table)
    with pytest.raises(KeyError, match="acuracy"):
        tables.written(tables.Table("x", "sweep-mnist1d-recipes", {"a": "{acuracy}"}))
