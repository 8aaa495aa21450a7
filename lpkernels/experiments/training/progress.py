"""A progress bar in the terminal, of a run or of a sweep."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

# A bar that reads the loss more often than this would make a GPU wait.
_EVERY_S = 0.2
# The time left is judged by the speed of the last hour: cells of a sweep take minutes.
_SPEED_S = 3600.0


@contextmanager
def progress_bar(
    console: "Console | None", total: int, look: Callable[[], tuple[float, str]]
) -> Iterator[Callable[[bool], None]]:
    """A function that renews a bar on `console`, if there is one: at once where its argument is
    true, else if it did not do so a moment ago.

    look: how much of `total` is done, and the words beside the bar.
    """
    if console is None:
        yield lambda at_once: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.percentage:>3.0f}%"),
        BarColumn(),
        TextColumn("{task.description}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, speed_estimate_period=_SPEED_S) as bar:
        task, last = bar.add_task("", total=total), 0.0

        def renew(at_once: bool) -> None:
            nonlocal last
            if at_once or time.monotonic() - last > _EVERY_S:
                done, words = look()
                bar.update(task, completed=done, description=words)
                last = time.monotonic()

        # What was done before does not count for the speed.
        renew(True)
        yield renew
