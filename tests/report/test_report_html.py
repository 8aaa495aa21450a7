"""`lpkernels report --html`: tables and curves are those of the records; a browser draws them."""

import base64
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpkernels.experiments.records import read_run
from lpkernels.experiments.sweeps.results import read_results
from lpkernels.experiments.sweeps.statistics import summarise
from lpkernels.report.html import write_page
from tests.support.commands import call, done, sentence

pandas = pytest.importorskip("pandas", reason="needs the [report] extra")
pytest.importorskip("plotly", reason="needs the [report] extra")
BENCH = Path(__file__).parents[2] / "bench" / "results"
DENOISE = BENCH / "sweep-fashion-denoise.jsonl"
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
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


def tables(text: str) -> list[list[list[str]]]:
    """The cells of each table, its headings among them."""
    rows = [re.findall(r"<tr.*?</tr>", each, re.DOTALL) for each in text.split("<table")[1:]]
    return [[re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in table] for table in rows]


def traces(text: str, figure: int = 0) -> list[dict[str, Any]]:
    """What a figure draws, with its numbers read back."""
    start = list(re.finditer(r'Plotly\.newPlot\(\s*"[^"]+",\s*', text))[figure].end()
    found: list[dict[str, Any]] = json.JSONDecoder().raw_decode(text, start)[0]
    for y, trace in ((trace["y"], trace) for trace in found if isinstance(trace["y"], dict)):
        trace["y"] = np.frombuffer(base64.b64decode(y["bdata"]), y["dtype"]).tolist()
    return found


def test_every_run_has_its_own_colour_its_settings_and_its_figures_to_the_bit(
    runs: Path, tmp_path: Path
) -> None:
    text = write_page([runs], tmp_path / "new" / "page.html").read_text()
    assert "<title>run, &lt;/script&gt;&lt;i&gt;</title>" in text
    (headings, *rows), *_ = tables(text)
    assert headings == [
        "run", "test_accuracy", "train_loss", "epoch", "settings in which runs differ",
    ]  # fmt: skip
    labels = [f"run ({runs / 'a'})", f"run ({runs / 'b'})", "&lt;/script&gt;&lt;i&gt;"]
    assert [row[0] for row in rows] == labels
    assert [row[-1] for row in rows] == [
        "operands e5m2, acc e6m2, diagnose recipe",
        "recipe cpt_fu2021, schedule cpt:3-8/8,cycles=1", "",
    ]  # fmt: skip
    drawn = traces(text)
    shown = {t["name"]: t["line"]["color"] for t in drawn if t.get("showlegend")}
    assert len(shown) == len(set(shown.values())) == 3
    for folder, name in zip("abc", shown, strict=True):
        panels = [trace["y"] for trace in drawn if trace["name"] == name]
        assert read_run(runs / folder).curve("train_loss") in panels
    assert "underflow" in text and "--schedule cpt:3-8/8,cycles=1" in text
    # Nothing is fetched: the page's own rule forbids it.
    assert "default-src 'none'" in text and not re.search(r"<(script|link)[^>]+(src|href)=", text)


def test_a_sweep_has_its_paired_differences(tmp_path: Path) -> None:
    text = write_page([DENOISE], tmp_path / "page.html").read_text()
    (headings, *rows), *_ = tables(text)
    assert "<h1>Denoising in fp16, 200 steps</h1>" in text and headings[3] == "minus fp32"
    wanted = summarise(read_results(DENOISE).table, "test_psnr", reference="fp32")
    assert [row[0] for row in rows] == wanted["arm"].tolist()
    names = ["mean", "standard_error", "difference", "difference_low", "difference_high", "p_holm"]
    numbers = wanted.loc[1, names]
    assert rows[1][1:7] == [f"{number:.4g}" for number in numbers]
    assert rows[2][-1] == "dynamic_scale True, recipe fp16_mixed"
    other = write_page(
        [DENOISE], tmp_path / "b.html", metric="train_loss", reference="fp16, dynamic"
    )
    assert tables(other.read_text())[0][0][1:4] == ["train loss", "± error", "minus fp16, dynamic"]


