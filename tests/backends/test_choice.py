"""The order in which "auto" asks the backends of a GPU."""

import pytest
import torch

from lpkernels import backends


def test_the_first_backend_that_has_the_operation_is_chosen(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def why_not(name: str) -> str:
        asked.append(name)
        return f"no {name} here"

    monkeypatch.setattr(backends, "_why_not", why_not)
    monkeypatch.setattr(backends, "_chosen", {})
    for operation, order in backends.gpu_orders().items():
        with pytest.raises(NotImplementedError, match="no cuda here"):
            backends.select("auto", operation, torch.device("cuda", 7))
        assert asked == [*order, "reference"]
        asked.clear()
