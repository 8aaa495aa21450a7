"""`lpkernels report --html`: the page holds the records, to the bit; a browser draws them."""

import json
import math
import re
import shutil
import struct
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from lpkernels.experiments.records import RECORDS, read_run, write_records
from lpkernels.experiments.sweeps.frontiers.study import read_measured
from lpkernels.experiments.sweeps.reading import read_results
from lpkernels.experiments.sweeps.statistics import summarise
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.workloads.workload import ACCURACY
from lpkernels.report.html import gather, page, write_page
from lpkernels.schemas import header
from tests.support import commands

pytest.importorskip("plotly", reason="needs the [report] extra")
BENCH = Path(__file__).parents[2] / "bench" / "results"
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
# A float whose shortest decimal has 17 digits.
LONG = struct.unpack("<d", struct.pack("<Q", 0x3FB999999999999B))[0]


def write_run(
    folder: Path, name: str = "a", *, epochs: int = 3, diagnosis: bool = False, **more: Any
) -> Path:
    config = RunConfig.of(name=name, epochs=epochs, **more)
    first = {**header("run"), "config": config.to_dict(), "accumulator": "native"}
    first |= {"metric": asdict(ACCURACY), "environment": {"device": "cpu X", "commit": "c0ffee"}}
    lines = [
        {"type": "epoch", "epoch": i, "train_loss": LONG / i,
         "test_loss": math.nan if i == 2 else 1.5, "test_accuracy": 0.5 + i / 100,
         "test_accuracy_last_bits": 0.5,
         "lr": 0.1, "updates": 7, "skipped_steps": 0, "bits": 3 + i,
         "dw_error": 0.25, "dw_error_stem": LONG * i, "seconds": 1.25}
        for i in range(1, epochs + 1)
    ]  # fmt: skip
    folder.mkdir(parents=True)
    write_records(folder / RECORDS, [first, *lines])
    if diagnosis:
        rows = [["stem", "input", 8, 0, 2], ["<b>", "grad_output", 16, 4, 0]]
        counts = [{"type": "epoch", "epoch": i, "rows": rows[: 1 + (i > 1)]} for i in (1, 2)]
        write_records(folder / "diagnosis.jsonl", [header("diagnosis"), *counts])
    return folder


