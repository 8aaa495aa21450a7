"""The command line: every command runs, every error names its option."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lpkernels
import lpkernels_command
from lpkernels.backends import cpu
from lpkernels.cli import demo, main
from lpkernels.experiments.measuring import accumulate
from lpkernels.experiments.records import RECORDS, header, read_records, read_run, write_records
from lpkernels.experiments.sweeps.specification import SweepSpec
from lpkernels.experiments.training.config import RunConfig
from tests.support.commands import as_rank_0, assert_refused, call, command, done, wide  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]

TINY = ["--model", "cnn1", "--width", "1", "--epochs", "1", "--batch", "500", "--threads", "1"]


COMMANDS = list(lpkernels_command.COMMANDS)
BELOW = {
    "sweep": "run status table plot".split(),
    "frontier": "run table predict".split(),
}


@pytest.mark.parametrize(
    "words", [*COMMANDS, *(f"{group} {word}" for group in BELOW for word in BELOW[group])]
)
def test_help_has_an_example(words: str) -> None:
    assert f"lpkernels {words}" in done(*words.split(), "--help").split("Example:")[1]


def test_help_lists_the_commands() -> None:
    """The lines of the list are those of the commands, which it does not import."""
    said = " ".join(re.findall(r"[^\s│]+", call("--help").output))
    for name in lpkernels_command.COMMANDS:
        line, told = lpkernels_command.line_of(name), command(name).help.split("\n\n")[0]
        assert " ".join(told.split()) == line
        assert f"{name} {line.replace('`', '')}" in said


def test_the_list_and_the_versions_import_neither_torch_nor_the_package() -> None:
    code = (
        "import sys, lpkernels_command; sys.argv = ['lpkernels', *sys.argv[1:]]\n"
        "try: lpkernels_command.main()\n"
        "except SystemExit as stop: assert not stop.code\n"
        "assert not {'torch', 'numpy', 'lpkernels'} & set(sys.modules)"
    )
    for option in ("--help", "--version"):
        ran = subprocess.run([sys.executable, "-c", code, option], capture_output=True, text=True)
        assert ran.returncode == 0 and "lpkernels" in ran.stdout, ran.stderr


def test_version_formats_and_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"lpkernels {lpkernels.__version__}", f"torch {torch.__version__}"]
    assert done("--version").splitlines() == lines == lpkernels_command.versions().splitlines()
    assert "fp8_e4m3" in call("formats").output
    assert "448" in done("formats", "e4m3fn")
    assert "nvfp4_pretraining" in call("recipes").output
    assert all(
        word in done("recipes", "te_block")
        for word in ("Float8BlockScaling", "FUNCTIONS", "block128_k")
    )
    said = done("doctor")
    for word in ("reference", "cpu", "cuda", "triton", "torch", "LPKERNELS_ISA", "processor"):
        assert word in said
    if cpu.BACKEND.available():
        monkeypatch.setenv("LPKERNELS_ISA", "scalar")
        assert ": 36 to 1038 times slower than AVX-512" in done("doctor")


def test_quantize_shows_codes_and_repeats_with_its_seed() -> None:
    said = done(*"quantize 0.1 464 -1e9 --format e4m3fn --rounding nearest_even".split())
    assert "0 1111 110" in said and "-1000000000.0" in said
    values = ["0.1"] * 8
    drawn = ("quantize", *values, *"--format e4m3fn --rounding stochastic --seed 5".split())
    assert call(*drawn).output == call(*drawn).output


@pytest.mark.parametrize(
    "arguments, option, message",
    [
        (["formats", "e4m3fm"], "name", "unknown format 'e4m3fm'"),
        (["quantize", "1", "--format", "float8"], "--format", "unknown format 'float8'"),
        (["quantize", "1", "--rounding", "nearest"], "--rounding", "'nearest_even' or 'nearest_a"),
        (["quantize", "one"], "VALUES", "expected numbers, got 'one'"),
        (["train", "--recipe", "fp7"], "--recipe", "fp7"),
        (["train", "--model", "vgg"], "--model", "got 'vgg'"),
        (["train", "--device", "tpu7"], "--device", "got 'tpu7'"),
        (["train", "--epochs", "0"], "--epochs", "1"),
        (["train", "--resume"], "checkpoint", "expected a checkpoint at"),
        (["train", "--data", "cifar10"], "--data-dir", "data_batch_1.bin"),
        (["train", "--fsdp"], "--fsdp", "torchrun --standalone --nproc-per-node 2 -m lpkernels"),
        (["report", "."], "PATHS", "no records.jsonl"),
        (["accumulate", "--operand", "e5m"], "--operand", "e5m"),
        (["accumulate", "--chunk", "-3"], "--chunk", "none, best or a length"),
        (["accumulate", "--model", "vgg"], "model", "got 'vgg'"),
        (["accumulate", "--loss-scale", "-1"], "--loss-scale", "expected greater than 0"),
        (["schedule", "pfq:3-8/8"], "text", "there is nothing to draw before"),
        (["schedule", "cpt:3-8/8", "--steps", "20"], "--steps", "got 20 steps and cycles=32"),
        (["schedule", "cpt:3-8/8", "--plot", "a.doc"], "--plot", "doc"),
        (["train", "--schedule", "cpt:3-8/8,cycle=3"], "--schedule", "expected cycles=<value>"),
        (["train", "--assignment", "ratio=2"], "--assignment", "of at most 1, got 2"),
    ],
)
def test_errors_name_the_option(
    arguments: list[str], option: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(arguments, option, message)


def test_train_then_report(tmp_path: Path) -> None:
    out, curves = tmp_path / "run", tmp_path / "curves.png"
    named = ("--name", "tiny", "--recipe", "fp8_wang2018", "--edge", "e6m9")
    assert "tiny" in done("train", "--out", out, *named, *TINY)
    assert read_run(out).finished
    assert_refused(("train", "--out", out, *TINY), "--resume")
    assert "tiny" in done("report", out, "--plot", curves)
    assert curves.stat().st_size > 1000
    assert "--plot" in call("report", out, "--plot", tmp_path / "curves.doc").output
    # Resuming refuses options of another run.
    before, resumed = (out / RECORDS).read_bytes(), ("train", "--resume", "--out", out, "--epochs")
    message = "--epochs: the run was started with 1, got 2; resume without --epochs"
    assert_refused((*resumed, 2, "--batch", 500), message)
    assert (out / RECORDS).read_bytes() == before
    done(*resumed, 1)


@pytest.mark.parametrize("command_line", ["demo", "accumulate", "sweep run SPEC"])
def test_torchrun_starts_none(
    command_line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_rank_0(monkeypatch, 2)
    words = command_line.replace("SPEC", str(ROOT / "bench/sweeps/digits-schedules.toml")).split()
    name = command_line.removesuffix(" SPEC")
    message = f"{name} runs in one process, but torchrun started 2"
    assert_refused((*words, "--out", tmp_path / "out"), message)
    assert not (tmp_path / "out").exists()


def test_demo_runs_all_three_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = demo.demo_spec

    def tiny_spec(*, epochs: int, seed: int) -> SweepSpec:
        small = {"model": "cnn1", "width": 1, "batch": 500, "threads": 1}
        spec = full(epochs=epochs, seed=seed)
        return spec.replace(base={**spec.base, **small})

    monkeypatch.setattr(demo, "demo_spec", tiny_spec)
    said = done("demo", "--out", tmp_path, "--epochs", 1)
    assert all(arm in said for arm in full().arms)
    assert (tmp_path / "curves.png").is_file()
    before = sorted(p.read_bytes() for p in tmp_path.rglob("records.jsonl"))
    assert len(before) == 3
    done("demo", "--out", tmp_path, "--epochs", 1)
    other = ("demo", "--out", tmp_path, "--epochs", 2)
    assert_refused(other, "--out", "holds another sweep; choose another folder")
    assert sorted(p.read_bytes() for p in tmp_path.rglob("records.jsonl")) == before


@pytest.mark.parametrize("module", ["sklearn.datasets", "matplotlib.figure"])
def test_a_missing_package(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epoch = {"type": "epoch", "epoch": 1, "train_loss": 0.5, "test_accuracy": 0.5}
    epoch |= {"skipped_steps": 0, "seconds": 1.0}
    write_records(tmp_path / RECORDS, [header(RunConfig(epochs=1), "fp32"), epoch])
    monkeypatch.setitem(sys.modules, module, None)
    plot = ["report", str(tmp_path), "--plot", str(tmp_path / "a.png")]
    train = ["train", "--out", str(tmp_path / "new")]
    monkeypatch.setattr(sys, "argv", ["lpkernels", *(plot if "matplotlib" in module else train)])
    with pytest.raises(SystemExit, match=r'pip install "lpkernels\[lab\]"'):
        main()


def test_without_the_lab_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit, match=r'pip install "lpkernels\[lab\]"'):
        runpy.run_path(lpkernels_command.__file__)["application"]()


@pytest.mark.parametrize("module", ["lpkernels", "lpkernels.cli"])
def test_the_package_runs_as_the_command(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("quantize", "--format", "e5m2", "1.3")
    monkeypatch.setattr(sys, "argv", [module, *arguments])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module(f"{module}.__main__", run_name="__main__")
    assert not stop.value.code
    assert capsys.readouterr().out == call(*arguments).output


ACCUMULATE = "accumulate --model cnn1 --width 2 --batch 16 --sample 16".split()


def test_accumulate_plans_by_the_error_law_or_by_sakrs_rule(tmp_path: Path) -> None:
    config = accumulate.AccumulateConfig(model="cnn1", width=2, batch=16, sample=16)
    for changes in ({}, {"metric": "vrr", "margin": 0}):
        settings = config.replace(**changes)
        plan = accumulate.make_plan(settings, accumulate.find_network(settings))
        options = [word for name, value in changes.items() for word in (f"--{name}", value)]
        said = done(*ACCUMULATE, *options, "--out", tmp_path)
        assert "stem" in said and "wgrad" in said
        header, *rows = read_records(tmp_path / "accumulate.jsonl")
        assert (header["kind"], header["config"]["metric"]) == ("accumulate", settings.metric)
        assert rows == [{"type": "plan", **row.to_dict()} for row in plan.rows]


def test_schedule_draws_and_counts_bits(tmp_path: Path) -> None:
    picture = tmp_path / "schedule.png"
    said = done("schedule", "cpt:3-8/8", "--steps", 64000, "--plot", picture)
    for word in ("cpt:3-8/8", "forward bits, 64000 steps", "20.50%", "5.499", "36.67%", "0.039579"):
        assert word in said
    assert picture.stat().st_size > 1000
    said = done("schedule", "CT:4-8/6-8", "--steps", 80, "--seed", 3)
    for word in ("forward bits", "gradient bits", "bitops"):
        assert word in said
    for seed in (0, 1):
        words = ("--steps", 80, "--seed", seed, "--plot", tmp_path / f"{seed}.png")
        done("schedule", "shuffled:3-8/8", *words)
    assert (tmp_path / "0.png").read_bytes() != (tmp_path / "1.png").read_bytes()
