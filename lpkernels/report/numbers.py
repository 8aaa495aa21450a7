"""Tables about number formats: all named ones, one in detail, and values sent through one."""

from collections.abc import Sequence

from rich.table import Table

from lpkernels import formats
from lpkernels.experiments.measuring.probe import Probe
from lpkernels.formats import BlockFormat, FixedFormat, FloatFormat, Format, Number, TableFormat
from lpkernels.report.tables import add_numbers


def named_formats() -> Table:
    """A row for every named float format."""
    table = Table(title="Named float formats")
    # A narrow terminal folds the figures before it cuts the names.
    table.add_column("name", min_width=max(map(len, formats.NAMED)))
    limits = ("max", "min normal", "min subnormal", "epsilon")
    add_numbers(table, "bits", "exp", "man", "bias", *limits)
    table.add_column("specials")
    table.add_column("overflow")
    for name, fmt in formats.NAMED.items():
        numbers = map(str, (fmt.bits, fmt.exp_bits, fmt.man_bits, fmt.bias))
        ends = (fmt.max, fmt.min_normal, fmt.min_subnormal, fmt.epsilon)
        texts = (f"{value:.6g}" for value in ends)
        table.add_row(name, *numbers, *texts, fmt.specials, fmt.overflow)
    return table


def aliases() -> Table:
    """A row for every alias of a block format, with the bits of a value and its share of scales."""
    table = Table(title="Aliases of block formats")
    table.add_column("alias", min_width=max(map(len, formats.ALIASES)))
    table.add_column("name")
    add_numbers(table, "bits")
    for alias, name in formats.ALIASES.items():
        table.add_row(alias, name, f"{formats.parse_format(name).bits:g}")
    return table


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


def named_tables() -> Table:
    """A row for every form of the names of tables, with the numbers of an example."""
    table = Table("name", "example", "values", title="Tables of values")
    add_numbers(table, "bits", "min", "max")
    for form, example, what in _TABLES:
        fmt = formats.parse_format(example)
        assert isinstance(fmt, TableFormat)
        table.add_row(form, example, what, str(fmt.bits), f"{fmt.min:.6g}", f"{fmt.max:.6g}")
    return table


# more values than these make no readable list
_MOST_VALUES = 256


def format_details(fmt: Format) -> Table:
    """The parameters and limits of one format, and its values where there are at most 256."""
    table = Table("field", "value", title=str(fmt), show_header=False)
    for field in _FIELDS[type(fmt)].split():
        value = getattr(fmt, field)
        table.add_row(field, f"{value:.9g}" if isinstance(value, float) else str(value))
    same = [name for name, named in formats.NAMED.items() if named == fmt]
    if same:
        table.add_row("names", ", ".join(same))
    if isinstance(fmt, Number) and fmt.bits <= 8:
        values = fmt.values()
        if len(values) <= _MOST_VALUES:
            table.add_row(f"{len(values)} values", "  ".join(f"{value:.6g}" for value in values))
    return table


_FIELDS: dict[type, str] = {
    FloatFormat: "bits exp_bits man_bits bias specials signed subnormals overflow max min_normal "
    "min_subnormal epsilon",
    FixedFormat: "bits word_bits frac_bits signed overflow min max quantum",
    formats.AffineFormat: "bits symmetric axis",
    TableFormat: "bits min max infinity nan_code boundary_bits",
    BlockFormat: "bits element block_size axis scale rule tensor_scale target steps",
}


def probes(rows: Sequence[Probe], *, title: str = "") -> Table:
    """The code, the result and the error of values that went through a format."""
    table = Table(title=title or None)
    add_numbers(table, "value", "code", "result", "error")
    for row in rows:
        table.add_row(repr(row.value), row.code or "-", f"{row.result:.9g}", f"{row.error:.3g}")
    return table
