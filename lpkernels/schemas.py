"""The shapes of records, by number, and the only way in which a shape changes.

A record says its kind and its `schema`, an integer apart from the package's version. Where a shape
changes, a row in `MIGRATIONS` says how older records get the new one, and a small file of the new
shape joins tests/data/schemas. A setting that a record lacks has its default; that is no change.

This file imports nothing of the package: `python -m mutants` runs it alone.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

Record = dict[str, Any]

#: Of runs and sweeps, of techniques and commands, of benchmarks, of mutants, proofs and attacks.
KINDS = frozenset({
    "run", "promotions", "diagnosis", "sweep", "cell", "sweep-results", "accumulate",
    "frontier study", "policy",
    "error matrix", "format space", "training recipe", "lpkernels assignment",
    "accumulator_speed",
    "accumulation", "accumulator training", "activation memory", "assignment step",
    "bench", "diagnosis step",
    "frontier choices", "frontier coinciding", "frontier numerics",
    "frontier transfer", "general path", "install", "instructions",
    "landscape",
    "optimizer states", "precision", "precision range", "tensor core", "training loop",
    "triton_counts", "update", "update of small parameters",
    "mutants", "proofs", "attack",
})  # fmt: skip


class Migration(NamedTuple):
    """A change of the shape of a kind.

    change: turns a record of schema `before` into one of schema `after`. It is called for the
        header and then for every line below it; for a kind without headers, for every line.
    """

    kind: str
    before: int
    after: int
    change: Callable[[Record], Record]


def _without_margin(record: Record) -> Record:
    """A plan before margins had none."""
    return {**record, "config": {"margin": 0, **record["config"]}} if "config" in record else record


# What the name of a method meant in a run of schema 1 without `policy`: its recipe in every layer.
_OF_14_BITS = "toward_zero{}:block=32:aligned_bits=13:operands="
_OUTER = ":outer=e8m23:outer_rounding=nearest_even"
_BY_SCALE = f"e8m13_chunkscale:{_OF_14_BITS.format(_OUTER)}e4m3fn"
_PROMOTED = f"e8m13_chunk128:{_OF_14_BITS.format(_OUTER)}e5m2,e4m3fn"
_TE = {
    **dict.fromkeys(("input", "weight"), "tensor_e4m3_te"), "grad_output": "tensor_e5m2_te",
    "fprop": f"e8m13:{_OF_14_BITS.format('')}e4m3fn", "dgrad": _PROMOTED, "wgrad": _PROMOTED,
}  # fmt: skip
_TENSORS = ("input", "weight", "bias", "output", "grad_output", "grad_input", "grad_weight")
_OPERANDS, _SUMS = ("input", "weight", "grad_output"), ("fprop", "dgrad", "wgrad")
_E4M3, _NVFP4 = "block128_k_e4m3", "block16_k_e2m1_se4m3fn_t"
_EVERY_LAYER: dict[str, dict[str, str]] = {
    "fp16_mixed": dict.fromkeys(_TENSORS, "e5m10"),
    "bf16_mixed": dict.fromkeys(_TENSORS, "e8m7"),
    "fp8_wang2018": dict.fromkeys(_OPERANDS, "e5m2") | dict.fromkeys(_SUMS, "e6m9_chunk64"),
    "hfp8_sun2019": dict.fromkeys(_OPERANDS, "e4m3none_b11_sat") | {"grad_output": "e5m2none"}
    | dict.fromkeys(_SUMS, "e6m9_chunk64"),
    "cpt_fu2021": {
        "input": "affine8", "weight": "affine8_axis0", "grad_output": "affine8:stochastic",
        "input_range": "running:0.9",
    },
    "mxfp8": dict.fromkeys(_OPERANDS, "block32_k_e4m3_up"),
    "mxfp8_ocp": dict.fromkeys(_OPERANDS, "block32_k_e4m3"),
    "mxfp6": dict.fromkeys(_OPERANDS, "block32_k_e3m2"),
    "mxfp4": dict.fromkeys(_OPERANDS, "block32_k_e2m1"),
    "mxfp4_sr": dict.fromkeys(_OPERANDS, "block32_k_e2m1_up") | {
        "grad_output": "block32_k_e2m1_up:stochastic",
        "wgrad_input": "block32_k_e2m1_up:rht32=0",
        "wgrad_grad_output": "block32_k_e2m1_up:stochastic:rht32=0",
    },
    "nvfp4": dict.fromkeys(_OPERANDS, _NVFP4) | dict.fromkeys(_SUMS, "e8m23_chunkscale"),
    "nvfp4_pretraining": {
        "input": f"{_NVFP4}_te", "weight": "tile16x16_e2m1_se4m3fn_t_te",
        "grad_output": f"{_NVFP4}_te:stochastic:bits=8",
        **dict.fromkeys(_SUMS, "e8m23_chunkscale"), "wgrad_input": f"{_NVFP4}_te:rht16",
        "wgrad_grad_output": f"{_NVFP4}_te:stochastic:bits=8:rht16",
    },
    "deepseek_v3": dict.fromkeys(_OPERANDS, f"{_E4M3}_sfp32")
    | {"weight": "tile128x128_e4m3_sfp32"} | dict.fromkeys(_SUMS, _BY_SCALE),
    "te_block": dict.fromkeys(_OPERANDS, f"{_E4M3}_up_te") | {"weight": "tile128x128_e4m3_up_te"}
    | dict.fromkeys(_SUMS, f"{_BY_SCALE}:scale_order=left"),
    "te_current": _TE,
    "te_delayed": {**_TE, "scaling": "delayed:history=1024:max"},
    "fp8_rowwise": dict.fromkeys(_OPERANDS, "row_k_e4m3_se8m0_up_torchao"),
    "int8_training": dict.fromkeys(_OPERANDS, "row_k_int8_torchao")
    | dict.fromkeys(_SUMS, "native_chunkscale"),
}  # fmt: skip


def every_layer(name: str) -> str:
    """The text of the recipe in every layer for which the name of a method stood in schema 1."""
    fields = _EVERY_LAYER.get(name)
    if fields is None:
        return name
    return f"Recipe({', '.join(f'{field}={text!r}' for field, text in fields.items())})"


def _one_name(fields: Record, base: Record) -> Record:
    """The fields of a run, or those of an arm over its base, without `policy`: a method's name in
    `recipe` is the method, and the text of a recipe is for every layer."""
    if not fields.keys() & {"recipe", "policy"}:
        return fields
    policy, recipe = ({**base, **fields}.get(name, "") for name in ("policy", "recipe"))
    named = {"recipe": policy or every_layer(recipe or "fp32")}
    return {k: v for k, v in {**fields, **named}.items() if k != "policy"}


def _in_run(key: str) -> Callable[[Record], Record]:
    """The change of a record with a run's configuration under `key`."""

    def change(record: Record) -> Record:
        run = record.get(key)
        if not isinstance(run, dict) or not isinstance(run.get("arithmetic"), dict):
            return record
        return {**record, key: {**run, "arithmetic": _one_name(run["arithmetic"], {})}}

    return change


