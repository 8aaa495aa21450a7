"""The command line: every command runs, every error names its option."""

import re
import runpy
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import lpkernels
from lpkernels.cli import main
from lpkernels.experiments.records import RECORDS, header, read_run, write_records
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.interrupts import Interrupted
from lpkernels.experiments.training.trainer import Trainer
from tests.support.commands import call, wide  # noqa: F401

TINY = ["--model", "cnn1", "--width", "1", "--epochs", "1", "--batch", "500", "--threads", "1"]


COMMANDS = [
    "demo",
    "formats",
    "units",
    "quantize",
    "train",
    "report",
    "doctor",
    "bench",
    "accumulate",
    "schedule",
    "assign",
    "sweep",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str) -> None:
    result = call(command, "--help")
    assert result.exit_code == 0
    assert f"lpkernels {command}" in result.output.split("Example:")[1]


def test_help_lists_the_commands() -> None:
    result = call("--help")
    assert all(command in result.output for command in COMMANDS)


def test_version_names_lpkernels_torch_and_backends() -> None:
    result = call("--version")
    assert result.exit_code == 0
    first, second = result.output.splitlines()
    assert first == f"lpkernels {lpkernels.__version__}"
    assert second.startswith(f"torch {torch.__version__}, backends: reference")


def test_formats_lists_all_and_details_one() -> None:
    assert "fp8_e4m3" in call("formats").output
    result = call("formats", "e4m3fn")
    assert result.exit_code == 0
    assert "448" in result.output


def test_quantize_shows_codes() -> None:
    result = call(
        "quantize", "0.1", "464", "-1e9", "--format", "e4m3fn", "--rounding", "nearest_even"
    )
    assert result.exit_code == 0, result.output
    assert "0 1111 110" in result.output
    assert "-1000000000.0" in result.output


def test_quantize_stochastic_repeats_with_its_seed() -> None:
    arguments = (
        "quantize",
        *[0.1] * 8,
        "--format",
        "e4m3fn",
        "--rounding",
        "stochastic",
        "--seed",
        5,
    )
    assert call(*arguments).output == call(*arguments).output


def test_doctor_names_backends_and_versions() -> None:
    result = call("doctor")
    assert result.exit_code == 0, result.output
    for word in ("reference", "cpu", "cuda", "triton", "torch", "LPKERNELS_ISA", "processor"):
        assert word in result.output


