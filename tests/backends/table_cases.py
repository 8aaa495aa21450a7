"""Tables, values and accumulators on which the kernels of tables are compared with the
reference."""

from functools import cache

import torch
from torch import Tensor

import lpkernels as lp
from lpkernels.formats import TableFormat

UNSIGNED = ("p3109_k8p3ue", "p3109_k7p4uf_sat", "p3109_k8p5ue_nan")


@cache
def tables() -> list[TableFormat]:
    """Posits, supernormals, logarithms, NF4, and tables with one property that these lack."""
    mixed = [3, 1, 4, 15, 9, 2, 6, 5, 13, 8, 7, 0]
    gaps = [-7, -3.3, -1, -(2.0**-30), 0, 2.0**-149, 2.0**-120, 2.0**-75, 2.0**-27, 0.5, 0.75, 9]
    close = [-1.0, 0.0, *(1.0 + i * 2.0**-23 for i in range(9)), 1.5, 3.0]
    return [
        lp.posit(8, 1), lp.posit(5, 2), lp.posit(16, 1), lp.supernormal(4, 3, 1, 1),
        lp.logarithmic(8, 8), lp.parse_format("nf4"),
        # Codes without an order, subnormals, an infinity that becomes NaN.
        TableFormat(gaps, "kernels_gaps", infinity="nan", codes=mixed, nan_code=29),
        # Boundaries on values, and on zero.
        TableFormat(range(-2, 3), "kernels_given", boundaries=[-2, 0, 0, 1.25]),
        TableFormat([0.0, 0.1, 0.25, 1.0, 3.0], "kernels_positive"),
        # Several thresholds in one cell of an index.
        TableFormat(close, "kernels_close"),
    ]  # fmt: skip


def values_of(table: TableFormat, dtype: torch.dtype, most: int = 3000) -> Tensor:
    """Values, boundaries and their neighbours in the dtype, values of all sizes, special ones."""
    generator = torch.Generator().manual_seed(7)
    near = torch.cat([torch.from_numpy(each.copy()) for each in table.tensors()[:2]])
    near = near[torch.randperm(len(near), generator=generator)[: most // 3]]
    sizes = torch.exp2(12 * torch.randn(500, dtype=torch.float64, generator=generator))
    wide = torch.randn(500, dtype=torch.float64, generator=generator) * sizes
    ends = [0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38, float("inf"), -float("inf"), float("nan")]
    if dtype == torch.float64:
        ends += [1e300, -1e300, 1e-300, -1e-300]
    x = torch.cat([near, wide]).to(dtype)
    if dtype in (torch.float32, torch.float64):
        end = torch.tensor(float("inf"), dtype=dtype)
        x = torch.cat([x, torch.nextafter(x, end), torch.nextafter(x, -end)])
    x = torch.cat([x, torch.tensor(ends, dtype=torch.float64).to(dtype)])
    return x[torch.randperm(len(x), generator=generator)]


def operands(number: int) -> tuple[Tensor, Tensor]:
    """A few rows and columns with zeros of both signs, and in some cases infinities or NaN."""
    generator = torch.Generator().manual_seed(number)
    m, k, n = [(3, 17, 5), (7, 9, 33), (1, 40, 2), (9, 24, 17)][number % 4]
    a, b = torch.randn(m, k, generator=generator), torch.randn(k, n, generator=generator)
    a = a * [0.3, 1.0, 4.0][number % 3]
    a[:, 2] = -0.0
    if number % 5 == 0:
        a[0, 0], a[-1, 1] = float("inf"), float("nan")
    return a, b
