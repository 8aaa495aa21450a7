"""Tables of the pages: their figures agree with the records, and any other figure is found."""

import json
import re
from pathlib import Path

import pytest

from bench.pages import tables
from bench.pages.__main__ import main
from bench.pages.records import Row, Source, evaluated
from bench.pages.tables import check, faults, written
from tests.loops import each

ROOT = Path(__file__).resolve().parents[2]
PAGE = "docs/page.md"
ARMS = """<!-- table
record = "arms.jsonl"
rows = ["arm"]
reference = "old"
[columns]
accuracy = '{figure("accuracy", 1, 100)}'
difference = '{difference("accuracy", 1, 100)}'
-->
| arm | accuracy | difference |
|---|---|---|
| old | 20.0 ± 10.0 |  |
| new | 25.0 ± 5.0 | +5.0 [-58.5, 68.5] |
"""
SPEEDS = """<!-- table
record = "speeds.jsonl"
rows = ["case"]
names = { "two; one" = ["b", "a"], second = "b" }
[columns]
speed = '{listed("{speed:.1f}")}'
"of torch" = "{of_torch:.2f}"
-->
| what | speed | of torch |
|---|---|---|
| two; one | 4.0; 3.0 |  |
| second | 4.0 |  |
| a | 3.0 | 0.50 |
"""


def lines(*records: dict) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a page of two tables, and their records."""
    monkeypatch.setattr(tables, "NO_RECORD", {})
    seeds = [("old", 0, 0.1), ("old", 1, 0.3), ("new", 0, 0.2), ("new", 1, 0.3)]
    (tmp_path / "arms.jsonl").write_text(
        lines({"type": "header"}, *({"arm": a, "seed": s, "accuracy": x} for a, s, x in seeds))
    )
    first = {"case": "a", "speed": 9.0}
    second, third = (first | {"speed": 3.0, "of_torch": 0.5}), (first | {"case": "b", "speed": 4.0})
    third["of_torch"] = None
    (tmp_path / "speeds.jsonl").write_text(lines(first, second, third))
    (tmp_path / "docs").mkdir()
    (tmp_path / PAGE).write_text(f"Text.\n\n{ARMS}\n{SPEEDS}")
    return tmp_path


def faults_of(root: Path, *changes: tuple[str, str]) -> str:
    """The faults of the page once it is changed."""
    text = (root / PAGE).read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return "\n".join(faults(PAGE, text, root))


def test_the_figures_of_the_pages_are_those_of_the_records() -> None:
    assert check(ROOT) == []


@each(
    "page, old, new",
    [
        ("docs/sweeps.md", "85.97 ± 0.71", "85.87 ± 0.71"),
        ("docs/frontier.md", "0.0150 ± 0.0016", "0.0150 ± 0.0017"),
        ("bench/NOTES.md", "0.096", "0.095"),
        ("docs/backends.md", "36 to 1143", "36 to 1144"),
    ],
)
def test_one_changed_digit_is_found(page: str, old: str, new: str) -> None:
    text = (ROOT / page).read_text()
    (fault,) = faults(page, text.replace(f"| {old} |", f"| {new} |", 1), ROOT)
    assert f"the record gives {old!r}, the page has {new!r}" in fault


def test_a_fault_names_line_row_and_column_and_a_right_page_has_none(root: Path) -> None:
    assert faults_of(root) == ""
    found = faults_of(root, ("[-58.5, 68.5]", "[-58.5, 68.6]"))
    assert found.startswith("docs/page.md:14: row 'new', column 'difference': the record gives ")


def test_the_command_finds_and_writes(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = root / PAGE
    before = page.read_text()
    page.write_text(before.replace("25.0", "26.0").replace("| a | 3.0 |", "| a | 9.0 |"))
    assert main(["--check"], root) == 1
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["--write"], root) == 0
    assert page.read_text() == before


def test_neither_a_page_with_another_fault_nor_a_right_cell_is_written(root: Path) -> None:
    page = root / PAGE
    text = page.read_text().replace("| old | 20.0", "| old |   20.0")
    assert written(PAGE, text, root) == text
    page.write_text(page.read_text().replace("25.0", "26.0").replace("arms.jsonl", "gone.jsonl"))
    before = page.read_text()
    assert main(["--write"], root) == 1
    assert page.read_text() == before


@each(
    "text, count",
    [
        ("# Page\n\n| x |\n|---|\n| 1.5 |\n", 1),
        ("# Page\n\n| x |\n|---|\n| 1.5 ± 2 `1.5` |\n", 1),
        ("| x |\n|---|\n| 15 |\n", 0),
        ("| x |\n|---|\n| `1.5` |\n", 0),
        ("```\n| x |\n|---|\n| 1.5 |\n```\n", 0),
    ],
)
def test_a_table_with_decimals_and_no_comment_is_a_fault(root: Path, text: str, count: int) -> None:
    fault = "docs/page.md:3: the table has decimals, and no comment names their record"
    assert list(faults(PAGE, text, root)) == [fault] * count


def test_tables_without_record_are_listed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "NO_RECORD", {(PAGE, "x | y"): "a version"})
    table = "| x | y |\n|---|---|\n| 1.5 | |\n"
    assert list(faults(PAGE, table, root)) == []
    assert check(root) == [f"NO_RECORD names a table that is gone: {(PAGE, 'x | y')}"]


@each(
    "old, new, fault",
    [
        ("reference", "refrence", "expected keys cells, .*, got refrence"),
        ("accuracy = '", "acuracy = '", "the comment names acuracy, which the table lacks"),
        ('figure("accuracy", 1', 'figure("acuracy", 1', "row 'old', column 'accuracy': .*acuracy"),
        ('"{of_torch:', '"{of_numpy:', "row 'two; one', column 'of torch': .*of_numpy"),
        ('record = "arms.jsonl"', "", "expected a comment that names a record"),
        ("arms.jsonl", "gone.jsonl", "record: there is no file gone.jsonl"),
        ('rows = ["arm"]', "where = 'seed > 7'", "where: seed > 7 is true of no record"),
        ("| new |", "| newer |", "no row for new of arms.jsonl"),
        ("| a |", "| c |", "row 'c': no record has {'case': 'c'}"),
        ("| difference |", "| accuracy |", "two columns have one heading"),
        ("difference = '", "# '", "column 'difference' has decimals: name it in"),
        ("| old |", "| old | |", "expected 3 cells in each row"),
        ("[columns]", "let = { x = 'y' }\n[columns]", "y: NameError"),
        ("[columns]", "[columns", "docs/page.md:11: .*line 4"),
        ("-->\n", "-->\n\n", "does not stand directly above a table"),
    ],
)
def test_a_comment_that_does_not_fit_is_a_fault(root: Path, old: str, new: str, fault: str) -> None:
    assert re.search(fault, faults_of(root, (old, new)))


def test_columns_of_goals_are_given_and_single_cells_have_own_texts(root: Path) -> None:
    asked = ("| a | 3.0 | 0.50 |", "| a | 3.0 | 0.75 |")
    words = ('"of torch" = "{of_torch:.2f}"', "")
    given = ("[columns]\nspeed", 'given = ["of torch"]\n[columns]\nspeed')
    assert faults_of(root, asked, words, given) == ""
    own = ("[columns]\nspeed", "[cells]\na.speed = '{9 * speed:.0f}'\n[columns]\nspeed")
    said = "row 'a', column 'speed': the record gives '27', the page has '3.0'"
    assert said in faults_of(root, own)


def test_records_may_be_several_and_a_lost_value_is_named(root: Path) -> None:
    table = """<!-- table
