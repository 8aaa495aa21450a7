"""Real runs and sweeps, killed at random moments and damaged at random places.

After every kill or damage the same command goes on. The figures, and the last checkpoint of a run,
must equal an undisturbed run's to the bit.
"""

import os
import random
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from multiprocessing.context import ForkProcess
from pathlib import Path

import pandas
import pytest

from lpkernels.cli import app
from lpkernels.experiments.sweeps.cells import SPEC, Folder
from lpkernels.experiments.sweeps.results import read_results
from lpkernels.experiments.training.checkpoints import PREVIOUS, has_checkpoint
from tests.experiments.killing import forked, kill_sweep, random_moment
from tests.support.trainings import assert_same_end, figures

pytestmark = pytest.mark.slow

# Runs of a second, whose bits depend on all that a checkpoint holds: draws, masters, a loss scale.
TINY = """
data = "tests.experiments.tiny:tiny_workload"
model = "cnn2"
width = 2
batch = 8
augment = true
threads = 1
recipe = "fp8_wang2018"
edge = "e6m9"
"""
ARMS = {
    "drawn": """
weight_update = "e6m9:stochastic"
loss_scale = 1024.0
""",
    "masters": """
optimizer = "adam"
master = "e8m10:stochastic"
opt_state = "bf16"
dynamic_scale = true
scale_interval = 5
""",
}
TRAIN_KILLS, SWEEP_KILLS, DAMAGES = 20, 8, 30
# Of runs, and of the cells of sweeps.
EPOCHS, CELL_EPOCHS, SEEDS = 40, 12, 6
_CLUSTERS = {
    "dask": """
import sys, distributed
with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as made:
    print(made.scheduler_address, flush=True)
    sys.stdin.read()
""",
    "ray": """
import sys, ray
made = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
print(made.address_info["gcs_address"], flush=True)
sys.stdin.read()
""",
}


def command(log: Path, environment: Mapping[str, str], *arguments: object) -> ForkProcess:
    """`lpkernels ARGUMENTS`, begun in a fork of this process; what it says is added to the log."""

    def run() -> None:
        with log.open("ab") as file:
            for stream in (sys.stdout, sys.stderr):
                os.dup2(file.fileno(), stream.fileno())
        os.environ.update(environment)
        app(list(map(str, arguments)))

    return forked(run)


def ended_well(process: ForkProcess, log: Path) -> None:
    process.join()
    assert process.exitcode == 0, " ".join(log.read_text().split())[-600:]


def options(text: str, epochs: int) -> list[str]:
    """The settings of a specification as a command line has them."""
    words = [f"--epochs={epochs}"]
    for name, value in re.findall(r'^(\w+) = "?([^"\n]*)', text, re.MULTILINE):
        option = "--masters" if name == "master" else f"--{name.replace('_', '-')}"
        words.append(option if value == "true" else f"{option}={value}")
    return words


@pytest.mark.parametrize("arm", ARMS)
def test_a_killed_run_goes_on_to_the_same_bits(arm: str, tmp_path: Path) -> None:
    chance, log, own = random.Random(1), tmp_path / "log", options(TINY + ARMS[arm], EPOCHS)
    ended_well(command(log, {}, "train", "--out", tmp_path / "whole", *own), log)
    kills = number = 0
    while kills < TRAIN_KILLS:
        number += 1
        folder = tmp_path / str(number)
        while True:
            how = ["--resume", own[1]] if has_checkpoint(folder) else own
            process = command(log, {}, "train", "--out", folder, *how)
            while process.exitcode is None and not (folder / ".lock").exists():
                time.sleep(0.002)
            if kills < TRAIN_KILLS:
                random_moment(folder, process, chance)
            if kills == TRAIN_KILLS or process.exitcode is not None:
                ended_well(process, log)
                break
            process.kill()
            process.join()
            kills += process.exitcode != 0
        assert_same_end(folder, tmp_path / "whole")


def sweep(
    spec: Path, folder: Path, *how: object, environment: Mapping[str, str] | None = None
) -> ForkProcess:
    """`lpkernels sweep run`, begun; what it says is added to a log beside the specification."""
    words = ("sweep", "run", spec, "--out", folder, "--retry-failed", *how)
    return command(spec.with_suffix(".log"), environment or {}, *words)


def whole_sweep(root: Path, seeds: int, epochs: int) -> tuple[Path, Path]:
    """A specification, and the folder of its sweep, which nothing disturbed."""
    spec, folder = root / "sweep.toml", root / "whole"
    text = f"seeds = {seeds}\n[base]\nepochs = {epochs}{TINY}"
    spec.write_text(text + "".join(f"[arms.{arm}]{fields}" for arm, fields in ARMS.items()))
    ended_well(sweep(spec, folder, "--jobs", 1), spec.with_suffix(".log"))
    return spec, folder


def assert_same_sweep(folder: Path, whole: Path) -> None:
    """Both folders have the same cells with the same figures, and nothing is under way."""
    one, other = Folder(folder), Folder(whole)
    assert one.finished() == other.finished() and not one.begun() and not one.given_up()
    for name in one.finished():
        assert figures(one.cells / name) == figures(other.cells / name), f"{name} differs"
    timeless = (read_results(each).table.assign(seconds=0) for each in (folder, whole))
    pandas.testing.assert_frame_equal(*timeless)


