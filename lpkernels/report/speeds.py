"""Tables about the speed of one product and the kernels that did it."""

from rich.table import Table

import lpkernels
from lpkernels.experiments.measuring.speed import Speed
from lpkernels.report.tables import add_numbers

_TIERS = {
    "hardware": "e5m10 by half-precision instructions of the processor (AVX512-FP16, FEAT_FP16)",
    "certified": "the operands prove float32 or double sums safe; a few operations a product",
    "float": "float32 sums made odd, any operands, up to 21 mantissa bits (AVX-512)",
    "double": "everything, also more than 21 bits and products rounded in any way",
}


def speed_table(speed: Speed, shape: str, operands: str, accumulator: str, threads: int) -> Table:
    """One row: both rates and their ratio."""
    table = Table("accumulator", title=f"{shape}, {operands} operands, {threads} threads")
    add_numbers(table, "GMAC/s", "torch fp32", "ratio")
    rates = (f"{speed.emulated:.2f}", f"{speed.torch_float32:.2f}")
    table.add_row(accumulator, *rates, f"{speed.ratio:.3f}")
    return table


def tier_table(tiers: dict[str, float]) -> Table:
    """The share of products that each tier of the cpu backend did."""
    table = Table("tier", title="Kernels that did it")
    add_numbers(table, "products")
    table.add_column("what it is")
    for tier, share in tiers.items():
        table.add_row(tier, f"{share:.1%}", _TIERS[tier])
    return table


def order_table() -> Table:
    """The order in which "auto" asks the cuda and triton backends on a CUDA device."""
    table = Table("operation", "first", "evidence", title="On a CUDA device")
    for operation, order in lpkernels.backends.gpu_orders().items():
        table.add_row(operation, order[0], "instructions counted, not measured")
    return table
