"""Every function of torch that multiplies matrices is emulated, or listed as one that is not."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import get_overridable_functions

from lpkernels.nn._product_sizes import SIZES
from lpkernels.nn.torch_functions import emulation_of
from tests.support.autograd import Operators

PAGE = Path(__file__).parents[2] / "docs/layers.md"
NAMESPACES = {"torch": torch, "linalg": torch.linalg, "functional": F, "Tensor": Tensor}
# The operators that multiply matrices, but for those of solvers.
OPERATORS = {*SIZES, "aten::linalg_matrix_exp", "aten::ormqr", "aten::addr"}
V, M, B = (torch.randn(*[3] * dims) for dims in (1, 2, 3))
ENDS = torch.tensor([1, 2], dtype=torch.int32)
IMAGES = [torch.randn(1, 3, *[5] * dims) for dims in (1, 2, 3)]
KERNELS = [torch.randn(3, 3, *[3] * dims) for dims in (1, 2, 3)]
SPARSE = M.to_sparse()
# Arguments that fit functions of vectors, matrices, batches, chains, images.
ARGUMENTS: list[tuple[Any, ...]] = [
    (M,), (B,), ([M, M, M],), (M, 2), (V, V), (M, V), (M, M), (B, B), (SPARSE, M),
    (V, M, V), (M, M, M), (M, V, V), (M, B, B), (B, B, B), (M, SPARSE, M), (SPARSE, SPARSE, M),
    (M, M, B), (B, B, V), *zip(IMAGES, KERNELS, strict=True), (IMAGES[0], KERNELS[0], V),
    ("ij,jk", M, M), (M, ENDS, ENDS - 1), (ENDS - 1, M, ENDS - 1), (M, M, ENDS[[0, 0, 0]].long()),
]  # fmt: skip
STATE, GATES = torch.zeros(1, 3, 3), [torch.randn(3, 3), torch.randn(3, 3), V, V]
LSTM = [torch.randn(12, 3), torch.randn(12, 3), torch.randn(12), torch.randn(12)]
GRU = [x[:9] for x in LSTM]
LAYER, NUMBERS = (True, 1, 0.0, False, False, False), ([1], [0], [1], False, [0], 1)
HEADS = (3, 1, torch.randn(9, 3), torch.randn(9), None, None, False, 0.0, M, V)
# Arguments that only the function of this name takes.
OWN: dict[str, tuple[Any, ...]] = {
    "lstm": (B, (STATE, STATE), LSTM, *LAYER),
    "gru": (B, STATE, GRU, *LAYER),
    "rnn_tanh": (B, STATE, GATES, *LAYER),
    "rnn_relu": (B, STATE, GATES, *LAYER),
    "lstm_cell": (M, (M, M), *LSTM),
    "gru_cell": (M, M, *GRU),
    **dict.fromkeys(("rnn_tanh_cell", "rnn_relu_cell"), (M, M, *GATES)),
    "multi_head_attention_forward": (B, B, B, *HEADS),
    "convolution": (IMAGES[0], KERNELS[0], None, *NUMBERS),
    "_grouped_mm": (torch.randn(3, 4), torch.randn(2, 4, 4), ENDS),
    "grouped_mm": (torch.randn(2, 3, 4), torch.randn(2, 4, 4)),
}
# They take seconds.
SLOW = {"lobpcg", "svd_lowrank", "pca_lowrank"}


def copied(value: Any) -> Any:
    """A copy, which the function may change."""
    if isinstance(value, list | tuple):
        return type(value)(map(copied, value))
    return value.clone() if isinstance(value, Tensor) else value


def multiplies(function: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> bool:
    """Whether an operator that multiplies runs for some of the arguments."""
    for values in arguments:
        with torch.no_grad(), Operators() as operators:
            try:
                function(*copied(values))
            except Exception:
                continue
        if OPERATORS.intersection(operators.names):
            return True
    return False


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public functions of torch that take tensors, and `_grouped_mm`."""
    overridable = {f for listed in get_overridable_functions().values() for f in listed}
    for home, namespace in NAMESPACES.items():
        for name in dir(namespace):
            function = getattr(namespace, name)
            hidden = name.startswith("_") and name not in OWN
            if hidden or not callable(function) or isinstance(function, type):
                continue
            if home != "torch" or function in overridable or name in OWN:
                yield name, function


@pytest.mark.filterwarnings("ignore")
def test_every_function_that_multiplies_is_emulated_or_listed() -> None:
    (listed,) = re.findall(r"<!-- not emulated -->\n(.*?)\n\n", PAGE.read_text("utf-8"), re.DOTALL)
    names = set(re.findall(r"`(\w+)`", listed))
    for name, function in functions():
        if name not in SLOW:
            found = multiplies(function, [OWN[name]] if name in OWN else ARGUMENTS)
            emulated = emulation_of(function) is not None
            expected = emulated or not names.isdisjoint((name, name.rstrip("_")))
            assert expected or not found, f"{name} is neither emulated nor on {PAGE.name}"
            assert found or not emulated, f"no arguments show that {name} multiplies"
    assert all(any(hasattr(home, name) for home in NAMESPACES.values()) for name in names)
