"""The record of `make mutants` is whole, documents say its score, and mutants are tried apart."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mutants.packages import GROUPS, PACKAGES, ROOT, Group, known
from mutants.score import ACCEPTED, EQUIVALENT, KILLED, RESULTS, interval, read, scores

CALCULATION = "def area(width: int, height: int) -> int:\n    return width * height\n"
TEST = "from toy import area\n\n\ndef test_area():\n    assert area(3, 5) == 15\n"


@pytest.fixture
def trial() -> Any:
    return pytest.importorskip("mutants.trial", reason="hypothesis is not installed")


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Writes a module to try a mutant in and a test beside it; gives the test's name."""
    (tmp_path / "toy.py").write_text(CALCULATION)
    (tmp_path / "test_toy.py").write_text(TEST)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return ["test_toy.py"]


@pytest.mark.parametrize(
    ("old", "new", "by"),
    [
        ("*", "*", ""),
        ("*", "+", "test_toy.py::test_area"),
        ("width *", "missing *", "test_toy.py::test_area"),
        ("def", "import missing\ndef", "import"),
        ("    return", "    while True: pass\n    return", "time limit"),
        ("    return", "    import os; os.abort()\n    return", "crash"),
    ],
)
def test_the_first_failure_notices(trial: Any, toy: list[str], old: str, new: str, by: str) -> None:
    limit = 3.0 if by == "time limit" else 100.0
    outcome = trial.run([toy], limit, Path("toy.py"), CALCULATION.replace(old, new, 1))
    assert (outcome.killed, outcome.by) == (bool(by), by)
    assert (Path("toy.py").read_text(), list(Path().glob("*.log"))) == (CALCULATION, [])


def test_tests_must_exist_and_the_last_stage_must_have_one(trial: Any, toy: list[str]) -> None:
    with pytest.raises(RuntimeError, match=r"pytest ends with 4 for .*test_none\.py"):
        trial.run([["test_none.py"]], 100.0)
    Path("test_none.py").touch()
    assert not trial.run([["test_none.py"], toy], 100.0).killed
    with pytest.raises(RuntimeError, match="pytest ends with 5"):
        trial.run([toy, ["test_none.py"]], 100.0)


def test_a_test_by_name_notices_what_is_not_imported_and_processes_have_the_mutant(trial, toy):
    outcome = trial.run([["test_toy.py::test_area"]], 100.0, Path("toy.py"), "volume = 1\n")
    assert (outcome.killed, outcome.by) == (True, "test_toy.py")
    Path("test_toy.py").write_text(
        "import subprocess, sys\n\n\ndef test_area():\n"
        "    command = [sys.executable, '-c', 'from toy import area; print(area(3, 5))']\n"
        "    assert subprocess.run(command, capture_output=True, text=True).stdout == '15\\n'\n"
    )
    changed = CALCULATION.replace("*", "+")
    assert trial.run([toy], 100.0, Path("toy.py"), changed).by == "test_toy.py::test_area"
    assert trial.run([toy], 100.0, Path("toy.py"), CALCULATION).by == ""


def test_work_done_apart_leaves_nothing_here_but_files(trial: Any, toy: list[str]) -> None:
    def written() -> None:
        toy.append("more")
        Path("done").write_text(toy[-1])

    trial.apart(written)
    assert (len(toy), Path("done").read_text()) == (1, "more")
    with pytest.raises(RuntimeError, match="the fork's work has failed"):
        trial.apart(Path("missing/done").touch)


SOURCE = '''"""Text with 1 + 1."""

LIMIT: "int | None" = 7


def share(part: int | None, whole: float = 2.0) -> float | None:
    if part is None or whole == LIMIT:
        raise ValueError(f"{LIMIT + 1}")
    return part / whole
'''


def test_mutants_are_of_behaviour_and_an_edit_elsewhere_leaves_the_sample() -> None:
    places = pytest.importorskip("mutants.places", reason="cosmic-ray is not installed")
    found, count = places.sample({"share.py": SOURCE}, 100, 0)
    lines = {(mutant.line, mutant.before, mutant.after) for mutant in found}
    # The mutants change 7, 2.0, the condition, `is`, `or`, `==`, and the division.
    assert count == len(found) == 7
    assert sorted(line for line, *_ in lines) == [3, 6, 7, 7, 7, 7, 9]
    changed = "\n".join(after for _, _, after in lines)
    assert "part == None" not in changed and "is LIMIT" not in changed
    for mutant in found:
        assert mutant.before in SOURCE and mutant.source != SOURCE
    (one, *_), _ = places.sample({"share.py": SOURCE}, 1, 0)
    (other, *_), _ = places.sample({"share.py": "# Shares.\n" + SOURCE}, 1, 0)
    assert (one.key, one.before, one.after) == (other.key, other.before, other.after)
    assert other.line == one.line + 1


def test_every_source_has_one_group_and_its_tests_exist() -> None:
    files = [file for group in GROUPS for file in group.files()]
    assert len(files) == len(set(files))
    for group in GROUPS:
        for file in group.files():
            assert (ROOT / file).is_file()
            tests = [test for stage in group.stages(file) for test in stage]
            assert [test for test in tests if not (ROOT / test).exists()] == []


