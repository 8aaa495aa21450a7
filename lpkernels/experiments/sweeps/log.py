"""The log of a sweep's folder: the specifications that were run in it, one line each.

Every line is a header of its own and the first is the file's. A line is added at once and none is
ever changed, so that commands on several machines can each add their own; one that is damaged, or
was cut short by the end of its command, means nothing.
"""

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path

from lpkernels import schemas
from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.records import Record, sealed, unsealed
from lpkernels.experiments.sweeps.places import Places
from lpkernels.experiments.sweeps.sources import package_hash
from lpkernels.experiments.sweeps.specification import Cell, SweepSpec, merged

KIND = "sweep"
# At most so often is a line added again that others overwrite.
_APPENDS = 5


def read_specs(places: Places) -> list[SweepSpec]:
    """The specifications that were run in the folder; none where there is no sweep.

    Raises: ValueError: the file is something else, or of another version of lpkernels.
    """
    try:
        lines = places.log.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    specs = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if not isinstance(record, dict) or unsealed(record) is None:
            continue
        if record.get("kind") != KIND:
            raise ValueError(
                f"{places.log}: expected the header of a sweep, got {record.get('kind')!r}"
            )
        record = schemas.check(record, places.log)
        specs.append(SweepSpec.from_dict(record["spec"]))
    return specs


def specs_of(places: Places) -> list[SweepSpec]:
    """As `read_specs`, and FileNotFoundError where there is no sweep."""
    specs = read_specs(places)
    if not specs:
        raise FileNotFoundError(
            f"expected the folder of a sweep at {str(places.root)!r}; `lpkernels sweep run` makes "
            "one"
        )
    return specs


def join(places: Places, spec: SweepSpec) -> None:
    """Makes the folder one where `spec` runs.

    Raises: ValueError: it is the folder of another sweep.
    """
    specs = read_specs(places)
    try:
        merged([*specs, spec])
    except ValueError as error:
        raise ValueError(
            f"{places.root} holds another sweep; choose another folder (option --out): {error}"
        ) from error
    places.make()
    if spec.to_dict() in [other.to_dict() for other in specs]:
        return
    record: Record = {
        **schemas.header(KIND),
        "spec": spec.to_dict(),
        "sources": package_hash(),
        "environment": environment("cpu"),
    }
    line = json.dumps(sealed(record), allow_nan=False) + "\n"
    # Some shared file systems let one of two lines that are added at once overwrite the other.
    for _ in range(_APPENDS):
        _append(places.log, line.encode())
        if spec.to_dict() in [other.to_dict() for other in read_specs(places)]:
            return


def _append(path: Path, line: bytes) -> None:
    """Adds a line at once, after the end of one that was cut short.

    Raises: OSError: there is no room for all of it.
    """
    file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
    try:
        whole = b"\n" + line if os.fstat(file).st_size else line
        if os.write(file, whole) < len(whole):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(file)


def all_cells(specs: Sequence[SweepSpec]) -> list[Cell]:
    """The cells of all specifications, each once, in the order of the merged one."""
    wanted = {cell.config for spec in specs for cell in spec.cells()}
    return [cell for cell in merged(specs).cells() if cell.config in wanted]
