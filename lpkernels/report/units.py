"""Tables of tensor cores: all named ones, one in detail, and two compared on a network."""

from collections.abc import Sequence

from rich.table import Table

from lpkernels.arithmetic import MODELS, UNITS, Unit
from lpkernels.experiments.records import Run
from lpkernels.experiments.sweeps.unit_comparison import Comparison, Difference
from lpkernels.report.tables import add_numbers, last_value, value_text


def unit_table() -> Table:
    """Every named unit with the parameters of its step."""
    table = Table(title="Tensor cores (lpkernels units NAME: what is known of one)")
    table.add_column("name", no_wrap=True)
    table.add_column("recorded on")
    table.add_column("instruction")
    add_numbers(table, "block", "bits")
    table.add_column("result")
    add_numbers(table, "least")
    for unit in (UNITS | MODELS).values():
        acc = unit.accumulator
        least = "" if acc.least_exponent is None else str(acc.least_exponent)
        recorded = unit.hardware if unit.evidence == "recordings" else unit.evidence
        cells = (recorded, unit.instruction, str(acc.block), str(acc.aligned_bits))
        table.add_row(unit.name, *cells, f"{acc.fmt} {acc.rounding}", least)
    return table


def unit_details(unit: Unit) -> Table:
    """One unit in detail: its arithmetic, the source, and the unknown parameters."""
    table = Table(title=unit.name, show_header=False)
    table.add_column("what", no_wrap=True)
    # An accumulator is one long word.
    table.add_column("known", overflow="fold")
    for row in (
        ("accumulator", str(unit.accumulator)),
        ("evidence", unit.evidence),
        ("recorded on", unit.hardware),
        ("instruction", unit.instruction),
        ("recordings decide", unit.decided),
        ("not known from them", unit.unknown),
        ("source", SOURCES[unit.evidence]),
    ):
        table.add_row(*row)
    return table


#: Where units come from, by their evidence.
SOURCES = {
    "recordings": "Khattak and Mikaitis 2026, doi:10.1145/3830409, arXiv 2512.07004, recordings of "
    "MATLAB-tensor-core, and what docs/tensor-cores.md names",
    "model only": "MMA-Sim, arXiv 2511.10909, the program microsoft/MMA-Sim: a model, no recording",
}


def difference_table(found: Sequence[Difference], *, title: str) -> Table:
    """A row for each set of weights."""
    table = Table("weights", title=title)
    add_numbers(table, "outputs", "differ", "largest difference", "largest output", "predictions")
    for each in found:
        weights = each.weights if each.weights == "untrained" else f"trained in {each.weights}"
        table.add_row(
            weights,
            str(each.outputs),
            f"{each.differ} ({each.differ / max(each.outputs, 1):.1%})",
            f"{each.largest_difference:.3g}",
            f"{each.largest_output:.3g}",
            f"{each.predicted_otherwise} of {each.predictions} differ",
        )
    return table


def block_note(comparison: Comparison, longest: int | None) -> str:
    """Says that no sum is longer than a block, if so; longest: of the network's forward sums."""
    blocks = comparison.blocks()
    if longest is None or not blocks or longest > min(blocks.values()):
        return ""
    sizes = " and ".join(f"{block} in {name}" for name, block in blocks.items())
    return (
        f"no forward sum is longer than a block: the longest has {longest} products, a block "
        f"{sizes}; so these outputs do not show how sums go on from block to block: choose a wider "
        "network"
    )


def training_table(runs: Sequence[Run], *, title: str) -> Table:
    """A row for each side, the figures after its last epoch."""
    metric = runs[0].metric
    table = Table("arithmetic", title=title)
    add_numbers(table, metric.label, "train loss", "seconds")
    for run in runs:
        loss = last_value(run, "train_loss")
        table.add_row(
            run.name,
            value_text(last_value(run, metric.field), metric),
            "not finite" if loss is None else f"{loss:.4f}",
            f"{run.seconds:.1f}",
        )
    return table
