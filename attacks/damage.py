"""Files of runs and sweeps are damaged at random places. The next command must end in the bits of
an undisturbed run, or say in one sentence why it cannot.

Where the sentence says which folder of a cell to remove, this is done, and the command after it
must end in the same bits.
"""

import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attacks.commands import (
    DRAWN,
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
from lpkernels.experiments.training.checkpoints import PREVIOUS

RUNS, SWEEPS, LEASES = 100, 50, 8
EPOCHS, SEEDS = 5, 2
SAME, SAID = "same bits", "one sentence"
# More characters than any message has: a traceback is longer.
_LONGEST = 1000
_HOLE = 512
_FOREIGN = (b"[]", b"{}\n", b"another file\n" * 50, b"PK\3\4" + bytes(200), b"\x89PNG\r\n\x1a\n")


def run() -> dict[str, Any]:
    chance = random.Random(38)
    with TemporaryDirectory() as folder:
        runs, sweeps = Path(folder) / "runs", Path(folder) / "sweeps"
        found = {"runs": damage_runs(runs, chance), "sweeps": damage_sweeps(sweeps, chance)}
    files = sum(counts["files"] for counts in found.values())
    return {"files": files, **found}


def damage(folder: Path, leases: bool, chance: random.Random) -> str:
    """Damages a file below a folder, a lease or any other, or exchanges two; says which and how."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    files = [path for path in files if ("lease" in path.name) == leases]
    path, other = chance.choice(files), chance.choice(files)
    whole = path.read_bytes()
    at = chance.randrange(len(whole))
    kind = chance.choice(("bit", "bit", "hole", "cut", "empty", "foreign", "exchanged"))
    if kind == "bit":
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
    elif kind == "hole":
        path.write_bytes(whole[:at] + bytes(len(whole[at : at + _HOLE])) + whole[at + _HOLE :])
    elif kind == "foreign":
        path.write_bytes(chance.choice(_FOREIGN))
    elif kind == "exchanged" and other != path:
        kind += f" with {other.relative_to(folder)}"
        path.write_bytes(other.read_bytes())
        other.write_bytes(whole)
    else:
        path.write_bytes(whole[: at if kind == "cut" else 0])
    return f"{path.relative_to(folder)}: {kind} at {at}"


def several(folder: Path, leases: bool, chance: random.Random) -> list[str]:
    """One damage, or two."""
    return [damage(folder, leases, chance) for _ in range(chance.choice((1, 1, 1, 2)))]


def kill_when(command: Command, ready: Callable[[], bool]) -> None:
    while not ready():
        assert command.poll() is None, "the command ended before it could be killed"
        time.sleep(0.001)
    command.kill()
    command.wait()


def outcome(command: Command, log: Path, what: str) -> str:
    """Whether a command ended well, or with one sentence; fails where it ended otherwise."""
    code = command.wait()
    said = log.read_text(encoding="utf-8", errors="replace")
    assert code in (0, 1, 2) and "Traceback" not in said, f"{what}: ended with {code}: {said}"
    if code == 0:
        return SAME
    assert "rror" in said or "broken" in said, f"{what}: said nothing, but {said}"
    assert len(" ".join(said.split())) < _LONGEST, f"{what}: said more than a sentence: {said}"
    return SAID


# begin(number, lease) damages files, a lease only if `lease`; the returned function ends the trial.
Begin = Callable[[int, bool], Callable[[], None]]


def trials(count: int, begin: Begin) -> None:
    """Trials with a damaged lease wait all at once: nobody can tell such a lease's owner, so it is
    watched for a minute. The others run one after the other meanwhile."""
    ends = [begin(number, True) for number in range(LEASES)]
    for number in range(LEASES, count):
        begin(number, False)()
    for end in ends:
        end()


def damage_runs(root: Path, chance: random.Random) -> dict[str, int]:
    """Damages one or two files of runs that were killed, or had ended."""
    root.mkdir()
    log, whole, begun = (root / name for name in ("log", "whole", "begun"))
    own = options({**TINY, **DRAWN, "epochs": EPOCHS})
    assert Command("train", "--out", whole, *own, log=log).wait() == 0, end_of(log)
    kill_when(Command("train", "--out", begun, *own, log=log), (begun / PREVIOUS).is_file)
    found: Counter[str] = Counter()

    def begin(number: int, leases: bool) -> Callable[[], None]:
        folder, mine = root / str(number), root / f"{number}.log"
        shutil.copytree(begun if leases else chance.choice((whole, begun, begun)), folder)
        damages = several(folder, leases, chance)
        command = Command("train", "--resume", "--out", folder, *own[:2], log=mine)

        def end() -> None:
            what = "; ".join(damages)
            ended = outcome(command, mine, what)
            if ended == SAME:
                assert_same_run(folder, whole)
            print(f"{what}: {ended}", flush=True)
            found.update({"files": len(damages), ended: 1})
            shutil.rmtree(folder)

        return end

    trials(RUNS, begin)
    return dict(found)


def damage_sweeps(root: Path, chance: random.Random) -> dict[str, int]:
    """Damages one or two files of sweeps: some cells are finished, and one is begun."""
    root.mkdir()
    spec, whole = whole_sweep(root, SEEDS, EPOCHS)
    begun, how = root / "begun", ("--jobs", 1)
    places = Places(begun)
    kill_when(
        sweep(spec, begun, *how),
        lambda: len(places.finished()) > 1 and any(places.work.glob(f"*/{PREVIOUS}")),
    )
    found: Counter[str] = Counter()

    def begin(number: int, leases: bool) -> Callable[[], None]:
        folder, own = root / str(number), root / f"{number}.toml"
        shutil.copytree(begun, folder)
        shutil.copyfile(spec, own)
        damages = several(folder, leases, chance)
        command = sweep(own, folder, *how)

        def end() -> None:
            what, log = "; ".join(damages), own.with_suffix(".log")
            ended = outcome(command, log, what)
            for name in re.findall(r"remove the folder (\S+)", log.read_text(encoding="utf-8")):
                shutil.rmtree(folder / "cells" / name)
                found["cells removed as advised"] += 1
            if ended == SAID:
                assert sweep(own, folder, *how).wait() == 0, f"{what}: {end_of(log)}"
            assert_same_sweep(folder, whole)
            print(f"{what}: {ended}", flush=True)
            found.update({"files": len(damages), ended: 1})
            shutil.rmtree(folder)

        return end

    trials(SWEEPS, begin)
    return dict(found)