@pytest.mark.parametrize(
    ("arguments", "option", "message"),
    [
        (["formats", "e4m3fm"], "name", "unknown format 'e4m3fm'"),
        (["quantize", "1", "--format", "float8"], "--format", "unknown format 'float8'"),
        (["quantize", "1", "--rounding", "nearest"], "--rounding", "'nearest_even' or 'nearest_a"),
        (["quantize", "1", "--rounding", "sr"], "--rounding", "it is 'stochastic' here"),
        (["quantize", "one"], "VALUES", "expected numbers, got 'one'"),
        (["train", "--recipe", "fp7"], "--recipe", "fp7"),
        (["train", "--model", "vgg"], "--model", "got 'vgg'"),
        (["train", "--data", "mnist"], "--data", "got 'mnist'"),
        (["train", "--acc", "affine8"], "--acc", "affine8"),
        (["train", "--chunk", "4"], "chunk", "give acc a format"),
        (["train", "--weight-update", "e6m9:nearest"], "--weight-update", "nearest_even"),
        (["train", "--device", "tpu7"], "--device", "got 'tpu7'"),
        (["train", "--epochs", "0"], "--epochs", "1"),
        (["train", "--resume"], "checkpoint", "expected a checkpoint at"),
        (["train", "--data", "cifar10"], "--data-dir", "data_batch_1.bin"),
        (["train", "--fsdp"], "--fsdp", "torchrun --standalone --nproc-per-node 2 -m lpkernels"),
        (["report", "."], "PATHS", "no records.jsonl"),
        (["accumulate", "--operand", "e5m"], "--operand", "e5m"),
        (["accumulate", "--chunk", "-3"], "--chunk", "none, best or a length"),
        (["accumulate", "--criterion", "strict"], "--criterion", "level, total"),
        (["accumulate", "--metric", "mse"], "--metric", "vrr, nmse"),
        (["accumulate", "--model", "vgg"], "model", "got 'vgg'"),
        (["accumulate", "--exp-bits", "1"], "exp_bits", "exp_bits must be"),
        (["accumulate", "--exp-bits", "6", "--headroom", "2"], "exp_bits", "leave one of the two"),
        (["accumulate", "--loss-scale", "-1"], "--loss-scale", "expected a positive number"),
        (["accumulate", "--model", "tiny-gpt", "--train"], "--train", "no data for 'tiny-gpt'"),
        (["schedule", "cpt:8-3"], "text", "write (3, 8)"),
        (["schedule", "plateau:3-8/8"], "text", "there is nothing to draw before"),
        (["schedule", "cpt:3-8/8", "--steps", "20"], "--steps", "got 20 steps and cycles=32"),
        (["schedule", "cpt:3-8/8", "--plot", "a.doc"], "--plot", "doc"),
        (["train", "--schedule", "cpt:3-8/8,cycle=3"], "--schedule", "cpt has the options cycles"),
        (["train", "--schedule", "cpt:3-8/8"], "--schedule", "a precision to set"),
        (["train", "--assignment", "ratio=2"], "--assignment", "from 0 to 1, got 2"),
        (["train", "--assignment", "bits=5"], "--assignment", "bits=5 cannot be met"),
        (["bench", "everything"], "what", "expected product or accumulate"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors_name_the_option(
    arguments: list[str], option: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert option.lower() in result.output.lower()
    assert message in result.output


def test_train_then_report(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = call(
        "train", "--out", out, "--name", "tiny", "--recipe", "fp8_wang2018", "--edge", "e6m9", *TINY
    )
    assert result.exit_code == 0, result.output
    assert "tiny" in result.output
    assert read_run(out).finished

    again = call("train", "--out", out, *TINY)
    assert again.exit_code == 2
    assert "--resume" in again.output

    result = call("report", out, "--plot", tmp_path / "curves.png")
    assert result.exit_code == 0, result.output
    assert "tiny" in result.output
    assert (tmp_path / "curves.png").stat().st_size > 1000
    assert "--plot" in call("report", out, "--plot", tmp_path / "curves.doc").output


def test_ctrl_c_says_how_to_resume_and_resume_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Trainer._train

    def step_and_signal(trainer: Trainer, batch: Any) -> None:
        step(trainer, batch)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_train", step_and_signal)
        result = call("train", "--out", tmp_path, *TINY)
    assert result.exit_code == 130
    assert f"resume with: lpkernels train --resume --out {tmp_path}" in result.output
    result = call("train", "--resume", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert read_run(tmp_path).finished


def test_resume_refuses_options_of_another_run(tmp_path: Path) -> None:
    assert call("train", "--out", tmp_path, *TINY).exit_code == 0
    before = (tmp_path / RECORDS).read_bytes()
    other = call("train", "--resume", "--out", tmp_path, "--epochs", 2, "--batch", 500)
    assert other.exit_code == 2
    assert "--epochs: the run was started with 1, got 2; resume without --epochs" in other.output
    assert (tmp_path / RECORDS).read_bytes() == before
    assert call("train", "--resume", "--out", tmp_path, "--epochs", 1).exit_code == 0


@pytest.mark.parametrize("command", ["demo", "accumulate"])
def test_torchrun_starts_no_other_command_that_trains(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "29500")
    result = call(command, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert f"{command} runs in one process, but torchrun started 2" in result.output
    assert not (tmp_path / "out").exists()


def test_demo_runs_all_three_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lpkernels.experiments.sweeps import demo as runs

    full = runs.demo_configs

    def tiny_configs(*, epochs: int, seed: int) -> list[runs.RunConfig]:
        small = {"model": "cnn1", "width": 1, "batch": 500, "threads": 1}
        return [config.replace(**small) for config in full(epochs=epochs, seed=seed)]

    monkeypatch.setattr(runs, "demo_configs", tiny_configs)
    result = call("demo", "--out", tmp_path, "--epochs", 1)
    assert result.exit_code == 0, result.output
    for config in full():
        assert config.name in result.output
    assert (tmp_path / "curves.png").is_file()
    before = sorted(p.read_bytes() for p in tmp_path.rglob("records.jsonl"))
    assert len(before) == 3
    assert call("demo", "--out", tmp_path, "--epochs", 1, "--resume").exit_code == 0
    other = call("demo", "--out", tmp_path, "--epochs", 2, "--resume")
    assert other.exit_code == 2
    assert "--resume" in other.output and "holds a run of another configuration" in other.output
    assert sorted(p.read_bytes() for p in tmp_path.rglob("records.jsonl")) == before


@pytest.mark.parametrize("module", ["sklearn.datasets", "matplotlib.figure"])
def test_a_package_missing_later_is_a_message_too(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_records(
        tmp_path / RECORDS,
        [
            header(RunConfig(epochs=1), "fp32"),
            {
                "type": "epoch",
                "epoch": 1,
                "train_loss": 0.5,
                "test_accuracy": 0.5,
                "skipped_steps": 0,
                "seconds": 1.0,
            },
        ],
    )
    monkeypatch.setitem(sys.modules, module, None)
    plot = ["report", str(tmp_path), "--plot", str(tmp_path / "a.png")]
    train = ["train", "--out", str(tmp_path / "new")]
    monkeypatch.setattr(sys, "argv", ["lpkernels", *(plot if "matplotlib" in module else train)])
    with pytest.raises(SystemExit, match=r'pip install "lpkernels\[lab\]"'):
        main()


def test_without_the_lab_extra_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit, match=r'pip install "lpkernels\[lab\]"'):
        runpy.run_path(lpkernels.cli.__file__)


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


ACCUMULATE = ["accumulate", "--model", "cnn1", "--width", "2", "--batch", "16", "--longest", "256"]


def test_accumulate_plans_simulates_and_trains(tmp_path: Path) -> None:
    options = ["--epochs", "1", "--seeds", "1", "--chunk", "best", "--out", tmp_path]
    result = call(*ACCUMULATE, *options, "--simulate", "--train")
    assert result.exit_code == 0, result.output
    for word in ("stem", "wgrad", "VRR, theory", "3 fewer", "fp32 sums"):
        assert word in result.output
    for picture in ("bits.png", "retention.png", "accuracy.png"):
        assert (tmp_path / picture).stat().st_size > 1000
    again = call(*ACCUMULATE, *options, "--simulate", "--resume")
    assert again.exit_code == 0, again.output
    other = call(*ACCUMULATE, "--resume", "--out", tmp_path)
    assert other.exit_code == 2
    assert "another question" in other.output


def test_accumulate_gives_exponents_the_headroom_it_is_asked_for(tmp_path: Path) -> None:
    printed = [
        call(*ACCUMULATE, *options, "--out", tmp_path).output
        for options in ([], ["--headroom", "2"], ["--headroom", "0"])
    ]
    for output, more in zip(printed, ("+1", "+2", "+0"), strict=True):
        assert re.search(rf"fprop .* -?\d+\.\.-?\d+ \{more} e", output)


def test_accumulate_simulates_other_roundings(tmp_path: Path) -> None:
    options = ["--rounding", "aligned_truncation", "--metric", "nmse", "--out", tmp_path]
    result = call(*ACCUMULATE, *options, "--simulate")
    assert result.exit_code == 0, result.output
    assert ":toward_zero:block=1:aligned_bits=" in result.output
    wrong = call(*ACCUMULATE, "--rounding", "toward_zero")
    assert wrong.exit_code == 2
    assert "nearest_even, stochastic, aligned_truncation" in wrong.output


def test_accumulate_says_in_how_many_bits_fixed_point_never_overflows(tmp_path: Path) -> None:
    result = call(*ACCUMULATE, "--operand", "fixed8_f5", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "never overflows in" in " ".join(result.output.split())
    assert re.search(r"fprop .* 1\d bits", result.output)
    assert "E[sum^2] is" in result.output  # a note, not markup
    plain = call(*ACCUMULATE, "--out", tmp_path)
    assert "overflows" not in plain.output


def test_accumulate_says_how_to_go_on_after_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lpkernels.experiments.sweeps import accumulate as work

    def stop(*arguments: object) -> None:
        raise Interrupted("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(work, "simulate_study", stop)
        result = call(
            *ACCUMULATE, "--simulate", "--chunk", "best", "--metric", "nmse", "--out", tmp_path
        )
    assert result.exit_code == 130
    command = result.output.split("resume with: lpkernels ")[1].split()
    assert command[:2] == ["accumulate", "--resume"]
    assert "--chunk best" in result.output
    assert call(*command).exit_code == 0


def test_bench_accumulate(tmp_path: Path) -> None:
    records = tmp_path / "speed.jsonl"
    result = call("bench", "accumulate", "--longest", 8, "--repeats", 1, "--out", records)
    assert result.exit_code == 0, result.output
    assert "cpu, GMAC/s" in result.output
    assert '"length": 256' in records.read_text()


def test_bench_accumulate_stopped_shows_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    from lpkernels.experiments.measuring import accumulator_speed

    whole = accumulator_speed.speed_over_length

    def one_record(*arguments: Any, **options: Any) -> Iterator[dict[str, Any]]:
        yield next(whole(*arguments, **options))
        raise KeyboardInterrupt

    monkeypatch.setattr(accumulator_speed, "speed_over_length", one_record)
    result = call("bench", "accumulate", "--longest", 8, "--repeats", 1)
    assert result.exit_code == 130, result.output
    assert "stopped; what was measured" in result.output
    assert "reference, GMAC/s" in result.output


def test_schedule_draws_and_counts(tmp_path: Path) -> None:
    picture = tmp_path / "schedule.png"
    result = call("schedule", "cpt:3-8/8", "--steps", 64000, "--plot", picture)
    assert result.exit_code == 0, result.output
    for word in ("cpt:3-8/8", "forward bits, 64000 steps", "20.50%", "5.499", "36.67%", "0.039579"):
        assert word in result.output
    assert picture.stat().st_size > 1000


def test_schedule_of_accumulators_and_gradients(tmp_path: Path) -> None:
    result = call("schedule", "CT:4-8/6-8,acc=5-10", "--steps", 80, "--seed", 3)
    assert result.exit_code == 0, result.output
    for word in ("forward bits", "gradient bits", "mantissa bits of accumulators", "bitops"):
        assert word in result.output
    plain = call("schedule", "shuffled:3-8/8", "--steps", 80)
    assert plain.output != call("schedule", "shuffled:3-8/8", "--steps", 80, "--seed", 1).output