rows = ["arm"]
records.first = { record = "arms.jsonl", where = "seed == 0" }
records.second = { record = "arms.jsonl", where = "seed == 1", let = { more = "2 * accuracy" } }
[columns]
both = '{first.mean("accuracy"):.1f}, {second.mean("more"):.1f}'
-->
| arm | both |
|---|---|
| old | 0.1, 0.6 |
| new | 0.2, 0.6 |
"""
    assert list(faults(PAGE, table, root)) == []
    row = Row(Source.of(root, {"record": "speeds.jsonl"}), {"case": "a"})
    with pytest.raises(ValueError, match=r"no record of speeds.jsonl has .'case': 'a', 'speed': 7"):
        row.at(speed=7)


@each(
    "text, found",
    [
        ('{mean("accuracy"):.2f}', "0.25"),
        ('{deviation("accuracy"):.4f}', "0.0707"),
        ('{of_reference("accuracy"):.2f}', "1.25"),
        ('{p_value("accuracy"):.2f}', "0.50"),  # Of t = 1 with one degree of freedom.
        ('{p("accuracy")}', "0.5"),
        ('{difference("accuracy", 0, 10, bold=0.6)}', "**0 [-6, 7]**"),
        ("{at(seed=0).accuracy}", "0.2"),
        ('{"; ".join(str(r.accuracy) for r in each("seed"))}', "0.2; 0.3"),
    ],
)
def test_what_a_cell_can_say(root: Path, text: str, found: str) -> None:
    said = {"record": "arms.jsonl", "rows": ["arm"], "reference": "old"}
    row = Row(Source.of(root, said), {"arm": "new"})
    assert evaluated(f"f'''{text}'''", row) == found
