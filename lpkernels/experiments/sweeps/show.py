"""The progress of a sweep: how many cells are done, and the time left.

It is read from the folder, so it counts what any engine and any other command does there.
"""

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from lpkernels.experiments.processes.leases import HELD, Note
from lpkernels.experiments.sweeps.places import LEASE, Places

if TYPE_CHECKING:
    from rich.console import Console

_LOOK_EVERY = 0.5
# The time left is judged by what was done in so many seconds: cells take minutes.
_SPEED_SECONDS = 3600.0


class Counts(NamedTuple):
    """How many cells are finished, failed and running; done: with the parts of running ones."""

    finished: int
    failed: int
    running: int
    done: float

    def __str__(self) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.finished} finished, {self.running} running{failed}"


def count(places: Places, cells: Collection[str]) -> Counts:
    """What the folder says of `cells`."""
    finished = len(places.finished().intersection(cells))
    failed = len(places.given_up().intersection(cells))
    shares = []
    for cell, numbers in places.tries().items():
        note = Note.read(places.at(cell, numbers[-1]) / LEASE) if cell in cells else None
        if note is not None and note.state == HELD:
            shares.append(min(1.0, note.done / max(note.total, 1)))
    return Counts(finished, failed, len(shares), finished + failed + sum(shares))


@contextmanager
def shown(console: "Console | None", places: Places, cells: Collection[str]) -> Iterator[None]:
    """A bar on `console` while the context lasts; none if that is None."""
    if console is None:
        yield
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.percentage:>3.0f}%"),
        BarColumn(),
        TextColumn("{task.description}", markup=False),
        TimeRemainingColumn(),
    )
    over = threading.Event()
    with Progress(*columns, console=console, speed_estimate_period=_SPEED_SECONDS) as bar:
        now = count(places, cells)
        task = bar.add_task(str(now), total=len(cells))
        # It is set apart, so that cells done before do not count for the speed.
        bar.update(task, completed=now.done)

        def look() -> None:
            while not over.wait(_LOOK_EVERY):
                update()

        def update() -> None:
            now = count(places, cells)
            bar.update(task, description=str(now), completed=now.done)

        watcher = threading.Thread(target=look, daemon=True, name="progress")
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
            update()
