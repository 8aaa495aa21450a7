"""The data of a report, as plain values, from runs, a sweep, a file of its results, or a study."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lpkernels.arithmetic import Recipe
from lpkernels.experiments.records import Run, read_records, runs_by_path
from lpkernels.experiments.sweeps.frontiers.choosing import frontiers
from lpkernels.experiments.sweeps.frontiers.specification import FILE as STUDY
from lpkernels.experiments.sweeps.frontiers.study import read_measured
from lpkernels.experiments.sweeps.places import LOG
from lpkernels.experiments.sweeps.reading import KIND as RESULTS
from lpkernels.experiments.sweeps.reading import Results, read_results
from lpkernels.experiments.sweeps.statistics import summarise
from lpkernels.experiments.training.config import command_of
from lpkernels.experiments.workloads.workload import Metric
from lpkernels.formats.elsewhere import nearest
from lpkernels.nn.emulated import recipe_name
from lpkernels.nn.policies import policies
from lpkernels.techniques.pareto import pareto_front

#: What a part of the page needs, where the records lack it.
WOULD_RECORD = {
    "curves": "No curves: exported results hold each run's last epoch. The folder of the sweep, "
    "in place of the file, has every epoch.",
    "diagnosis": "No heat map of underflow and overflow: `lpkernels train --diagnose recipe` "
    "(or a format) records it.",
    "precision": "No strip of precisions: `lpkernels train --schedule cpt:3-8/8` records bits.",
    "sweep": "No paired differences: a sweep has them (`lpkernels sweep run SPEC.toml --out DIR`).",
    "frontier": "No frontier: a study has one (`lpkernels frontier run TASK.toml --out DIR`).",
}
_BITS = ("bits", "grad_bits", "accumulator_bits")
_PLAIN = ("type",)


def gather(
    paths: Sequence[str | Path], *, metric: str = "", reference: str = "", command: str = ""
) -> dict[str, Any]:
    """What the page shows: runs, settings, environments, differences, frontier, notes.

    Args:
        paths: folders of runs, a sweep's or a study's folder, or a file of `lpkernels sweep table
            --export`. Several are several runs, or several folders of them.
        metric: the field that runs are compared by; "": that of the first run.
        reference: with a sweep, the arm to compare with; "": as its specification says.
        command: the command that made the report, which the page shows.
    Raises:
        FileNotFoundError: a path that is not there.
        ValueError: a folder without records, records of two kinds, a field that no run has, or
            records that this version cannot read.
    """
    # The log of a sweep names its folder.
    places = [p.parent if p.name == LOG and p.is_file() else p for p in map(Path, paths)]
    found = [(path, _kind(path)) for path in places]
    kinds = sorted({kind for _, kind in found})
    if len(kinds) > 1 or (kinds != ["runs"] and len(found) > 1):
        listed = ", ".join(f"{path}: {kind}" for path, kind in found)
        raise ValueError(
            "expected runs, or one sweep, or one study of frontiers, and got several in one "
            f"report ({listed}); make a report of each"
        )
    if not found:
        raise ValueError("expected at least one folder or file, got no paths")
    path, kind = found[0]
    if reference and kind not in ("sweep", "results"):
        raise ValueError(
            f"reference: it names an arm of a sweep, got {reference!r} with {path}: {kind}; leave "
            "it out"
        )
    folders = [each for each, _ in found]
    data: dict[str, Any] = {"title": _title(folders)}
    results = read_results(path) if kind in ("sweep", "results") else None
    runs = (
        _runs_of(results)
        if kind == "results" and results
        else _read_runs([path for path, _ in found])
    )
    if not runs:
        raise ValueError(
            f"no records of a run in {', '.join(map(str, folders))}; `lpkernels train` writes them"
        )
    of = results.header["metric"] if results else runs[0]["metric"]
    data |= {
        "command": command,
        "metric": _chosen(runs, Metric(**of), metric),
        "runs": runs,
        "settings": _settings(runs),
        "environments": _environments(runs),
        "sweep": _differences(results, metric, reference) if results else None,
        "frontier": None,
    }
    lacking: dict[str, str] = {}
    if kind == "study":
        data["frontier"], lacking = _frontier(path)
    missing = {name: text for name, text in WOULD_RECORD.items() if not _has(data, name)}
    data["notes"] = list({**missing, **lacking}.values())
    if data["sweep"] and not data["sweep"]["reference"]:
        data["notes"].insert(0, "No paired differences: the arm to compare with has no result yet.")
    if results and results.broken:
        data["notes"] = [f"Not compared: {text}" for text in results.broken] + data["notes"]
    if results and results.missing:
        data["notes"].insert(0, f"{results.missing} cells of the sweep have no result yet.")
    for run in runs:
        del run["environment"], run["config"]
    return data


def _kind(path: Path) -> str:
    if not path.exists():
        raise FileNotFoundError(
            f"expected the folder of a run, a sweep or a study, or a file of records, at {path}"
        )
    if path.is_dir():
        if (path / STUDY).is_file():
            return "study"
        return "sweep" if (path / LOG).is_file() else "runs"
    first = read_records(path)[:1]
    kind = first[0].get("kind", "") if first and isinstance(first[0], dict) else ""
    return "results" if kind == RESULTS else "runs"


def _title(paths: Sequence[Path]) -> str:
    return ", ".join(path.stem if path.is_file() else path.resolve().name for path in paths)


def _has(data: Mapping[str, Any], part: str) -> bool:
    runs = data["runs"]
    if part == "curves":
        return any(len(run["epochs"].get("epoch", ())) > 0 for run in runs)
    if part == "diagnosis":
        return any(run["diagnosis"] for run in runs)
    if part == "precision":
        return any(name in run["epochs"] for run in runs for name in _BITS)
    return bool(data[part])


def _read_runs(paths: Sequence[Path]) -> list[dict[str, Any]]:
    runs = [_run(run, path) for each in paths for path, run in runs_by_path(each).items()]
    names = [run["label"] for run in runs]
    for place, run in enumerate(runs):
        if names.count(names[place]) > 1:
            run["label"] += f" ({names[: place + 1].count(names[place])})"
    return runs


def _run(run: Run, path: Path) -> dict[str, Any]:
    config = _flat(run.header["config"])
    columns = {
        name: [epoch.get(name) for epoch in run.epochs]
        for name in dict.fromkeys(name for epoch in run.epochs for name in epoch)
        if name not in _PLAIN
    }
    numbers = {k: v for k, v in columns.items() if all(_is_number(x) for x in v)}
    state = "finished" if run.finished else "stopped"
    return {
        "label": f"{run.name}, seed {config.get('seed', 0)}",
        "arm": run.name,
        "arithmetic": _arithmetic(config, run),
        "seed": config.get("seed"),
        "status": "diverged" if run.diverged else state,
        "epochs": numbers,
        "last": {
            **{name: values[-1] for name, values in numbers.items() if values},
            **({"seconds": run.seconds} if run.epochs else {}),
        },
        "layers": _layer_fields(numbers),
        "diagnosis": _diagnosis(path.parent / "diagnosis.jsonl"),
        "metric": run.header["metric"],
        "config": config,
        "environment": run.header.get("environment", {}),
        "command": _train_command(run, path),
    }


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _arithmetic(config: Mapping[str, Any], run: Run) -> str:
    """The arithmetic as a legend names it."""
    operands, acc = config.get("operands"), config.get("acc")
    parts = [f"{operands} operands" if operands else "", f"sums in {acc}" if acc else ""]
    named = str(config.get("recipe") or run.header.get("accumulator", ""))
    if named.startswith("Recipe("):
        with contextlib.suppress(TypeError, ValueError):
            named = recipe_name(Recipe.parse(named))
        # A name alone is the method, with the layers that it leaves apart.
        named += " in every layer" if named in policies() else ""
    found = [part for part in parts if part]
    return ", ".join(found if found and named == "fp32" else [named, *found])


def _layer_fields(columns: Mapping[str, Any]) -> list[str]:
    """Fields of single layers: another field with one word or two less holds their total. A test's
    figure is of the whole network, at other bits too ("test_loss_last_bits")."""
    parts = [name for name in columns if not name.startswith("test_")]
    return [name for name in parts if any(name.startswith(f"{other}_") for other in parts)]


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run by their own names, whatever the version that wrote them."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= _flat(value) if isinstance(value, Mapping) else {name: value}
    return found


def _train_command(run: Run, path: Path) -> str:
    """The command that repeats the run; a sentence where this version has none."""
    try:
        config = run.config
    except (TypeError, ValueError) as error:
        return f"# this version cannot repeat it: {' '.join(str(error).split())}"
    return command_of(config, "results/again")


def _diagnosis(path: Path) -> dict[str, Any] | None:
    """The shares of elements that over- and underflowed, [tensor][epoch], None where none was
    counted; None without a file that has epochs."""
    lines = (
        [line for line in read_records(path) if line.get("type") == "epoch"]
        if path.is_file()
        else []
    )
    if not lines:
        return None
    tensors = list(dict.fromkeys((row[0], row[1]) for line in lines for row in line["rows"]))
    shares: dict[str, list[list[float | None]]] = {"overflow": [], "underflow": []}
    found = [{(row[0], row[1]): row[2:] for row in line["rows"]} for line in lines]
    for tensor in tensors:
        for place, what in enumerate(("overflow", "underflow"), start=1):
            counts = [each.get(tensor, (0, 0, 0)) for each in found]
            shares[what].append([c[place] / c[0] if c[0] else None for c in counts])
    return {
        "tensors": [" ".join(part for part in tensor if part) for tensor in tensors],
        "epochs": [line["epoch"] for line in lines],
        **shares,
    }


def _runs_of(results: Results) -> list[dict[str, Any]]:
    """The cells of exported results: each has its last epoch alone."""
    # It is read anew at each look.
    spec = results.spec
    return [
        {
            "label": ", ".join([each.arm, *_places(each.axes), f"seed {each.seed}"]),
            "arm": each.arm,
            "arithmetic": "",
            "seed": each.seed,
            "status": each.status,
            "epochs": {},
            "last": {k: v for k, v in each.values.items() if _is_number(v) and k not in _PLAIN},
            "layers": [],
            "diagnosis": None,
            "metric": results.header["metric"],
            "config": {
                **spec.base, **spec.arms.get(each.arm, {}), **dict(each.axes), "seed": each.seed,
            },
            "environment": None,
            "command": "",
        }
        for each in results.results
    ]  # fmt: skip


def _places(axes: Sequence[tuple[str, Any]]) -> list[str]:
    return [f"{name} {value}" for name, value in axes]


def _chosen(runs: Sequence[Mapping[str, Any]], own: Metric, field: str) -> dict[str, Any]:
    """The metric, or the field that was asked for."""
    known = list(dict.fromkeys(name for run in runs for name in run["last"]))
    if field and field not in known:
        names = nearest(field, known, "the records list all") or "none, since no run has an epoch"
        raise ValueError(f"metric: expected one of {names}, got {field!r}")
    if not field or field == own.field:
        return {"field": own.field, "label": own.label, "percent": own.percent}
    return {"field": field, "label": field.replace("_", " "), "percent": False}


def _settings(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The settings that all runs share, and those that differ, a row for each run."""
    names = list(dict.fromkeys(name for run in runs for name in run["config"]))
    texts = {n: [json.dumps(run["config"].get(n), default=str) for run in runs] for n in names}
    varied = [n for n in names if len(set(texts[n])) > 1 and n != "name"]
    shared = {n: runs[0]["config"].get(n) for n in names if n not in varied and n != "name"}
    rows = [[run["config"].get(name) for name in varied] for run in runs]
    return {"shared": shared, "varied": varied, "rows": rows}


