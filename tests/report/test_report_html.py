"""`lpkernels report --html`: the tables are those of the records, and nothing is fetched."""

import re
from pathlib import Path

import pytest

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


def tables(text: str) -> list[list[list[str]]]:
    """The cells of each table, its headings among them."""
    rows = [re.findall(r"<tr.*?</tr>", each, re.DOTALL) for each in text.split("<table")[1:]]
    return [[re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in table] for table in rows]


def test_a_run_has_its_figures_its_settings_and_its_curves(runs: Path, tmp_path: Path) -> None:
    text = write_page([runs], tmp_path / "new" / "page.html").read_text()
    assert "<title>run, &lt;/script&gt;&lt;i&gt;</title>" in text
    (headings, *rows), shares = tables(text)
    assert headings == [
        "run", "test_accuracy", "train_loss", "epoch", "settings in which runs differ",
    ]  # fmt: skip
    assert [row[0] for row in rows] == ["run, seed 0"] * 2 + ["&lt;/script&gt;&lt;i&gt;, seed 1"]
    assert [row[-1] for row in rows] == [
        "operands e5m2, acc e6m2, diagnose recipe",
        "recipe cpt_fu2021, schedule cpt:3-8/8,cycles=1", "",
    ]  # fmt: skip
    assert shares[0] == ["run", "tensor", "epoch 1", "epoch 2"]
    assert shares[1][:2] == [str(runs / "a"), "stem input"] and " / " in shares[1][2]
    assert text.count("<svg") == 1 and "--schedule cpt:3-8/8,cycles=1" in text
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


def test_the_folder_of_a_sweep_has_its_arms_and_its_runs(tmp_path: Path) -> None:
    spec = 'seeds = 2\nbase = { data = "iris", width = 4, epochs = 2 }\naxes.batch = [25, 50]\n'
    (tmp_path / "s.toml").write_text(spec + '[arms.fp32]\n[arms.fp8]\noperands = "e4m3fn"\n')
    done("sweep", "run", tmp_path / "s.toml", "--out", tmp_path / "sweep", "--jobs", 1)
    text = write_page([tmp_path / "sweep"], tmp_path / "page.html").read_text()
    arms, runs = tables(text)
    assert [row[0] for row in arms[1:3]] == ["fp32, batch 25", "fp8, batch 25"]
    assert len(runs) == 9 and ["fp8, seed 1", "batch 50, operands e4m3fn"] in [
        [row[0], row[-1]] for row in runs
    ]
    assert text.count("<svg") == 2


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.slow if number else ())
        for number, path in enumerate(sorted(BENCH.glob("sweep-*.jsonl")))
    ],
    ids=lambda path: path.stem,
)
def test_a_committed_sweep_has_a_report(path: Path, tmp_path: Path) -> None:
    assert "<svg" in write_page([path], tmp_path / "page.html").read_text()


def test_wrong_input_is_one_sentence(runs: Path, tmp_path: Path) -> None:
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
        ([run], {"metric": "speed"}, "metric: expected one of .*got 'speed'"),
        ([DENOISE], {"reference": "fp64"}, "reference: expected one of the arms .*got 'fp64'"),
    ):
        with pytest.raises(ValueError, match=wanted):
            write_page(paths, out, **options)
    assert "it belongs to --html" in sentence(call("report", run, "--metric", "lr"), 2)
    said = done("report", run, "--html", out, "--plot", tmp_path / "a.png")
    assert "MB" in said and (tmp_path / "a.png").stat().st_size > 1000
    said = sentence(call("report", run, "--html", out), 2)
    assert "--html" in said and "replace it with --force" in said
    said = sentence(call("report", run, "--html", tmp_path / "empty", "--force"), 1)
    assert "Is a directory; no report was written" in said
