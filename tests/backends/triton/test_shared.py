"""The tests that all backends share, of the triton backend."""

import pytest

from lpkernels.backends.triton.elementwise import packing, quantize
from tests.backends.shared_elements import *  # noqa: F403
from tests.backends.shared_products import *  # noqa: F403


@pytest.fixture(autouse=True)
def large_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes about as long for a block of any size."""
    monkeypatch.setattr(quantize, "_BLOCK", 1 << 13)
    monkeypatch.setattr(packing, "_WORDS", 256)
