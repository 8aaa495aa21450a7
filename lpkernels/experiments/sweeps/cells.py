"""The folder of a sweep, and its cells.

    sweep.json                  the specification of the sweep
    cells/<cell>/               a finished cell: records.jsonl of its run, and cell.json
    failed/<cell>/              a cell that failed twice
    work/<try>/<cell>/          a cell under way, with the files from which its run goes on

A cell is trained in a folder of its own and finished by one rename. Each try at it takes the folder
of the try before by a rename too: a worker that outlived its command no longer finds the folder
that it writes into.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import uuid
from collections.abc import Collection
from pathlib import Path

import lpkernels
from lpkernels import schemas
from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.records import (
    RECORDS,
    Record,
    Run,
    line_of,
    read_run,
    sealed,
    unsealed,
    write_lines,
)
from lpkernels.experiments.sweeps.specification import Cell, SweepSpec
from lpkernels.experiments.training.checkpoints import CHECKPOINT, PREVIOUS
from lpkernels.experiments.training.config import RunConfig

#: The specification of a sweep's folder, and the record of a cell.
SPEC, CELL = "sweep.json", "cell.json"
#: The traceback of a cell that failed.
ERROR = "error.txt"
#: The worker that trains a cell.
WORKER = "worker.txt"
KIND = "sweep"
# 64 bits of a hash: two of a million cells are the same by chance once in 10^7 sweeps.
_DIGITS = 16
_CELL = re.compile(f"[0-9a-f]{{{_DIGITS}}}")
_TRY = re.compile("[0-9a-f]{32}")


def cell_name(config: RunConfig) -> str:
    """The name of a cell's folder: the hash of its settings.

    The run's name, by which tables call it, is no part of it: a renamed arm keeps its cells. Fields
    at their defaults are no part of it either, so that later versions with more fields find the
    cells of an earlier one.
    """
    usual = RunConfig().flat()
    values = {k: v for k, v in config.flat().items() if k != "name" and v != usual[k]}
    # The number keeps the names that cells had in the first version.
    text = json.dumps(["0.1.0", values], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def code_of(config: RunConfig, commit: str | None) -> str:
    """The code that trains a cell, in words: the commit of lpkernels, and for a workload of the
    user's own the hash of its module, which is imported by then."""
    module, colon, _ = config.workload.data.partition(":")
    file = getattr(sys.modules.get(module), "__file__", None) if colon else None
    own = f", {module} {hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]}" if file else ""
    short = commit and commit[:12] + "+" * commit.endswith("+")
    return f"commit {short or 'unknown'}{own}"


