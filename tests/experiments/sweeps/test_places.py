"""The folder of a sweep: claims, takeovers, late results, failures."""

import json
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path

import pytest

from lpkernels.experiments.processes.leases import Lease, Watch
from lpkernels.experiments.records import RECORDS
from lpkernels.experiments.sweeps.cells import CELL, read_cell
from lpkernels.experiments.sweeps.places import ERROR, LEASE, Claim, Places, take
from lpkernels.experiments.training.checkpoints import CHECKPOINT, PREVIOUS
from lpkernels.schemas import header

X, Y = ("0123456789abcdef-" + digit * 8 for digit in "12")
UNIQUE = "0123456789abcdef" * 2
RECORD = {**header("cell"), "status": "finished", "values": {}, "cell": X, "error": ""}


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    found = Places(tmp_path)
    found.make()
    with Lease(found.runs / UNIQUE):
        yield found


def claim(places: Places, cell: str = X) -> Claim | None:
    return take(places, cell, places.tries().get(cell, []), Watch(), run=UNIQUE)


def claimed(places: Places, cell: str = X) -> Claim:
    found = claim(places, cell)
    assert found is not None
    return found


def dead(taken: Claim) -> None:
    """Leaves only a lease file, as if the process that holds the claim had died."""
    note = json.loads((taken.folder / LEASE).read_text())
    taken.lease.end()
    note["owner"]["start"] = "0"
    (taken.folder / LEASE).write_text(json.dumps(note))


def run_files(folder: Path, text: str) -> None:
    for name, content in ((CHECKPOINT, text), (PREVIOUS, f"before {text}"), (RECORDS, text)):
        (folder / name).write_text(content)


def test_a_cell_is_claimed_once_and_its_end_is_one_folder(places: Places) -> None:
    first = claimed(places)
    assert claim(places) is None
    # A command that has not seen the claim meets the claim's folder.
    assert take(places, X, [], Watch()) is None
    assert [p.name for p in places.work.iterdir()] == [f"{X}.1"]
    run_files(first.folder, "run")
    assert first.finish(RECORD)
    assert places.finished() == {X}
    assert sorted(p.name for p in (places.cells / X).iterdir()) == [CELL, RECORDS]
    assert claim(places) is None
    # One who looked before the cell was finished gets none.
    assert take(places, X, [], Watch()) is take(places, X, [1], Watch()) is None
    assert list(places.work.iterdir()) == []
    assert read_cell(places.cells / X) == RECORD


def test_a_released_cell_goes_on_from_its_checkpoint(places: Places) -> None:
    first = claimed(places)
    run_files(first.folder, "one")
    first.release()
    second = claimed(places)
    assert second.folder.name == f"{X}.2" and second.bad == []
    texts = [(second.folder / name).read_text() for name in (CHECKPOINT, PREVIOUS, RECORDS)]
    assert texts == ["one", "before one", "one"]
    run_files(second.folder, "two")
    second.release()
    third = claimed(places)
    assert (third.folder / CHECKPOINT).read_text() == "two"
    third.release()


def died(claim: Claim) -> bool:
    """Whether the one bad try before a claim is a worker that died."""
    return len(claim.bad) == 1 and "its worker died (process" in claim.bad[0]


def test_a_dead_workers_cell_goes_on_from_the_last_checkpoint_there_is(places: Places) -> None:
    first = claimed(places)
    run_files(first.folder, "one")
    # A run that saved once has no checkpoint before its last one.
    (first.folder / PREVIOUS).unlink()
    first.release()
    second = claimed(places)
    (second.folder / CHECKPOINT).unlink()
    dead(second)
    # A lease that nobody can read says nothing against its try.
    (first.folder / LEASE).write_text("?")
    third = claimed(places)
    assert (third.folder / CHECKPOINT).read_text() == "one"
    assert died(third) and not third.is_hopeless
    third.release()
    # A worker that is killed within its limit died too.
    taken = claimed(places, Y)
    (taken.folder / ERROR).write_text("ran longer than its limit of 5 s\n")
    dead(taken)
    second = claimed(places, Y)
    assert died(second)
    second.release()


def test_after_an_error_a_cell_starts_again(places: Places) -> None:
    first = claimed(places)
    run_files(first.folder, "spoilt")
    assert not first.fail(RECORD, "Traceback\nValueError: no\n")
    second = claimed(places)
    assert second.bad == ["ValueError: no"]
    assert not (second.folder / CHECKPOINT).exists()
    assert second.fail(RECORD, "ValueError: no")
    assert places.given_up() == {X} and places.tries() == {}
    assert claim(places) is None


def test_a_cell_whose_workers_died_twice_is_hopeless(places: Places) -> None:
    for _ in range(2):
        dead(claimed(places))
    third = claimed(places)
    assert third.is_hopeless
    assert third.give_up({**RECORD, "status": "failed"})
    assert read_cell(places.settled(X))["status"] == "failed"


def _overrun(places: Places) -> None:
    taken = claimed(places)
    run_files(taken.folder, "slow")
    with taken.limited(0.1):
        # Nothing of Python's gets a turn meanwhile.
        sum(range(10**15))


def _in_time(places: Places) -> None:
    taken = claimed(places, Y)
    with taken.limited(60):
        pass
    taken.finish(RECORD | {"cell": Y})


def in_a_process(call: Callable[[Places], None], places: Places) -> int | None:
    """Calls it in a process that it may end; returns how that ended."""
    process = get_context("fork").Process(target=call, args=(places,))
    process.start()
    process.join()
    return process.exitcode


