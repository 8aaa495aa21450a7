"""The progress bar of a run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def progress(
    console: "Console | None", name: str, total: int
) -> Iterator[Callable[[int, str], None]]:
    """A bar over `total` steps on `console`, none if `console` is None; yields the function to call
    with the steps done and a note."""
    if console is None:
        yield lambda completed, note: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(name, total=total, note="")
        yield lambda completed, note: bar.update(task, completed=completed, note=note)
