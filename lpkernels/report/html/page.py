"""The HTML file: plotly's script, the data as JSON, and a script that draws the data."""

import json
import math
from importlib.resources import files
from pathlib import Path
from typing import Any

from lpkernels.experiments.records import write_lines

#: A file of more bytes is slow to open and to send; curves of single layers are left out then.
LIMIT = 6_000_000
_INSTALL = (
    "a report in HTML needs the [report] extra: pip install 'lpkernels[report]' (it brings plotly)"
)


def page(data: dict[str, Any], *, limit: int = LIMIT) -> str:
    """The text of the file.

    Args:
        data: what `gather` returned. Numbers are written so that they read back to the bit.
        limit: bytes. Where there are more, the curves of single layers and the counts of the
            diagnosis by epoch are left out, and the page names the runs.
    Raises: ModuleNotFoundError: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(_INSTALL) from error
    plotly = get_plotlyjs()
    text = _filled(plotly, data)
    if len(text.encode()) > limit:
        text = _filled(plotly, _without_layers(data))
    return text


def _filled(plotly: str, data: dict[str, Any]) -> str:
    folder = files("lpkernels.report.html")
    text, style, script = (
        (folder / name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js")
    )
    # Inside a script no text may look like its end: names come from users.
    written = json.dumps(_told(data), allow_nan=False, separators=(",", ":"))
    written = written.replace("<", "\\u003c")
    parts = {"/*script*/": script, "/*data*/": written, "/*plotly*/": plotly, "/*style*/": style}
    # The last first: a mark's first place is then the page's own, whatever the parts hold.
    for mark, part in parts.items():
        before, _, after = text.partition(mark)
        text = before + part + after
    return text


def _told(value: Any) -> Any:
    """The value with null for numbers that are not finite, and text for integers beyond a
    browser's."""
    if isinstance(value, dict):
        return {name: _told(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_told(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, int) and abs(value) > 2**53 else value


def _without_layers(data: dict[str, Any]) -> dict[str, Any]:
    """The data without what is recorded for single layers; its notes say so."""
    runs, left_out = [], []
    for run in data["runs"]:
        columns = {k: v for k, v in run["epochs"].items() if k not in run["layers"]}
        if run["diagnosis"] or len(columns) < len(run["epochs"]):
            left_out.append(run["label"])
        runs.append({**run, "epochs": columns, "layers": [], "diagnosis": None})
    if not left_out:
        return data
    note = (
        "The file would be too large with the curves of single layers and the diagnosis by layer, "
        f"which are left out for {', '.join(left_out)}. A report of fewer runs has them."
    )
    return {**data, "runs": runs, "notes": [note, *data["notes"]]}


def write_page(data: dict[str, Any], path: str | Path, *, force: bool = False) -> Path:
    """Writes the `data` that `gather` returned to the file at `path`, and makes the folders above.

    Returns: the path.
    Raises:
        FileExistsError: the file exists, and `force` is False.
        ModuleNotFoundError: plotly is not installed.
    """
    path = Path(path)
    if path.exists() and not force:
        raise FileExistsError(f"{path} exists; take another name, or replace it with --force")
    text = page(data)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lines(path, [text])
    return path