def test_what_noticed_a_mutant_is_asked_again() -> None:
    name = "tests/project/test_mutants.py"
    here = f"{name}::test_what_noticed_a_mutant_is_asked_again"
    assert known(here) == known(f"{here}[1::2-a]") == [[here]]
    assert known(f"{name}::test_gone[1]") == known(name) == [[name]]
    assert [known(by) for by in ("tests/test_gone.py::test_a", "import", "")] == [[], [], []]


def test_tests_named_like_the_source_come_first_and_long_ones_last() -> None:
    group = Group("rng", ("lpkernels/rng.py",), ("tests/numbers",), ("tests/numbers/test_text.py",))
    first, others, last = group.stages("lpkernels/rng.py")
    assert (first, last) == (["tests/numbers/test_rng.py"], ["tests/numbers/test_text.py"])
    assert len(others) > 3 and not {*first, *last} & {*others}
    folder = Group("numbers", ("lpkernels",), ("tests/numbers",))
    assert folder.stages("lpkernels/formats/__init__.py")[0] == ["tests/numbers/test_formats.py"]
    assert folder.stages("lpkernels/recipes.py")[1:] == []


def test_scores_leave_out_what_changes_nothing_and_intervals_are_wilsons() -> None:
    # Agresti and Coull (1998) solve the same quadratic: |p - share|^2 = z^2 p (1 - p) / total.
    for count, total in ((9, 10), (231, 240), (40, 40)):
        for end in interval(count, total):
            assert (end - count / total) ** 2 == pytest.approx(
                1.959964**2 * end * (1 - end) / total, abs=1e-12
            )
    low, high = interval(231, 240)
    assert low < 231 / 240 < high
    rows = [{"first": KILLED, "outcome": KILLED}] * 8
    rows.append({"first": "survived", "outcome": KILLED})
    rows.append({"first": "survived", "outcome": "survived", "judgement": EQUIVALENT + "why"})
    rows.append({"first": "survived", "outcome": "survived", "judgement": ACCEPTED + "why"})
    found = scores(rows)
    assert (found["mutants"], found["equivalent"]) == (11, 1)
    assert (found["first"]["killed"], found["first"]["share"]) == (8, 80.0)
    assert (found["now"]["killed"], found["now"]["share"]) == (9, 90.0)


def test_the_record_judges_every_survivor_and_documents_say_its_score() -> None:
    header = json.loads(RESULTS.read_text().splitlines()[0])
    rows = read()
    assert header["kind"] == "mutants" and header["mutations"].startswith("cosmic-ray ")
    assert len({row["key"] for row in rows}) == len(rows)
    assert header["size"] == max(header["packages"][package]["mutants"] for package in PACKAGES)
    assert header["scores"] == scores(rows)
    for package in PACKAGES:
        assert header["packages"][package] == scores([r for r in rows if r["package"] == package])
    for row in rows:
        assert (ROOT / row["file"]).is_file()
        judged = row.get("judgement", "")
        assert judged.startswith((EQUIVALENT, ACCEPTED)) == (row["outcome"] != KILLED), row
        assert (row["outcome"] == KILLED) == bool(row["by"])
    found = scores(read())
    now, first = found["now"], found["first"]
    low, high = first["interval"]
    said = (
        f"Of {found['mutants']} mutants {found['equivalent']} change no behaviour. Tests noticed "
        f"{first['share']}% of the others (95% interval {low} to {high}%), and {now['share']}% "
        "since what survived was looked at."
    )
    assert said in " ".join((ROOT / "CONTRIBUTING.md").read_text().split())
    assert now["share"] > 90
    # The figure has one home, to which other pages link.
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    lines = [line for page in pages for line in page.read_text().splitlines()]
    assert not [line for line in lines if "mutants" in line and re.search(r"\d%", line)]


HEADER = """constexpr double kHalf = 0.5;
#if defined(__CUDA_ARCH__)
double f(double a) { return a + 1.0; }
#else
double f(double a) { return a < 1.0 ? a - 2 : 0x1p-40; }  // a + 1
#endif
"""


def test_mutants_of_cpp_are_of_what_a_host_compiles() -> None:
    pytest.importorskip("hypothesis")
    from mutants.cpp import places

    found = [(place.line, place.mutated()) for place in places("toy.h", HEADER)]
    rest = HEADER.splitlines()[4]
    assert found == [
        (5, rest.replace("a < 1.0", "a <= 1.0")),
        (5, rest.replace("< 1.0", "< 2.0")),
        (5, rest.replace("a - 2", "a + 2")),
        (5, rest.replace("a - 2", "a - 3")),
    ]
    switched = [place.switched(7) for place in places("toy.h", HEADER)]
    assert switched[0] == "< ::lpk_mutants::Less<7>{} <"
    assert switched[1] == "::lpk_mutants::either<7>(1.0, 2.0)"
