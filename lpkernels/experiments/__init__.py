"""Models, data sets, the trainer and the runs of the command line and the examples."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas

__all__ = ["frame"]


def frame(path: str | Path) -> "pandas.DataFrame":
    """The epochs of runs as a table of pandas, one row an epoch.

    The columns are the run's number, its settings by the names of their options, its arm, axes,
    seed, status and cell, then the figures of the epoch as its record has them: train_loss,
    test_accuracy, seconds and the callbacks' figures. A figure that has the name of another column,
    "lr" for example, is "lr_figure"; one that an epoch lacks, or that was not finite, is missing
    (NaN).

    Args:
        path: records.jsonl, the folder of a run, or a folder in which runs lie; of a sweep's folder
            the finished cells are taken.

    Raises:
        FileNotFoundError: there is no such path, or no run in the folder.
        ValueError: the records are not of a run.
    """
    # The import takes a second, and not all that imports this package needs it.
    from lpkernels.experiments.records import find_runs, table_of

    runs = find_runs(path)
    if not runs:
        raise FileNotFoundError(
            f"expected records of runs in {str(path)!r}; `lpkernels train` writes them"
        )
    return table_of(runs.values(), epochs=True)
