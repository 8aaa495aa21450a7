"""`lpkernels report --html`: the tables are those of the records, and nothing is fetched."""

import html
import re
import shutil
from pathlib import Path

import pytest

from lpkernels.experiments.records import read_run
from lpkernels.experiments.sweeps.results import read_results
from lpkernels.experiments.sweeps.statistics import summarise
from lpkernels.report.html import write_page
from tests.support.commands import call, done, sentence

BENCH = Path(__file__).parents[2] / "bench" / "results"
DENOISE = BENCH / "sweep-fashion-denoise.jsonl"
TINY = ("--data", "iris", "--width", 4, "--epochs", 2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one name and other settings, and one of a name that would end a script."""
    folder = tmp_path_factory.mktemp("report") / "runs"
    done("train", *TINY, "--operands", "e5m2", "--acc", "e6m2", "--diagnose", "recipe",
         "--out", folder / "a")  # fmt: skip
    schedule = ("--recipe", "cpt_fu2021", "--schedule", "cpt:3-8/8,cycles=1")
    done("train", *TINY, *schedule, "--out", folder / "b")
    done("train", *TINY, "--name", "</script><i>", "--seed", 1, "--out", folder / "c")
    return folder


def words(page: Path) -> str:
    """The text of the page's tables and paragraphs, in single spaces."""
    text = re.sub(r"<svg.*?</svg>|<style.*?</style>", "", page.read_text(), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>|[│┃]", " ", text)).split())


def test_a_run_has_its_figures_its_curves_and_its_command(runs: Path, tmp_path: Path) -> None:
    page = write_page([runs], tmp_path / "new" / "page.html")
    text = page.read_text()
    assert "<title>run, &lt;/script&gt;&lt;i&gt;</title>" in text and "<i>" not in text
    said, last = words(page), read_run(runs / "b").epochs[-1]
    assert f"run {last['test_accuracy']:.2%} {last['train_loss']:.4f} 2 0" in said
    assert "layer tensor format count zeros" in said and "stem input e5m2" in said
    assert text.count("<svg") == 1 and "--schedule cpt:3-8/8,cycles=1" in said
    # Nothing is fetched: the page's own rule forbids it.
    assert "default-src 'none'" in text and not re.search(r"<(script|link)[^>]+(src|href)=", text)


def test_a_run_with_settings_of_an_earlier_version_has_a_report(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "c", tmp_path / "c")
    path = tmp_path / "c" / "records.jsonl"
    path.write_text(path.read_text().replace('"lr_cycles"', '"lr_decay": 0.3, "lr_cycles"', 1))
    said = words(write_page([tmp_path / "c"], tmp_path / "page.html"))
    assert "unknown field lr_decay" in said and "2 0" in said


def test_a_sweep_has_its_paired_differences(tmp_path: Path) -> None:
    page = write_page([DENOISE], tmp_path / "page.html")
    assert "<h1>Denoising in fp16, 200 steps</h1>" in page.read_text()
    row = summarise(read_results(DENOISE).table, "test_psnr", reference="fp32").loc[1]
    said = words(page)
    assert f"{row['arm']} 0/10 {row['mean']:.3f} {row['difference']:+.3f}" in said, said


def test_an_unfinished_sweep_has_a_report(tmp_path: Path) -> None:
    lines = [line for line in DENOISE.read_text().splitlines() if '"arm": "fp32"' not in line]
    (tmp_path / "part.jsonl").write_text("\n".join(lines))
    said = words(write_page([tmp_path / "part.jsonl"], tmp_path / "page.html"))
    assert "10 cells have no result yet." in said and "minus" not in said


def test_the_folder_of_a_sweep_has_its_arms_and_its_runs(tmp_path: Path) -> None:
    spec = 'seeds = 2\nbase = { data = "iris", width = 4, epochs = 2 }\naxes.batch = [25, 50]\n'
    (tmp_path / "s.toml").write_text(spec + '[arms.fp32]\n[arms.fp8]\noperands = "e4m3fn"\n')
    done("sweep", "run", tmp_path / "s.toml", "--out", tmp_path / "sweep", "--jobs", 1)
    page = write_page([tmp_path / "sweep"], tmp_path / "page.html")
    assert page.read_text().count("<svg") == 2
    assert words(page).count(" native") == 8 and words(page).count(" 0/2 ") == 4


@pytest.mark.parametrize(
    "paths, message",
    [
        (["EMPTY"], "no records of a run in .*empty; `lpkernels train` writes"),
        (["RUN", "SWEEP"], "expected runs, or one sweep, got .*; make a report of each"),
        ([], "got no paths"),
        (["nowhere"], "no records of a run in .*nowhere"),
        (["LIST"], "expected results that"),
    ],
    ids=lambda value: " ".join(map(str, value)) if not isinstance(value, str) else None,
)
def test_a_page_of_something_else_is_refused(paths, message, runs, tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "list").write_text("[1]\n")
    places = {"RUN": runs / "a", "SWEEP": DENOISE}
    places |= {"EMPTY": tmp_path / "empty", "LIST": tmp_path / "list"}
    with pytest.raises(ValueError, match=message):
        write_page([places.get(path, path) for path in paths], tmp_path / "page.html")


def test_the_command_writes_a_page_and_a_picture(runs: Path, tmp_path: Path) -> None:
    said = done(
        "report", runs / "a", "--html", tmp_path / "page.html", "--plot", tmp_path / "a.png"
    )
    assert "MB" in said and (tmp_path / "a.png").stat().st_size > 1000


def test_a_folder_in_the_place_of_a_page_is_refused(runs: Path, tmp_path: Path) -> None:
    said = sentence(call("report", runs / "a", "--html", tmp_path), 1)
    assert "Is a directory; no report was written" in said