def test_an_unfinished_sweep_has_a_report(tmp_path: Path) -> None:
    lines = [line for line in DENOISE.read_text().splitlines() if '"arm": "fp32"' not in line]
    (tmp_path / "part.jsonl").write_text("\n".join(lines))
    text = write_page([tmp_path / "part.jsonl"], tmp_path / "page.html").read_text()
    assert "10 cells have no result yet." in text and len(tables(text)[0]) == 7
    assert "minus" not in text.split("<table")[1]


def test_the_folder_of_a_sweep_has_its_curves_with_a_colour_for_each_arm(tmp_path: Path) -> None:
    spec = 'seeds = 2\nbase = { data = "iris", width = 4, epochs = 2 }\naxes.batch = [25, 50]\n'
    (tmp_path / "s.toml").write_text(spec + '[arms.fp32]\n[arms.fp8]\noperands = "e4m3fn"\n')
    done("sweep", "run", tmp_path / "s.toml", "--out", tmp_path / "sweep", "--jobs", 1)
    text = write_page([tmp_path / "sweep"], tmp_path / "page.html").read_text()
    arms, runs = tables(text)
    assert [row[0] for row in arms[1:3]] == ["fp32, batch 25", "fp8, batch 25"]
    assert len(runs) == 9 and "fp8, batch 50, seed 1" in [row[0] for row in runs]
    assert len({trace["line"]["color"] for trace in traces(text, 1)}) == 4


@pytest.mark.parametrize("path", sorted(BENCH.glob("sweep-*.jsonl")), ids=lambda path: path.stem)
def test_every_committed_sweep_has_a_report(path: Path, tmp_path: Path) -> None:
    assert write_page([path], tmp_path / "page.html").stat().st_size < 6_000_000


def test_wrong_input_is_one_sentence(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = runs / "a", tmp_path / "page.html"
    (tmp_path / "empty").mkdir()
    (tmp_path / "list").write_text("[1]\n")
    for paths, options, wanted in (
        ([tmp_path / "empty"], {}, "no records of a run in .*empty; `lpkernels train` writes"),
        ([run, DENOISE], {}, "expected runs, or one sweep, got .*; make a report of each"),
        ([], {}, "got no paths"),
        ([tmp_path / "nowhere"], {}, "no records of a run in .*nowhere"),
        ([tmp_path / "list"], {}, "expected results that"),
        ([run], {"reference": "a"}, "names an arm of a sweep, got 'a'"),
        ([run], {"metric": "speed"}, "metric: expected one of .*the records list all.*'speed'"),
        ([DENOISE], {"reference": "fp64"}, "reference: expected one of the arms .*got 'fp64'"),
    ):
        with pytest.raises(ValueError, match=wanted):
            write_page(paths, out, **options)
    assert "it belongs to --html" in sentence(call("report", run, "--metric", "lr"), 2)
    said = done("report", run, "--html", out, "--plot", tmp_path / "a.png")
    assert "MB" in said and "curves in" in said and (tmp_path / "a.png").stat().st_size > 1000
    said = sentence(call("report", run, "--html", out), 2)
    assert "--html" in said and "replace it with --force" in said
    said = sentence(call("report", run, "--html", tmp_path / "empty", "--force"), 1)
    assert "Is a directory; no report was written" in said
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'lpkernels\[report\]'"):
        write_page([run], out)


@pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on PATH")
def test_a_browser_draws_the_page_and_cuts_nothing_off(runs: Path, tmp_path: Path) -> None:
    page = write_page([runs], tmp_path / "page.html")
    look = """<script>window.onload = () => { document.title = JSON.stringify([
        document.querySelectorAll(".main-svg").length,
        document.querySelectorAll(".scatterlayer .trace").length,
        [...document.querySelectorAll("table")].every((t) => t.scrollWidth <= t.clientWidth)
        ]); };</script>"""
    page.write_text(page.read_text().replace("</body>", look + "</body>"))
    assert BROWSER is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    budget = [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=9000", "--dump-dom"]
    command = [BROWSER, *options, "--window-size=1280,900", *budget, page.as_uri()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in ran.stderr, ran.stderr
    title = re.search("<title>(.*?)</title>", ran.stdout)
    assert title is not None
    figures, lines, whole = json.loads(title[1])
    assert figures >= 4 and lines >= 9 and whole
