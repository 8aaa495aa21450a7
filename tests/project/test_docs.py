"""The documents: their Python runs, their links lead somewhere, their tables are the code's."""

import re
import shlex
import shutil
import textwrap
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer

from lpkernels import formats
from lpkernels.cli import app
from lpkernels.experiments.training.callbacks import CALLBACKS
from lpkernels.experiments.workloads.models import FAMILIES
from tests.support.commands import done

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# A block whose fence reads ```python no-run is shown, not run. A block after ```python needs x is
# run where the package x is installed; if only `make prove` installs x, by its slow tests alone.
BLOCK = re.compile(r"^```python(?: needs (\w+))?\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
DIGITS = re.compile(r"\d+\.\d+")
OUTPUT = re.compile(r"\n((?:    .*\n|\n)+)")
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


def broken_links(page: Path, root: Path) -> list[str]:
    broken = []
    for link in LINK.findall(page.read_text()):
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        outside = "://" in link or not file.is_relative_to(root)
        if outside or not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_of_this_repository(page: Path):
    assert broken_links(page, ROOT) == []


PAGES_WITH_CODE = [page for page in PAGES if BLOCK.search(page.read_text())]
# The extra [frameworks].
OF_PROVE = ("lightning", "pandas", "tensorboard")


@pytest.fixture
def registries() -> Iterator[None]:
    """Everything that a page registers is removed after its test."""
    kept = [(registry, dict(registry)) for registry in (CALLBACKS, FAMILIES)]
    yield
    for registry, before in kept:
        registry.clear()
        registry.update(before)


@pytest.fixture
def run_page(
    monkeypatch, tmp_path: Path, capsys, registries: None
) -> Callable[[Path, Callable[[str], bool]], None]:
    """Runs the blocks of a page that need only packages a function allows, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(page: Path, allowed: Callable[[str], bool]) -> None:
        text = page.read_text()
        # The blocks of a page build on one another.
        names: dict[str, object] = {}
        for block in BLOCK.finditer(text):
            if block.group(1) and not allowed(block.group(1)):
                continue
            line = text[: block.start(2)].count("\n")
            code = "\n" * line + block.group(2)
            capsys.readouterr()
            exec(compile(code, str(page), "exec", dont_inherit=True), names)
            printed = capsys.readouterr().out
            shown = OUTPUT.match(text, block.end())
            if printed and shown:
                expected = textwrap.dedent(shown.group(1)).strip()
                if page == README:
                    # The losses of the first example, torch's own float32 among them, which depends
                    # on the processor.
                    assert DIGITS.sub("", printed.rstrip()) == DIGITS.sub("", expected)
                    found = [float(number) for number in DIGITS.findall(printed)]
                    shown_there = [float(number) for number in DIGITS.findall(expected)]
                    assert found == pytest.approx(shown_there, abs=0.015)
                else:
                    assert printed.rstrip() == expected

    return run


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=[page.stem for page in PAGES_WITH_CODE])
def test_python_of_a_page_runs_and_prints_what_is_shown(page: Path, run_page):
    run_page(page, lambda package: package not in OF_PROVE and bool(find_spec(package)))


@pytest.mark.slow
def test_python_of_the_page_on_frameworks_runs_with_those_of_make_prove(run_page):
    for package in OF_PROVE:
        pytest.importorskip(package)
    run_page(ROOT / "docs" / "frameworks.md", lambda package: bool(find_spec(package)))


COMMAND = re.compile(r"^    (?:torchrun .* -m )?lpkernels (.+?)(?:\s+#.*)?$", re.MULTILINE)
COMMANDS = [(page, line) for page in PAGES for line in COMMAND.findall(page.read_text())]


def test_rows_called_equal_name_tests_that_exist() -> None:
    page = ROOT / "docs" / "compare.md"
    rows = [line.split("|") for line in page.read_text().splitlines() if line.startswith("| ")]
    named = [row[4].strip(" `") for row in rows if "::" in row[4]]
    assert len(named) > 15
    for name in named:
        file, _, test = name.partition("::")
        assert f"def {test}(" in (ROOT / file).read_text(), name


@pytest.mark.parametrize("page, line", COMMANDS)
def test_commands_of_a_page_have_valid_options(page: Path, line: str):
    """Each command is parsed and checked as on the command line, without being run."""
    name, *arguments = shlex.split(line)
    group = typer.main.get_command(app)
    command = group.get_command(typer.Context(group), name)
    while hasattr(command, "commands"):
        context = command.make_context(name, arguments)
        given = [*context._protected_args, *context.args]
        name, command, arguments = command.resolve_command(context, given)
    for parameter in command.params:
        parameter.callback = parameter.callback and without_files(parameter.callback)
    command.make_context(name, arguments)


# A committed record that a command reads, not one that --export would write.
READ = re.compile(r"(?<!--export )bench/results/\S+")


@pytest.mark.parametrize("line", [line for _, line in COMMANDS if READ.search(line)])
def test_commands_that_read_records_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "bench/results").mkdir(parents=True)
    for record in READ.findall(line):
        shutil.copy(ROOT / record, tmp_path / record)
    monkeypatch.chdir(tmp_path)
    done(*shlex.split(line))


def without_files(check: Callable[..., Any]) -> Callable[..., Any]:
    """The callback of an option or argument, to which a missing file is no error."""

    def checked(context: Any, parameter: Any, value: Any) -> Any:
        try:
            return check(context, parameter, value)
        except Exception as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return value
            raise

    return checked


def test_table_of_named_formats_is_that_of_the_formats():
    lines = [
        "| name | bits | exp | man | bias | max | min normal | smallest | specials | overflow |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, fmt in formats.NAMED.items():
        sizes = f"{fmt.bits} | {fmt.exp_bits} | {fmt.man_bits} | {fmt.bias}"
        values = f"{fmt.max:.8g} | {fmt.min_normal:.6g} | {fmt.min_subnormal:.6g}"
        lines.append(f"| {name} | {sizes} | {values} | {fmt.specials} | {fmt.overflow} |")
    expected = "\n".join(lines)
    assert expected in (ROOT / "docs/formats.md").read_text(), f"the table must be:\n{expected}"


def test_the_site_has_every_page():
    docs = ROOT / "docs"
    nav = (ROOT / "mkdocs.yml").read_text()
    listed = re.findall(r"^ +- ((?:results/)?[\w-]+\.md)$", nav, re.MULTILINE)
    assert sorted(listed) == sorted(str(page.relative_to(docs)) for page in docs.rglob("*.md"))


def test_a_page_shows_every_picture():
    text = "".join(page.read_text() for page in PAGES)
    pictures = (ROOT / "docs" / "pictures").iterdir()
    assert [picture.name for picture in pictures if f"pictures/{picture.name}" not in text] == []


TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("script", TUTORIALS, ids=[script.stem for script in TUTORIALS])
def test_tutorials_run(script: Path, capsys: pytest.CaptureFixture[str]):
    """Each is a script of its own, prints its output and ends with a question."""
    text = script.read_text()
    assert "**A question.**" in text.rpartition("# %%")[2]
    exec(compile(text, str(script), "exec", dont_inherit=True), {"__name__": "__main__"})
    assert capsys.readouterr().out.count("\n") > 5


def test_backends_page_lists_every_environment_variable_that_is_read():
    paths = [*(ROOT / "lpkernels").rglob("*.py"), *(ROOT / "csrc").rglob("*.*"), ROOT / "setup.py"]
    text = "\n".join(path.read_text() for path in paths)
    page = (ROOT / "docs/backends.md").read_text()
    names = re.findall(r"(?:environ|getenv)[^\n]*?(LPKERNELS_\w+)", text)
    assert {*names} <= {*re.findall(r"^\| `(LPKERNELS_\w+)`", page, re.MULTILINE)}
