"""The progress bar of a run."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

#: show(done, note): the steps done, and a function that makes the bar's text.
Show = Callable[[int, Callable[[], str]], None]

# A bar that reads the loss more often than this would make a GPU wait.
_SHOW_EVERY_S = 0.2


@contextmanager
def progress(console: "Console | None", name: str, total: int) -> Iterator[Show]:
    """A bar over `total` steps on `console`, none if `console` is None; yields the function to call
    after each step."""
    if console is None:
        yield lambda done, note: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task, shown = bar.add_task(name, total=total, note=""), time.perf_counter()

        def show(done: int, note: Callable[[], str]) -> None:
            nonlocal shown
            now = time.perf_counter()
            if now - shown > _SHOW_EVERY_S or done == total:
                bar.update(task, completed=done, note=note())
                shown = now

        yield show
