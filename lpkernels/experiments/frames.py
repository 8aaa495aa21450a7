"""Records as a frame of pandas. The modules that `import lpkernels` need not load are imported in
the call."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

    from lpkernels.experiments.records import Run


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
        ModuleNotFoundError: pandas is not installed.
        FileNotFoundError: there is no such path, or no run in the folder.
        ValueError: the records are not of a run.
    """
    try:
        import pandas
    except ImportError as error:
        raise ModuleNotFoundError('frame needs pandas: pip install "lpkernels[lab]"') from error
    from lpkernels.experiments.records import find_runs, read_run

    found = find_runs(path) if Path(path).exists() else [read_run(path)]
    if not found:
        raise FileNotFoundError(
            f"expected records of runs in {str(path)!r}; `lpkernels train` writes them"
        )
    figures = dict.fromkeys(
        k for run in found for epoch in run.epochs for k in epoch if k != "type"
    )
    return pandas.DataFrame(
        [
            {"run": number, **_settings(run, figures), **{k: epoch.get(k) for k in figures}}
            for number, run in enumerate(found)
            for epoch in run.epochs
        ]
    )


def _settings(run: "Run", figures: Collection[str]) -> dict[str, Any]:
    settings = run.config.flat().items()
    return {f"{name}_setting" if name in figures else name: value for name, value in settings}