@contextmanager
def cluster(engine: str) -> Iterator[dict[str, str]]:
    """A cluster of two workers that outlives commands; the environment of commands that use it."""
    if engine == "processes":
        yield {}
        return
    # Ray admits those who know its token; this cluster has one of its own.
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    own = token if engine == "ray" else {}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    words = [sys.executable, "-c", _CLUSTERS[engine]]
    with subprocess.Popen(words, env={**os.environ, **own}, **pipes) as process:
        address = process.stdout.readline().strip()
        assert address, f"no cluster of {engine}"
        variable = "RAY_ADDRESS" if engine == "ray" else "DASK_SCHEDULER_ADDRESS"
        try:
            yield {variable: address, **own}
        finally:
            process.stdin.close()


@pytest.mark.parametrize("engine", ["processes", "dask", "ray"])
def test_a_killed_sweep_loses_no_cell(engine: str, tmp_path: Path) -> None:
    spec, whole = whole_sweep(tmp_path, SEEDS, CELL_EPOCHS)
    chance, kills, number = random.Random(engine), 0, 0
    with cluster(engine) as environment:
        how = ("--jobs", 2, "--engine", engine)
        while kills < SWEEP_KILLS:
            number += 1
            folder = tmp_path / str(number)
            start = partial(sweep, spec, folder, *how, environment=environment)
            left = SWEEP_KILLS - kills
            kills += kill_sweep(start, folder, left, chance, cluster=engine)
            ended_well(start(), spec.with_suffix(".log"))
            assert_same_sweep(folder, whole)


def damage(folder: Path, chance: random.Random) -> str:
    """Damages a file below a folder, or exchanges two; says which and how."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    path, other = chance.choice(files), chance.choice(files)
    whole = path.read_bytes()
    at, kind = (
        chance.randrange(len(whole)),
        chance.choice(("bit", "hole", "cut", "foreign", "swap")),
    )
    if kind == "bit":
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
    elif kind == "hole":
        path.write_bytes(whole[:at] + bytes(len(whole[at : at + 512])) + whole[at + 512 :])
    elif kind == "cut":
        path.write_bytes(whole[: chance.choice((0, at))])
    elif kind == "foreign":
        path.write_bytes(chance.choice((b"[]", b"{}\n", b"text\n" * 50, b"PK\3\4" + bytes(200))))
    else:
        path.write_bytes(other.read_bytes())
        other.write_bytes(whole)
    return f"{path.relative_to(folder)}: {kind} at {at}, {other.relative_to(folder)}"


def said(process: ForkProcess, log: Path, what: str) -> str:
    """What a command said, which ended well, or with one sentence."""
    process.join()
    text = log.read_text(errors="replace") if log.exists() else ""
    assert process.exitcode in (0, 1, 2) and "Traceback" not in text, f"{what}: {text}"
    assert process.exitcode == 0 or len(" ".join(text.split())) < 1000, f"{what}: {text}"
    return text if process.exitcode else ""


def kill_when(process: ForkProcess, ready: Callable[[], bool]) -> None:
    while not ready():
        assert process.exitcode is None, "the command ended before it could be killed"
        time.sleep(0.001)
    process.kill()
    process.join()


def test_no_damage_of_a_run_changes_its_bits(tmp_path: Path) -> None:
    chance, own = random.Random(38), options(TINY + ARMS["drawn"], 5)
    whole, begun, log = (tmp_path / name for name in ("whole", "begun", "log"))
    ended_well(command(log, {}, "train", "--out", whole, *own), log)
    kill_when(command(log, {}, "train", "--out", begun, *own), (begun / PREVIOUS).is_file)
    for number in range(DAMAGES):
        folder, mine = tmp_path / str(number), tmp_path / f"{number}.log"
        shutil.copytree(chance.choice((whole, begun, begun)), folder)
        what = "; ".join(damage(folder, chance) for _ in range(chance.choice((1, 1, 2))))
        if not said(command(mine, {}, "train", "--resume", "--out", folder, own[1]), mine, what):
            assert_same_end(folder, whole)


def test_no_damage_of_a_sweep_changes_its_results(tmp_path: Path) -> None:
    """Where the sentence says what to remove, the same command then ends in the same bits."""
    chance, (spec, whole) = random.Random(39), whole_sweep(tmp_path, 2, 5)
    begun = tmp_path / "begun"
    kill_when(
        sweep(spec, begun, "--jobs", 1),
        lambda: len(Folder(begun).finished()) > 1 and any(begun.glob(f"work/*/*/{PREVIOUS}")),
    )
    for number in range(DAMAGES):
        folder, mine = tmp_path / str(number), tmp_path / f"{number}.toml"
        shutil.copytree(begun, folder)
        shutil.copyfile(spec, mine)
        what = "; ".join(damage(folder, chance) for _ in range(chance.choice((1, 1, 2))))
        # Both the specification and a cell may be damaged.
        for _ in range(3):
            log = mine.with_suffix(".log")
            log.unlink(missing_ok=True)
            text = said(sweep(mine, folder, "--jobs", 1), log, what)
            for name in re.findall(r"remove the folder ([0-9a-f]+)", text):
                shutil.rmtree(folder / "cells" / name)
            if "remove it" in " ".join(text.split()):
                (folder / SPEC).unlink()
            if not text:
                break
        assert not text, f"{what}: {text}"
        assert_same_sweep(folder, whole)
