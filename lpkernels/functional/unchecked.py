"""Rounding, and an optimizer's step, for callers that check their arguments once and have many
tensors a step."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.functional._checks import axis as check_axis
from lpkernels.functional.seeds import seed_for
from lpkernels.ops import Ints, UpdateTensors, records, update
from lpkernels.rng import SITE_QUANTIZE, Role

__all__ = [
    "UpdateTensors",
    "check_axis",
    "packed",
    "records",
    "rounded",
    "rounded_by_row",
    "rows_of",
    "through_codes",
    "unpacked",
    "update",
]


def rounded(
    x: Tensor, quantizer: Ints, stochastic: bool, counts: Tensor | None, out: Tensor | None
) -> Tensor:
    """`quantize` of a floating tensor that needs no gradient, without its checks.

    counts: int64, 4 elements on x's device, to which the call adds; out may be x.
    """
    seed = seed_for(stochastic, None)
    call = (seed, Role.DIRECT, SITE_QUANTIZE, "auto")
    if out is not None:
        ops.quantize_counting_out(x, out, quantizer, counts, None, *call)
        return out
    if counts is None:
        return ops.quantize(x, quantizer, *call)
    return ops.quantize_counting(x, quantizer, counts, None, *call)


def packed(x: Tensor, fmt: Ints) -> Tensor:
    """`pack` of a tensor without gradient, without its checks.

    Raises: ValueError: a value without a code.
    """
    return ops.pack(x, fmt)


def unpacked(codes: Tensor, fmt: Ints, numel: int) -> Tensor:
    """`unpack` of codes that `packed` made, without its checks."""
    return ops.unpack(codes, fmt, (numel,))


def rows_of(quantizers: Sequence[Ints]) -> Tensor:
    """The quantizers as rows of a table for a compiled graph to read when it runs; int64, on the
    CPU."""
    rows = [[len(ints), *ints, *[0] * (ops.ROW - 1 - len(ints))] for ints in quantizers]
    return torch.tensor(rows, dtype=torch.int64, device="cpu").reshape(-1, ops.ROW)


def rounded_by_row(
    x: Tensor, table: Tensor, number: int, stochastic: bool, counts: Tensor | None
) -> Tensor:
    """`rounded` by a row of `rows_of`, where torch.compile traces."""
    row: Any = ops.Row(table, number, False, 0)
    call = (seed_for(stochastic, None, in_backward=True), Role.DIRECT, SITE_QUANTIZE, "auto")
    if counts is None:
        return ops.quantize(x, row, *call)
    return ops.quantize_counting(x, row, counts, None, *call)


def through_codes(x: Tensor, flag: Tensor, table: Tensor, number: int, bits: int) -> Tensor:
    """x, packed into codes of ``bits`` bits and unpacked again; its values are values of a row's
    format.

    flag: becomes True where a value has no code; x is then lost.
    """
    row = ops.Row(table, number, False, bits)
    return ops.unpack(ops.encode(x, flag, row), row, x.shape)


@functools.cache
def keeps_codes() -> Any:
    """A partitioner for torch.compile that keeps tensors of `through_codes` for backward as
    codes."""
    # The compiler takes seconds to import.
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor import custom_graph_pass
    from torch.utils.checkpoint import CheckpointPolicy

    # Newer versions of the compiler take no partitioner of another class; older ones have none.
    partitioner: Any = getattr(custom_graph_pass, "CustomPartitionerFn", object)

    class KeepsCodes(partitioner):
        def __call__(self, graph: Any, inputs: Any, **options: Any) -> Any:
            for node in graph.graph.nodes:
                if ops.is_decoding(node.target):
                    node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
                    node.meta["ac_graph_id"] = 0
            return min_cut_rematerialization_partition(graph, inputs, **options)

        def uuid(self) -> str:
            """The name by which the compiler's cache knows this partitioner."""
            return "lpkernels.KeepsCodes.1"

    return KeepsCodes()
