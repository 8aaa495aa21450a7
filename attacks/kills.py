"""Runs and sweeps whose processes are killed with signal 9 at random moments, and go on.

Every kill is followed by `--resume` or by the same command again, until the run or the sweep is at
its end. Its figures, and a run's last checkpoint, must be those of an undisturbed one to the bit,
and what was finished before a kill must stay as it was.
"""

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
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
    whole_sweep,
)
from lpkernels.experiments.sweeps.places import Places
from lpkernels.experiments.training.checkpoints import CHECKPOINT, PREVIOUS, has_checkpoint
from tests.experiments.sweeps.killing import Kept, Killable, kill_some

TRAIN, COMMANDS, PROCESSES, DASK, RAY = 50, 30, 10, 16, 12
# Of runs, and of the cells of sweeps; seeds of the two arms of a sweep.
EPOCHS, CELL_EPOCHS, SEEDS = 40, 12, 10
RUNS = ({**TINY, **DRAWN}, {**TINY, **MASTERS})

# Kills a sweep, so often at most, and returns how often what was killed.
Kill = Callable[[Callable[[], Killable], Path, int, random.Random], Counter[str]]


def run() -> dict[str, Any]:
    found: dict[str, Any] = {"ray": version("ray"), "dask": version("distributed")}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        found["train"] = _told("train", kill_train(root / "train", TRAIN))
        spec, whole = whole_sweep(root, SEEDS, CELL_EPOCHS)
        attack = partial(kill_sweeps, spec=spec, whole=whole)
        alone, usual = ("--jobs", 1), ("--jobs", 2)
        counts = attack(root / "commands", COMMANDS, kill=kill_commands, how=alone)
        found["sweep, two commands"] = _told("sweep, two commands", counts)
        counts = attack(root / "processes", PROCESSES, kill=kill_some, how=usual)
        found["sweep, processes"] = _told("sweep, processes", counts)
        for engine, kills in (("dask", DASK), ("ray", RAY)):
            with cluster(engine) as where:
                own = (*usual, "--engine", engine)
                counts = attack(root / engine, kills, kill=kill_some, how=own, where=where)
            found[f"sweep, {engine}"] = _told(f"sweep, {engine}", counts)
    counted = [counts for counts in found.values() if isinstance(counts, dict)]
    found["kills"] = sum(counts[name] for counts in counted for name in ("commands", "workers"))
    return found


def _told(name: str, counts: Counter[str]) -> dict[str, int]:
    found = {"commands": 0, "workers": 0, **counts}
    print(f"{name}: {found}", flush=True)
    return found


def kill_train(root: Path, kills: int) -> Counter[str]:
    """Counts: commands that were killed; kills during_a_save, as the files show; runs."""
    root.mkdir()
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
    time.sleep(chance.uniform(0, 0.6))
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
        time.sleep(chance.uniform(0, 0.6))
        victim = chance.randrange(2)
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
    root: Path, kills: int, *, spec: Path, whole: Path, kill: Kill,
    how: tuple[object, ...], where: dict[str, str] | None = None,
) -> Counter[str]:  # fmt: skip
    """Kills sweeps, one after the other, until there were so many kills."""
    chance, done = random.Random(root.name), Counter[str]()
    while done["commands"] + done["workers"] < kills:
        folder = root / str(done["sweeps"])
        start = partial(sweep, spec, folder, *how, **where or {})
        left = kills - done["commands"] - done["workers"]
        done += kill(start, folder, left, chance)
        assert start().wait() == 0, end_of(spec.with_suffix(".log"))
        kept = Kept(Places(folder))
        kept.look()
        assert start().wait() == 0
        kept.look()
        done["cells"] += assert_same_sweep(folder, whole)
        done["sweeps"] += 1
    return done
