"""Pages of results follow from the records, and prose quotes the figures of their tables."""

import re
import shutil
from pathlib import Path

import pytest

from bench import tables

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
RESULTS = sorted((DOCS / "results").glob("*.md"))
LINK = re.compile(r"\]\((?:docs/)?results/([\w-]+)\.md#?([\w-]*)\)")
DECIMAL = re.compile(r"(?<![\w.:])\d+\.\d+")


def test_the_tables_of_results_are_those_of_the_records(tmp_path: Path, capsys) -> None:
    assert tables.main("--check") == 0
    # The tables of layers.md are not of records: test_zoo and test_around_convert compare them.
    assert sorted([*tables.PAGES, "layers"]) == sorted(page.stem for page in RESULTS)
    for page in RESULTS:
        shutil.copy(page, tmp_path)
    page = tmp_path / "formats.md"
    right = page.read_text()
    damaged = re.sub(r"^(\|.*)\d", r"\1x", right, count=1, flags=re.M)
    page.write_text(damaged)
    assert tables.main("--check", tmp_path) == 1
    assert re.fullmatch(rf".*{page.name}: differs .*\n", capsys.readouterr().out)
    assert page.read_text() == damaged
    assert tables.main("--write", tmp_path) == 0
    assert page.read_text() == right


def test_a_page_without_a_place_for_a_table_is_an_error() -> None:
    table = tables.Table("Here", "sweep-mnist1d-recipes", {})
    for text in ("# Elsewhere\n\n| |\n", "# Here\n\n## Below\n\n| |\n"):
        with pytest.raises(ValueError, match="below the heading 'Here', got 0"):
            tables.page(text, [table])


def held(prose: str, links: list[tuple[str, str]]) -> list[str]:
    """The decimals of a text that no number of the tables rounds to. A sentence that names a commit
    quotes the records of the commit."""
    sections = [
        part
        for name, heading in links
        for part in re.split("^#+ ", (DOCS / "results" / f"{name}.md").read_text(), flags=re.M)
        if re.sub(r"\W", "", heading).lower()
        in ("", re.sub(r"\W", "", part.partition("\n")[0]).lower())
    ]
    assert len(sections) >= len(links)
    cells = "".join(row for part in sections for row in re.findall(r"^\|.*", part, flags=re.M))
    numbers = [float(x) for x in re.findall(r"\d+\.?\d*", cells)]
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


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_prose_from_a_link_to_a_table_on_quotes_its_numbers(page: Path) -> None:
    for section in re.split("^(?=#+ )", page.read_text(), flags=re.M):
        links: list[tuple[str, str]] = []
        for paragraph in section.split("\n\n"):
            links += LINK.findall(paragraph)
            if links and not paragraph.startswith("Table"):
                assert held(paragraph, links) == [], section.partition("\n")[0]


@pytest.mark.parametrize("page", RESULTS, ids=lambda page: page.stem)
def test_prose_of_results_quotes_the_table_of_its_section(page: Path) -> None:
    for section in re.split("^(?=#+ )", page.read_text(), flags=re.M):
        heading = section.partition("\n")[0].lstrip("# ")
        prose = re.sub(r"^\|.*$", "", section.partition("\n")[2], flags=re.M)
        assert held(prose, [(page.stem, heading)]) == [], heading


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