def _in_sweep(record: Record) -> Record:
    """The change of a record with the specification of a sweep or of a study, or of the line of a
    cell below it."""
    axes = {
        "recipe" if name == "policy" else name: _on_axis(name, values)
        for name, values in record.get("spec", record).get("axes", {}).items()
    }
    if "spec" not in record:
        return {**record, "axes": axes} if axes else record
    spec = dict(record["spec"])
    base = spec.get("base", {})
    for table in spec.keys() & {"arms", "tasks"}:
        spec[table] = {name: _one_name(fields, base) for name, fields in spec[table].items()}
    return {
        **record,
        "spec": {**spec, "base": _one_name(base, {}), **({"axes": axes} if axes else {})},
    }


def _on_axis(name: str, value: Any) -> Any:
    """The values, or the value, of an axis of a sweep."""
    if isinstance(value, list):
        return [_on_axis(name, each) for each in value]
    if name == "recipe":
        return every_layer(value)
    return value or "fp32" if name == "policy" else value


MIGRATIONS: tuple[Migration, ...] = (
    Migration("accumulate", 1, 2, _without_margin),
    *(
        Migration(kind, 1, 2, _in_run("config"))
        for kind in ("run", "promotions", "diagnosis", "cell")
    ),
    *(Migration(kind, 1, 2, _in_sweep) for kind in ("sweep", "sweep-results", "frontier study")),
)


def schema(kind: str) -> int:
    """The schema of a kind today: 1, or where its last migration leads.

    Raises: ValueError: an unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"expected a kind of record among schemas.KINDS, got {kind!r}; add it")
    return max((each.after for each in MIGRATIONS if each.kind == kind), default=1)


def header(kind: str) -> Record:
    """The beginning of a header, which holds for the lines below it."""
    return {"type": "header", "kind": kind, "schema": schema(kind)}


def line(kind: str) -> Record:
    """The beginning of a line that needs no header."""
    return {"type": kind, "schema": schema(kind)}


def current(record: Record, kind: str, where: object) -> Record:
    """A record that stands alone in the shape of today; without a number it is of schema 1.

    where: how an error names its file.
    Raises: ValueError: a schema that this version does not know.
    """
    return _changed(record, kind, _schema_of(record, kind, where), begins=True)


def all_current(records: Iterable[Any], where: object) -> list[Any]:
    """As `current`, for the lines of a file: the schema of a header holds until the next header.

    Lines of a kind outside `KINDS`, and lines that are no records, stay as they are.
    """
    found: list[Any] = []
    kind, number, below = "", 1, False
    for record in records:
        begins = isinstance(record, dict) and (not below or record.get("type") == "header")
        if begins:
            below = record.get("type") == "header"
            kind = str(record.get("kind") if below else record.get("kind", record.get("type")))
            number = _schema_of(record, kind, where) if kind in KINDS else 1
        if isinstance(record, dict) and kind in KINDS:
            record = _changed(record, kind, number, begins=begins)
        found.append(record)
    return found


def _schema_of(record: Record, kind: str, where: object) -> int:
    number, known = record.get("schema", 1), schema(kind)
    if type(number) is not int or number < 1:
        raise ValueError(
            f"{where}: expected as schema of {kind!r} an integer from 1 to {known}, got {number!r}"
        )
    if number > known:
        raise ValueError(
            f"{where}: expected schema <= {known} of {kind!r}, got {number}, which a later version "
            "wrote; update lpkernels to read it"
        )
    return number


def _changed(record: Record, kind: str, number: int, *, begins: bool) -> Record:
    steps = {each.before: each for each in MIGRATIONS if each.kind == kind}
    while number in steps:
        record, number = steps[number].change(record), steps[number].after
    return {**record, "schema": number} if begins else record
