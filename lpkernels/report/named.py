"""Tables of what has a name (formats, recipes, tensor cores), and of a product's speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from rich.table import Table

from lpkernels import formats
from lpkernels.arithmetic import MODELS, UNITS, Unit
from lpkernels.formats import BlockFormat, FixedFormat, FloatFormat, Format, Number, TableFormat
from lpkernels.functional import pack, quantize
from lpkernels.report.tables import details, make_table

if TYPE_CHECKING:
    from lpkernels.experiments.measuring.speed import Speed

# Names of tables, and what stands for n, es and the others.
_TABLES = (
    ("posit<n>es<es>", "posit8es1", "the posits of n bits"),
    (
        "supernormal_e<E>m<M>_<low>_<high>",
        "supernormal_e4m3_1_1",
        "floats whose outer exponent codes count powers of two",
    ),
    ("log<bits>s<steps>", "log8s8", "powers of two in steps of 1 / steps"),
    ("nf4", "nf4", "QLoRA's 16 values"),
)
# More values than these make no readable list.
_MOST_VALUES = 256
_FIELDS: dict[type, str] = {
    FloatFormat: "bits exp_bits man_bits bias specials signed subnormals overflow max min_normal "
    "min_subnormal epsilon",
    FixedFormat: "bits word_bits frac_bits signed overflow min max quantum",
    formats.AffineFormat: "bits symmetric axis",
    TableFormat: "bits min max infinity nan_code boundary_bits",
    BlockFormat: "bits element block_size axis scale rule tensor_scale scale_target target steps",
}
_TIERS = {
    "hardware": "e5m10 by half-precision instructions of the processor (AVX512-FP16, FEAT_FP16)",
    "certified": "the operands prove float32 or double sums safe; a few operations a product",
    "float": "float32 sums made odd, any operands, up to 21 mantissa bits (AVX-512)",
    "double": "everything, also more than 21 bits and products rounded in any way",
}
# Where units come from, by their evidence.
_SOURCES = {
    "recordings": "Khattak and Mikaitis 2026, doi:10.1145/3830409, arXiv 2512.07004, recordings of "
    "MATLAB-tensor-core, and what docs/tensor-cores.md names",
    "model only": "MMA-Sim, arXiv 2511.10909, the program microsoft/MMA-Sim: a model, no recording",
    "model of MMA-Sim": "MMA-Sim 2.1.1, whose authors compared it with these GPUs on random bits "
    "and published no outputs",
    "hardware": "outputs of an MI300 in MMA-Sim's notebook of CDNA3; of RDNA, fixtures of "
    "rocjitsu, AMD's emulator (ROCm/rocm-systems)",
}


def named_formats() -> Table:
    """A row for every named float format."""
    limits = ("max", "min normal", "min subnormal", "epsilon")
    columns = ("name", "bits", "exp", "man", "bias", *limits, "specials", "overflow")
    rows = [
        (
            name, *map(str, (fmt.bits, fmt.exp_bits, fmt.man_bits, fmt.bias)),
            *(f"{x:.6g}" for x in (fmt.max, fmt.min_normal, fmt.min_subnormal, fmt.epsilon)),
            fmt.specials, fmt.overflow,
        )
        for name, fmt in formats.NAMED.items()
    ]  # fmt: skip
    words = ("name", "specials", "overflow")
    return make_table(columns, rows, words=words, title="Named float formats")


def aliases() -> Table:
    """A row for every alias of a block format, with the bits of a value and its share of scales."""
    rows = [
        (alias, name, f"{formats.parse_format(name).bits:g}")
        for alias, name in formats.ALIASES.items()
    ]
    columns = ("alias", "name", "bits")
    return make_table(columns, rows, words=columns[:2], title="Aliases of block formats")


def named_tables() -> Table:
    """A row for every form of the names of tables, with the numbers of an example."""
    rows = []
    for form, example, values in _TABLES:
        fmt = formats.parse_format(example)
        assert isinstance(fmt, TableFormat)
        rows.append((form, example, values, str(fmt.bits), f"{fmt.min:.6g}", f"{fmt.max:.6g}"))
    columns = ("name", "example", "values", "bits", "min", "max")
    return make_table(columns, rows, words=columns[:3], title="Tables of values")


def format_details(fmt: Format) -> Table:
    """The parameters and limits of one format, and its values where there are at most 256."""
    names = next(names for kind, names in _FIELDS.items() if isinstance(fmt, kind))
    fields = {name: getattr(fmt, name) for name in names.split()}
    rows = {k: f"{v:.9g}" if isinstance(v, float) else str(v) for k, v in fields.items()}
    same = [name for name, named in formats.NAMED.items() if named == fmt]
    if same:
        rows["names"] = ", ".join(same)
    if isinstance(fmt, Number) and fmt.bits <= 8 and len(values := fmt.values()) <= _MOST_VALUES:
        rows[f"{len(values)} values"] = "  ".join(f"{value:.6g}" for value in values)
    return details(rows, title=str(fmt))


def probes(values: Sequence[float], fmt: Format, rounding: str, *, seed: int = 0) -> Table:
    """The code, the result and the error of values that are rounded to a format, straight from
    float64. Block and affine formats take their scale from all values together."""
    x = torch.tensor(values, dtype=torch.float64, device="cpu")
    generator = torch.Generator().manual_seed(seed)
    results = quantize(x, fmt, rounding, generator=generator).double().tolist()
    cells = [
        (repr(value), code_text(result, fmt) or "-", f"{result:.9g}", f"{result - value:.3g}")
        for value, result in zip(x.tolist(), results, strict=True)
    ]
    columns = ("value", "code", "result", "error")
    return make_table(columns, cells, title=f"{fmt}, {rounding}")


def code_text(value: float, fmt: Format) -> str:
    """The code of a value of `fmt` in bits, fields apart ("0 1111 110"); "" where it has none."""
    if not isinstance(fmt, Number):
        return ""
    try:
        packed = pack(torch.tensor([value], dtype=torch.float32, device="cpu"), fmt)
    except ValueError:
        return ""
    bits = f"{int.from_bytes(bytes(packed.tolist()), 'little'):0{fmt.bits}b}"
    if not isinstance(fmt, FloatFormat):
        return bits
    start = int(fmt.signed)
    end = start + fmt.exp_bits
    return f"{bits[:start]} {bits[start:end]} {bits[end:]}".strip()


def recipe_table() -> Table:
    """Every named recipe with the first sentence of its description."""
    from lpkernels.nn.policies import policies
    from lpkernels.recipes import describe, recipes

    rows = [
        (name, "yes" if name in policies() else "", describe(name).splitlines()[0])
        for name in recipes()
    ]
    columns = ("name", "policy", "what")
    title = "Recipes (lpkernels recipes NAME: one in detail)"
    return make_table(columns, rows, words=columns, title=title)


def recipe_details(name: str) -> Table:
    """One recipe in detail, and the policy of its name, where there is one, as it is printed."""
    from lpkernels.nn import policies
    from lpkernels.recipes import describe, recipe

    has_policy = name in policies.policies()
    paragraphs = (policies.describe if has_policy else describe)(name).split("\n\n")
    rows = {
        "recipe": str(recipe(name)),
        "description": "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs),
    }
    if has_policy:
        keys = [line.split()[0] for line in str(policies.policy(name)).splitlines()[2:]]
        rows["policy"] = "keys " + ", ".join(keys)
    return details(rows, title=name)


def unit_table() -> Table:
    """Every named unit with the parameters of its step."""
    rows = []
    for unit in (UNITS | MODELS).values():
        acc = unit.accumulator
        recorded = unit.hardware if unit.evidence == "recordings" else unit.evidence
        numbers = (acc.block, acc.aligned_bits, acc.least_exponent)
        sizes = ("" if number is None else str(number) for number in numbers)
        result, adder = f"{acc.fmt} {acc.rounding}", acc.adder if acc.block else ""
        if adder == "aligned" and acc.has_core:
            adder = "exact"
        rows.append((unit.name, recorded, unit.instruction, result, adder, *sizes))
    columns = ("name", "recorded on", "instruction", "result", "adder", "block", "bits", "least")
    title = "Tensor cores (lpkernels units NAME: what is known of one)"
    return make_table(columns, rows, words=columns[:5], title=title)


def unit_details(unit: Unit) -> Table:
    """One unit in detail: its arithmetic, the source, and the unknown parameters."""
    rows = {
        "accumulator": str(unit.accumulator),
        "evidence": unit.evidence,
        "recorded on": unit.hardware,
        "instruction": unit.instruction,
        "recordings decide": unit.decided,
        "not known from them": unit.unknown,
        "source": _SOURCES[unit.evidence.partition(":")[0]],
    }
    return details(rows, title=unit.name)


def speed_table(
    speed: Speed, shape: tuple[int, int, int], operands: str, accumulator: str, threads: int
) -> Table:
    """One row: both rates and their ratio."""
    row = (f"{speed.emulated:.2f}", f"{speed.torch_float32:.2f}", f"{speed.ratio:.3f}")
    columns = ("accumulator", "GMAC/s", "torch fp32", "ratio")
    title = f"{' x '.join(map(str, shape))}, {operands} operands, {threads} threads"
    return make_table(columns, [(accumulator, *row)], words=columns[:1], title=title)


def tier_table(tiers: Mapping[str, float]) -> Table:
    """The share of products that each tier of the cpu backend did."""
    rows = [(tier, f"{share:.1%}", _TIERS[tier]) for tier, share in tiers.items()]
    words = ("tier", "what it is")
    return make_table(
        ("tier", "products", words[1]), rows, words=words, title="Kernels that did it"
    )