def read_data(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_the_page_has_every_run_epoch_and_figure_of_the_records(tmp_path: Path) -> None:
    names = ["</script><script>throw 1</script>", "/*data*/ & <i>", "plain"]
    folders = [
        write_run(tmp_path / str(i), name, diagnosis=i == 0, nesterov=False)
        for i, name in enumerate(names)
    ]
    text = page(gather(folders))
    data = read_data(text)
    assert [run["arm"] for run in data["runs"]] == names
    for folder, run in zip(folders, data["runs"], strict=True):
        read = read_run(folder)
        for place, epoch in enumerate(read.epochs):
            for name in epoch.keys() - {"type"}:
                assert run["epochs"][name][place] == epoch[name], name
        assert run["epochs"]["test_loss"][1] is None
        assert run["last"]["seconds"] == read.seconds
        assert run["layers"] == ["dw_error_stem"]
        assert "--seed" not in run["command"] and "--no-nesterov" in run["command"]
    first = data["runs"][0]["diagnosis"]
    assert first["tensors"] == ["stem input", "<b> grad_output"]
    assert first["underflow"] == [[0.25, 0.25], [None, 0.0]]
    assert first["overflow"] == [[0.0, 0.0], [None, 0.25]]
    assert data["environments"][0]["of"]["commit"] == "c0ffee"
    assert len(data["environments"][0]["runs"]) == 3
    odd = page({"runs": [], "numbers": [2**53 + 1, math.inf, True]})
    assert read_data(odd)["numbers"] == ["9007199254740993", None, True]
    # Nothing is fetched: the page's own rule forbids it.
    assert "default-src 'none'" in text and not re.search(r"<(script|link)[^>]+(src|href)=", text)


def test_a_recipe_in_every_layer_is_told_from_the_method_of_its_name(tmp_path: Path) -> None:
    shutil.copy(BENCH.parents[1] / "tests/data/run.jsonl", tmp_path / "records.jsonl")
    assert gather([tmp_path])["runs"][0]["arithmetic"] == "fp8_wang2018 in every layer"


def test_a_sweep_has_its_paired_differences_and_says_what_it_lacks() -> None:
    path = BENCH / "sweep-fashion-denoise.jsonl"
    data, results = gather([path]), read_results(path)
    wanted = summarise(results.results, "test_psnr", reference="fp32")
    for row, each in zip(data["sweep"]["rows"], wanted, strict=True):
        assert row["mean"] == each.mean and row["arm"] == each.arm
        if each.difference is not None and each.difference.interval is not None:
            assert row["difference"] == each.difference.mean
            assert row["interval"] == list(each.difference.interval)
    assert len(data["runs"]) == len(results.results) == 70
    assert data["runs"][0]["last"]["test_psnr"] == results.results[0].values["test_psnr"]
    missing = " ".join(data["notes"])
    assert "every epoch" in missing and "--diagnose" in missing and "--schedule" in missing
    assert "paired differences" not in missing
    assert data["settings"]["varied"].count("recipe") == 1
    other = gather([path], metric="train_loss", reference="fp16, dynamic")
    assert other["metric"]["field"] == "train_loss" and other["sweep"]["rows"][0]["difference"]


def test_an_unfinished_sweep_has_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (BENCH / "sweep-fashion-denoise.jsonl").read_text().splitlines()
    part = tmp_path / "part.jsonl"
    part.write_text("\n".join(line for line in lines if '"arm": "fp32"' not in line))
    data = gather([part])
    assert data["sweep"]["rows"][0]["difference"] is None and len(data["runs"]) == 60
    assert data["notes"][:2] == [
        "10 cells of the sweep have no result yet.",
        "No paired differences: the arm to compare with has no result yet.",
    ]
    broken = read_results(part)._replace(broken=("a, seed 1: records.jsonl is damaged",))
    monkeypatch.setattr("lpkernels.report.html.gathering.read_results", lambda path: broken)
    assert "Not compared: a, seed 1: records.jsonl is damaged" in gather([part])["notes"]


def test_a_study_has_its_frontier(tmp_path: Path) -> None:
    study = """
    low = ["e3m1_sat"]
    high = ["e6m7_sat", "e6m11_sat"]
    tasks.clean.epochs = 1
    base = { data = "iris", width = 4, batch = 64 }
    """
    (tmp_path / "study.toml").write_text(study)
    out = tmp_path / "out"
    commands.done("frontier", "run", tmp_path / "study.toml", "--out", out, "--all", "--jobs", 1)
    data = gather([out])
    found = read_measured(out)
    assert data["frontier"][0]["measured"] == found.matrix.mean[0].tolist()
    assert data["frontier"][0]["names"] == ["e3m1_sat e6m7_sat", "e3m1_sat e6m11_sat"]
    assert data["frontier"][0]["front"] and len(data["runs"]) == 4
    assert not any("No frontier" in note for note in data["notes"])
    for cell in (out / "cells").iterdir():
        if read_run(cell).name.endswith("e6m7_sat"):
            shutil.rmtree(cell)
    data = gather([out])
    assert data["frontier"] is None and len(data["runs"]) == 2
    assert "No frontier: task clean: " in data["notes"][-1]


@pytest.mark.parametrize("path", sorted(BENCH.glob("sweep-*.jsonl")), ids=lambda path: path.stem)
def test_every_committed_sweep_has_a_report(path: Path) -> None:
    assert len(page(gather([path]))) < 6_000_000


def test_two_hundred_runs_fit_and_single_layers_go_first(tmp_path: Path) -> None:
    for i in range(200):
        write_run(tmp_path / f"{i:03d}", f"arm {i % 8}", epochs=30, seed=i, diagnosis=i == 7)
    data = gather([tmp_path])
    assert len(data["runs"]) == 200 and len(page(data)) < 6_000_000
    small = read_data(page(data, limit=1))
    assert "left out for arm 0, seed 0" in small["notes"][0]
    assert all(run["diagnosis"] is None for run in small["runs"])
    assert (
        "dw_error" in small["runs"][0]["epochs"]
        and "dw_error_stem" not in small["runs"][0]["epochs"]
    )


def test_wrong_input_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run")
    empty = tmp_path / "empty"
    empty.mkdir()
    sweep = BENCH / "sweep-fashion-denoise.jsonl"
    with pytest.raises(
        ValueError, match=r"no records of a run in .*empty; `lpkernels train` writes"
    ):
        gather([empty])
    with pytest.raises(ValueError, match=r"run: runs, .*jsonl: results\); make a report of each"):
        gather([run, sweep])
    with pytest.raises(FileNotFoundError, match="expected the folder of a run, a sweep"):
        gather([tmp_path / "nowhere"])
    with pytest.raises(ValueError, match="got no paths"):
        gather([])
    with pytest.raises(ValueError, match=r"names an arm of a sweep, got 'a' with .*run: runs"):
        gather([run], reference="a")
    for name, content, wanted in (
        ("bytes", b"\x93", "bytes: expected JSON lines, got no text"),
        ("list", b"[1]\n", "list: expected a header as first record"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=wanted):
            gather([tmp_path / name])
    with pytest.raises(
        ValueError, match=r"metric: expected one of .*the records list all.*, got 'speed'"
    ):
        gather([run], metric="speed")
    with pytest.raises(ValueError, match=r"reference: expected one of the arms .*got 'fp64'"):
        gather([sweep], reference="fp64")
    out = write_page(gather([run]), tmp_path / "new" / "report.html")
    with pytest.raises(FileExistsError, match=r"report.html exists; .* --force"):
        write_page(gather([run]), out)
    said = commands.sentence(commands.call("report", run, "--html", out), 2)
    assert "--html" in said and "replace it with --force" in said
    said = commands.sentence(commands.call("report", run, "--metric", "lr"), 2)
    assert "it belongs to --html" in said
    said = commands.sentence(commands.call("report", run, "--html", out, "--plot", "a.png"), 2)
    assert "--plot" in said and "does not go with --html" in said
    said = commands.sentence(commands.call("report", run, "--html", empty, "--force"), 1)
    assert "Is a directory; no report was written" in said
    assert "MB" in commands.done("report", run, "--html", out, "--force")
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'lpkernels\[report\]'"):
        page(gather([run]))


# Clicks as a reader would, after the page is drawn; what it finds stands in the title.
LOOK = """<script>
const all = (of) => [...document.querySelectorAll(of)];
const rows = () => all("#runs-table tbody tr").map((row) => row.cells[0].textContent);
const traces = () => document.getElementById("curves-plot").data;
const heads = () => all("#runs-table th button");
const sort = () => heads().find((head) => head.textContent.startsWith("test acc")).click();
const found = { drawn: document.body.dataset.drawn, errors: window.seen, all: rows() };
sort();
found.up = rows();
sort();
found.down = rows();
found.curves = traces().map((trace) => trace.meta);
const filter = document.getElementById("filter");
filter.value = "second";
filter.dispatchEvent(new Event("input"));
found.filtered = rows();
found.left = traces().map((trace) => trace.meta);
const smooth = document.getElementById("smooth");
smooth.value = 0.9;
smooth.dispatchEvent(new Event("input"));
[found.raw, found.smooth] = traces().map((trace) => trace.y);
found.sections = all("section").map((each) => each.id);
filter.value = "";
filter.dispatchEvent(new Event("input"));
found.templates = traces().map((trace) => trace.hovertemplate);
found.commands = all("#repeat pre").pop().textContent.split("\\n");
document.title = JSON.stringify(found);
</script></body>"""
WATCH = "<head><script>window.seen = []; window.onerror = (text) => { seen.push(text); };</script>"


@pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on PATH")
def test_a_browser_draws_sorts_and_filters(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "1", "</script><b>first</b>", epochs=3, diagnosis=True)
    write_run(tmp_path / "runs" / "2", "second", epochs=2)
    write_run(tmp_path / "runs" / "3", "third\nof %{y}", epochs=1)
    data = gather([tmp_path / "runs"])
    # More numbers than a function takes as arguments.
    shares = data["runs"][0]["diagnosis"]
    shares |= {"tensors": ["t"], "epochs": [1] * 130_000, "underflow": [[0] * 130_000]}
    text = page(data).replace("<head>", WATCH)
    file = tmp_path / "report.html"
    file.write_text(LOOK.join(text.rsplit("</body>", 1)), encoding="utf-8")
    assert BROWSER is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    budget = [
        f"--user-data-dir={tmp_path / 'profile'}",
        "--virtual-time-budget=10000",
        "--dump-dom",
    ]
    ran = subprocess.run(
        [BROWSER, *options, *budget, file.as_uri()], capture_output=True, text=True, timeout=120
    )
    assert "CONSOLE" not in ran.stderr, ran.stderr
    title = re.search("<title>(.*?)</title>", ran.stdout, re.DOTALL)
    assert title is not None
    found = json.loads(title[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    labels = ["</script><b>first</b>, seed 0", "second, seed 0", "third\nof %{y}, seed 0"]
    assert found["drawn"] == "true" and found["errors"] == [] and found["all"] == labels
    assert found["up"] == labels[::-1] and found["down"] == labels
    assert found["curves"] == labels
    assert found["filtered"] == found["left"] == [labels[1]]
    assert found["raw"] == [51.0, 52.0] and found["smooth"] == pytest.approx([51.0, 51.1])
    assert sum("third\nof &#37;{y}, seed 0<br>" in each for each in found["templates"]) == 2
    assert "# third of %{y}, seed 0" in found["commands"]
    wanted = ["runs", "curves", "precision", "diagnosis", "settings", "environment", "repeat"]
    assert found["sections"] == wanted