class Folder:
    """The folder of a sweep; nothing is made until `join` and `make`."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.spec, self.work = self.root / SPEC, self.root / "work"
        self.cells, self.failed = self.root / "cells", self.root / "failed"

    def read_spec(self) -> SweepSpec | None:
        """The specification of the sweep; None where there is none.

        Raises: ValueError: the file is damaged, something else, or of another version of lpkernels.
        """
        try:
            record = unsealed(json.loads(self.spec.read_bytes()))
        except FileNotFoundError:
            return None
        except (AttributeError, ValueError):
            record = None
        if record is None or record.get("kind") != KIND:
            raise ValueError(
                f"{self.spec}: expected the specification of a sweep, but the file is damaged or "
                "something else; remove it and give the command of the sweep again, which keeps "
                "the cells"
            )
        return SweepSpec(**schemas.check(record, self.spec)["spec"])

    def specification(self) -> SweepSpec:
        """As `read_spec`. Raises: FileNotFoundError: there is no sweep."""
        spec = self.read_spec()
        if spec is None:
            raise FileNotFoundError(
                f"expected the folder of a sweep at {str(self.root)!r}; `lpkernels sweep run` or "
                "`lpkernels frontier run` makes one"
            )
        return spec

    def join(self, spec: SweepSpec, names: Collection[str]) -> None:
        """Makes the folder that of `spec`, whose cells have these names.

        Raises: ValueError: it holds cells that are none of these.
        """
        others = (self.finished() | self.given_up()).difference(names)
        if others:
            raise ValueError(
                f"{self.root} holds another sweep; choose another folder (option --out), or a "
                f"specification with the arms, values and seeds of its {len(others)} other cells"
            )
        record = {**schemas.header(KIND), "spec": spec.to_dict()}
        write_lines(self.spec, [line_of(sealed(record))])

    def finished(self) -> set[str]:
        """The names of finished cells."""
        return _cells_in(self.cells)

    def given_up(self) -> set[str]:
        """The names of cells that failed."""
        return _cells_in(self.failed) - self.finished()

    def settled(self, name: str) -> Path:
        """The folder of a cell that is finished or failed."""
        finished = self.cells / name
        return finished if finished.is_dir() else self.failed / name

    def begun(self) -> dict[str, Path]:
        """The folders of cells under way, and of those with which the next command goes on."""
        tries = {name: folder / name for folder in self._tries() for name in _cells_in(folder)}
        settled = self.finished() | self.given_up()
        return {name: path for name, path in tries.items() if name not in settled}

    def _tries(self) -> list[Path]:
        with contextlib.suppress(FileNotFoundError):
            return [path for path in self.work.iterdir() if _TRY.fullmatch(path.name)]
        return []

    def begin(self, name: str) -> Path:
        """The folder of the next try at a cell: it may be there, and hold a checkpoint."""
        former, own = self.begun().get(name), self.work / uuid.uuid4().hex
        own.mkdir(parents=True)
        if former is not None:
            # The former try may still be at work, and may finish the cell this very moment.
            with contextlib.suppress(OSError):
                former.rename(own / name)
                former.parent.rmdir()
            # Its worker may still write into files that it has opened.
            for file in (Path(CHECKPOINT).with_suffix(".tmp").name, WORKER):
                (own / name / file).unlink(missing_ok=True)
        return own / name

    def give_up(self, name: str, record: Record) -> None:
        """Makes the cell under way a failed one, with what its last try left."""
        folder = self.begin(name)
        folder.mkdir(exist_ok=True)
        settle(folder, self.failed, record)

    def make(self) -> None:
        """Makes the folders, and removes those of tries that are over."""
        for folder in (self.cells, self.failed, self.work):
            folder.mkdir(exist_ok=True)
        goes_on = {path.parent for path in self.begun().values()}
        for folder in self._tries():
            if folder not in goes_on:
                shutil.rmtree(folder, ignore_errors=True)

    def forget(self, name: str) -> None:
        """Removes a failed cell; nobody sees half of it."""
        folder = self.begin(name)
        shutil.rmtree(folder, ignore_errors=True)
        (self.failed / name).rename(folder)
        shutil.rmtree(folder.parent)


def _cells_in(folder: Path) -> set[str]:
    try:
        return {name for name in os.listdir(folder) if _CELL.fullmatch(name)}  # noqa: PTH208 (names)
    except (FileNotFoundError, NotADirectoryError):
        return set()


def cell_record(
    name: str, cell: Cell, status: str, *, run: Run | None = None, error: str = ""
) -> Record:
    """The record in cell.json of the cell of that name: the circumstances of its run, or its error;
    the figures are in the run's own records."""
    about = run.header["environment"] if run is not None else environment("cpu")
    return {
        **schemas.header("cell"),
        "cell": name,
        "arm": cell.arm,
        "axes": cell.axes,
        "seed": cell.seed,
        "status": status,
        "error": error,
        "version": lpkernels.__version__,
        "code": code_of(cell.config, about.get("commit")),
        "environment": about,
        "config": cell.config.to_dict(),
    }


def settle(folder: Path, where: Path, record: Record) -> None:
    """Makes the folder of a cell under way that of a finished or failed cell, by one rename.

    The record gets a digest of it and of the run's records, and both are on the disk before.
    """
    whole = sealed(record, _run_of(folder))
    with (folder / CELL).open("w", encoding="utf-8") as file:
        file.write(json.dumps(whole, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    records = folder / RECORDS
    if records.is_file():
        with records.open("rb") as file:
            os.fsync(file.fileno())
    folder.rename(where / folder.name)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()
    for name in (CHECKPOINT, PREVIOUS, WORKER):
        with contextlib.suppress(OSError):
            (where / folder.name / name).unlink(missing_ok=True)


def _run_of(folder: Path) -> bytes:
    """The records of a cell's run; nothing for one that failed before its run began."""
    path = folder / RECORDS
    return path.read_bytes() if path.is_file() else b""


def read_cell(folder: Path) -> Run:
    """A finished or failed cell; its header has the fields of cell.json too.

    Raises: ValueError: cell.json is not there, or it or the run's records are damaged.
    """
    path = folder / CELL
    again = f"remove the folder {folder.name} and the next run makes it again"
    try:
        record = json.loads(path.read_bytes())
        content = _run_of(folder)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: expected the record of a cell ({error}); {again}") from error
    if not isinstance(record, dict) or record.get("kind") != "cell":
        raise ValueError(f"{path}: expected the record of a cell; {again}")
    whole = unsealed(record, content)
    if whole is None or whole.get("cell") != folder.name:
        raise ValueError(f"{path}: it or {RECORDS} is damaged, or belongs to another cell; {again}")
    record, place = schemas.check(whole, path), (whole["arm"], whole["axes"], whole["seed"])
    run = None if record["status"] == "failed" else read_run(folder)
    epochs, header = ([], record) if run is None else (run.epochs, {**record, **run.header})
    return Run(*place, record["status"], epochs, folder.name, record["error"], header)
