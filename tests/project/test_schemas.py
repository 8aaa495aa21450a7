"""Every record opens: all of the repository's, and a small file of every kind and schema."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lpkernels as lp
import mutants.score
from bench import landscape, optimizer_states
from lpkernels import schemas
from lpkernels.experiments.records import read_records, read_run
from lpkernels.experiments.sweeps.accumulate import read_study
from lpkernels.experiments.sweeps.cells import read_cell
from lpkernels.experiments.sweeps.frontiers.choosing import read_choices
from lpkernels.experiments.sweeps.frontiers.specification import read_study_spec
from lpkernels.experiments.sweeps.log import read_specs
from lpkernels.experiments.sweeps.places import Places
from lpkernels.experiments.sweeps.reading import read_results
from lpkernels.schemas import KINDS, MIGRATIONS, Migration, all_current, schema
from lpkernels.techniques.assignment import Assignment
from lpkernels.techniques.loss_scaling import Report
from lpkernels.techniques.pareto import ErrorMatrix, FormatSpace, TrainingRecipe
from tests.support.commands import call, sentence
from tests.support.refusals import rejects

ROOT = Path(__file__).parents[2]
SCRIPTS = ("mutants", "proofs", "attacks")
FILES = sorted((ROOT / "tests/data/schemas").iterdir())
PLACES = ("bench/results/*.json*", *(f"{each}/results.jsonl" for each in SCRIPTS))
COMMITTED = [path for place in PLACES for path in sorted(ROOT.glob(place))]

#: The readers of kinds that have one of their own, of a file or of its folder.
READERS: dict[str, Callable[[Path], Any]] = {
    "run": read_run, "diagnosis": lambda path: Report.load(path).rows,
    "sweep": lambda path: read_specs(Places(path.parent)),
    "cell": lambda path: read_cell(path.parent), "sweep-results": read_results,
    "accumulate": read_study,
    "policy": lp.load_policy, "frontier study": lambda path: read_study_spec(path.parent),
    "frontier choices": read_choices, "error matrix": ErrorMatrix.load,
    "format space": lambda path: FormatSpace.from_json(path.read_text()),
    "training recipe": TrainingRecipe.load, "lpkernels assignment": Assignment.load,
    "landscape": landscape.held, "optimizer states": optimizer_states.held,
    "mutants": mutants.score.read,
}  # fmt: skip
#: The file names that readers of a folder expect.
NAMES = {
    "sweep": "sweep.jsonl", "cell": "cell.json",
    "frontier study": "frontier.json",
}  # fmt: skip


def kind_of(path: Path) -> str:
    first = json.loads(path.read_text().splitlines()[0])
    return str(first.get("kind") or first.get("type") or first["what"])


def read(path: Path) -> Any:
    return READERS.get(kind_of(path), read_records)(path)


def as_named(path: Path, folder: Path, change: Callable[[dict[str, Any]], object] = bool) -> Path:
    """A copy of a file in `folder`, its header or its line changed, called as its reader asks."""
    first, *rest = path.read_text().splitlines()
    record = json.loads(first)
    change(record)
    if kind_of(path) == "cell":
        folder /= record["cell"]
        folder.mkdir()
    copy = folder / NAMES.get(kind_of(path), path.name)
    copy.write_text("\n".join([json.dumps(record), *rest]) + "\n")
    return copy


def test_every_kind_has_a_file_of_every_schema_and_migrations_between_them() -> None:
    slugs = {kind: re.sub(r"\W+", "-", kind) for kind in KINDS}
    wanted = {f"{slugs[k]}-{n}.jsonl" for k in KINDS for n in range(1, schema(k) + 1)}
    assert {path.name for path in FILES} == wanted
    assert {kind_of(path) for path in FILES} == KINDS
    assert all(each.after == each.before + 1 for each in MIGRATIONS)
    for kind in {each.kind for each in MIGRATIONS}:
        steps = sorted(each.before for each in MIGRATIONS if each.kind == kind)
        assert steps == list(range(1, schema(kind)))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_files_of_every_schema_open_and_later_ones_do_not(path: Path, tmp_path: Path) -> None:
    assert read(as_named(path, tmp_path))
    known = schema(kind_of(path))
    (tmp_path / "later").mkdir()
    later = as_named(path, tmp_path / "later", lambda record: record.update(schema=known + 2))
    message = rf"expected schema <= {known} of .*, got {known + 2}, .*; update lpkernels to read"
    with pytest.raises(ValueError, match=message):
        read(later)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_published_records_open(path: Path) -> None:
    assert read(path)
    heads = [r for r in map(json.loads, path.read_text().splitlines()) if "schema" in r]
    assert heads and {kind_of(path)} <= KINDS
    # A line with no header above it says its own schema.
    assert heads[0].get("type") == "header" or len(heads) == len(path.read_text().splitlines())


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.stem.endswith("-1")], ids=lambda path: path.stem
)
def test_a_record_without_a_schema_is_of_schema_1(path: Path, tmp_path: Path) -> None:
    (tmp_path / "with").mkdir()
    with_schema = read(as_named(path, tmp_path / "with"))
    without = read(as_named(path, tmp_path, lambda record: record.pop("schema")))
    assert repr(without) == repr(with_schema) or without == with_schema


test_a_schema_is_a_positive_integer = rejects(
    lambda number: all_current([{**schemas.header("run"), "schema": number}], "x.jsonl"),
    [
        (number, r"x\.jsonl: expected as schema of 'run' an integer from")
        for number in (0, -1, True, 1.0, "1", None, [1])
    ],
)


def test_kinds_that_are_not_listed_are_refused_or_of_another_house_and_stay() -> None:
    with pytest.raises(ValueError, match=r"among schemas\.KINDS, got 'guess'; add it"):
        schemas.line("guess")
    lines = [{"type": "header", "kind": "theirs", "schema": 7}, {"type": "epoch"}, [1]]
    assert all_current(lines, "x") == lines


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two changes of runs, and one of a kind without headers."""

    def rename(old: str, new: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
        return lambda record: {new if key == old else key: record[key] for key in record}

    changes = (
        Migration("run", 2, 3, rename("rate", "lr")),
        Migration("run", 1, 2, rename("speed", "rate")),
        Migration("landscape", 1, 2, rename("sharp", "eigenvalue")),
    )
    monkeypatch.setattr(schemas, "MIGRATIONS", changes)


@pytest.mark.usefixtures("renamed")
def test_migrations_change_a_header_and_what_is_below_it_or_each_line(tmp_path: Path) -> None:
    first = {"type": "header", "kind": "run", "speed": 1}
    lines = [first, {"type": "epoch", "speed": 2}, {**schemas.header("run"), "speed": 3}]
    found = all_current([*lines, {"type": "epoch", "rate": 4}], "x")
    new = {"type": "header", "kind": "run", "lr": 1, "schema": 3}
    assert found == [new, {"type": "epoch", "lr": 2}, lines[2], {"type": "epoch", "rate": 4}]
    # A kind without headers.
    lines = [{"type": "landscape", "schema": n, "sharp": n} for n in (1, 2)]
    new = {"type": "landscape", "schema": 2, "eigenvalue": 1}
    assert all_current(lines, "x") == [new, lines[1]]
    # Readers see the shape of today.
    (sample,) = (path for path in FILES if path.stem == "run-1")
    path = as_named(sample, tmp_path, lambda record: record.update(rate=0.5, schema=2))
    assert read_run(path).header["lr"] == 0.5


COMMANDS = [
    ("run", "report .", "records.jsonl"),
    ("sweep-results", "sweep table x.jsonl", "x.jsonl"),
    ("sweep-results", "sweep plot x.jsonl --out x.png", "x.jsonl"),
    ("sweep", "sweep status .", "sweep.jsonl"),
    ("frontier study", "frontier status .", "frontier.json"),
    ("frontier choices", "frontier plot x.jsonl --what choices --out x.png", "x.jsonl"),
    ("error matrix", "frontier predict . --known x.json", "x.json"),
    ("accumulate", "accumulate --resume --out .", "accumulate.jsonl"),
]


@pytest.mark.parametrize("kind, command, name", COMMANDS)
def test_commands_refuse_a_later_schema(kind, command, name, tmp_path, monkeypatch):
    *_, sample = (path for path in FILES if kind_of(path) == kind)
    (tmp_path / "in").mkdir()
    known = schema(kind)
    copy = as_named(sample, tmp_path / "in", lambda record: record.update(schema=known + 2))
    copy.rename(tmp_path / "in" / name)
    monkeypatch.chdir(tmp_path / "in")
    said = " ".join(re.sub("[│╭╮╰╯─]", " ", sentence(call(*command.split()), 2)).split())
    expected = f"expected schema <= {known} of '{kind}', got {known + 2}, which a later version"
    assert f"{expected} wrote; update" in said


def test_names_in_runs_of_schema_1_are_read_as_what_they_meant(tmp_path: Path) -> None:
    wang = str(lp.recipe("fp8_wang2018"))
    assert {name: schemas.every_layer(name) for name in lp.policies()} == {
        name: str(lp.recipe(name)) for name in lp.policies()
    }
    for given, meant in (
        ({"recipe": "fp8_wang2018", "policy": ""}, wang), ({"recipe": wang}, wang),
        ({"recipe": "fp32", "policy": ""}, "fp32"), ({"recipe": "hopper_fp8"}, "hopper_fp8"),
        ({"recipe": "fp32", "policy": "mxfp8"}, "mxfp8"),
    ):  # fmt: skip
        run = {"type": "header", "kind": "run", "config": {"arithmetic": {**given, "acc": ""}}}
        (header,) = all_current([run], "x")
        assert header["config"]["arithmetic"] == {"recipe": meant, "acc": ""}
    spec = {
        "base": {"policy": "cpt_fu2021", "epochs": 1}, "seeds": [0],
        "arms": {"a": {"epochs": 2}, "b": {"policy": ""}, "c": {"recipe": "mxfp8", "policy": ""}},
    }  # fmt: skip
    found = schemas.current({"kind": "sweep", "spec": spec}, "sweep", "x")["spec"]
    assert found["base"] == {"epochs": 1, "recipe": "cpt_fu2021"} and found["seeds"] == [0]
    mxfp8 = str(lp.recipe("mxfp8"))
    assert found["arms"] == {
        "a": {"epochs": 2}, "b": {"recipe": "fp32"}, "c": {"recipe": mxfp8},
    }  # fmt: skip
    axes = {"policy": ["", "mxfp8"], "lr": [1, 2]}
    lines = [{"type": "header", "kind": "sweep-results", "spec": {"base": {}, "axes": axes}}]
    lines += [{"type": "cell", "axes": {"policy": "", "lr": 1}}, {"type": "cell", "axes": {}}]
    header, *cells = all_current(lines, "x")
    assert header["spec"]["axes"] == {"recipe": ["fp32", "mxfp8"], "lr": [1, 2]}
    assert [cell["axes"] for cell in cells] == [{"recipe": "fp32", "lr": 1}, {}]
    axes = {"recipe": ["fp8_wang2018", "fp32"]}
    study = {"kind": "frontier study", "spec": {"tasks": {"t": {"recipe": "mxfp8"}}, "axes": axes}}
    found = schemas.current(study, "frontier study", "x")["spec"]
    assert found["tasks"] == {"t": {"recipe": mxfp8}}
    assert found["axes"] == {"recipe": [wang, "fp32"]}
