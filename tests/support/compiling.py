"""torch.compile in tests: a compiler without a past, and its graphs."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Resets the compiler and allows recurrent layers, which torch compiles only where allowed."""
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(allow_rnn=True):
        yield
    torch._dynamo.reset()


def compiled(model: Any, dynamic: bool | None = None, backend: str = "aot_eager") -> Any:
    return torch.compile(model, fullgraph=True, backend=backend, dynamic=dynamic)


def graphs() -> int:
    """The number of graphs since the test began; a break of a graph fails."""
    assert not counters["graph_break"]
    return counters["stats"]["unique_graphs"]
