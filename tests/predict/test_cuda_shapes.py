"""The predictions give products the sizes that the cuda adapter passes on."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from bench.predict.shapes import products
from lpkernels.backends.cuda import BACKEND, _conv, _launch, _products
from tests.loops import each
from tests.predict.calls import CASES, Case, call, run
from tests.support import cuda_host


@contextlib.contextmanager
def asked() -> Iterator[list[dict[str, Any]]]:
    """Inside this context the adapter runs on the CPU, and its products are noted, not made."""
    found: list[dict[str, Any]] = []
    module = SimpleNamespace(
        cuda_multiply=lambda **told: found.append(told),
        cuda_scratch_bytes=lambda **_: 0,
        cuda_pack_operand=lambda **_: None,
        cuda_frame=lambda **_: None,
    )
    with cuda_host.replaced((_conv, _products, _launch), lambda: module):
        yield found


@each("case", CASES.values())
def test_products_have_the_sizes_of_the_adapter(case: Case) -> None:
    with asked() as found:
        run(BACKEND, case)
    shapes = products(call(case), "cuda")
    assert [[s.matrices, s.m, s.n, s.k] for s in shapes] == [f["sizes"] for f in found]
    # The third of an operand's integers says whether taps are absent; the fourth is the number of
    # its elements.
    operands = [[f["left"][2:4], f["right"][2:4]] for f in found]
    assert [s.packed for s in shapes] == [(a[1], b[1]) for a, b in operands]
    assert [s.absent for s in shapes] == [bool(a[0] or b[0]) for a, b in operands]
    # Positions of steps; tables of lanes or steps.
    assert [s.skips for s in shapes] == [bool(f["tensors"][2]) for f in found]
    assert [s.tables for s in shapes] == [bool(case.op != "matmul")] * len(found)


def test_nothing_is_multiplied_where_nothing_comes_out() -> None:
    sizes = ((0, 4), (4, 5))
    assert products(call(CASES["matmul"]._replace(sizes=sizes)), "cuda") == []
