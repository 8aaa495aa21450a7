"""Models, data sets, the trainer and the runs of the command line and the examples."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas

__all__ = ["frame"]


def frame(path: str | Path) -> "pandas.DataFrame":
    """The epochs of runs as a table of pandas, one row an epoch.

    The columns are the run's number, every setting by the name of its option, then the figures of
    the epoch as its record has them: train_loss, test_accuracy, seconds and the callbacks' figures.
    Where a setting and a figure have one name, "lr" for example, the setting is "lr_setting". A
    figure that an epoch lacks, or that was not finite, is missing (NaN).

    Args:
        path: records.jsonl, the folder of a run, or a folder in which runs lie; of a sweep's folder
            the finished cells are taken.

    Raises:
        FileNotFoundError: there is no such path, or no run in the folder.
        ValueError: the records are not of a run.
    """
    # These take a second, and not all that imports this package needs them.
    import pandas

    from lpkernels.experiments.records import find_runs, read_run

    runs = [*find_runs(path).values()] if Path(path).exists() else [read_run(path)]
    if not runs:
        raise FileNotFoundError(
            f"expected records of runs in {str(path)!r}; `lpkernels train` writes them"
        )
    figures = {name for run in runs for epoch in run.epochs for name in epoch}
    rows = []
    for number, run in enumerate(runs):
        settings = run.config.flat().items()
        named = {f"{k}_setting" if k in figures else k: value for k, value in settings}
        rows += [{"run": number, **named, **epoch} for epoch in run.epochs]
    return pandas.DataFrame(rows).drop(columns="type")