def test_a_cell_over_its_limit_failed_and_twice_is_given_up_with_its_place(places: Places) -> None:
    assert in_a_process(_overrun, places) == 1
    second = claimed(places)
    assert second.bad == ["ran longer than its limit of 0.1 s"] and not second.is_hopeless
    assert not (second.folder / CHECKPOINT).exists() and not (second.folder / ERROR).exists()
    second.drop()
    assert in_a_process(_overrun, places) == 1
    third = claimed(places)
    assert third.is_hopeless and third.give_up({**RECORD, "status": "failed"})
    text = (places.failed / X / ERROR).read_text()
    assert text.startswith("ran longer than its limit of 0.1 s\n") and " in _overrun" in text
    # A cell within its limit leaves nothing of it.
    assert in_a_process(_in_time, places) == 0
    assert sorted(p.name for p in (places.cells / Y).iterdir()) == [CELL]


def test_what_is_killed_with_its_command_was_not_killed_by_the_cell(places: Places) -> None:
    for _ in range(3):
        dead(claimed(places))
        (places.runs / UNIQUE).unlink(missing_ok=True)
    last = claimed(places)
    assert last.bad == []
    last.release()


@pytest.mark.parametrize(("command", "bad"), [(2.0, 1), (55.0, 0)])
def test_a_command_outlives_a_worker_elsewhere(places: Places, command: float, bad: int) -> None:
    claimed(places).lease._over.set()
    watch, now = Watch(), time.monotonic()
    for path, silent in ((places.at(X, 1) / LEASE, 61.0), (places.runs / UNIQUE, command)):
        watch._seen[path] = path.read_bytes(), now - silent
    other = take(places, X, [1], watch)
    assert other is not None and len(other.bad) == bad
    other.release()


def test_a_late_result_of_a_lost_lease_is_accepted_once(places: Places) -> None:
    slow = claimed(places)
    run_files(slow.folder, "slow")
    # By another command's clock, the lease has been silent for too long.
    watch, lease = Watch(), slow.folder / LEASE
    watch._seen[lease] = lease.read_bytes(), -1e9
    other = take(places, X, [1], watch)
    assert other is not None
    assert slow.finish(RECORD)
    # The cell is finished, so the other command's folder is gone, and its result too.
    assert not other.folder.exists()
    other.folder.mkdir()
    assert not other.finish(RECORD)
    assert (places.cells / X / RECORDS).read_text() == "slow"
    assert list(places.work.iterdir()) == []


def test_a_late_result_counts_for_a_cell_given_up(places: Places) -> None:
    late = claimed(places)
    note = (late.folder / LEASE).read_text()
    dead(late)
    dead(claimed(places))
    assert claimed(places).give_up({**RECORD, "status": "failed"})
    late.folder.mkdir()
    (late.folder / LEASE).write_text(note)
    assert late.finish(RECORD)
    assert places.finished() == {X} and places.given_up() == set()
    assert not (places.failed / X).exists()


def test_what_killed_commands_left_is_swept_up(places: Places) -> None:
    assert claimed(places).finish(RECORD)
    for name in (f"{X}.7", f".{UNIQUE}"):
        (places.work / name).mkdir()
        (places.work / name / "file").touch()
    (places.work / f".{UNIQUE[::-1]}").mkdir()
    (places.runs / UNIQUE[::-1]).write_text(json.dumps({"state": "released"}))
    held = claimed(places, Y)
    places.sweep_up(Watch())
    # An empty folder may be about to become a try.
    assert sorted(p.name for p in places.work.iterdir()) == [f".{UNIQUE[::-1]}", f"{Y}.1"]
    held.release()


def test_a_damaged_cell_is_an_error_that_says_which(places: Places) -> None:
    folder = places.cells / X
    folder.mkdir()
    with pytest.raises(ValueError, match=r"expected the record of a cell .* remove the folder"):
        read_cell(folder)
    for record, message in (
        ({"kind": "run"}, "expected the record of a cell"),
        ({**RECORD, "values": [1]}, r"cell\.json: expected 'values' to be a dict, got \[1\]"),
    ):
        (folder / CELL).write_text(json.dumps(record))
        with pytest.raises(ValueError, match=message):
            read_cell(folder)
    # The files of another cell are not believed.
    assert claimed(places, Y).finish(RECORD)
    with pytest.raises(ValueError, match="belongs to another cell; remove the folder"):
        read_cell(places.cells / Y)


def test_no_damage_of_a_finished_cell_is_believed(places: Places) -> None:
    first, folder = claimed(places), places.cells / X
    (first.folder / RECORDS).write_text('{"test_accuracy": 0.75}\n')
    assert first.finish({**RECORD, "values": {"test_accuracy": 0.75}})
    for name in (CELL, RECORDS):
        whole = (folder / name).read_bytes()
        # The digest's own name is not among what it protects.
        begin = len(whole.partition(b'"sha256"')[0])
        for at in {*range(len(whole) - 1)} - {*range(begin, begin + 8)}:
            damaged = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
            (folder / name).write_bytes(damaged)
            with pytest.raises(ValueError, match=r"expected|remove the folder"):
                pytest.fail(f"byte {at} of {name}: {read_cell(folder)}")
        (folder / name).write_bytes(whole)
    assert read_cell(folder)["values"] == {"test_accuracy": 0.75}


def test_what_is_no_sweep_s_is_passed_over_and_stays(places: Places) -> None:
    names = ("work/.DS_Store", "work/Thumbs.db", "work/a.b", "work/.cache", "runs/Thumbs.db",
             "cells/.DS_Store", "cells/notes", "failed/x")  # fmt: skip
    for name in names:
        (places.root / name).write_text("theirs")
    places.sweep_up(Watch())
    assert places.tries() == {} and places.finished() == places.given_up() == set()
    assert places.strangers() == sorted(names)
    assert claimed(places).finish(RECORD) and places.finished() == {X}
    assert all((places.root / name).read_text() == "theirs" for name in names)
