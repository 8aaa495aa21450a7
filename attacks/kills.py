"""Runs and sweeps whose processes are killed with signal 9 at random moments, and go on.

Every kill is followed by `--resume` or by the same command again, until the run or the sweep is at
its end. The figures, and the last checkpoint of a run, must equal an undisturbed run's to the bit,
and everything finished before a kill must stay as it was.
"""

import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attacks.cluster import cluster
from attacks.commands import (
    DRAWN,
    MASTERS,
    TINY,
    Command,
    assert_same_run,
    assert_same_sweep,
    end_of,
    options,
    sweep,
    warm,
    whole_sweep,
)
from lpkernels.experiments.sweeps.places import Places
from lpkernels.experiments.training.checkpoints import CHECKPOINT, PREVIOUS, has_checkpoint
from tests.experiments.sweeps.killing import Kept, Killable, kill_some, random_moment

TRAIN, COMMANDS, PROCESSES, DASK, RAY = 50, 24, 12, 12, 8
# Of runs, and of the cells of sweeps; seeds of the two arms of a sweep.
EPOCHS, CELL_EPOCHS, SEEDS = 40, 12, 6
RUNS = ({**TINY, **DRAWN}, {**TINY, **MASTERS})

# Kills a sweep at most so many times, and returns how often each kind of process was killed.
Kill = Callable[[Callable[[], Killable], Path, int, random.Random], Counter[str]]


def run() -> dict[str, Any]:
    warm()
    kinds = ("train", "two commands", "processes", "dask", "ray")
    with (
        TemporaryDirectory() as folder,
        ProcessPoolExecutor(len(kinds), mp_context=get_context("fork")) as pool,
    ):
        counts = dict(zip(kinds, pool.map(partial(attack, Path(folder)), kinds), strict=True))
    kills = sum(each[name] for each in counts.values() for name in ("commands", "workers"))
    versions = {name: version(name) for name in ("ray", "distributed")}
    return {"kills": kills, "versions": versions, **counts}


def attack(parent: Path, kind: str) -> dict[str, int]:
    """The counts of a kind: commands and workers that were killed, runs or sweeps and cells that
    were compared."""
    root = parent / kind.replace(" ", "-")
    root.mkdir()
    if kind == "train":
        counts = kill_train(root, TRAIN)
    elif kind == "two commands":
        counts = kill_sweeps(root, COMMANDS, kill_commands, ("--jobs", 1), {})
    elif kind == "processes":
        counts = kill_sweeps(root, PROCESSES, kill_some, ("--jobs", 2), {})
    else:
        with cluster(kind) as where:
            how = ("--jobs", 2, "--engine", kind)
            counts = kill_sweeps(root, DASK if kind == "dask" else RAY, kill_some, how, where)
    found = {"commands": 0, "workers": 0, **counts}
    print(f"{kind}: {found}", flush=True)
    return found


def kill_train(root: Path, kills: int) -> Counter[str]:
    """Counts: commands that were killed; kills during_a_save, as the files show; runs."""
    chance, done = random.Random(1), Counter[str]()
    for number, settings in enumerate(RUNS):
        own = [*options({**settings, "epochs": EPOCHS})]
        assert (
            Command("train", "--out", root / f"whole{number}", *own, log=root / "log").wait() == 0
        )
    while done["commands"] < kills:
        which, folder = done["runs"] % len(RUNS), root / f"run{done['runs']}"
        own = options({**RUNS[which], "epochs": EPOCHS})
        while True:
            again = ["--resume", *own[:2]] if has_checkpoint(folder) else own
            command = Command("train", "--out", folder, *again, log=root / "log")
            if done["commands"] < kills and _is_killed(command, folder, chance):
                done["commands"] += 1
                done["during_a_save"] += _was_saving(folder)
            elif command.wait() == 0:
                break
            else:
                raise AssertionError(f"a killed run did not go on: {end_of(root / 'log')}")
        assert_same_run(folder, root / f"whole{which}")
        done["runs"] += 1
    return done


def _is_killed(command: Command, folder: Path, chance: random.Random) -> bool:
    """Kills a command at a random moment after it took its folder; False if it ended before."""
    while command.poll() is None and not any(_holds(each, command) for each in _leases(folder)):
        time.sleep(0.002)
    random_moment(folder, command, chance)
    if command.poll() is not None:
        return False
    command.kill()
    return command.wait() != 0


def _leases(folder: Path) -> list[Path]:
    return list(folder.glob("*.lease"))


def _holds(lease: Path, command: Command) -> bool:
    try:
        return f'"pid":{command.pid},' in lease.read_text(encoding="utf-8")
    except OSError:
        return False


def _was_saving(folder: Path) -> bool:
    """Whether a new checkpoint is half written, or has no name yet."""
    there = {each.name for each in folder.iterdir()}
    return "checkpoint.tmp" in there or (PREVIOUS in there and CHECKPOINT not in there)


def kill_commands(
    start: Callable[[], Killable], folder: Path, kills: int, chance: random.Random
) -> Counter[str]:
    """As `kill_some`, of two commands at work in one folder."""
    commands, kept, done = [start(), start()], Kept(Places(folder)), Counter[str]()
    while done["commands"] < kills and not any(command.poll() == 0 for command in commands):
        victim = chance.randrange(2)
        random_moment(folder, commands[victim], chance)
        if commands[victim].poll() is None:
            commands[victim].kill()
            done["commands"] += 1
        commands[victim].wait()
        kept.look()
        commands[victim] = start()
    for command in commands:
        command.kill()
        command.wait()
    return done


def kill_sweeps(
    root: Path, kills: int, kill: Kill, how: tuple[object, ...], where: dict[str, str]
) -> Counter[str]:
    """Kills sweeps, one after the other, until there were so many kills."""
    spec, whole = whole_sweep(root, SEEDS, CELL_EPOCHS)
    chance, done = random.Random(root.name), Counter[str]()
    while done["commands"] + done["workers"] < kills:
        folder = root / str(done["sweeps"])
        start = partial(sweep, spec, folder, *how, **where)
        left = kills - done["commands"] - done["workers"]
        done += kill(start, folder, left, chance)
        kept = Kept(Places(folder))
        for _ in range(2):
            assert start().wait() == 0, end_of(spec.with_suffix(".log"))
            kept.look()
        done["cells"] += assert_same_sweep(folder, whole)
        done["sweeps"] += 1
    return done