def _environments(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each environment once, with the labels of its runs."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        if run["environment"]:
            key = json.dumps(run["environment"], sort_keys=True)
            found.setdefault(key, {"of": run["environment"], "runs": []})["runs"].append(
                run["label"]
            )
    return list(found.values())


def _differences(results: Results, field: str, reference: str) -> dict[str, Any]:
    """The arms of a sweep, their means and their differences, paired by seed."""
    own = Metric(**results.header["metric"])
    spec = results.spec
    compare = reference or results.compare
    summaries = summarise(results.results, field or own.field, reference=compare)
    rows = []
    for each in summaries:
        found = each.difference
        rows.append({
            "arm": each.arm,
            "place": ", ".join(_places(each.axes)),
            "mean": each.mean, "error": each.error, "figures": each.figures,
            "diverged": each.diverged, "failed": each.failed,
            "pairs": found.pairs if found else 0,
            "difference": found.mean if found else None,
            "interval": list(found.interval) if found and found.interval else None,
            "p": found.p_holm if found else None,
        })  # fmt: skip
    return {
        "name": spec.name,
        "reference": compare,
        "level": summaries[0].level,
        "rows": rows,
        "spec": spec.to_dict(),
        "environments": results.header.get("environments", []),
    }


def _frontier(folder: Path) -> tuple[list[dict[str, Any]] | None, dict[str, str]]:
    """The frontier of each task of a study: memory, error and name of each configuration, None
    without any; and notes on the tasks that have too little measured yet."""
    measured, made = read_measured(folder), []
    lacking: dict[str, str] = {}
    for task in (name for name in measured.spec.tasks if measured.asked[name]):
        try:
            each = frontiers(measured, task=task)[task]
        except ValueError as error:
            lacking["frontier" if not lacking else task] = f"No frontier: {error}"
            continue
        made.append({
            "task": task, "how": each.how, "names": list(each.names),
            "memory": each.memory.tolist(),
            "measured": [None if x != x else x for x in each.measured.tolist()],
            "error": each.predicted.tolist(),
            "low": each.band.error_low.tolist(), "high": each.band.error_high.tolist(),
            "front": [int(i) for i in pareto_front(each.memory, each.predicted)],
        })  # fmt: skip
    return made or None, lacking
